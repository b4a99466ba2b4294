"""Clock skew between members: which may not join, and which an operator should look after.

Members ask each other for the time by datagrams, as NTP does: half of the round trip is subtracted,
and a slow round trip is ignored. This needs no order and no ring, so it works in an idle cluster,
and in a member that is in no primary view yet. A member that starts with a clock off by more than
the bound refuses itself, before it promises or receives anything. A member that drifts off later
continues, because the machine's time depends on no date (`machine/clock/cluster_time.py`); the log,
a counter and every member's status name it until its clock is right again.

Pure: clocks and sending are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgpack

from vsync.types import Member

PREFIX = b"K"
ASK, ANSWER = 1, 2
CHECK_S = 5.0
HURRY_S = 0.2
"""How often others are asked: usually, and while a starting member waits for their answers."""
WAIT_S = 1.0
"""How long a starting member waits for all answers; then it continues with those it has."""
ROUND_TRIP_S_MAX = 1.0
"""A slower answer is ignored, because one side was paused."""

JUMP_S, STEADY_S = 60.0, 43_200.0
"""A clock that jumped by more than the one is judged by the other: it has not jumped since."""
WITNESSES = 2
"""The least number of other clocks that can show this one to be wrong: of two, either may be."""


class Reading(NamedTuple):
    """A reading of another member's clock: how far it is ahead of this member's."""

    ahead_s: float
    runs: bool  # whether it has been part of a primary view


class ClockSkew:
    """One member's view of all clocks."""

    def __init__(
        self,
        me: Member,
        bound_s: float,
        send: Callable[[Member, bytes], None],
        wall_us: Callable[[], int],
        ran: Callable[[], bool],
    ) -> None:
        self.bound_s = bound_s
        self.readings: dict[Member, Reading] = {}
        self.alarms: dict[str, str] = {}  # by member's name, for operators
        self.counters = {"readings": 0, "alarms": 0, "slow_answers": 0, "malformed": 0}
        self._me, self._send, self._wall_us, self._ran = me, send, wall_us, ran
        self._others: tuple[Member, ...] = ()
        self._asked: dict[Member, tuple[int, float]] = {}  # number of the question, when
        self._number = 0
        self._waits_until = 0.0
        self._due = self._woken_at = 0.0
        self._ahead_s = self._steady_since = math.inf  # of the clock that does not jump

    def on_view(self, members: tuple[Member, ...], now: float) -> None:
        """The ring has a new view."""
        self._others = tuple(m for m in members if m != self._me)
        self.readings = {m: r for m, r in self.readings.items() if m in self._others}
        self._asked = {}
        self._waits_until = now + WAIT_S
        self._ask(self._others, now)

    def wake(self, now: float) -> None:
        """Ask again when it is time, and see whether this member's clock has jumped."""
        ahead_s = self._wall_us() / 1e6 - now
        if abs(ahead_s - self._ahead_s) > JUMP_S:
            self._ahead_s, self._steady_since = ahead_s, now
        self._woken_at = now
        if now >= self._due:
            self._raise_alarms()
            fresh = [m for m in self._others if m not in self.readings]
            self._ask(tuple(fresh) if fresh and now < self._waits_until else self._others, now)

    def _ask(self, whom: tuple[Member, ...], now: float) -> None:
        hurry = any(m not in self.readings for m in self._others) and now < self._waits_until
        self._due = now + (HURRY_S if hurry else CHECK_S)
        for member in whom:
            self._number += 1
            self._asked[member] = (self._number, now)
            self._say(member, ASK, self._number, 0, False)

    def _say(self, to: Member, *fields: object) -> None:
        self._send(to, PREFIX + bytes(msgpack.packb(fields)))

    def on_datagram(self, sender: Member, payload: bytes, now: float) -> None:
        """Take a datagram that begins with `PREFIX`."""
        try:
            kind, number, wall_us, runs = msgpack.unpackb(payload[1:])
            if not (isinstance(number, int) and isinstance(wall_us, int)):
                raise TypeError(number, wall_us)
        except (ValueError, TypeError, msgpack.UnpackException):
            self.counters["malformed"] += 1
            return
        if kind == ASK:
            self._say(sender, ANSWER, number, self._wall_us(), self._ran())
            return
        asked, at = self._asked.get(sender, (0, 0.0))
        if kind != ANSWER or number != asked:
            return
        del self._asked[sender]
        if now - at > ROUND_TRIP_S_MAX:
            self.counters["slow_answers"] += 1
            return
        ahead_s = (wall_us - self._wall_us()) / 1e6 + (now - at) / 2
        self.readings[sender] = Reading(ahead_s, bool(runs))
        self.counters["readings"] += 1
        if not self._asked:
            self._raise_alarms()  # half a round of readings would name the wrong members

    # -- at the start ----------------------------------------------------------------------------

    def decided(self, now: float) -> bool:
        """Whether enough is known of this view's clocks to promise or fetch something in it."""
        known = all(m in self.readings for m in self._others)
        return self._ran() or known or now >= self._waits_until

    def refusal(self) -> str:
        """Why this member may not join; empty if it may.

        The cluster's time is that of the running members. If none runs, it is that of all members
        present; of two that differ nobody knows which is right, so then neither is refused.
        """
        if self._ran():
            return ""
        running = [r.ahead_s for r in self.readings.values() if r.runs]
        low, high = _middle(running or [0.0, *(r.ahead_s for r in self.readings.values())])
        if low <= self.bound_s and high >= -self.bound_s:
            return ""
        off_s = low if low > self.bound_s else high
        here_us = self._wall_us()
        return (
            f"this member's clock says {_date(here_us)}, the cluster's time is "
            f"{_date(here_us + int(off_s * 1e6))}: {_apart(-off_s)}, and {self.bound_s:g} s are "
            "allowed (--clock-bound); set the clock, then start this member again"
        )

    # -- all -------------------------------------------------------------------------------------

    def off_s(self) -> dict[str, float]:
        """Return how far each known clock, mine included, is ahead of the middle of all."""
        ahead = {m.name: r.ahead_s for m, r in self.readings.items()} | {self._me.name: 0.0}
        low, high = _middle(list(ahead.values()))
        return {n: a - min(max(a, low), high) for n, a in ahead.items()}

    @property
    def is_right(self) -> bool:
        """Whether files may be too old by this member's clock: the others agree with it, or where
        too few are there, it has been steady since the start, or since its last jump, for long."""
        steady = self._woken_at - self._steady_since >= STEADY_S
        known = len(self.readings) >= WITNESSES
        return self._me.name not in self.alarms and (known or steady)

    def _raise_alarms(self) -> None:
        before = self.alarms
        self.alarms = {
            name: f"the clock of {name} is {_apart(off_s)} (--clock-bound {self.bound_s:g})"
            for name, off_s in sorted(self.off_s().items())
            if abs(off_s) > self.bound_s
        }
        self.counters["alarms"] += len([name for name in self.alarms if name not in before])


def _middle(values: list[float]) -> tuple[float, float]:
    """The median; for an even number both values in the middle."""
    values.sort()
    return values[(len(values) - 1) // 2], values[len(values) // 2]


def _apart(ahead_s: float) -> str:
    return f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the cluster's time"


def _date(us: int) -> str:
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{us / 1e6:.0f} s after 1970"
