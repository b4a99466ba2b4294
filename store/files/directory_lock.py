"""A lock on a directory for one process: an flock on a small file that names the owner.

The kernel releases the lock however the owner ends, so there are no stale locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from store.errors import StoreBusy
from store.files.durable_files import explain

LOCK_NAME = "owner.lock"


class DirectoryLock:
    """A lock held from construction to `release`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, directory) from error
        try:
            _take(self._fd)
        except OSError as error:
            pid = _read_pid(self._fd)
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreBusy(str(directory), pid) from None
            raise explain(error, directory) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds, but names no owner
            os.ftruncate(self._fd, 0)
        self.touch()

    def touch(self) -> None:
        """Write the owner again: blocks only this thread, while the file system takes no write."""
        with contextlib.suppress(OSError):  # a full or read-only disk counts as written
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_holder(directory: Path) -> StoreBusy | None:
    """Return the current owner of the directory, without locking or writing anything."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return StoreBusy(str(directory), _read_pid(fd))
    finally:
        os.close(fd)
    return None


def _take(fd: int) -> None:
    """Lock, or give up after a tenth of a second: another process's `lock_holder` is shorter."""
    for _ in range(5):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
