"""One member above a ring without frames: the real `Primary` over a log and a disk of a few lines.

For `explore`: everything is a plain value, so that a whole world can be copied.  Writes for the
disk wait in `writes` until the explorer lets the disk continue.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tests.sim.stacks.toy_log import LogEntry, next_order, order_at, steps_to
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    DurableMark,
    Holders,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    StateReport,
    Suspended,
    Transfer,
)
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.quorum.voter_set import Terms
from vsync.types import Member

VOTERS = b"voters "


class Image(NamedTuple):
    """The contents of a disk; an arbitrator's `epoch` and `holders` are its record."""

    entries: tuple[LogEntry, ...] = ()
    cluster_id: str = ""
    voters: Terms = ()
    promised: int = 0
    filled: bool = False
    epoch: int = 0
    holders: tuple[str, ...] = ()

    @property
    def order(self) -> bytes:
        """The chain over all entries."""
        return self.entries[-1].order if self.entries else ZERO_CHAIN

    def order_at(self, position: int) -> bytes | None:
        """The chain at an earlier position; None beyond the end."""
        return order_at(self.entries, position)


class Observer(Protocol):
    """Sees all members."""

    def activated(self, peer: Peer, event: Activated) -> None: ...
    def confirmed(self, peer: Peer, position: int) -> None: ...


