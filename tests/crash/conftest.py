"""The library that records writes, compiled once per session."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "record_writes.c"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NOTHING OF CRASH POINTS WAS TESTED: there is no C compiler (cc)")
    target = tmp_path_factory.mktemp("library") / "record_writes.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, *flags, "-o", str(target), str(SOURCE), "-ldl", "-lpthread"], check=True
    )
    return target
