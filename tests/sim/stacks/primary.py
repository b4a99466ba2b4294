"""The layer above the ring when the primary layer is simulated: `Primary` over a toy log.

It keeps the obligations that the primary layer states, with a slow disk and a slow state transfer.
An entry is confirmed to its client when the durable mark passes it; the judge remembers each of
those for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.stacks.toy_log import Disk, Image, ToyLog, steps_to
from tests.sim.world.member import SimMember
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import Tap
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    DurableMark,
    Holders,
    Inquorate,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    StateReport,
    Suspended,
    Transfer,
)
from vsync.totem.events import Output
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.checkers.primary import Judge
    from tests.sim.world.world import World


class Replica:
    """One incarnation of one member above its ring."""

    def __init__(self, world: World, member: SimMember, tap: Tap, disk: Disk, judge: Judge) -> None:
        self.world, self.member, self.tap, self.disk, self.judge = world, member, tap, disk, judge
        self.tape: Tape = world.tape.fork(f"replica {member.name} {member.incarnation}")
        self.log = ToyLog(disk.durable)
        self.primary = Primary(tap.me, self)
        self.durable_position = self.log.position
        self.ran = False
        self.active = False
        self.transfer: Transfer | None = None
        self.backlog: list[Ordered | Activated] = []
        self.confirmed_to = 0
        self._waiting: list[Callable[[], None]] = []  # for the next commit to end
        self._dirty = False
        self._dead = False
        self._fetched: Transfer | None = None  # installed, but not yet durable

    def started(self, now: float) -> None:
        self.tap.core.set_mark(self.durable_position, now)

    @property
    def ready(self) -> bool:
        """Whether it is in the primary, with its state, and has nothing left to write."""
        return (
            self.active
            and self.transfer is None
            and self.primary.has_caught_up
            and self.durable_position == self.log.position
            and self.primary.durable() >= self.log.position  # and clients were told
        )

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        log = self.log
        return StateReport(
            filled=log.filled,
            live=self.ran,
            ran=self.ran,
            patient=False,
            cluster_id=log.cluster_id,
            proposal=f"of {self.member.name}",
            voters=log.voters,
            size=len(self.world.plan.names),
            promised_epoch=log.promised_epoch,
            state_epoch=log.epoch,
            position=log.position,
            chain=log.order,
            order=log.order,
            label="",
        )

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        return steps_to(payloads, self.log.order, order)

    # -- from the ring and from clients ----------------------------------------------------------

    def on_output(self, output: Output, now: float) -> None:
        before = self.primary.plan
        self.primary.on_output(output)
        if self.primary.plan is not before and self.primary.plan is not None:
            self.judge.planned(self.member.name, self.primary.plan)
        self._work()

    def _work(self) -> None:
        for event in self.primary.take():
            self._follow(event)

    def pump(self, now: float) -> None:
        waiting = self.primary.take_outgoing()
        while waiting and self.tap.submit(waiting[0], now, Guarantee.SAFE):
            waiting.pop(0)
        self.primary.put_back(waiting)

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        """Take a client's entry, if this member is in the primary with its state."""
        if not self.active or self.transfer is not None:
            return False
        return self.tap.submit(Primary.wrap(payload), now, Guarantee.SAFE)

    def crashed(self) -> None:
        self._dead = True
        self.disk.crash(self.tape.chance(0.5))

    # -- what the primary layer decides ----------------------------------------------------------

    def _follow(self, event: PrimaryEvent) -> None:
        match event:
            case Ordered() | Activated():
                if self.transfer is not None:
                    self.backlog.append(event)
                else:
                    self._apply(event)
            case Holders():
                pass  # this is no arbitrator
            case DurableMark(position):
                self._confirm(position)
            case PersistEpoch(epoch, cluster_id, voters, request):
                self.log.promised_epoch = epoch
                self.log.cluster_id, self.log.voters = cluster_id, voters
                self.log.filled = True
                self._commit(lambda: self._persisted(request))
            case Transfer(donor=donor, epoch=epoch, base=base):
                self._note("transfer", f"epoch {epoch} from {donor.name} at {base}")
                self.transfer, self.backlog = event, []
                self._fetch_later(event)
            case Suspended(reason) | Inquorate(reason):
                self._note("suspended", reason)
                self.active = False
                self.transfer, self.backlog, self._fetched = None, [], None
            case NeverJoins(reason):
                raise AssertionError(f"{self.member.name} is refused: {reason}")

    def _apply(self, event: Ordered | Activated) -> None:
        if isinstance(event, Activated):
            activation = event.activation
            self._note("activated", f"epoch {activation.epoch} base {self.log.position}")
            self.log.promised_epoch = max(self.log.promised_epoch, activation.epoch)
            self.judge.activated(self.member.name, event, self.log, self.primary)
            self.ran = True
            self.log.apply(activation.epoch, activation)
            self._entered(event)
        else:
            self.log.apply(event.epoch, event.payload)
        self.judge.applied(self.member.name, self.log)
        self._commit(None)

    def _entered(self, event: Activated) -> None:
        if event.ring == self.primary.ring and self.primary.active:
            self.active = True
            self.primary.activation_applied(self.log.position)

    def _confirm(self, position: int) -> None:
        """The durable mark moved: confirm the entries that this member has applied itself."""
        reached = min(position, self.log.position)
        if self.active and self.transfer is None and reached > self.confirmed_to:
            self.confirmed_to = reached
            self.judge.confirmed(self.member.name, reached, self.log)

    # -- disk ------------------------------------------------------------------------------------

    def _commit(self, done: Callable[[], None] | None) -> None:
        """Make the present state durable, after any commit under way."""
        if done is not None:
            self._waiting.append(done)
        self._dirty = True
        if self.disk.writing is None:
            self._begin()

    def _begin(self) -> None:
        self._dirty = False
        waiting, self._waiting = self._waiting, []
        self.disk.begin(self.log.image())
        self.world.after(
            self.member.fsync_s(self.tape), self._committed, self.disk.writing, waiting
        )

    def _committed(self, image: Image, waiting: list[Callable[[], None]]) -> None:
        if self._dead:
            return
        if self.member.paused:
            self.world.after(0.01, self._committed, image, waiting)
            return
        if self.member.disk_waits(partial(self._committed, image, waiting)):
            return
        if self.member.disk_failed():
            return
        assert self.disk.writing is image
        self.disk.finish()
        self.durable_position = len(image.entries)
        self.tap.core.set_mark(self.durable_position, self.world.now)
        for action in waiting:
            action()
        if self._dirty:
            self._begin()
        self.member.finish_step()

    def _persisted(self, request: int) -> None:
        self.primary.persisted(request)
        self._work()

    # -- state transfer --------------------------------------------------------------------------

    def _fetch_later(self, transfer: Transfer) -> None:
        self.world.after(self.tape.gap(self.world.plan.transfer_s), self._fetch, transfer)

    def _fetch(self, transfer: Transfer) -> None:
        """Copy the donor's present state, if it can be reached and holds enough."""
        if self._dead or self.transfer is not transfer:
            return
        donor = self.judge.replicas.get(transfer.donor.name)
        net, a, b = self.world.net, self.member.name, transfer.donor.name
        if (
            donor is None
            or donor.member.incarnation != transfer.donor.incarnation
            or not donor.member.running
            or self.member.paused
            or net.links[a, b].cut
            or net.links[b, a].cut
            or donor.transfer is not None
            or donor.log.position < transfer.base
        ):
            self._fetch_later(transfer)
            return
        copy = ToyLog(donor.log.image())
        known = self._contained_in(copy)
        if known < 0:  # it has moved to another history meanwhile; a view change will follow
            self._fetch_later(transfer)
            return
        self._install(copy, known)

    def _contained_in(self, copy: ToyLog) -> int:
        assert self.transfer is not None
        items = [e.activation if isinstance(e, Activated) else e.payload for e in self.backlog]
        return steps_to(items, self.transfer.order, copy.order)

    def _install(self, copy: ToyLog, known: int) -> None:
        self._note("installed", f"position {copy.position}")
        for name in ("cluster_id", "voters"):
            setattr(self.log, name, getattr(copy, name))
        self.log.entries = copy.entries
        self.log.filled = True
        self.primary.state_replaced()
        contained, backlog = self.backlog[:known], self.backlog[known:]
        self._fetched = transfer = self.transfer
        self.transfer, self.backlog = None, []
        self.confirmed_to = 0
        for event in contained:
            if isinstance(event, Activated):
                self.log.promised_epoch = max(self.log.promised_epoch, event.activation.epoch)
                self.ran = True
                self._entered(event)
        for event in backlog:
            self._apply(event)
        self._commit(lambda: self._caught_up(transfer))

    def _caught_up(self, transfer: Transfer | None) -> None:
        if self._fetched is not transfer:
            return  # the view that wanted it is over
        self.primary.caught_up()
        self._work()

    def _note(self, code: str, text: str) -> None:
        self.world.trace.add(self.world.now, self.member.name, code, text)
