"""Runs long work of the API in slices: the loop belongs to the token, and turns in between.

Decision: docs/decisions/0032-the-management-api-runs-in-slices.md.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLICE_S = 0.0005
"""As long as one turn of applying may take."""


class Slices:
    """Gives the loop a turn whenever a slice is over."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_S

    async def step(self) -> None:
        """Call it for each item."""
        if time.perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + SLICE_S


_ordering = 0


@contextmanager
def no_collection() -> Iterator[None]:
    """Run without the garbage collector. Reads and lists create many short-lived objects, which the
    collector would take for long-lived ones and look through the whole state."""
    global _ordering
    _ordering += 1
    gc.disable()
    try:
        yield
    finally:
        _ordering -= 1
        if _ordering == 0:
            gc.enable()
