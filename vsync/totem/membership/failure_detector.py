"""Early checks of members whose connection broke.

A check lasts one short window.  It begins with a hint, asks the member (PROBE) several times, and
ends in one of three ways: the member was heard, it *refused* (its host answered that nobody listens
at its address) and was not heard, or neither.  Only the second counts as proof of its death; the
third leaves the matter to the token timeout.

What came in before the middle of the window does not count as hearing: the last frames of a dead
process may still sit in a socket.  A check whose owner overslept proves nothing and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from vsync.totem.context import Context, Timer
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.gather import EnterGather
from vsync.totem.phases import Reason
from vsync.types import Member
from vsync.wire.messages import Alive, Probe

TRIES = 3


class ProbeResult(Enum):
    """How a check ended; the word is its counter."""

    ALIVE = "suspect_alive"
    GONE = "suspect_gone"
    OPEN = "suspect_unproven"


class _Check:
    def __init__(self, now: float) -> None:
        self.began = now
        self.again_at = now
        self.refused = False
        self.heard = False


class FailureDetector:
    """The checks under way, by member.  Times are in seconds."""

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


class Prober:
    """Runs the checks: takes the transport's hints, sends probes, gives members up.

    A hint is never proof.  `concern`: the members of the ring, or of the next one.
    """

    def __init__(
        self,
        context: Context,
        connectivity: Connectivity,
        concern: Callable[[], tuple[Member, ...]],
        enter_gather: EnterGather,
    ) -> None:
        self.detector = FailureDetector(context.config.probe_ms / 1000)
        self._context = context
        self._connectivity = connectivity
        self._concern = concern
        self._enter_gather = enter_gather

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """The link to `address` broke; or, `refused`, nobody listens there any more."""
        member = next((m for m in self._concern() if m.address == address), None)
        if member is None or member == self._context.me:
            self._context.count("suspect_stranger")
            return
        if self.detector.hint(member, now, refused):
            self._context.count("suspected")
            self._context.note("suspect", member=member.name, refused=refused)
        self.check(now)

    def check(self, now: float) -> None:
        """Ask, conclude, and come back in time."""
        self.detector.keep(self._concern())
        for member in self.detector.probes(now):
            self._context.send(member, Probe())
        gone: list[Member] = []
        for member, finding in self.detector.findings(now):
            self._context.count(finding.value)
            self._context.note("checked", member=member.name, found=finding.value)
            if finding is ProbeResult.GONE:
                gone.append(member)
        if gone:
            self._connectivity.forget(gone)
            self._enter_gather(Reason.MEMBER_GONE, failed=tuple(gone)).announce(now)
        due = self.detector.next_at()
        if due is None:
            self._context.cancel(Timer.CHECK)
        else:
            self._context.arm(Timer.CHECK, due)

    def on_probe(self, sender: Member) -> None:
        self._context.send(sender, Alive())

    def on_alive(self, sender: Member, now: float) -> None:
        self.detector.answered(sender)
        self.check(now)
