"""A store's writer thread: drives a `CommitQueue`, and waits for the disk in place of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from store.api import Store
from store.commit_queue import Call, CommitQueue, Task
from store.errors import NoSpace, StoreError, StoreStuck


class CommitThread(CommitQueue):
    """Owns the writing side of `store` from construction to `close`. Callbacks run on `loop`."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[int], object],
        on_failed: Callable[[StoreError], object],
        give_up_reserve: Callable[[], bool] = lambda: False,
    ) -> None:
        self._changed = threading.Condition()
        super().__init__(store, self._changed, loop.time, on_durable, on_failed, give_up_reserve)
        self._loop, self._ended = loop, asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit everything submitted, then end the thread. The store stays open.

        Blocks; callbacks already scheduled on the loop still run.
        """
        self.stop()
        self._thread.join()

    async def drain(self, patience_s: float | None = None) -> None:
        """Close without blocking the loop, and without another thread, which may find no memory.

        Raises `StoreStuck` after `patience_s`: the thread is blocked in the disk, and the store
        must not be used any more, not even closed.
        """
        self.stop()
        try:
            async with asyncio.timeout(patience_s):
                await self._ended.wait()
        except TimeoutError:
            lag = self.lag()
            raise StoreStuck(
                f"the disk took nothing for {patience_s} s; {lag.bytes} bytes that were not "
                "durable here are given up"
            ) from None
        if isinstance(self._failed, NoSpace):
            raise self._failed  # the store is as it was before the failed write

    # -- on the writer thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while (task := self.take()) is None and not self.stopping:
                        self._changed.wait()
                if task is None:
                    return
                self._call_on_loop(self._perform(task))
        except BaseException as error:  # of any kind: nothing more may be written
            self._call_on_loop(self.fail(error))
        finally:
            self._call_on_loop([self._ended.set])

    def _perform(self, task: Task) -> list[Call]:
        while True:
            try:
                return task.write()
            except NoSpace as error:
                delay_s = self.no_space(error)
                with self._changed:
                    self._changed.wait(delay_s)

    def _call_soon(self, calls: list[Call]) -> None:
        for call in calls:  # each by itself: if one raises, the next is still called
            self._loop.call_soon(call)

    def _call_on_loop(self, calls: list[Call]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._call_soon, calls)  # one wake-up for all
        except RuntimeError:
            # The loop is closed: the process is about to end.
            self.stop()
