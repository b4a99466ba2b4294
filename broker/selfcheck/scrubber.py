"""The scrubbers: re-read everything at rest, in memory and on disk, at a set pace.

Decision: docs/decisions/0017-digests-are-voted-on.md.

Digest votes, and the hashing of messages that leave, check data in use. Unused data may be
corrupted unnoticed until it is needed, and by then the other copies may be gone. So everything is
read again, a little at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.machine.image.scrub import Fault, Scrub
from broker.machine.machine import Machine
from store.api import Store
from store.errors import StoreError, StoreFailed

SLICE_MESSAGES_MAX = 500
"""About a millisecond."""
PAUSE_S = 10.0
"""Pause between two passes."""
DISK_SLICE_BYTES = 4 << 20


class MemoryScrubber:
    """Passes over the machine's state, at this many messages per second."""

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self.counters: dict[str, int] = {
            "passes": 0, "messages": 0, "faults": 0, "rest_left_out": 0,
        }  # fmt: skip
        self._pass: Scrub | None = None
        self._machine: Machine | None = None
        self._resume_at = now
        self._woken_at = now

    def wake(self, machine: Machine, now: float) -> Fault | None:
        """Read as many messages as the pace allows since the last call; return a fault. Raises
        `PageLost`, which is the disk's fault."""
        budget = min(int((now - self._woken_at) * self.rate), SLICE_MESSAGES_MAX)
        if budget < 1:
            return None
        self._woken_at = now
        if self._pass is None or self._machine is not machine:  # a transferred state is in force
            if now < self._resume_at:
                return None
            self._pass, self._machine = Scrub(machine), machine
        one = self._pass
        before = one.messages
        fault = one.step(budget)
        self.counters["messages"] += one.messages - before
        if fault is not None:
            self.counters["faults"] += 1
        if one.done or fault is not None:
            self.counters["passes"] += 1
            self.counters["rest_left_out"] += one.left_out
            self._pass, self._resume_at = None, now + PAUSE_S
        return fault


class DiskFault(NamedTuple):
    """The part of the store that cannot be read as it was written."""

    what: str


class DiskScrubber:
    """Passes over a store's checkpoint and entries. `step` runs on a worker thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.counters: dict[str, int] = {"passes": 0, "bytes": 0, "faults": 0, "restarts": 0}
        self._pass: Iterator[int] | None = None
        self._base = 0

    def of(self, store: Store) -> DiskScrubber:
        """Return a scrubber for the store that replaced this one's."""
        fresh = DiskScrubber(store)
        fresh.counters = self.counters
        return fresh

    def step(self) -> DiskFault | None:
        """Read about DISK_SLICE_BYTES again; return a fault."""
        size = 0
        try:
            if self._pass is None:
                self._base = self._checkpoint()
                self._pass = self._read()
            for count in self._pass:
                size += count
                self.counters["bytes"] += count
                if size >= DISK_SLICE_BYTES:
                    return None
        except StoreFailed:
            self._pass = None
            return None  # it was closed, or replaced by a transferred state
        except StoreError as error:
            self._pass = None
            if self._checkpoint() != self._base:
                # A newer checkpoint replaced the one being read.
                self.counters["restarts"] += 1
                return None
            self.counters["faults"] += 1
            return DiskFault(str(error))
        self._pass = None
        self.counters["passes"] += 1
        return None

    def _checkpoint(self) -> int:
        saved = self.store.checkpoint()
        return saved[0] if saved is not None else 0

    def _read(self) -> Iterator[int]:
        saved = self.store.checkpoint()
        if saved is not None:
            for chunk in saved[1]:
                yield len(chunk)
        for _, entry in self.store.log(self._base):
            yield len(entry)
