"""The pages of one member: waiting messages in a file of its data directory.

The file has no name and disappears with the process, so nothing has to be cleaned up, and nothing
in it is ever durable. A page is contiguous, in the first gap that is large enough. Gaps followed by
pages are punched to give their disk space back; a gap at the end is cut off the file. A page's
checksum is kept in memory by the page's user: after a lost write, the file may have an intact older
page of the same size at that place.
Decision: docs/decisions/0057-a-backlog-is-not-memory.md.

One thread packs and writes blocks, and another reads them, so that a reader does not wait while the
disk writes other messages. Code that applies items must not keep the loop waiting for the disk: it
runs on a stack of its own (`ApplyStack`), and pauses there.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import queue
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from greenlet import GreenletExit, getcurrent, greenlet
from xxhash import xxh3_64, xxh3_64_intdigest

from broker.waiting.pager import COUNTERS, Pager, Place, Work
from store.errors import BROKEN, NO_SPACE, NotWritable, StoreFailed, failed

log = logging.getLogger("qpidd")

TIDY_S = 2.0
"""The longest time from the last write or drop of a page until space is given back."""
NAME = "pages"
GRAIN = 4096
KEPT_FREE_BYTES = 512 << 20
KEPT_FREE_SHARE = 0.1
"""Pages leave KEPT_FREE_BYTES of their file system free, because the store needs them more; or a
tenth of it where that is less; and never less than `--disk-free-limit`."""
LOOK_BYTES = 8 << 20
"""The bytes written between two checks of the free space."""
PIECE_BYTES = 256 << 10
"""The size of the pieces in which a large body is read back."""
PUNCH_BYTES = 64 << 20
"""The most bytes of gaps that keep their disk space while pages are written, which may reuse it."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)
_BLOCK = 512  # what st_blocks counts


class Pages:
    """Makes the pager of each machine of this process; `limit_bytes` 0: all stays in memory."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._file = PageFile(directory) if limit_bytes else None

    def executor(self, wake: Callable[[], None], wanted_free: Callable[[], int]) -> ApplyStack:
        """Return the executor for items that may need pages; `wake` is that of an `ApplyStack`.
        From now on pages leave free what the operator wants free on their file system."""
        if self._file is not None:
            self._file.wanted_bytes = wanted_free
        return ApplyStack(wake)

    def pager(self) -> Pager | None:
        """Return the pager for this member's machine; starts the threads."""
        if self._file is None:
            return None
        read, write = _worker("page-reader"), _worker("page-writer", self._file.tidy)
        return Pager(self._file, self._limit_bytes, read, write, self._counts)

    @property
    def counters(self) -> Mapping[str, int]:
        """The number of pages written and read, and bytes on disk."""
        held = length = on_disk = 0
        if (file := self._file) is not None:
            held, length, on_disk = file.held_bytes, file.file_bytes, file.disk_bytes
        return {
            **self._counts, "held_bytes": held, "file_bytes": length, "disk_bytes": on_disk,
        }  # fmt: skip


class ApplyStack:
    """A second stack of the loop's thread, which can pause within a command.

    The loop switches to it with a piece of work, and goes on when that is done or needs a page that
    is not in memory; it switches back when the page was read. Only one of the two ever runs, so
    nothing that the work touches needs a lock, and the effect is the same as that of a plain call.
    If no page is on disk, it is a plain call. Greenlets are such stacks: a switch there and back
    takes half a microsecond, where a thread takes 5 to 60.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called by any thread when the waiting work may go on."""
        self.wake = wake
        self._stack: greenlet | None = None
        self._may_go_on: Callable[[], bool] | None = None

    # -- the loop's side (`unapplied.Executor`) --------------------------------------------------

    def run(self, pager: Pager | None, work: Work) -> bool:
        """Do it; False: it waits for a page."""
        if pager is None:
            work()
            return True
        if pager.written or pager.gone:  # most members never have a page: not a call for that
            pager.settle()
        if not pager.pages:
            pager.steady = True
            try:
                work()
            finally:
                pager.steady = False
            return True
        pager.waiter = self
        if self._stack is None:
            self._stack = greenlet(_run)
        return self._switch(work)

    def resume(self) -> bool:
        """Go on; False: it waits again."""
        return self._switch(None)

    def _switch(self, work: Work | None) -> bool:
        assert self._stack is not None
        outcome: bool | list[BaseException] = self._stack.switch(work)
        if isinstance(outcome, list):
            raise outcome.pop()
        return outcome

    def drop(self) -> None:
        """Abandon the waiting work."""
        stack, self._stack, self._may_go_on = self._stack, None, None
        if stack is not None:
            stack.throw(GreenletExit)

    @property
    def ready(self) -> bool:
        """Whether the waiting work can go on."""
        return self._may_go_on is None or self._may_go_on()

    # -- the work's side (`pager.Waiter`) --------------------------------------------------------

    def runs_here(self) -> bool:
        """Whether the caller is the work."""
        return self._stack is not None and getcurrent() is self._stack

    def pause(self, may_go_on: Callable[[], bool]) -> None:
        """Let the loop go on until `may_go_on`."""
        self._may_go_on = may_go_on
        getcurrent().parent.switch(False)
        self._may_go_on = None


