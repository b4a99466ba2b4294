"""One replicated member of a broker story: its ports, its disk and its client.

All of `broker.replication` is real; the story controls disk, transfer, lease and client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.divergence.digest_vote import DigestVerdict
from broker.durability.data_directory import filled
from broker.durability.donor import DonorLibrary
from broker.durability.recovery import recover
from broker.durability.transfer_protocol import LOG, Offer
from broker.exit_codes import Exit
from broker.machine.commands import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    PUBLISH,
    ChannelOpen,
    Command,
    ConnectionOpen,
    Publish,
)
from broker.machine.effects import Confirm, DeliverEffect, Effect, Reply
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.controller import Controller
from broker.replication.durable_gate import DurableGate, acknowledges_durable
from broker.replication.member import ReplicatedMember
from broker.replication.persister import CheckpointFeed
from broker.replication.ports import Ports, Shell
from broker.replication.replica import Applied, Recorded, Replica, records_of
from store.api import Meta
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.primary.events import Activated
from vsync.types import Guarantee, Member, RingId

if TYPE_CHECKING:
    from tests.scenarios.broker_stage import BrokerStage

DIGEST_INTERVAL = 20
"""Positions between two digest votes: few, so that a story gets there."""


class StoryWriter:
    """A disk that writes when the story lets it."""

    def __init__(self, store: MemoryStore, on_durable: Callable[[int], None]) -> None:
        self._store, self._on_durable = store, on_durable
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        def commit() -> None:
            self._store.commit(entry, first, last, meta)
            self._on_durable(last)

        self._waiting.append(commit)

    def submit_meta(self, meta: Meta, done: Callable[[], None]) -> None:
        self._waiting += [lambda: self._store.put_meta(meta), done]

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointFeed:
        raise AssertionError("a story is too short for a checkpoint")

    def close(self) -> None:
        self.work()

    def work(self) -> bool:
        """Do all waiting work; False if there was none."""
        worked = bool(self._waiting)
        while self._waiting:
            self._waiting.popleft()()
        return worked


class StoryClient:
    """The client of one member, and the connections in front of it (`ports.Clients`)."""

    def __init__(self, client_saw: Callable[[str, str], None]) -> None:
        self._saw = client_saw
        self.commands: list[Command] = []
        self.unacked: dict[str, int] = {}
        self.published: list[str] = []
        self._fresh: list[tuple[int, Effect]] = []
        self._gate: DurableGate[Effect] = DurableGate()

    def publish(self, queue: str, body: str) -> None:
        self.published.append(body)
        number, data = len(self.published), body.encode()
        self.commands.append(Publish(PUBLISH, 1, 1, number, "", queue, 4, b"", data))

    @property
    def durable_mark(self) -> int:
        return self._gate.released

    def take_commands(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        self._fresh += effects

    def release(self, position: int) -> None:
        self._gate.release(position)

    def flush(self, *, may_reply: bool, soon: bool) -> list[int]:
        fresh, self._fresh = (self._fresh, []) if may_reply else ([], self._fresh)
        for position, effect in fresh:
            if acknowledges_durable(effect) and not self._gate.is_open(position):
                self._gate.hold(position, effect)
            else:
                self._write(effect)
        if may_reply:
            for _, effect in self._gate.take():
                self._write(effect)
        return []

    def throttle(self, *, full: bool, large_full: bool, alarm: str) -> None:
        pass

    def session_started(self, session: int) -> None:
        """The connection is void: its client, if any, is disconnected."""
        self._fresh.clear()
        self._gate.clear()
        if self.published or self.unacked:
            self._saw("is disconnected", "")
        self.unacked.clear()
        self.published.clear()

    def set_aside(self) -> None:
        raise AssertionError("only one of a pair is set aside")

    def _write(self, effect: Effect) -> None:
        match effect:
            case DeliverEffect():
                body = bytes(effect.body).decode()
                self.unacked[body] = effect.delivery_tag
                self._saw("gets again" if effect.redelivered else "gets", body)
            case Confirm():
                assert effect.ack
                self._saw("has confirmed", self.published[effect.publish_no - 1])
            case Reply(_, _, "queue.declare-ok" | "basic.consume-ok" as method):
                self._saw("gets", method)
            case _:
                pass


class StoryMember:
    """One incarnation of a member: all of its ports but the clients, and its disk."""

    stopping = False

    def __init__(self, stage: BrokerStage, me: Member, disk: MemoryDisk) -> None:
        self.stage, self.me, self.disk = stage, me, disk
        self.mark = 0
        self.stopped = False
        self.out: list[bytes] = []
        self.fetch: Member | None = None
        self._asked: tuple[Member, int] | None = None
        self._tail: Iterator[Recorded] = iter(())
        self._scheduled = False
        self._later: list[Callable[[], None]] = []
        self._unlogged = False
        self.client = StoryClient(self._client_saw)
        store = MemoryStore(disk, Meta("stories", me.name, f"store-{me.name}"))
        self.replica = recover(me.name, store)
        ports = Ports(self, self, self, self, self.client, self, self)
        self.member = ReplicatedMember(
            ports, self, store, replace(store.meta, incarnation=me.incarnation), self._controller,
        )  # fmt: skip
        self.controller = self.member.controller

    def _controller(self, shell: Shell, promise: Promise) -> Controller:
        name = self.me.name
        return Controller(
            self.me, shell, promise, replica=self.replica,
            filled=bool(self.disk.meta and filled(self.disk.meta)), size=self.stage.size,
            proposal=f"of {name}", patient=False, label=name, digest_interval=DIGEST_INTERVAL,
        )  # fmt: skip

    def settle(self) -> None:
        """Run turns, disk and transfer until nothing is left to do or all is held."""
        name, held = self.me.name, self.stage.held
        busy = True
        while busy and not self.stopped:
            busy = self._scheduled
            if busy:
                self._scheduled = False
                self.member.turn(lambda: True)
            if ("disk", name) not in held:
                busy |= self.member.persister.writer.work()
            while self._later and ("silence", name) not in held:
                busy = True
                self._later.pop(0)()
                self._scheduled = True
            if self.fetch is not None and ("transfer", name) not in held:
                busy |= self._fetch(self.fetch)

    def _fetch(self, donor: Member) -> bool:
        """Continue the transfer if the donor has something new on its disk."""
        other = self.stage.members[donor.name]
        if other.me != donor or other.stopped:
            return False
        library = DonorLibrary(lambda: other.member.persister.store, self._no_checkpoint)
        if self._asked == (donor, other.mark):
            return False
        self._asked = donor, other.mark
        if isinstance(library.judge(self.me.name, self.controller.replica.history, 0), Offer):
            # From a donor without a checkpoint: its log begins with an empty state.
            self._received = MemoryDisk()
            own = self.member.persister.meta
            store = MemoryStore(self._received, Meta(own.cluster_name, own.member, own.store_id))
            self.member.state_received(recover(self.me.name, store), store)
        _, block = library.read(self.me.name, LOG, self.controller.replica.history.position)
        self._tail = records_of(block)
        self.member.tail_is_here()
        return True

    def _no_checkpoint(self) -> None:
        raise AssertionError("a story is too short for a checkpoint")

    def _client_saw(self, what: str, word: str) -> None:
        assert not (word and self._unlogged), (
            f"{word} was written to a client before the member log"
        )
        self.stage.client_saw(self.me.name, what, word)

    # -- the ring (`ports.Ring`) -------------------------------------------------------------

    def submit(self, payload: bytes, guarantee: Guarantee, *, urgent: bool = True) -> bool:
        self.out.append(payload)
        return True

    def set_mark(self, mark: int) -> None:
        self.mark = mark

    def expect_mark(self, mark: int) -> None:
        """Marks are shown when the story says so."""

    # -- leases and clock (`ports.Lease`, `ports.Clock`) -------------------------------------

    def holds(self, ring: RingId) -> bool:
        return ("lease", self.me.name) not in self.stage.held

    def silent_in(self, members: Collection[Member]) -> float:
        return 0.0

    def now_us(self) -> int:
        return 1_000_000_000_000

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._later.append(call)

    def when_right(self, call: Callable[[], None]) -> None:
        call()

    # -- transfers and stores (`ports.Transfer`, `StoreDevice`) ------------------------------

    def begin(self, donor: Member, base: int) -> None:
        self.fetch, self._asked = donor, None

    def abort(self) -> None:
        self.fetch, self._tail = None, iter(())

    done = abort

    def next_item(self) -> Recorded | None:
        return next(self._tail, None)

    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> StoryWriter:
        return StoryWriter(store, on_durable)

    def switch(
        self, writer: StoryWriter, received: MemoryStore, current: MemoryStore, meta: Meta,
        done: Callable[[MemoryStore, tuple[int, int]], None],
    ) -> None:  # fmt: skip
        writer.close()
        received.put_meta(meta)
        current.close()
        self.disk = self.stage.disks[self.me.name] = self._received
        done(received, received.bytes_to_start())

    async def settled(self, patience_s: float) -> None:
        pass

    # -- the process (`ports.Host`) ----------------------------------------------------------

    def schedule(self) -> None:
        self._scheduled = True

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        wrong = ", its store is inconsistent" if inconsistent else ""
        self.stage.saw(self.me.name, f"stops: {reason}{wrong}")
        self.stopped = True

    def failed(self, error: Exception) -> None:
        raise error

    def voted(self, verdict: DigestVerdict) -> None:
        if verdict.divergent or verdict.split:
            wrong = " ".join(verdict.divergent) or "nobody is right"
            self.stage.saw(self.me.name, f"digest vote: diverged {wrong}")

    def session_commands(self) -> list[Command]:
        return [
            ConnectionOpen(CONNECTION_OPEN, 1, "/", "guest", "story"),
            ChannelOpen(CHANNEL_OPEN, 1, 1),
        ]

    def note(self, event: str, text: str) -> None:
        words = {
            "transfer": f"fetch the state {text}", "transfer_failed": text, "serve": "serve",
            "fence": f"fence: {text.removeprefix('not in the primary view: ')}",
            "decided": f"what follows was decided {text}",
            "level": "level",
        }  # fmt: skip
        if event == "installed":
            words[event] = f"install the state of {text.rpartition(' of ')[2]}"
        if event in words:
            self.stage.saw(self.me.name, words[event])

    # -- the member log (`ports.EvidenceLog`) ------------------------------------------------

    def batch(self, applied: Applied, history: History, root: int) -> None:
        self._unlogged = True

    def view(self, ring: RingId, members: tuple[Member, ...], *, regular: bool) -> None:
        pass

    def activated(self, event: Activated, base: History | None) -> None:
        made = event.activation
        fresh = " ".join(name for name, _, new in made.members if new)
        cold = " cold" if made.cold else ""
        clients = f", fresh: {fresh}" if fresh else ""
        self.stage.saw(self.me.name, f"activate{cold} epoch {made.epoch}{clients}")

    def inactive(self, reason: str) -> None:
        pass

    def decided(self, epoch: int) -> None:
        pass

    def durable(self, position: int) -> None:
        pass

    def snapshot(self, history: History, machine: Machine, donor: str) -> None:
        pass

    def confirmed(self, epoch: int, durable_mark: int, positions: list[int]) -> None:
        pass

    written = 0

    @property
    def unflushed(self) -> bool:
        return self._unlogged

    def flush(self) -> int:
        self._unlogged = False
        return 0
