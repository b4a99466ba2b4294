"""A thread for file work that no turn waits for: evidence, watching the store's files.

Started with the member, so that a machine without memory for a new thread still stops in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Work: TypeAlias = Callable[[], object]
"""Runs on the thread. Its result, if callable, is called on the loop."""


class FileThread:
    """Does its pieces of work one after the other, in order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_failed: Callable[[Exception], object]
    ) -> None:
        """`on_failed` gets, on the loop, the exception of a piece of work; the next one runs
        anyway."""
        self._loop, self._on_failed = loop, on_failed
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="files", daemon=True).start()

    def do(self, work: Work) -> None:
        """Schedule it."""
        self._queue.put(work)

    async def settled(self, patience_s: float) -> bool:
        """Wait until everything is done; False: the disk does not answer."""
        done = asyncio.Event()
        self.do(lambda: done.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await done.wait()
        return done.is_set()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            try:
                then = work()
            except Exception as error:  # ours; the caller says what it means
                self._call(self._on_failed, error)
            else:
                if callable(then):
                    self._call(then)

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)
