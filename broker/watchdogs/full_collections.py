"""Keeps full garbage collections short, however much a member holds.

A full collection of the interpreter looks at every object that may be part of a cycle: with 100,000
queues it takes half a second, in which the member answers nobody and passes no token on. Nearly all
of these objects live long, and are freed by their reference counts. So the objects that a long
collection has found alive are put aside (`gc.freeze`), and later collections look only at newer
ones.
Decision: docs/decisions/0105-full-collections-stay-short.md.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LONG_S = 0.005
"""Processor time: if a full collection takes longer, the objects it has found alive are put aside.
Objects created before the next one make that no more than some three times as long."""
THRESHOLDS = 3_000, 1, 1
"""A full collection comes after some 20,000 new objects; by default it would come after 85,000, or
a quarter of all. Young collections come a quarter as often as by default: applying an item of 300
messages at the member of their clients creates more objects than the default of 700."""
FULL = 2


class FullCollections:
    """Watches the interpreter's garbage collections, in all threads."""

    def __init__(
        self,
        freeze: Callable[[], object] = gc.freeze,
        set_thresholds: Callable[[int, int, int], object] = gc.set_threshold,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._freeze, self._set_thresholds, self._clock = freeze, set_thresholds, clock
        self._began = 0.0
        self.counters = {"full": 0, "put_aside": 0, "longest_ms": 0}

    def begin(self) -> None:
        """Put the present objects aside (modules, a state read from the store): looking at the
        modules alone takes 40 ms. From now on collections are watched."""
        gc.collect()
        self._freeze()
        gc.collect()  # of almost nothing: otherwise a quarter of the above would have to come first
        self._set_thresholds(*THRESHOLDS)
        gc.callbacks.append(self.watch)

    def watch(self, phase: str, found: dict[str, int]) -> None:
        """A hook of the collector."""
        if found["generation"] != FULL:
            return
        if phase == "start":
            self._began = self._clock()
            return
        took_s = self._clock() - self._began
        counters = self.counters
        counters["full"] += 1
        counters["longest_ms"] = max(counters["longest_ms"], round(took_s * 1000))
        if took_s >= LONG_S:
            self._freeze()
            counters["put_aside"] += 1


COLLECTIONS = FullCollections()
"""Those of this process: it has one collector, whatever it runs."""
