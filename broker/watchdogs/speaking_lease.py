"""Whether this member may speak to clients at this moment, and when others may in its place.

A thin reader of clocks around the ring's lease (`vsync/totem/ordering/lease.py`, which says why
this is enough).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from broker.replication.controller import Controller
from vsync.totem.ordering.lease import Lease
from vsync.types import Member, RingId

SLEEP_S = 0.01
"""A jump of one clock against the other by more than this means that the machine slept."""


def awake_clock() -> float:
    """Seconds, also those in which the machine slept; the same as monotonic where unknown."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SpeakingLease:
    """Asked before every word.  The clocks are given; both count seconds."""

    def __init__(
        self,
        lease: Lease,
        clock: Callable[[], float] = time.monotonic,
        awake: Callable[[], float] = awake_clock,
    ) -> None:
        self._lease, self._clock, self._awake = lease, clock, awake
        self._ahead = awake() - clock()
        self._slept_until = -math.inf

    def holds(self, ring: RingId) -> bool:
        """Whether this member may speak of the view `ring`."""
        now = self._clock()
        ahead = self._awake() - now
        if ahead - self._ahead > SLEEP_S:
            # The clock of the ring stood still while the machine slept: only what is new counts.
            self._slept_until = now
        self._ahead = ahead
        return self._lease.holds(ring, now, self._slept_until)

    def covers(self, controller: Controller) -> bool:
        """Whether the member with this core may speak.

        The end of a view is known here before the core has worked through what came before it.
        """
        return (
            controller.speaking
            and controller.primary.active
            and self.holds(controller.primary.ring)
        )

    def silent_in(self, members: Collection[Member]) -> float:
        """Return in how many seconds all that are not in `members` have fallen silent.

        A promise of a new epoch waits for that, so it says this, too.
        """
        return max(0.0, self._lease.silent_at(members) - self._clock())
