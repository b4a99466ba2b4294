"""Disks for members that can be filled and frozen: for each data directory a file system in a file.

This needs the right to mount; `why_not` says what is missing.  The mounts belong to this process
and its children, so that none is left when it is killed.
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
    """Run one command.  Raises CalledProcessError, with its error output in `stderr`."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


@cache
def keep_mounts_private() -> None:
    """Keep the mounts of this thread, and of the processes it starts, private.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")


@cache
def why_not() -> str:
    """Return why such disks cannot be used here, "" if they can.  Tries, and cleans up."""
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
    """A separate ext4 file system, mounted at a directory."""

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
        """Return the space that a process may still write."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space except this much, as another process on the machine would."""
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
        """Free the space that `fill` took."""
        (self.path / BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Make every write wait, as behind a controller that does not answer."""
        if not self.frozen:
            run("fsfreeze", "-f", self.path)
            self.frozen = True

    def thaw(self) -> None:
        """Let the writes continue."""
        if self.frozen:
            run("fsfreeze", "-u", self.path)
            self.frozen = False

    def become_read_only(self) -> None:
        """Do as ext4 at an error of the device: refuse writes, also to open files."""
        run("mount", "-o", "remount,abort", self.path)

    def vanish(self) -> None:
        """Remove its files from their names; processes that have them open can continue."""
        run("umount", "-l", self.path)

    def mend(self) -> None:
        """Repair the file system and mount it again."""
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", self.path)
        with contextlib.suppress(subprocess.CalledProcessError):
            run("fsck.ext4", "-p", self._image)  # a non-zero code says that it repaired something
        run("mount", "-o", "loop", self._image, self.path)

    def close(self) -> None:
        """Remove the file system with its contents."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.thaw()
            run("umount", "-l", self.path)
        self._image.unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(paths: Sequence[Path], size_mib: int = 64) -> Iterator[list[SmallDisk]]:
    """A disk at each of the paths, which are empty directories or do not exist; skips the test if
    disks cannot be made."""
    if paths and (lacking := why_not()):
        pytest.skip(f"no disks of their own: {lacking}")
    disks: list[SmallDisk] = []
    try:
        disks.extend(SmallDisk(path, size_mib) for path in paths)
        yield disks
    finally:
        for disk in disks:
            disk.close()
