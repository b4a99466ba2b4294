"""Early checks of members whose connection broke.

A check lasts one short window.  It begins with a hint, asks the member (PROBE) several times, and
ends in one of three ways: the member was heard, it *refused* (its host answered that nobody listens
at its address) and was not heard, or neither.  Only the second counts as proof of its death; the
third leaves the matter to the token timeout.

What came in before the middle of the window does not count as hearing: the last frames of a dead
process may still sit in a socket.  A check whose owner overslept proves nothing and begins anew.
"""

from __future__ import annotations

from enum import Enum

from vsync.types import Member

TRIES = 3


class ProbeResult(Enum):
    """How a check ended; the word is its counter."""

    ALIVE = "suspect_alive"
    GONE = "suspect_gone"
    OPEN = "suspect_unproven"


class _Check:
    __slots__ = ("again_at", "began", "heard", "refused")

    def __init__(self, now: float) -> None:
        self.began = now
        self.again_at = now
        self.refused = False
        self.heard = False


class FailureDetector:
    """The checks under way, by member.  Times are in seconds."""

    __slots__ = ("_checks", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._checks: dict[Member, _Check] = {}

    def __bool__(self) -> bool:
        return bool(self._checks)

    def __contains__(self, member: Member) -> bool:
        return member in self._checks

    def hint(self, member: Member, now: float, refused: bool) -> bool:
        """Its link broke, or its host refused a new one.  True: a check begins."""
        check = self._checks.get(member)
        fresh = check is None
        if check is None:
            check = self._checks[member] = _Check(now)
        check.refused |= refused
        return fresh

    def heard(self, member: Member, now: float) -> None:
        """A frame of that life came."""
        check = self._checks.get(member)
        if check is not None and now >= check.began + self._window / 2:
            check.heard = True

    def answered(self, member: Member) -> None:
        """It answered a probe of this check: there is no better sign of life."""
        check = self._checks.get(member)
        if check is not None:
            check.heard = True

    def next_at(self) -> float | None:
        """When `probes` or `findings` have something to say."""
        return min((check.again_at for check in self._checks.values()), default=None)

    def probes(self, now: float) -> list[Member]:
        """Whom to ask now; each is asked `TRIES` times in a window, the first time at once."""
        due = [m for m, c in self._checks.items() if now >= c.again_at < c.began + self._window]
        for member in due:
            self._checks[member].again_at = now + self._window / TRIES
        return due

    def findings(self, now: float) -> list[tuple[Member, ProbeResult]]:
        """The checks that are over, in the order in which they began."""
        over: list[tuple[Member, ProbeResult]] = []
        for member, check in list(self._checks.items()):
            late = now - check.began - self._window
            if check.heard:
                over.append((member, ProbeResult.ALIVE))
            elif late < -1e-9:
                continue
            elif late > self._window / 2:
                self._checks[member] = _Check(now)  # I was away: what did I miss meanwhile?
                continue
            else:
                over.append((member, ProbeResult.GONE if check.refused else ProbeResult.OPEN))
            del self._checks[member]
        return over

    def keep(self, members: tuple[Member, ...]) -> None:
        """Only these are still a concern: the others are out, or known to be dead."""
        for member in [m for m in self._checks if m not in members]:
            del self._checks[member]