def _run(work: Work) -> None:
    """Do one piece of work after the other; the loop's side raises the work's exceptions."""
    loop = getcurrent().parent
    while True:
        outcome: bool | list[BaseException] = True
        try:
            work()
        except GreenletExit:
            return  # nobody waits for it any more
        except BaseException as error:
            outcome = [error]  # taken out there: a stack that waits holds what it has handed over
        del work  # it may hold the last reference to a page
        work = loop.switch(outcome)


def _worker(name: str, tidy: Callable[[], bool] = lambda: False) -> Callable[[Work], None]:
    """Start a thread that does work in order, and later tidies up until nothing is left to tidy;
    return the function that hands it work."""
    waiting: queue.SimpleQueue[Work] = queue.SimpleQueue()

    def run() -> None:
        untidy = False

        def tidied() -> None:
            nonlocal untidy
            untidy = tidy()

        while True:
            try:
                work = waiting.get(timeout=TIDY_S if untidy else None)
                untidy = True
            except queue.Empty:
                work = tidied
            try:
                work()
            except Exception as error:  # these messages stay where they are
                log.warning("pages of waiting messages: %r", error)
            del work  # it may hold the last reference to a page

    threading.Thread(target=run, name=name, daemon=True).start()
    return waiting.put


class PageFile:
    """Pages in a file of a directory. Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        path = directory / NAME
        try:
            path.unlink(missing_ok=True)  # of a start that was killed at this very place
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            path.unlink()
        except OSError as error:
            where = f"{path} cannot be made"
            if error.errno in (*BROKEN, *NO_SPACE):
                raise failed(where, error) from error
            raise NotWritable(f"{where}: {error.strerror or error}") from error
        self._where = str(directory)
        self.wanted_bytes: Callable[[], int] = lambda: 0
        self._lock = threading.Lock()
        self._gaps: list[tuple[int, int]] = []  # begin and end, ascending, none touches another
        self._end = self._held = 0
        self._on_disk = 0  # what the system said last
        self._hollow = 0  # bytes of the gaps that may take space on disk
        self._punches = _FALLOCATE is not None
        self._unwatched = LOOK_BYTES  # bytes written since the last look
        self._room = True
        self._trouble = 0  # what the last write met
        # The last reference to a page may be dropped anywhere, also while this lock is held.
        self._dropped: deque[Place] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes of the file in use, or in use until a moment ago."""
        return self._held

    @property
    def file_bytes(self) -> int:
        """The length of the file."""
        return self._end

    @property
    def disk_bytes(self) -> int:
        """The disk space that the file takes, or took a moment ago."""
        return self._on_disk

    def put(self, data: bytes | list[bytes]) -> Place | None:
        """Write these bytes, or their parts in order; None: there is no room for them now."""
        parts = [data] if isinstance(data, bytes) else data
        size = sum(map(len, parts))
        with self._lock:
            self._reclaim()
            if self._hollow >= PUNCH_BYTES:
                self._punch()
            if not self._has_room(size):
                return None
            begin = self._allocate(size)
        written, checksum = 0, xxh3_64()
        try:
            for part in parts:
                done = os.pwrite(self._fd, part, begin + written)
                written += done
                if done < len(part):
                    break  # the disk is full
                checksum.update(part)
        except OSError as error:
            written = 0
            self._cannot_write(error)
        place = begin, size, checksum.intdigest()
        if written == size:
            self._trouble = 0
            self._measure()
            return place
        self.drop(place)
        return None

    def get(self, place: Place) -> bytes:
        """Return the bytes at `place`. Raises StoreFailed."""
        begin, size, checksum = place
        try:
            found = os.pread(self._fd, size, begin)
        except OSError as error:
            raise StoreFailed(f"a page in {self._where} cannot be read: {error}") from error
        if len(found) != size or xxh3_64_intdigest(found) != checksum:
            raise StoreFailed(f"a page in {self._where} is not what was written there")
        return found

    def pieces(self, place: Place) -> Iterator[bytes]:
        """Yield the bytes at `place`, piece by piece. Raises StoreFailed."""
        begin, size, checksum = place
        found, hasher = 0, xxh3_64()
        while found < size:
            try:
                piece = os.pread(self._fd, min(PIECE_BYTES, size - found), begin + found)
            except OSError as error:
                raise StoreFailed(f"a page in {self._where} cannot be read: {error}") from error
            if not piece:
                break
            found += len(piece)
            hasher.update(piece)
            yield piece
        if found != size or hasher.intdigest() != checksum:
            raise StoreFailed(f"a page in {self._where} is not what was written there")

    def drop(self, place: Place) -> None:
        """The page at `place` is not needed any more."""
        self._dropped.append(place)

    def tidy(self) -> bool:
        """Give unused space back to the file system; return whether there may be more later."""
        with self._lock:
            self._reclaim()
            if self._hollow:
                self._punch()
            self._measure()
            return self._end > 0

    def _measure(self) -> None:
        with suppress(OSError):
            self._on_disk = os.fstat(self._fd).st_blocks * _BLOCK

    def _has_room(self, size: int) -> bool:
        self._unwatched += size
        if self._unwatched >= LOOK_BYTES:
            self._unwatched = 0
            try:
                found = os.statvfs(self._fd)
            except OSError as error:
                self._cannot_write(error)
                return False
            least = min(KEPT_FREE_BYTES, int(found.f_blocks * found.f_frsize * KEPT_FREE_SHARE))
            least = max(least, self.wanted_bytes())
            room = found.f_bavail * found.f_frsize > least + 2 * LOOK_BYTES
            if self._room and not room:
                log.warning(
                    "messages that wait stay in memory: %s has too little free space for more "
                    "pages", self._where,
                )  # fmt: skip
            self._room = room
        return self._room

    def _cannot_write(self, error: OSError) -> None:
        """The messages stay in memory; log the reason once, not for each page."""
        trouble = error.errno or -1
        if trouble != self._trouble and trouble not in (errno.ENOSPC, errno.EDQUOT):
            log.warning("a page cannot be written in %s: %s", self._where, error)
        self._trouble = trouble

    def _allocate(self, size: int) -> int:
        size = _rounded(size)
        self._held += size
        for at, (begin, end) in enumerate(self._gaps):
            if end - begin >= size:
                if end - begin == size:
                    del self._gaps[at]
                else:
                    self._gaps[at] = begin + size, end
                self._hollow = max(0, self._hollow - size)
                return begin
        begin, self._end = self._end, self._end + size
        return begin

    def _reclaim(self) -> None:
        while self._dropped:
            begin, size, _ = self._dropped.popleft()
            size = _rounded(size)
            self._held -= size
            self._hollow += size
            self._add_gap(begin, begin + size)
        if self._gaps and self._gaps[-1][1] == self._end:
            self._end = self._gaps.pop()[0]
            with suppress(OSError):  # it stays as long as it is, and is written there again
                os.ftruncate(self._fd, self._end)
        if not self._gaps:
            self._hollow = 0

    def _punch(self) -> None:
        """Release the disk space of all gaps, where the file system can do that."""
        self._hollow = 0
        for begin, end in self._gaps if self._punches else ():
            trouble = _punch_hole(self._fd, begin, end - begin)
            if trouble:
                self._punches = trouble not in (errno.EOPNOTSUPP, errno.ENOSYS)
                return  # it is written there again, and the end of the file is cut as ever

    def _add_gap(self, begin: int, end: int) -> None:
        gaps = self._gaps
        at = bisect_left(gaps, (begin, end))
        if at < len(gaps) and gaps[at][0] == end:
            end = gaps.pop(at)[1]
        if at and gaps[at - 1][1] == begin:
            at -= 1
            begin = gaps.pop(at)[0]
        gaps.insert(at, (begin, end))


def _rounded(size: int) -> int:
    return max(1, -(-size // GRAIN)) * GRAIN


def _found_fallocate() -> Callable[..., int] | None:
    """Return fallocate(2) for offsets of 64 bits, if this system has it; Python has none with a
    mode."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if found is not None:
        found.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
    return found


_FALLOCATE = _found_fallocate()


def _punch_hole(file: int, begin: int, size: int) -> int:
    """Give back the disk space of this part of a file; return the error, or 0."""
    assert _FALLOCATE is not None
    if _FALLOCATE(file, _PUNCH_HOLE | _KEEP_SIZE, begin, size) == 0:
        return 0
    return ctypes.get_errno()
