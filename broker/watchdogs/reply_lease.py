"""Whether this member may act on its view now, and when others may act in its place.

It reads clocks for the ring's lease (`vsync/totem/ordering/lease.py`, which says why this is
enough).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from vsync.totem.ordering.lease import Lease
from vsync.types import Member, RingId

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
SLEEP_S = 0.01
"""If one clock jumps against the other by more than this the machine slept."""


def boot_clock() -> float:
    """Seconds including those in which the machine slept; the same as monotonic where unknown."""
    return time.clock_gettime(_BOOT_CLOCK)


def boot_clock_name() -> str:
    """The name of that clock: processes with the same name use the same clock; "": unknown.

    It counts from the start of a kernel, or as its namespace sets it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.stat("/proc/self/ns/time").st_ino
    except (OSError, ValueError):
        return ""
    return f"{boot}/{namespace}" if hasattr(time, "CLOCK_BOOTTIME") else ""


class ReplyLease:
    """Consulted before anything is written to clients. The clocks are given; both count seconds."""

    def __init__(
        self,
        lease: Lease,
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], float] = boot_clock,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`leads`: whether the store is this process's now."""
        self._lease, self._clock, self._boot_clock, self._leads = lease, clock, boot, leads
        self._ahead = boot() - clock()
        self._slept_until = -math.inf

    def holds(self, ring: RingId) -> bool:
        """Whether this member may still act on the view `ring`."""
        now = self._clock()
        ahead = self._boot_clock() - now
        if ahead - self._ahead > SLEEP_S:
            # The ring's clock stood still while the machine slept: only newer tokens count.
            self._slept_until = now
        self._ahead = ahead
        return self._leads() and self._lease.holds(ring, now, self._slept_until)

    def silent_in(self, members: Collection[Member]) -> float:
        """Return in how many seconds all members not in `members` have stopped replying.

        A promise of a new epoch waits for that.
        """
        return max(0.0, self._lease.silent_at(members) - self._clock())
