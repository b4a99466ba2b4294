"""A checkpoint made in slices between other work, so that it never holds the token up.

The state is cut at once; what takes long is to pack it.  A slice packs for a moment and goes to the
store's writer, then the loop does other things.  When the disk is slower than the packing, the
packing waits, so only a few megabytes of a checkpoint are in memory at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from store.commit_thread import CheckpointJob

SLICE_S = 0.002
PAUSE_S = 0.004
"""A third of the loop's time at most, while a checkpoint is made."""
AHEAD_BYTES_MAX = 4 << 20


class CheckpointWriter:
    """Feeds one checkpoint.  `on_error` is called when packing fails, which is ours."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        steps: Iterator[bytes],
        checkpoint: CheckpointJob,
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.bytes = 0
        self._loop, self._steps, self._checkpoint = loop, steps, checkpoint
        self._on_error, self._clock = on_error, clock
        self._handle: asyncio.Handle = loop.call_soon(self._slice)

    def cancel(self) -> None:
        """Make no more of it: its store is given up."""
        self._handle.cancel()

    def _slice(self) -> None:
        deadline = self._clock() + SLICE_S
        try:
            while self._clock() < deadline and self._checkpoint.bytes_waiting < AHEAD_BYTES_MAX:
                chunk = next(self._steps, None)
                if chunk is None:
                    self._checkpoint.end()
                    return
                if chunk:
                    self.bytes += len(chunk)
                    self._checkpoint.put(chunk)
        except Exception as error:
            self._on_error(error)
            return
        self._handle = self._loop.call_later(PAUSE_S, self._slice)
