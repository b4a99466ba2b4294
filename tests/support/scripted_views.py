"""Cores on a bus: the broker's decisions under views that a test scripts by hand.

The bus plays the ring: it orders what is multicast, delivers it to the members of a view, and shows
views and transitional configurations exactly as told.  Disks are instant unless a test holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.divergence.digest_vote import DigestVerdict
from broker.exit_codes import Exit
from broker.machine.commands import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    PUBLISH,
    QUEUE_DECLARE,
    ChannelOpen,
    Command,
    ConnectionOpen,
    Publish,
    QueueDeclare,
)
from broker.machine.effects import Effect
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.controller import Controller
from broker.replication.replica import Recorded, Replica, records_of
from broker.replication.unapplied import HELD_BYTES_MAX
from vsync.primary.events import Activated
from vsync.totem.events import Deliver, Marks, Transitional, View
from vsync.types import Guarantee, Member, RingId


class RigShell:
    """Does at once what the core orders, and records what it was told."""

    def __init__(self, bus: Bus, me: Member) -> None:
        self.bus, self.me = bus, me
        self.disk = Promise("", (), 0)
        self.disk_history = History()
        self.sent: list[tuple[int, Effect]] = []
        self.released = 0
        self.sessions: list[int] = []
        self.held: list[str] = []
        self.stopped: tuple[Exit, str] | None = None
        self.verdicts: list[DigestVerdict] = []
        self.decisions: list[int] = []
        self.transfers: list[tuple[Member, int]] = []
        self.instant_transfers = True
        self.log: list[Recorded] = []
        self.tail: deque[Recorded] = deque()
        self.promises_held: list[int] = []
        self.hold_promises = False
        self.asides = 0
        self.store_counts = True  # or it has the mark of a joining one, and reports nothing
        self.date_us = 1_000_000

    def multicast(self, payload: bytes, *, urgent: bool = True) -> bool:
        self.bus.queue.append((self.me, payload))
        return True

    def persist_promise(self, promise: Promise, done: Callable[[], None]) -> None:
        self.flush_disk()
        self.disk = promise
        if self.hold_promises:
            self.promises_held.append(promise.promised_epoch)
        else:
            self.bus.later.append(done)

    @property
    def core(self) -> Controller:
        return self.bus.cores[self.me.name]

    def flush_disk(self) -> None:
        batch = self.core.replica.cut()
        if batch is not None:
            self.disk_history = batch.history
            self.log += records_of(batch.entry)

    def set_aside(self, done: Callable[[], None]) -> None:
        self.asides += 1
        self.released = 0
        self.bus.later.append(done)

    def begin_transfer(self, donor: Member, base: int) -> None:
        self.transfers.append((donor, base))
        if self.instant_transfers:
            self.bus.later.append(lambda: self.finish_transfer(donor))

    def finish_transfer(self, donor: Member) -> None:
        source = self.bus.cores[donor.name].replica
        chunks = list(source.machine.snapshot())
        replica = Replica(self.me.name, Machine.restore(self.me.name, chunks), source.history)
        self.disk_history = replica.history
        self.core.state_received(replica, counts=True)

    def abort_transfer(self) -> None:
        pass

    def next_of_tail(self) -> Recorded | None:
        return self.tail.popleft() if self.tail else None

    def tail_failed(self, reason: str) -> None:
        self.held.append(reason)

    def transfer_done(self) -> None:
        self.tail.clear()

    def state_is_level(self) -> None:
        pass

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        self.sent.extend(effects)

    def release(self, position: int) -> None:
        self.released = position

    def fence(self, reason: str) -> None:
        self.held.append(reason)

    def serve(self) -> None:
        pass

    def session_started(self, session: int) -> None:
        self.sessions.append(session)

    def decided(self, epoch: int) -> None:
        self.decisions.append(epoch)

    def activated(self, event: Activated, base: History | None) -> None:
        pass

    def voted(self, verdict: DigestVerdict) -> None:
        self.verdicts.append(verdict)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        self.stopped = (code, reason)

    def now_us(self) -> int:
        return self.date_us


class Bus:
    """A scripted ring."""

    def __init__(self) -> None:
        self.cores: dict[str, Controller] = {}
        self.shells: dict[str, RigShell] = {}
        self.queue: list[tuple[Member, bytes]] = []
        self.later: list[object] = []
        self.withheld: list[tuple[Member, bytes]] = []
        self.ring_seq = 0
        self.seq = 0
        self.ring = RingId(0, "", 0)
        self.view_of: dict[str, tuple[Member, ...]] = {}

    def start(
        self, name: str, *, incarnation: int = 1, size: int = 3, keep: bool = False,
        requested: tuple[str, ...] = (), held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:  # fmt: skip
        """Start a member; with `keep` from the disk of its former incarnation."""
        me = Member(name, incarnation, f"{name}:1")
        old = self.shells.get(name)
        shell = RigShell(self, me)
        replica = Replica(name, Machine(name), History())
        if keep and old is not None:
            shell.disk = old.disk
            # A replay of the store would give the items up to the disk's position.
            former = self.cores[name].replica
            assert former.history.position == old.disk_history.position, "replay not modelled"
            chunks = list(former.machine.snapshot())
            replica = Replica(name, Machine.restore(name, chunks), former.history)
            shell.disk_history = former.history
        self.shells[name] = shell
        self.cores[name] = Controller(
            me, shell, shell.disk, replica=replica, filled=bool(shell.disk.cluster_id), size=size,
            proposal=f"cluster-{name}", patient=False, label=name, requested=requested,
            held_bytes_max=held_bytes_max,
        )  # fmt: skip

    def members(self, names: str) -> tuple[Member, ...]:
        return tuple(self.cores[n].me for n in names.split())

    def transitional(self, names: str) -> None:
        """End the present view for these members, who move on together."""
        for name in names.split():
            self.give(name, Transitional(self.ring, self.members(names)))

    def view(self, names: str) -> None:
        """Install a regular view."""
        self.ring_seq += 1
        self.seq = 0
        self.ring = RingId(self.ring_seq, names.split()[0], 1)
        for name in names.split():
            self.view_of[name] = self.members(names)
            self.give(name, View(self.ring, self.members(names), (), ()))

    def change(self, names: str) -> None:
        """Change the view: all named members move together, and what follows is delivered."""
        self.transitional(names)
        self.view(names)
        self.run(names)

    def give(self, name: str, output: Deliver | Marks | Transitional | View) -> None:
        core = self.cores[name]
        core.on_output(output)
        core.flush()
        self.work(name)

    def work(self, name: str) -> None:
        core = self.cores[name]
        while core.unapplied.busy:
            core.step()

    def deliver(
        self, names: str, sender: Member, payload: bytes, *, transitional: str = ""
    ) -> None:
        """Order one payload for `names`; the members in `transitional` see it only there."""
        self.seq += 1
        for name in names.split():
            late = name in transitional.split()
            self.give(name, Deliver(self.ring, self.seq, sender, [payload], Guarantee.SAFE, late))

    def run(self, names: str, *, disks: bool = True) -> None:
        """Deliver everything to everyone in `names` until nothing is left; then disks catch up."""
        for _ in range(10_000):
            if self.later:
                call = self.later.pop(0)
                assert callable(call)
                call()
                for name in names.split():
                    self.work(name)
            elif self.queue:
                sender, payload = self.queue.pop(0)
                if sender.name in names.split():
                    self.deliver(names, sender, payload)
            else:
                break
        if disks:
            self.marks(names)

    def marks(self, names: str) -> None:
        """Let all disks catch up, and the token report that."""
        for name in names.split():
            self.shells[name].flush_disk()
        shells = {n: self.shells[n] for n in names.split()}
        marks = {n: s.disk_history.position if s.store_counts else 0 for n, s in shells.items()}
        for name in names.split():
            self.give(name, Marks(marks))


def hello() -> list[Command]:
    """Open a connection and a channel, and declare a queue q."""
    return [
        ConnectionOpen(CONNECTION_OPEN, 1, "/", "guest", "p:1"),
        ChannelOpen(CHANNEL_OPEN, 1, 1),
        QueueDeclare(QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {}),
    ]


def publish(number: int) -> Command:
    """Publish a persistent message to q."""
    return Publish(PUBLISH, 1, 1, number, "", "q", 4, b"", b"m%d" % number)


def formed(size: int = 3) -> Bus:
    """Three members in a primary view."""
    bus = Bus()
    names = "a b c"
    for name in names.split():
        bus.start(name, size=size)
    bus.view(names)
    bus.run(names)
    return bus


def same_everywhere(bus: Bus, names: str) -> None:
    points = {str(bus.cores[n].replica.history) for n in names.split()}
    roots = {bus.cores[n].replica.machine.root() for n in names.split()}
    assert len(points) == 1
    assert len(roots) == 1
