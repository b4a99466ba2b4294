"""The archive of Spark's classes: which file it is, and what Java is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.verify.class_archive import DIRECTORY, find_archive
from tools.verify.findings import BadInput

HOTSPOT = "OpenJDK 64-Bit Server VM (build 17)"


def java(folder: Path, says: str) -> Path:
    """Make a program that says which Java it is."""
    made = folder / "java"
    made.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    made.chmod(0o755)
    return made


def test_java_makes_it_once_and_then_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    first = find_archive(java(tmp_path, HOTSPOT), "4.3.0")
    assert first is not None
    assert not first.made
    assert first.options == f"-XX:ArchiveClassesAtExit={first.file} -Xlog:disable"
    first.file.touch()
    second = find_archive(tmp_path / "java", "4.3.0")
    assert second is not None
    assert second.options == f"-XX:SharedArchiveFile={first.file} -Xlog:disable"
    other_spark = find_archive(tmp_path / "java", "4.4.0")
    other_java = find_archive(java(tmp_path, HOTSPOT + " 2"), "4.3.0")
    assert other_spark is not None
    assert other_java is not None
    assert len({first.file, other_spark.file, other_java.file}) == 3


def test_there_is_none_unless_a_directory_is_named_and_java_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    ran = tmp_path / "ran"
    assert find_archive(java(tmp_path, f"{HOTSPOT}' > {ran}; echo '"), "4.3.0") is None
    assert not ran.exists()  # it takes a second of a busy machine to be asked
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    assert find_archive(java(tmp_path, "Eclipse OpenJ9 VM"), "4.3.0") is None
    assert find_archive(tmp_path / "none", "4.3.0") is None


@pytest.mark.parametrize("named", ["none", "java", "a b", "a:b"])
def test_a_directory_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a:b").mkdir()
    monkeypatch.setenv(DIRECTORY, str(tmp_path / named))
    with pytest.raises(BadInput, match=f"{DIRECTORY}=.*{named}: name a directory that can be"):
        find_archive(java(tmp_path, HOTSPOT), "4.3.0")


def test_a_directory_where_all_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java runs what is there: another user's archive would be run as this one."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with pytest.raises(BadInput, match="all users can write there"):
        find_archive(java(tmp_path, HOTSPOT), "4.3.0")
