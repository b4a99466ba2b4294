"""Java: which one Spark gets, and the archive of Spark's classes that it is told of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.verify import java
from tools.verify.findings import BadInput
from tools.verify.java import DIRECTORY, find_archive, find_java, java_version

HOTSPOT = "OpenJDK 64-Bit Server VM (build 17)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a JAVA_HOME, and beside it nothing else."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    return tmp_path


def says(home: Path, said: str) -> Path:
    """Make a program that says which Java it is."""
    made = home / "bin" / "java"
    made.parent.mkdir(exist_ok=True)
    made.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    made.chmod(0o755)
    return made


def test_without_java_the_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(BadInput, match=r"Java 17 .*\[verify\]"):
        find_java(home)


def test_an_old_java_is_not_taken(home: Path) -> None:
    old = says(home, 'openjdk version "11.0.2" 2019-01-15')
    assert java_version(old) == 11
    assert java_version(home / "none") == 0
    with pytest.raises(BadInput, match="Java 17"):
        find_java(home)


def test_the_java_of_the_wheel_is_wrapped(tmp_path: Path) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(java._JAVA_WRAPPER.format(java="/bin/echo"))
    wrapper.chmod(0o755)
    given = [str(wrapper), "-a", "--add-modules=jdk.incubator.vector", "b c"]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout == "-a b c\n"


def test_java_makes_the_archive_once_and_then_begins_with_it(home: Path) -> None:
    says(home, HOTSPOT)
    first = find_archive("4.3.0")
    assert first is not None
    assert not first.made
    assert first.options == f"-XX:ArchiveClassesAtExit={first.file} -Xlog:disable"
    first.file.touch()
    second = find_archive("4.3.0")
    assert second is not None
    assert second.options == f"-XX:SharedArchiveFile={first.file} -Xlog:disable"
    other_spark = find_archive("4.4.0")
    says(home, HOTSPOT + " 2")
    other_java = find_archive("4.3.0")
    assert other_spark is not None
    assert other_java is not None
    assert len({first.file, other_spark.file, other_java.file}) == 3


def test_there_is_no_archive_unless_a_directory_is_named_and_java_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY)
    ran = home / "ran"
    says(home, f"{HOTSPOT}' > {ran}; echo '")
    assert find_archive("4.3.0") is None
    assert not ran.exists()  # it takes a second of a busy machine to be asked
    monkeypatch.setenv(DIRECTORY, str(home))
    says(home, "Eclipse OpenJ9 VM")
    assert find_archive("4.3.0") is None
    monkeypatch.setenv("JAVA_HOME", str(home / "none"))
    assert find_archive("4.3.0") is None


@pytest.mark.parametrize("named", ["none", "bin/java", "a b", "a:b"])
def test_a_directory_that_cannot_be_used_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (home / "a b").mkdir()
    (home / "a:b").mkdir()
    says(home, HOTSPOT)
    monkeypatch.setenv(DIRECTORY, str(home / named))
    with pytest.raises(BadInput, match=f"{DIRECTORY}=.*{named}: name a directory that can be"):
        find_archive("4.3.0")


def test_a_directory_where_all_may_write_is_refused(home: Path) -> None:
    """Java runs what is there: another user's archive would be run as this one."""
    says(home, HOTSPOT)
    home.chmod(0o1777)
    with pytest.raises(BadInput, match="all users can write there"):
        find_archive("4.3.0")