class Peer:
    """One member, through all its incarnations."""

    def __init__(
        self, name: str, observer: Observer, size: int, requested: Terms, *, arbitrator: bool,
        newcomer: bool,
    ) -> None:  # fmt: skip
        self.name, self.observer, self.size, self.requested = name, observer, size, requested
        self.arbitrator, self.newcomer = arbitrator, newcomer
        self.disk = Image()
        self.restart()

    def restart(self) -> None:
        """Lose everything that is not on the disk."""
        # Nothing of a former incarnation is under way here, so all may look alike: fewer states.
        self.me = Member(self.name, 1, self.name)
        self.memory = self.disk
        self.primary = Primary(self.me, self)
        self.writes: list[tuple[Image, int]] = []  # with the number of the request to answer, or 0
        self.ran = False
        self.since = 0  # the position from which the present voters vote
        self.wanted: Transfer | None = None
        self.backlog: list[Ordered | Activated] = []
        self.copy: Image | None = None
        self.mark = self._mark_of(self.disk)

    def _mark_of(self, image: Image) -> int:
        return image.epoch if self.arbitrator else len(image.entries)

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        memory = self.memory
        return StateReport(
            filled=memory.filled and (memory.epoch > 0 or not self.arbitrator),
            live=self.ran and not self.arbitrator, ran=self.ran,
            # A newcomer to a cluster of one looks for it; it does not form another.
            patient=self.newcomer and not memory.filled,
            cluster_id=memory.cluster_id, proposal=f"of {self.name}", voters=memory.voters,
            size=self.size, promised_epoch=memory.promised,
            state_epoch=memory.epoch, position=len(memory.entries),
            chain=memory.order, order=memory.order, label="",
            requested=self.requested, arbitrator=self.arbitrator, holders=memory.holders,
        )  # fmt: skip

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        return steps_to(payloads, self.memory.order, order)

    # -- what it decides -------------------------------------------------------------------------

    def work(self) -> None:
        """Follow all decisions of the primary layer."""
        while events := self.primary.take():
            for event in events:
                self._follow(event)

    def _follow(self, event: PrimaryEvent) -> None:
        match event:
            case Ordered() | Activated() if self.arbitrator:
                self.ran = self.ran or isinstance(event, Activated)
            case Ordered() | Activated():
                if self.wanted is not None:
                    self.backlog.append(event)
                else:
                    self._apply(event)
            case PersistEpoch(epoch, cluster_id, voters, request):
                if self.memory.entries:
                    voters = self.memory.voters
                self.memory = self.memory._replace(
                    promised=epoch, cluster_id=cluster_id, voters=voters, filled=True
                )
                self.writes.append((self.memory, request))
            case Holders(epoch, names):
                self.memory = self.memory._replace(
                    epoch=epoch, holders=tuple(sorted(names)), filled=True,
                    promised=max(epoch, self.memory.promised),
                )  # fmt: skip
                self.writes.append((self.memory, 0))
            case Transfer(aside=aside):
                self.wanted, self.copy, self.backlog = event, None, []
                if aside:
                    self.memory = self.memory._replace(filled=False)
                    self.writes.append((self.memory, 0))
            case Suspended():
                self.wanted, self.copy, self.backlog = None, None, []
            case DurableMark():
                self._confirm()
            case NeverJoins(reason):
                raise AssertionError(f"{self.name} is refused: {reason}")
            case _:
                pass

    def _apply(self, event: Ordered | Activated) -> None:
        memory = self.memory
        voters, promised, item = memory.voters, memory.promised, event_item(event)
        if isinstance(event, Activated):
            self.observer.activated(self, event)
            self.ran = True
            promised = max(promised, event.activation.epoch)
            if not event.activation.keeps:
                voters = event.activation.voters
            epoch = event.activation.epoch
        else:
            epoch = event.epoch
            voters = changed(voters, event.payload)
        entry = LogEntry(epoch, next_order(memory.order, item), item)
        self.memory = memory._replace(
            entries=(*memory.entries, entry), voters=voters, promised=promised, epoch=epoch,
        )  # fmt: skip
        self.writes.append((self.memory, 0))
        if voters != memory.voters:
            self.since = len(self.memory.entries)
        here = isinstance(event, Activated) and event.ring == self.primary.ring
        if here and self.primary.active:
            self.since = len(self.memory.entries)
            self.primary.activation_applied(self.since)
        self.primary.voters_changed(voters)
        self._confirm()

    def _confirm(self) -> None:
        position = min(self.primary.durable(), len(self.memory.entries))
        if position and not self.arbitrator and self.wanted is None:
            self.observer.confirmed(self, position)

    # -- what the explorer lets happen -----------------------------------------------------------

    def write(self, *, one_promise: bool = False) -> None:
        """Let the disk do all waiting writes, or those up to the next promise."""
        while self.writes:
            self.disk, request = self.writes.pop(0)
            self.mark = self._mark_of(self.disk)
            if request:
                self.primary.persisted(request)
            self.work()
            if request and one_promise:
                return

    def copy_from(self, donor: Peer) -> None:
        """Let the donor copy its state, if it is not fetching one itself."""
        if self.wanted is not None and self.copy is None and donor.wanted is None:
            self.copy = donor.memory

    def install(self) -> None:
        """Continue from the copy, which is on disk, with the later commands, which are not."""
        transfer, copy, self.copy = self.wanted, self.copy, None
        if transfer is None or copy is None:
            return
        known = steps_to([event_item(e) for e in self.backlog], transfer.order, copy.order)
        if known < 0:
            return
        self.memory = copy._replace(promised=max(copy.promised, self.memory.promised))
        self.disk, self.writes, self.mark = self.memory, [], self._mark_of(self.memory)
        contained, rest, self.backlog = self.backlog[:known], self.backlog[known:], []
        self.wanted = None
        self.primary.state_replaced()
        if any(isinstance(event, Activated) for event in contained):
            self.ran, self.since = True, len(copy.entries)
            self.primary.activation_applied(self.since)
        self.primary.voters_changed(copy.voters)
        for event in rest:
            self._apply(event)
        self.primary.caught_up()
        self.work()


def event_item(event: Ordered | Activated) -> bytes | Activation:
    """The item of an event."""
    return event.activation if isinstance(event, Activated) else event.payload


def voters_item(before: Terms, after: Terms) -> bytes:
    """The command that changes the voters."""
    return VOTERS + " ".join((*before, "|", *after)).encode()


def changed(voters: Terms, payload: bytes) -> Terms:
    """The voters after a command."""
    if not payload.startswith(VOTERS):
        return voters
    before, _, after = payload.removeprefix(VOTERS).decode().partition(" | ")
    return tuple(after.split()) if tuple(before.split()) == voters else voters
