"""Archive of the classes that Spark loads: Java begins with it in half the time.

Java makes it at the end of the first check, and maps it into memory at the start of later ones.  It
is of one Java and one Spark, so its name has both; Java itself refuses one that does not fit.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from stat import S_IWOTH
from typing import NamedTuple
from zlib import crc32

from tools.verify.findings import BadInput

DIRECTORY = "QPID_VERIFY_CACHE"
WRITE_S = 120.0  # for some 170 MB, on a busy machine


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


def find_archive(java: Path, spark_version: str) -> ClassArchive | None:
    """Return the archive in the directory that the environment names; None where it names none.

    `BadInput` for a directory that cannot be used.  Only HotSpot has such archives.
    """
    if not (named := os.environ.get(DIRECTORY)):
        return None
    version = _version(java)
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


def _version(java: Path) -> str:
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr
