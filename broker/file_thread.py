"""A thread for file work that the loop never waits for: evidence, watching the store's files.

It starts with the member, so that a machine without memory for a new thread still stops in order.
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
    """Runs pieces of work one at a time, in the order given."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_failed: Callable[[Exception], object]
    ) -> None:
        """`on_failed` is called on the loop with the exception of a failed piece of work; the next
        one runs anyway."""
        self._loop, self._on_failed = loop, on_failed
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="files", daemon=True).start()

    def do(self, work: Work) -> None:
        """Schedule one piece of work."""
        self._queue.put(work)

    async def settled(self, patience_s: float) -> bool:
        """Wait until all work is done; False: the disk does not answer."""
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
