"""Space reserved before it is needed: blocks ahead of a store's file, and an emergency reserve.

LMDB cannot be trusted after a commit that met a full disk, so no commit may meet one: it writes
into blocks that the file owns already. Between two looks at the file's real end an upper bound
decides whether they suffice. A file system that copies on write, or cannot allocate, gives no
guarantee. Blocks not needed yet are taken only if enough is left for others: without the member log
nothing is acked, so no queue could be drained.

The reserve is a file that is given up when a write finds no other space. It lets a member with a
full disk run for a while, so that its queues can be drained, and lets it stop in order and start
again. It is taken back when there is room.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from store.errors import NO_SPACE, NoSpace

RESERVE_NAME = "reserve"
RESERVE_BYTES = 32 << 20
RESERVE_SHARE = 0.05
"""The share of the file system, if that is less."""
START_BYTES = 4 << 20
"""A member that starts with less free space than this gives the reserve up at once."""
STEP_BYTES = 8 << 20
BESIDE_BYTES = 256 << 10
"""Bytes that one transaction writes beside its data: paths in the tree, lists of free pages."""
LAST_BYTES = START_BYTES // 4
"""The last free space of a disk, without which no start is attempted; only urgent writes use it."""
UNFINISHED = ".part"
"""Suffix of a file that is being written; the file gets its own name when it is whole."""
_CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class OwnedSpace:
    """The blocks of one file. `used` returns where its used pages end."""

    def __init__(self, path: Path, used: Callable[[], int]) -> None:
        self._path, self._used = path, used
        self._end = self._owned = 0  # upper bound of the used end, and the blocks owned
        self._known = False

    def own(self, size: int, leave: int = 0) -> None:
        """Make sure that a transaction of `size` bytes has its blocks; raises NoSpace.

        New blocks are taken only if `leave` bytes of the disk remain free.
        """
        need = size + size // 16 + BESIDE_BYTES
        if not self._known or self._end + need > self._owned:
            self._end = self._used()
            self._known = True
            if self._end + need > self._owned:
                self._allocate(need, leave)
        self._end += need

    def _allocate(self, need: int, leave: int) -> None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._grow(fd, need, leave)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _CANNOT:
                self._owned = 1 << 62  # a shortage shows only when it is written
            elif error.errno in NO_SPACE:
                raise NoSpace(f"{self._path.parent}", need) from error
            else:
                raise

    def _grow(self, fd: int, need: int, leave: int) -> None:
        """Allocate more than is needed, or, if that is not available, exactly what is needed."""
        start, found = self._end, os.fstat(fd)
        there = min(found.st_size, found.st_blocks * 512)  # a file may have holes
        for length, left in ((need + STEP_BYTES, max(leave, START_BYTES)), (need, leave)):
            more = start + length - there
            try:
                if left and more > 0 and free_bytes(self._path.parent) < more + left:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.posix_fallocate(fd, start, length)
            except OSError as error:
                if length == need or error.errno not in NO_SPACE:
                    raise
            else:
                os.fsync(fd)  # the new length at once, so that the next commits have less to do
                self._owned = start + length
                return


def free_bytes(directory: Path) -> int:
    """Return the number of bytes that may still be written there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def has_room_for(directory: Path, size: int, leave: int = START_BYTES) -> bool:
    """Whether `size` bytes may be taken there while `leave` bytes stay free."""
    return free_bytes(directory) >= size + leave


def discard_unfinished(directory: Path) -> None:
    """Remove the half-written files of a process that was killed."""
    for leftover in directory.glob(f"*{UNFINISHED}"):
        leftover.unlink(missing_ok=True)


class Reserve:
    """The reserve of one data directory. Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / RESERVE_NAME
        self.given_up = False
        self._lock = threading.Lock()
        found = os.statvfs(directory)
        self.bytes = min(RESERVE_BYTES, int(found.f_blocks * found.f_frsize * RESERVE_SHARE))
        if found.f_bavail * found.f_frsize < START_BYTES:
            self.give_up()

    def demand_room(self) -> None:
        """Raise NoSpace if there is not even enough space for a start."""
        if free_bytes(self.path.parent) < LAST_BYTES:
            raise NoSpace(str(self.path.parent), LAST_BYTES)

    @property
    def held(self) -> bool:
        """Whether the reserve is in place."""
        return self.path.exists()

    def give_up(self) -> bool:
        """Release the space for the next write; False: it was given up before."""
        with self._lock:
            try:
                self.path.unlink()
            except OSError:
                return False
            self.given_up = True
            return True

    def tend(self, free: int) -> None:
        """Take the reserve, if it is not held and as much again would stay free."""
        if free < 2 * self.bytes + START_BYTES or self.held:
            return
        with self._lock:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            except OSError:
                return
            try:
                os.posix_fallocate(fd, 0, self.bytes)
            except OSError:
                self.path.unlink(missing_ok=True)
            else:
                self.given_up = False
            finally:
                os.close(fd)
