"""Tempo of the ring: how long rotations take, and the lease and token timeout derived from that.

Every member measures every rotation. The representative alone decides, once a rotation, and the
token carries its decision (`Pace`). So all members of a ring, including one that has just joined,
run with the same lease and the same timeout.

There are two measures, because a stall differs from a slow ring. The *slowest stretch* (the largest
smoothed rotation of the last half minute) sets the lease: two rotations must fit into it, or no
member ever replies. The *longest rotation* of that time sets the timeout: a member that got no
processor for a while may get none for twice as long. A member that was left out and turns out to be
running was suspected falsely, so the timeout doubles (as in eventually perfect failure detectors).
All of this is forgotten half a minute later.

While messages flow the token is not held, so two rotations take much less time than in an idle
ring, and a shorter lease suffices: others wait less for a member that died. The slowest stretch is
therefore measured twice, with and without the time for which the token may have been held. The
representative announces the longer lease some rotations before it first holds the token, so that
all members have it by then.

A lease may not be longer than the wait of every member after a restart, and a restarted member
knows only its disk. So each member lowers the token's `limit_ms` to the value it *keeps* there, and
the representative never grants more than the limit that came back.
"""

from __future__ import annotations

from vsync.totem.config import RingConfig
from vsync.wire.messages import Pace, Token

WINDOW_S = 15.0
"""Measurements are remembered for one to two such windows."""
SMOOTHING = 1 / 8
LEASE_ROTATIONS = 3
"""A lease counts from the last token but one: two rotations, and one to spare."""
SAID_BEFORE_HOLD = 3
"""This many tokens say the longer lease before one is held: a member acts for the lesser of two."""
TIMEOUT_ROTATIONS = 2
TIMEOUT_LEASES = 3
"""As with the default settings: a slow ring is not given up within its lease."""


class Tempo:
    """The measures of one member, and the lease that it keeps on its disk."""

    def __init__(self, config: RingConfig, former_ms: int = 0) -> None:
        """`former_ms`: the longest lease that the former incarnation agreed to, from its disk."""
        self.former_ms = max(former_ms, config.lease_ms)
        self.kept_ms = config.lease_ms
        self.lease_ms = config.lease_ms  # the lease that this member wants, in an idle ring
        self.busy_lease_ms = config.busy_lease_ms  # and while messages flow
        self.timeout_ms = config.token_timeout_ms
        self._config = config
        self.smoothed_s = 0.0  # rotation
        self.rotations = 0
        self.rotations_s = 0.0  # their total time
        self._hold_s = config.hold_ms / 1000
        self._moving_s = 0.0  # smoothed rotation without the hold
        self._slowest = [0.0, 0.0]  # smoothed rotation: of the window before, and of this one
        self._slowest_moving = [0.0, 0.0]  # without the hold, the same way
        self._longest = [0.0, 0.0]  # rotation, the same way
        self._window_ends = 0.0

    @property
    def wanted_ms(self) -> int:
        """The lease that the disk must hold before this member agrees to a longer one; see `keep`.

        It doubles step by step, so that it is seldom written.
        """
        wanted = self._config.lease_ms
        while wanted < self.lease_ms:
            wanted = min(2 * wanted, self._config.lease_max_ms)
        return max(wanted, self.kept_ms)

    def keep(self, lease_ms: int) -> None:
        """This lease is on the disk: a later incarnation will wait for it."""
        self.kept_ms = max(self.kept_ms, lease_ms)

    def rotation(self, seconds: float, now: float, *, held: bool = False) -> None:
        """The token came again after `seconds`; `held`: the representative may have held it."""
        moving_s = max(0.0, seconds - self._hold_s) if held else seconds
        self.smoothed_s += (seconds - self.smoothed_s) * SMOOTHING
        self._moving_s += (moving_s - self._moving_s) * SMOOTHING
        self.rotations += 1
        self.rotations_s += seconds
        slowest, moving, longest = self._slowest, self._slowest_moving, self._longest
        if now >= self._window_ends:
            calm = now >= self._window_ends + WINDOW_S
            for measure in (slowest, moving, longest):
                measure[0], measure[1] = 0.0 if calm else measure[1], 0.0
            self._window_ends = now + WINDOW_S
        elif (
            self.smoothed_s <= slowest[1] and self._moving_s <= moving[1] and seconds <= longest[1]
        ):
            return
        slowest[1] = max(slowest[1], self.smoothed_s)
        moving[1] = max(moving[1], self._moving_s)
        longest[1] = max(longest[1], seconds)
        self._derive()

    def false_suspicion(self, now: float) -> None:
        """A ring was given up although nobody had failed: be twice as patient."""
        self._window_ends = max(self._window_ends, now + WINDOW_S)
        self._longest[1] = max(self._longest[1], self.timeout_ms / 1000)
        self._derive()

    def _derive(self) -> None:
        config = self._config
        lease_ms = int(1000 * LEASE_ROTATIONS * max(self._slowest))
        self.lease_ms = min(max(lease_ms, config.lease_ms), config.lease_max_ms)
        busy_ms = int(1000 * LEASE_ROTATIONS * max(self._slowest_moving))
        self.busy_lease_ms = min(max(busy_ms, config.busy_lease_ms), self.lease_ms)
        timeout_ms = int(1000 * TIMEOUT_ROTATIONS * max(self._longest))
        if self.lease_ms > config.lease_ms:
            timeout_ms = max(timeout_ms, TIMEOUT_LEASES * self.lease_ms)
        self.timeout_ms = min(max(timeout_ms, config.token_timeout_ms), config.token_timeout_max_ms)

    def pace(self, token: Token, *, first: bool, idle: int = 0) -> Pace:
        """The pace of the next token.

        `first`: this member is the representative, and has found the ring `idle` at so many visits.
        """
        pace = token.pace
        if not first:
            kept = self.kept_ms
            return pace if pace.limit_ms <= kept else pace._replace(limit_ms=kept)
        held_soon = idle + SAID_BEFORE_HOLD >= self._config.idle_visits_before_hold
        lease_ms = min(self.lease_ms if held_soon else self.busy_lease_ms, pace.limit_ms)
        if pace == (lease_ms, self.kept_ms, self.timeout_ms):
            return pace
        return Pace(lease_ms, self.kept_ms, self.timeout_ms)
