"""Members whose link broke: a short check, long before the token is missed.

The transport's hints come in here.  A hint is never proof: only a member whose host refuses a
connection *and* that is not heard during the whole check is given up
(`vsync.totem.membership.failure_detector`).  What is left undecided, such as a host that says
nothing, is the token timeout's.
"""

from __future__ import annotations

from vsync.totem.context import Timer
from vsync.totem.membership.failure_detector import Finding
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
            self.desk.count("suspect_stranger")
            return
        if self.suspicion.hint(member, now, refused):
            self.desk.count("suspected")
            self.desk.note("suspect", member=member.name, refused=refused)
        self._check(now)

    def _concern(self) -> tuple[Member, ...]:
        """Whose death matters: who is in my ring, or shall be in the next one."""
        if self.gather is not None:
            return self.gather.candidates()
        return self.members if self.phase is Phase.OPERATIONAL else ()

    def _check(self, now: float) -> None:
        """Ask, conclude, and come back in time."""
        self.suspicion.keep(self._concern())
        for member in self.suspicion.probes(now):
            self.desk.send(member, Probe())
        gone: list[Member] = []
        for member, finding in self.suspicion.findings(now):
            self.desk.count(finding.value)
            self.desk.note("checked", member=member.name, found=finding.value)
            if finding is Finding.GONE:
                gone.append(member)
        if gone:
            self.hearing.forget(gone)
            self._announce(self._enter_gather(Reason.MEMBER_GONE, failed=tuple(gone)), now)
        due = self.suspicion.next_at()
        if due is None:
            self.desk.cancel(Timer.CHECK)
        else:
            self.desk.arm(Timer.CHECK, due)

    def _on_probe(self, sender: Member) -> None:
        self.desk.send(sender, Alive())

    def _on_alive(self, sender: Member, now: float) -> None:
        self.suspicion.answered(sender)
        self._check(now)
