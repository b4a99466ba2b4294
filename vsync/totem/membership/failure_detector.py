"""Failure detection ahead of the token timeout: short checks of members whose connection broke.

A check lasts one short window. It begins with a hint of the transport, probes the member several
times, and ends in one of three ways: a frame of the member arrived; its host *refused* a connection
(no process listens at its address) and no frame arrived; or neither. Only the second counts as
proof that the member failed; the third is left to the token timeout.

Frames before the middle of the window do not count: the last frames of a failed process may still
sit in a socket. A check during which this process was stopped proves nothing and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from vsync.totem.context import Context, Timer
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.departures import KILLED, Departures
from vsync.totem.membership.gather import EnterGather
from vsync.totem.phases import Reason
from vsync.types import Member
from vsync.wire.messages import Alive, Probe

TRIES = 3


class ProbeResult(Enum):
    """The result of a check; the value is its counter."""

    ALIVE = "suspect_alive"
    GONE = "suspect_gone"
    OPEN = "suspect_unproven"


class _Check:
    def __init__(self, now: float) -> None:
        self.began = now
        self.again_at = now
        self.refused = False
        self.received = False


class FailureDetector:
    """The checks under way, by member.  Times are in seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self.checks: dict[Member, _Check] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self.checks

    def hint(self, member: Member, now: float, refused: bool) -> bool:
        """A member's link broke, or its host refused a new one; True if that begins a check."""
        check = self.checks.get(member)
        fresh = check is None
        if check is None:
            check = self.checks[member] = _Check(now)
        check.refused |= refused
        return fresh

    def on_frame(self, member: Member, now: float) -> None:
        """A frame of this incarnation arrived."""
        check = self.checks.get(member)
        if check is not None and now >= check.began + self._window / 2:
            check.received = True

    def answered(self, member: Member) -> None:
        """The member answered a probe of this check, which counts at any time."""
        check = self.checks.get(member)
        if check is not None:
            check.received = True

    def next_at(self) -> float | None:
        """When `probes` or `findings` are due next."""
        return min((check.again_at for check in self.checks.values()), default=None)

    def probes(self, now: float) -> list[Member]:
        """Members to probe now; each is probed `TRIES` times a window, the first time at once."""
        due = [m for m, c in self.checks.items() if now >= c.again_at < c.began + self._window]
        for member in due:
            self.checks[member].again_at = now + self._window / TRIES
        return due

    def findings(self, now: float) -> list[tuple[Member, ProbeResult]]:
        """The checks that are over, in the order in which they began."""
        over: list[tuple[Member, ProbeResult]] = []
        for member, check in list(self.checks.items()):
            late = now - check.began - self._window
            if check.received:
                over.append((member, ProbeResult.ALIVE))
            elif late < -1e-9:
                continue
            elif late > self._window / 2:
                self.checks[member] = _Check(
                    now
                )  # this process was stopped, and may have missed frames
                continue
            else:
                over.append((member, ProbeResult.GONE if check.refused else ProbeResult.OPEN))
            del self.checks[member]
        return over

    def keep(self, members: tuple[Member, ...]) -> None:
        """End the checks of all but these: the others are out of the ring already."""
        for member in [m for m in self.checks if m not in members]:
            del self.checks[member]


class Prober:
    """Runs the checks: takes the transport's hints, sends probes, gives members up.

    A hint is never proof.  `watched`: the members of the ring, or the candidates of the next one.
    """

    def __init__(
        self,
        context: Context,
        connectivity: Connectivity,
        watched: Callable[[], tuple[Member, ...]],
        enter_gather: EnterGather,
        departures: Departures,
    ) -> None:
        self.detector = FailureDetector(context.config.probe_ms / 1000)
        self._context = context
        self._connectivity = connectivity
        self._watched = watched
        self._enter_gather = enter_gather
        self._departures = departures

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """The link to `address` broke; or, `refused`, nobody listens there any more."""
        if refused:
            self._departures.refused(address)
        member = next((m for m in self._watched() if m.address == address), None)
        if member is None or member == self._context.me:
            self._context.count("suspect_stranger")
            return
        if self.detector.hint(member, now, refused):
            self._context.count("suspected")
            self._context.note("suspect", member=member.name, refused=refused)
        self.check(now)

    def check(self, now: float) -> None:
        """Send the probes that are due, act on what was found, and arm the timer."""
        self.detector.keep(self._watched())
        for member in self.detector.probes(now):
            self._context.send(member, Probe())
        gone: list[Member] = []
        for member, finding in self.detector.findings(now):
            self._context.count(finding.value)
            self._context.note("checked", member=member.name, found=finding.value)
            if finding is ProbeResult.GONE:
                gone.append(member)
        if gone:
            self._departures.evidence(gone, KILLED)
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
