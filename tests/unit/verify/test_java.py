"""Which Java Spark gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.verify import spark_session
from tools.verify.findings import BadInput
from tools.verify.spark_session import find_java, java_version, why_not


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a JAVA_HOME with nothing else beside it."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    return tmp_path


def says(home: Path, said: str) -> Path:
    """Make a program that prints this Java version."""
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


def test_an_old_java_is_not_used(home: Path) -> None:
    old = says(home, 'openjdk version "11.0.2" 2019-01-15')
    assert java_version(old) == 11
    assert java_version(home / "none") == 0
    with pytest.raises(BadInput, match="Java 17"):
        find_java(home)


def test_the_java_of_the_wheel_is_wrapped(tmp_path: Path) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(spark_session._JAVA_WRAPPER.format(java="/bin/echo"))
    wrapper.chmod(0o755)
    given = [str(wrapper), "-a", "--add-modules=jdk.incubator.vector", "b c"]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout == "-a b c\n"


UNRESPONSIVE = """26/11/29 WARN StandaloneAppClient: Failed to connect to master 10.0.0.9:7077
org.apache.spark.SparkException: Exception thrown in awaitResult:
Caused by: java.io.IOException: Failed to connect to /10.0.0.9:7077
"""
NO_URL = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3356)
"""
NO_MEMORY = "Could not allocate compressed class space: 1073741824 bytes"


def test_a_failed_start_of_spark_is_explained_in_a_line() -> None:
    said = why_not("spark://10.0.0.9:7077", "An error occurred while calling None.x.", UNRESPONSIVE)
    assert said == "no master of a Spark cluster answers at spark://10.0.0.9:7077"
    said = why_not("local[x]", NO_URL, "")
    assert said == "Could not parse Master URL: 'local[x]' (--verbose shows all)"
    assert NO_MEMORY in why_not("local[*]", "[JAVA_GATEWAY_EXITED] Java gateway exited", NO_MEMORY)
