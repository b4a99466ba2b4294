"""Members whose link broke: a short check, long before the token is missed.

The transport's hints come in here.  A hint is never proof: only a member whose host refuses a
connection *and* that is not heard during the whole check is given up
(`vsync.totem.membership.failure_detector`).  What is left undecided, such as a host that says
nothing, is the token timeout's.
"""

from __future__ import annotations

from vsync.totem.context import Timer
from vsync.totem.membership.failure_detector import ProbeResult
from vsync.totem.membership.merge import Meeting
from vsync.totem.phases import Phase, Reason
from vsync.types import Member
from vsync.wire.messages import Alive, Probe


class Checking(Meeting):
    """Probes and what follows from them."""

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """The link to `address` broke; or, `refused`, nobody listens there any more."""
        member = next((m for m in self._concern() if m.address == address), None)
        if member is None or member == self.me:
            self.context.count("suspect_stranger")
            return
        if self.failure_detector.hint(member, now, refused):
            self.context.count("suspected")
            self.context.note("suspect", member=member.name, refused=refused)
        self._check(now)

    def _concern(self) -> tuple[Member, ...]:
        """Whose death matters: who is in my ring, or shall be in the next one."""
        if self.gather is not None:
            return self.gather.candidates()
        return self.members if self.phase is Phase.OPERATIONAL else ()

    def _check(self, now: float) -> None:
        """Ask, conclude, and come back in time."""
        self.failure_detector.keep(self._concern())
        for member in self.failure_detector.probes(now):
            self.context.send(member, Probe())
        gone: list[Member] = []
        for member, finding in self.failure_detector.findings(now):
            self.context.count(finding.value)
            self.context.note("checked", member=member.name, found=finding.value)
            if finding is ProbeResult.GONE:
                gone.append(member)
        if gone:
            self.connectivity.forget(gone)
            self._announce(self._enter_gather(Reason.MEMBER_GONE, failed=tuple(gone)), now)
        due = self.failure_detector.next_at()
        if due is None:
            self.context.cancel(Timer.CHECK)
        else:
            self.context.arm(Timer.CHECK, due)

    def _on_probe(self, sender: Member) -> None:
        self.context.send(sender, Alive())

    def _on_alive(self, sender: Member, now: float) -> None:
        self.failure_detector.answered(sender)
        self._check(now)
