"""The libraries that record writes and make operations fail, compiled once per session."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the library that records writes."""
    return _compiled("record_writes", tmp_path_factory)


@pytest.fixture(scope="session")
def failing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the library that makes operations fail."""
    return _compiled("fail_calls", tmp_path_factory)


def _compiled(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOTHING OF CRASH POINTS WAS TESTED: there is no C compiler (cc)")
    target = tmp_path_factory.mktemp("library") / f"{name}.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *flags, "-o", str(target), str(HERE / f"{name}.c"), "-ldl", "-lpthread"],
        check=True,
    )
    return target
