"""The lease: how long a member may act on a view that may be over, and how long others wait.

A member that is partitioned or stopped does not know it. So it acts (for example, replies to
clients) only under a *lease*: for `seconds` after the last token but one that it accepted. The
return of the token proves that it went all the way round in between; every other member of the ring
therefore accepted it *after* the moment from which the lease counts. Members that continue without
this one wait until `seconds`, plus a share of `SLACK`, have passed since they themselves last
accepted a token on that ring.

The token says how long a lease is (`Pace`), and only the representative changes that. A member acts
for the *lesser* of the lengths in its last two tokens, and the others wait for the *larger* of the
lengths in their last two; docs/decisions/0025-the-token-carries-the-lease.md shows that the wait is
never shorter. Hence, whatever the network did and however long any process was stopped:

    lease of the member left behind ends <= first act of the others

if no clock is slower than another by more than SLACK. No clock is ever compared with another one,
and no bound on the delay of a frame is assumed. A new incarnation knows nothing of its
predecessor's rings, and counts from its own start.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from vsync.types import NO_RING, Member, RingId

SLACK = 0.2
"""The share by which the wait exceeds the lease, for clock drift and late timers."""


class Lease:
    """One member's own lease, and the leases of members with which it shared a ring."""

    def __init__(self, longest_ms: int) -> None:
        """`longest_ms`: the longest lease that this member agrees to; a token cannot claim more."""
        self.seconds = 0.0  # the current one
        self.ring = NO_RING
        self._longest_ms = longest_ms
        self._said_ms = 0  # by the last token
        self._members: frozenset[Member] = frozenset()
        self._since = -math.inf  # the lease counts from here
        self._last = -math.inf  # the last token
        self._others_s = 0.0  # the longest lease that another member may have
        self._granted: list[tuple[float, frozenset[Member]]] = []  # until when, and to whom

    def start(self, now: float, former_ms: int) -> None:
        """The process starts: a former incarnation may have been in any ring until now.

        `former_ms`: no ring that it was in had a longer lease.
        """
        self._granted = [(now + _wait(former_ms / 1000), frozenset())]

    def token(self, ring: RingId, members: tuple[Member, ...], now: float, said_ms: int) -> None:
        """A token of `ring` was accepted, which says that a lease lasts `said_ms`."""
        said_ms = min(said_ms, self._longest_ms)
        if ring == self.ring:
            self._since = self._last
            if said_ms != self._said_ms or self.seconds != self._others_s:
                self.seconds = min(said_ms, self._said_ms) / 1000
                self._others_s = max(said_ms, self._said_ms) / 1000
        else:
            if len(self._members) > 1:
                self._granted.append((self._last + _wait(self._others_s), self._members))
            self._granted = [one for one in self._granted if one[0] > now]
            self.ring, self._members = ring, frozenset(members)
            self._since = -math.inf
            self.seconds = self._others_s = said_ms / 1000
        if len(members) == 1:
            self._since = math.inf  # a member that may act alone has no one else to consider
        self._last, self._said_ms = now, said_ms

    def holds(self, ring: RingId, now: float, after: float = -math.inf) -> bool:
        """Whether this member may act on the view `ring`.

        `after`: only if the lease counts from a later moment (the machine slept until then).
        """
        return ring == self.ring and self._since >= after and now - self._since < self.seconds

    def silent_at(self, members: Collection[Member]) -> float:
        """When all members of past rings, except `members`, have stopped acting."""
        times = [
            until
            for until, shared in self._granted
            if not shared or not shared <= frozenset(members)
        ]
        return max(times, default=-math.inf)


def _wait(lease_s: float) -> float:
    """How long the others wait for a lease, in seconds."""
    return lease_s * (1 + SLACK)
