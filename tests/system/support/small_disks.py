"""Disks of members that can be filled and frozen: a file system in a file for each data directory.

All this needs the right to mount; `why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

MIB = 1 << 20
BALLAST = "ballast"


def run(*words: str | Path) -> None:
    """Run one command.  Raises CalledProcessError, with what it said in `stderr`."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


@cache
def why_not() -> str:
    """Return why such disks cannot be had here, "" when they can.  Tries, and cleans up."""
    try:
        with tempfile.TemporaryDirectory() as name, mounted([Path(name) / "try"], 16) as disks:
            disks[0].freeze()
            disks[0].thaw()
            return ""
    except FileNotFoundError as missing:
        return f"the command {missing.filename} is not installed"
    except subprocess.CalledProcessError as refused:
        return f"{' '.join(refused.cmd)}: {refused.stderr.decode(errors='replace').strip()}"


class SmallDisk:
    """An ext4 file system of its own, mounted at a directory."""

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self.frozen = False
        self._image = path.with_name(f"{path.name}.image")
        self._image.touch()
        os.truncate(self._image, size_mib * MIB)
        path.mkdir(parents=True, exist_ok=True)
        run("mkfs.ext4", "-q", "-m", "0", self._image)
        run("mount", "-o", "loop", self._image, path)
        (path / "lost+found").rmdir()

    def free_bytes(self) -> int:
        """Return what a process may still write."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all the space but so much, as another process on the machine would."""
        with (self.path / BALLAST).open("ab") as ballast:
            while (more := self.free_bytes() - leave_bytes) > 0:
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.tell(), more)
                except OSError:
                    break  # the rest is what the file system needs for itself
                ballast.seek(0, os.SEEK_END)

    def relieve(self) -> None:
        """Give back what `fill` took."""
        (self.path / BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Let every write wait, as behind a controller that does not answer."""
        if not self.frozen:
            run("fsfreeze", "-f", self.path)
            self.frozen = True

    def thaw(self) -> None:
        """Let the writes go on."""
        if self.frozen:
            run("fsfreeze", "-u", self.path)
            self.frozen = False

    def close(self) -> None:
        """Give everything up; what was on it is gone."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.thaw()
            run("umount", "-l", self.path)
        self._image.unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(paths: Sequence[Path], size_mib: int) -> Iterator[list[SmallDisk]]:
    """A disk at each of the paths, which are empty directories or nothing yet."""
    disks: list[SmallDisk] = []
    try:
        disks.extend(SmallDisk(path, size_mib) for path in paths)
        yield disks
    finally:
        for disk in disks:
            disk.close()
