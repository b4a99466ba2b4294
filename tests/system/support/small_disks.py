"""Disks of members that can be filled and frozen: a file system in a file for each data directory.

All this needs the right to mount; `why_not` says what is missing. The mounts are this process's and
its children's alone, so that none is left when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

MIB = 1 << 20
BALLAST = "ballast"
STEP_BYTES = 16 * MIB
BLOCK_BYTES = 4096
_CLONE_NEWNS = 0x20000  # of unshare(2), which Python has from 3.12 on


def run(*words: str | Path) -> None:
    """Run one command.  Raises CalledProcessError, with what it said in `stderr`."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


@cache
def keep_mounts_private() -> None:
    """Have mounts of this thread's own, and of what it starts.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")


@cache
def why_not() -> str:
    """Return why such disks cannot be had here, "" when they can.  Tries, and cleans up."""
    try:
        keep_mounts_private()
        with tempfile.TemporaryDirectory() as name:
            disk = SmallDisk(Path(name) / "try", 16)
            disk.freeze()
            disk.close()
            return ""
    except FileNotFoundError as missing:
        return f"the command {missing.filename} is not installed"
    except OSError as refused:
        return str(refused)
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
        step = STEP_BYTES
        with (self.path / BALLAST).open("ab") as ballast:
            while (more := min(step, self.free_bytes() - leave_bytes)) > 0:
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.tell(), more)
                except OSError:
                    if step <= BLOCK_BYTES:
                        break  # the rest is what the file system needs for itself
                    step //= 2
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

    def become_read_only(self) -> None:
        """What ext4 does by itself at an error of the device: open files, too, take nothing."""
        run("mount", "-o", "remount,abort", self.path)

    def vanish(self) -> None:
        """Its files are at their names no more, though who has them open can go on."""
        run("umount", "-l", self.path)

    def mend(self) -> None:
        """Repair what is on it, and mount it again."""
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", self.path)
        with contextlib.suppress(subprocess.CalledProcessError):
            run("fsck.ext4", "-p", self._image)  # whose code says that it repaired something
        run("mount", "-o", "loop", self._image, self.path)

    def close(self) -> None:
        """Give everything up; what was on it is gone."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.thaw()
            run("umount", "-l", self.path)
        self._image.unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(paths: Sequence[Path], size_mib: int = 64) -> Iterator[list[SmallDisk]]:
    """A disk at each of the paths, which are empty directories or nothing yet; skips the test where
    there can be none."""
    if paths and (lacking := why_not()):
        pytest.skip(f"no disks of their own: {lacking}")
    disks: list[SmallDisk] = []
    try:
        disks.extend(SmallDisk(path, size_mib) for path in paths)
        yield disks
    finally:
        for disk in disks:
            disk.close()
