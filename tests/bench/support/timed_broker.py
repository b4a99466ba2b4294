"""A broker whose event loop is timed: its longest steps, and its delays.

    python -m tests.bench.support.timed_broker FILE [options of qpidd]

Writes its measurements into FILE at each SIGUSR2, and starts over: the longest steps of the loop,
by wall clock and by processor time, each with its milliseconds of both and those of garbage
collection in it; the longest delays of a 5 ms timer, which have all causes, also threads that kept
the interpreter's lock; and the longest collections, of all threads.  On a busy machine only
processor time is meaningful.
"""

from __future__ import annotations

import gc
import heapq
import json
import signal
import sys
import threading
import time
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import uvloop

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

STEP_MS = 5.0
KEPT = 12
PROBE_S = 0.005

Step = tuple[float, float, float, str]
T = TypeVar("T", float, Step)
Call: TypeAlias = Callable[..., object]


class Steps:
    """The longest steps, and all other measurements, since the last report."""

    def __init__(self) -> None:
        self.longest: list[Step] = []  # by the clock
        self.hardest: list[Step] = []  # by processor time
        self.late_ms: list[float] = []
        self.collections: list[tuple[float, int, str]] = []
        self.collected_ms = 0.0
        self._began = 0.0

    def collecting(self, phase: str, found: dict[str, int]) -> None:
        """A hook of the collector."""
        if phase == "start":
            self._began = time.thread_time()
            return
        took_ms = (time.thread_time() - self._began) * 1000
        self.collected_ms += took_ms
        if took_ms > 1.0:
            thread = threading.current_thread().name
            self.collections.append((round(took_ms, 1), found["generation"], thread))

    def step(self, call: Call) -> Call:
        """Return `call`, timed."""

        def timed(*args: object) -> object:
            wall, worked, collected = time.perf_counter(), time.thread_time(), self.collected_ms
            try:
                return call(*args)
            finally:
                took = (time.perf_counter() - wall) * 1000
                if took > STEP_MS:
                    spent = (time.thread_time() - worked) * 1000
                    rest = self.collected_ms - collected, _name(call)
                    _keep(self.longest, (took, spent, *rest))
                    _keep(self.hardest, (spent, took, *rest))

        return timed

    def late(self, by_ms: float) -> None:
        """Record a delay of the probe."""
        _keep(self.late_ms, by_ms)

    def report(self) -> dict[str, object]:
        """Return the measurements, the longest first."""
        return {
            "late_ms": [round(late) for late in sorted(self.late_ms, reverse=True)],
            "longest": [
                f"{took:.0f} ms ({spent:.0f} of processor, {gone:.0f} of collector): {name}"
                for took, spent, gone, name in sorted(self.longest, reverse=True)
            ],
            "hardest": [
                f"{spent:.0f} ms of processor ({gone:.0f} of collector, took {took:.0f}): {name}"
                for spent, took, gone, name in sorted(self.hardest, reverse=True)
            ],
            "collections": sorted(self.collections, reverse=True)[:KEPT],
        }

    def clear(self) -> None:
        """Start over."""
        self.longest.clear()
        self.hardest.clear()
        self.late_ms.clear()
        self.collections.clear()


def _keep(heap: list[T], found: T) -> None:
    heapq.heappush(heap, found)
    if len(heap) > KEPT:
        heapq.heappop(heap)


def _name(call: Call) -> str:
    while (inner := getattr(call, "func", None)) is not None:
        call = inner
    where = getattr(call, "__qualname__", repr(call))
    return f"{getattr(call, '__module__', '?')}.{where}"


STEPS = Steps()


class TimedLoop(uvloop.Loop):
    """The broker's loop; callbacks scheduled by C code (reading of a socket) are not timed."""

    def call_soon(self, callback: Call, *args: object, context: Context | None = None) -> Handle:
        return super().call_soon(STEPS.step(callback), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Call, *args: object, context: Context | None = None
    ) -> Handle:
        return super().call_soon_threadsafe(STEPS.step(callback), *args, context=context)

    def call_later(
        self, delay: float, callback: Call, *args: object, context: Context | None = None
    ) -> TimerHandle:
        return super().call_later(delay, STEPS.step(callback), *args, context=context)

    def add_reader(self, fd: FileDescriptorLike, call: Call, *args: object) -> None:
        super().add_reader(fd, STEPS.step(call), *args)


def _begin(loop: TimedLoop, file: Path) -> None:
    def probe(due: float) -> None:
        now = time.perf_counter()
        STEPS.late((now - due) * 1000)
        loop.call_later(PROBE_S, probe, now + PROBE_S)

    def report() -> None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(STEPS.report()), encoding="ascii")
        part.rename(file)
        STEPS.clear()

    loop.add_signal_handler(signal.SIGUSR2, report)
    loop.call_later(PROBE_S, probe, time.perf_counter() + PROBE_S)


def main() -> None:
    file = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    gc.callbacks.append(STEPS.collecting)

    def factory() -> TimedLoop:
        loop = TimedLoop()
        loop.call_soon(_begin, loop, file)
        return loop

    uvloop.new_event_loop = factory
    from tools.commands.qpidd import main as qpidd

    qpidd()


if __name__ == "__main__":
    main()
