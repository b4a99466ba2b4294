"""State transfer in virtual time: a copy of the donor's durable store, if the links allow it.

The protocol itself (`broker.durability.transfer_protocol`) has tests of its own; here it is two
waits, for the copy and for its way, each of which a cut link, a dead donor or a new view can make
come to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker.durability.recovery import recover
from store.api import Marker
from store.memory import MemoryDisk, MemoryStore
from vsync.types import Member, record

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper


@record
class Attempt:
    """One transfer under way."""

    donor: Member
    base: int


class SimTransfer:
    """What `broker.durability.transfer` is to a member."""

    def __init__(self, upper: BrokerUpper) -> None:
        self.upper = upper
        self.tape = upper.tape.fork("joining")
        self._attempt: Attempt | None = None

    def begin(self, donor: Member, base: int) -> None:
        """Ask the donor; an earlier attempt is dropped."""
        self._attempt = Attempt(donor, base)
        self._after(0.3, self._attempt)

    def abort(self) -> None:
        self._attempt = None

    def _length(self, part: float) -> float:
        return self.tape.gap(part * self.upper.world.plan.transfer_s)

    def _after(self, part: float, attempt: Attempt) -> None:
        self.upper.later(self._length(part), lambda: self._copy(attempt))

    def _reachable(self, donor: Member) -> BrokerUpper | None:
        """The donor's present incarnation, if datagrams get through both ways."""
        here, there = self.upper.name, donor.name
        other = self.upper.stack.uppers.get(there)
        links = self.upper.world.net.links
        if other is None or other.dead or other.member.incarnation != donor.incarnation:
            return None
        usable = not (links[here, there].cut or links[there, here].cut)
        return other if usable and other.member.running else None

    def _copy(self, attempt: Attempt) -> None:
        if self._attempt is not attempt:
            return
        donor = self._reachable(attempt.donor)
        if donor is None or donor.store.meta.position < attempt.base:
            self._after(0.3, attempt)
            return
        path = Path(f"{self.upper.name}.{self.upper.member.incarnation}")
        donor.store.copy_to(path)
        disk = self.upper.stack.disks[donor.name].copies.pop(str(path))
        self.upper.later(self._length(0.7), lambda: self._arrived(attempt, disk))

    def _arrived(self, attempt: Attempt, disk: MemoryDisk) -> None:
        if self._attempt is not attempt:
            return
        if self._reachable(attempt.donor) is None:
            self._attempt = None
            self.upper.replicated.transfer_failed("the donor is out of reach")
            return
        own = self.upper.replicated.persister.meta
        store = MemoryStore(disk)
        store.put_meta(
            replace(
                store.meta, member=own.member, store_id=own.store_id,
                incarnation=own.incarnation, marker=Marker.JOINING, shutdown_id="", note="",
            )
        )  # fmt: skip
        replica = recover(self.upper.name, store)
        self.upper.judge.recovered(self.upper.name, replica, "joined")
        self._attempt = None
        self.upper.replicated.state_received(replica, store)
