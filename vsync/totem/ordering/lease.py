"""How long a member may act on a view that may be over, and when the others may act without it.

A member that is cut off or stopped does not know it.  So it acts (speaks to clients, say) only
under a *lease*: for `seconds` after its last visit by the token but one.  That the token came
again proves that it has been everywhere in between; every other member of the ring therefore has
accepted it *after* the moment from which the lease counts.  Whoever goes on without the member
waits until `seconds`, and `SLACK` of them more, have passed since the last token that it accepted
itself on that ring.  Hence, whatever the network did and however long anybody was stopped:

    lease of the one that is left ends <= first act of the others

if no clock is slower than another by more than SLACK.  No clock is ever compared with another one,
and no delay of a frame is assumed.  A new life knows nothing of the rings of the former one, and
counts from its own start.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from vsync.types import NO_RING, Member, RingId

SLACK = 0.2
"""By this share the wait is longer than the lease: drift of clocks, and late timers."""


class Lease:
    """One member's lease, and what it grants to those that it shared a ring with."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ring = NO_RING
        self._members: frozenset[Member] = frozenset()
        self._since = -math.inf  # the lease counts from here
        self._last = -math.inf  # the last token
        self._granted: list[tuple[float, frozenset[Member]]] = []

    def start(self, now: float) -> None:
        """A life begins: a former one may have been in any ring until now."""
        self._granted = [(now, frozenset())]

    def token(self, ring: RingId, members: tuple[Member, ...], now: float) -> None:
        """Hear that a token of `ring` was accepted."""
        if ring == self.ring:
            self._since = self._last
        else:
            if len(self._members) > 1:
                self._granted.append((self._last, self._members))
            self._granted = [one for one in self._granted if one[0] + self.wait > now]
            self.ring, self._members = ring, frozenset(members)
            self._since = -math.inf
        if len(members) == 1:
            self._since = math.inf  # who may act alone shares that with nobody
        self._last = now

    @property
    def wait(self) -> float:
        """How long the others wait, in seconds."""
        return self.seconds * (1 + SLACK)

    def holds(self, ring: RingId, now: float, after: float = -math.inf) -> bool:
        """Whether this member may act on the view `ring`.

        `after`: only if the lease counts from a later moment (the machine slept until then).
        """
        return ring == self.ring and self._since >= after and now - self._since < self.seconds

    def silent_at(self, members: Collection[Member]) -> float:
        """Return when all that I shared a ring with have stopped acting, but for `members`."""
        times = [
            last + self.wait
            for last, shared in self._granted
            if not shared or not shared <= frozenset(members)
        ]
        return max(times, default=-math.inf)
