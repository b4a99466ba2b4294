"""A member log whose file is written by a thread: the loop never waits for the disk.

The loop packs records and decides where segments end; the thread writes everything that has
gathered, at once. Then `written` advances and `on_written` is called; output to clients waits for
it (`broker.replication.member`). A disk that accepts no writes shows as a lag, as the store's does.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker.memberlog.segment_file import Step
from broker.memberlog.writer import SEGMENT_BYTES, SEGMENT_US, MemberLogWriter
from store.commit_queue import SPACE_RETRY_S, CommitLag
from store.errors import NO_SPACE


class _Work(NamedTuple):
    steps: list[Step]
    written: int  # the value of `written` once they are carried out


class LogThread(MemberLogWriter):
    """The log of one (member, incarnation), written in the background."""

    def __init__(
        self,
        directory: Path,
        cluster_name: str,
        cluster_id: str,
        member: str,
        incarnation: int,
        wall_us: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        segment_bytes: int = SEGMENT_BYTES,
        segment_us: int = SEGMENT_US,
        give_up_reserve: Callable[[], bool] = lambda: False,
    ) -> None:
        """`give_up_reserve` frees space on the disk; False: none is left to free."""
        super().__init__(
            directory, cluster_name, cluster_id, member, incarnation, wall_us, segment_bytes,
            segment_us=segment_us,
        )  # fmt: skip
        self.on_written: Callable[[], None] = lambda: None
        self.awaited: Callable[[], bool] = lambda: True
        """Whether anybody waits for `on_written`; called on the thread, after `written` was set."""
        self.on_failed: Callable[[Exception], None] = lambda error: None
        self.counters = {"writes": 0, "longest_write_ms": 0}
        self.full = ""  # why a write waits for space; empty: none waits
        self._file.may_try_again = self._wait_for_space
        self._give_up_reserve = give_up_reserve
        self._loop = loop
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, float, int]] = deque()  # `written` after it, since, bytes
        self._waiting_bytes = 0
        self._ended = False  # the thread has stopped
        self._ended_by: BaseException | None = None  # set before that
        self._told: list[asyncio.Future[None]] = []  # waiters for the next sign of the thread
        self._thread = threading.Thread(target=self._run, name="memberlog-writer", daemon=True)
        self._thread.start()

    # -- called on the loop ----------------------------------------------------------------------

    def lag(self) -> CommitLag:
        """Return how far the disk is behind."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.written:
            self._waiting_bytes -= waiting.popleft()[2]
        return CommitLag(len(waiting), self._waiting_bytes, waiting[0][1] if waiting else 0.0)

    async def settled(self, patience_s: float) -> bool:
        """Wait until everything flushed is written; False: not within this time, or never."""
        target = self._waiting[-1][0] if self._waiting else 0
        return await self._until(lambda: self.written >= target, patience_s) and not self._failed

    async def closed_within(self, patience_s: float) -> bool:
        """Close it; False: the disk did not answer, and the thread is still blocked in it.

        Raises LogWriteFailed when not everything could be written.
        """
        try:
            self.close()
        finally:
            self._queue.put(None)
        ended = await self._until(lambda: False, patience_s)
        if self._ended_by is not None:  # the thread's word of it may still be under way
            raise self._fails(self._ended_by)
        return ended

    async def _until(self, reached: Callable[[], bool], patience_s: float) -> bool:
        """Whether it is reached, or the thread has ended, in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not reached() and not self._ended:
                    sign = self._loop.create_future()
                    self._told.append(sign)
                    if not reached() and not self._ended:  # the thread looks whether it is told of
                        await sign
        return reached() or self._ended

    def _write(self, steps: list[Step]) -> None:
        size = sum(len(step) for step in steps if isinstance(step, bytes))
        self.lag()
        self._waiting.append((self._lsn, self._loop.time(), size))
        self._waiting_bytes += size
        self._queue.put(_Work(steps, self._lsn))

    def _on_sign(self, finished: list[Path], error: BaseException | None) -> None:
        if error is not None:
            self.on_failed(self._fails(error))
        else:
            if self.closed is not None and not self._closed:
                for path in finished:
                    self.closed(path)
            self.on_written()
        told, self._told = self._told, []
        for sign in told:
            if not sign.done():
                sign.set_result(None)

    # -- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        work: list[_Work | None] = []
        try:
            while None not in work:
                work = [self._queue.get()]
                with contextlib.suppress(queue.Empty):
                    while True:
                        work.append(self._queue.get_nowait())
                self._carry_out([one for one in work if one is not None])
        except BaseException as error:  # of any kind: nothing more may be written
            failure = error
        self._file.give_up()
        self._ended_by = failure
        self._ended = True
        self._tell([], failure)

    def _carry_out(self, work: list[_Work]) -> None:
        if not work:
            return
        began = time.monotonic()
        finished = self._file.carry_out([step for one in work for step in one.steps])
        self.full = ""
        took_ms = round(1000 * (time.monotonic() - began))
        self.counters["writes"] += 1
        self.counters["longest_write_ms"] = max(self.counters["longest_write_ms"], took_ms)
        self.written = work[-1].written
        if finished or self._told or self.awaited():  # waking the loop costs more than the write
            self._tell(finished, None)

    def _wait_for_space(self, error: OSError) -> bool:
        """Wait for space on the disk; a log that is being closed does not wait."""
        if error.errno not in NO_SPACE:
            return False
        if self._give_up_reserve():
            return True
        if self._closed:
            return False
        self.full = f"{self.path}: {error.strerror}"
        time.sleep(SPACE_RETRY_S)
        return True

    def _tell(self, finished: list[Path], error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_sign, finished, error)
