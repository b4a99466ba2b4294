"""Disk lag: a slow disk first throttles the ring, then its member leaves.

Everything applied but not durable yet is held in memory. Beyond a first bound the member holds each
token for a moment, so that all members send less and all publishers wait a little; the further
behind, the longer. Beyond the last bound it leaves, and the others continue at their speed. Where
they cannot, because no majority (of a pair: not the other one) has anything durable either, a late
member waits with them: a storage system that hangs for a minute must not end a whole cluster.

A disk that does not return messages stored on it is late, too: commands that need them cannot be
applied, nor anything ordered behind. This is distinguished, because such a disk may accept all
writes; a broker that is alone waits for it and says so.

Pure: the lag and the time are handed in.
Decision: docs/decisions/0009-a-disk-that-lags-slows-all-down-then-leaves.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.replication.unapplied import Unapplied
from store.commit_queue import CommitLag

SOFT_SHARE = 0.1
"""The first bound, as a share of the last one."""
CATCH_UP_SHARE = 0.08
"""At this share of the last bound a member that catches up waits for its disk: it slows itself down
before it would slow down all others."""
HOLD_S_MAX = 0.05
HOLD_S_MIN = 0.002
"""How long a token is held: at the first bound, and from half of the last bound on."""
PAUSE_S = 0.5
"""If nobody looked for this long the process was stopped, and the disk is not to blame."""


NO_LAG = CommitLag(0, 0, 0.0)


class PrimaryMark(Protocol):
    """The primary view, as seen here."""

    @property
    def active(self) -> bool:
        """Whether the view is primary."""

    def durable_elsewhere(self) -> int:
        """Return the position that is durable at members who can continue without this one."""


class PageLag:
    """Since when nothing can be applied, because the disk does not return messages, or since when a
    view waits for what must be applied before it."""

    def __init__(self, unapplied: Callable[[], Unapplied], clock: Callable[[], float]) -> None:
        self._unapplied, self._clock = unapplied, clock
        self._pause = 0  # number of the last pause seen
        self._since = self._held_back_since = 0.0

    def look(self) -> CommitLag:
        """Return it in the form of waiting commits."""
        unapplied, now = self._unapplied(), self._clock()
        if not unapplied.held_back:
            self._held_back_since = now
        if not unapplied.waits_for_disk or self._pause != unapplied.execution.pauses:
            self._pause, self._since = unapplied.execution.pauses, now
        if not unapplied.waits_for_disk and not unapplied.held_back:
            return NO_LAG
        return CommitLag(1, unapplied.work.bytes, min(self._since, self._held_back_since))


class DurableProgress:
    """Since when members who can continue without this one have made nothing more durable."""

    def __init__(self) -> None:
        self._position = -1
        self._since = 0.0

    def look(self, primary: PrimaryMark, now: float) -> float:
        """Return for how long; 0 outside a primary view, where the others wait for this member."""
        position = primary.durable_elsewhere() if primary.active else -1
        if position != self._position or position < 0:
            self._position, self._since = position, now
        return now - self._since


class DiskLag:
    """Judges one disk, a few times a second."""

    def __init__(
        self, seconds_max: float, bytes_max: int, throttle: Callable[[float], None]
    ) -> None:
        self.seconds_max, self.bytes_max = seconds_max, bytes_max
        self.counters = {"throttled": 0, "worst_bytes": 0, "worst_ms": 0, "unread": 0,
                         "worst_read_ms": 0}  # fmt: skip
        self.alarm = ""
        self.age_s = 0.0
        self._throttle = throttle
        self._hold_s = 0.0
        self._unread = False
        self._looked_at: float | None = None
        self._ran_since = 0.0

    def look(
        self, commits: CommitLag, now: float, stuck_s: float = 0.0, pages: CommitLag = NO_LAG
    ) -> str:
        """Throttle as the lag demands; return why this member must leave, or nothing.

        `stuck_s`: for how long members who can continue without this one have made nothing more
        durable. `pages`: the lag of commands that cannot be applied because the disk does not
        return their messages.
        """
        lag = commits.beside(pages)
        if self._looked_at is None or now - self._looked_at > PAUSE_S:
            self._ran_since = now
        self._looked_at = now
        self.age_s = max(0.0, now - max(lag.since, self._ran_since)) if lag.waiting else 0.0
        self.counters["worst_bytes"] = max(self.counters["worst_bytes"], lag.bytes)
        self.counters["worst_ms"] = max(self.counters["worst_ms"], int(self.age_s * 1000))
        unread_s = max(0.0, now - max(pages.since, self._ran_since)) if pages.waiting else 0.0
        self.counters["worst_read_ms"] = max(self.counters["worst_read_ms"], int(unread_s * 1000))
        part = max(self.age_s / self.seconds_max, lag.bytes / self.bytes_max)
        behind = f"{lag.bytes} bytes wait, the oldest for {self.age_s:.1f} s"
        unread = unread_s > SOFT_SHARE * self.seconds_max
        self.counters["unread"] += unread and not self._unread
        self._unread = unread
        if unread:
            behind += f"; for {unread_s:.1f} s it has not given back messages that wait there, "
            behind += "and nothing is applied until it does"
        self._hold(part, behind)
        if part <= 1 or (lag.bytes <= self.bytes_max and stuck_s >= self.age_s):
            return ""
        return (
            f"the disk of this member does not keep up: {behind}; allowed are {self.bytes_max} "
            f"bytes (--disk-backlog-max) and {self.seconds_max:g} s (--disk-lag-max)"
        )

    def keeps_up(self, commits: CommitLag) -> bool:
        """Whether this disk may be given more than what all members are given."""
        return commits.bytes < CATCH_UP_SHARE * self.bytes_max

    def _hold(self, part: float, behind: str) -> None:
        hold_s = 0.0
        if part > SOFT_SHARE:
            hold_s = min(HOLD_S_MAX, max(HOLD_S_MIN, 2 * part * HOLD_S_MAX))
            self.alarm = f"the disk lags and slows the cluster down: {behind}"
        else:
            self.alarm = ""
        if hold_s and not self._hold_s:
            self.counters["throttled"] += 1
        if hold_s != self._hold_s:
            self._hold_s = hold_s
            self._throttle(hold_s)
