"""Parts of large messages wait for their member's disk, and nothing waits for ever: whatever is
applied, durable or in force in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob, unpack_blob
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.persister import CheckpointFeed, Persister
from broker.replication.replica import Item, Replica
from broker.replication.submissions import Submissions
from store.api import Marker, Meta
from store.memory import MemoryDisk, MemoryStore
from vsync.types import RingId

OLD = Meta("prod", "a", "1", cluster_id="cluster", voters=("a", "b"))
PROMISE = Promise("cluster", ("a", "b"), 3)
PART = c.BodyPart(c.BODY_PART, 1, 1, b"p" * 1_000)


class Writer:
    """Commits when it is told to."""

    def __init__(self, on_durable: Callable[[int], None]) -> None:
        self.on_durable, self.last = on_durable, 0
        self.calls: list[Callable[[], None]] = []

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        assert entry
        assert first <= last == meta.position
        self.last = last

    def submit_meta(self, meta: Meta, done: Callable[[], None]) -> None:
        assert meta.cluster_id
        self.calls.append(done)

    def commit(self) -> None:
        calls, self.calls = self.calls, []
        if self.last:
            self.on_durable(self.last)
        for call in calls:
            call()

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointFeed:
        raise AssertionError("too little for a checkpoint")

    def close(self) -> None:
        raise AssertionError("the switch ends the writer")


class Disk:
    """A switch ends when it is told to."""

    def __init__(self) -> None:
        self.in_force: Callable[[], None] | None = None

    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> Writer:
        return Writer(on_durable)

    def switch(
        self, writer: Writer, received: MemoryStore, current: MemoryStore, meta: Meta,
        done: Callable[[MemoryStore], None],
    ) -> None:  # fmt: skip
        self.in_force = lambda: done(received)

    async def settled(self, patience_s: float) -> None:
        raise AssertionError("nobody stops")


class World:
    """One member's own blobs, its state and its store."""

    def __init__(self) -> None:
        self.ring: list[bytes] = []
        self.disk = Disk()
        self.own = Submissions(self._send, pack_blob, lambda: 1, lambda _: 2_000)  # each a blob
        self.own.not_durable_max = 0
        self.own.start(1)
        self.applied = 0  # the last number
        self.durable = 0
        self.parts: set[int] = set()  # the positions of own blobs of parts
        self.persister = Persister(self.disk, MemoryStore(MemoryDisk(), OLD), OLD, self._on_durable)
        self.replica = Replica("a", Machine("a"), History())
        self.counts = True
        self.resends = False

    def _send(self, payload: bytes, urgent: bool) -> bool:
        if unpack_blob(payload).commands[0][0] == c.BODY_PART:
            assert self.resends or not any(at > self.durable for at in self.parts)
        self.ring.append(payload)
        return True

    def _on_durable(self, position: int) -> None:
        self.durable = position
        self.own.durable(position)

    def part(self) -> None:
        self.own.submit([PART])

    def ack(self) -> None:
        self.own.submit([c.Ack(c.ACK, 2, 1, 1, False)])

    def _execute(self, payload: bytes, sender: str) -> int:
        self.replica.apply(Item(1, RingId(1, "a", 1), 1, sender, payload))
        return self.replica.history.position

    def other(self) -> None:
        self._execute(pack_blob(9, 1, 1, [PART]), "b")

    def apply(self) -> None:
        if self.ring:
            payload = self.ring.pop(0)
            blob = unpack_blob(payload)
            position = self._execute(payload, "a")
            if blob.blob_no == self.applied + 1 and blob.session == self.own.session:
                self.applied += 1
                if blob.commands[0][0] == c.BODY_PART:
                    self.parts.add(position)
                self.own.applied(self.applied, position)
                self.own.flush()

    def keep(self) -> None:
        self.persister.keep(self.replica, PROMISE, counts=self.counts)

    def commit(self) -> None:
        self.persister.writer.commit()

    def adopt(self, counts: bool) -> None:
        """Another member's state, which has what this one has, and maybe a store without a vote."""
        if self.persister.switching:
            return
        self._execute(pack_blob(9, 1, 1, [PART]), "b")
        self.replica.cut()
        meta = replace(OLD, position=self.replica.history.position, marker=Marker.DIRTY)
        received = MemoryStore(MemoryDisk(), meta)
        self._on_durable(0)
        self.parts.clear()
        self.counts = counts
        position = meta.position if counts else 0
        self.persister.adopt(received, self.replica, counts=counts)
        self.persister.when_in_force(lambda: self._on_durable(position))
        self.own.store_replaced()
        self.own.flush()

    def in_force(self) -> None:
        if self.disk.in_force is not None:
            finish, self.disk.in_force = self.disk.in_force, None
            finish()

    def level(self) -> None:
        if not self.counts:
            self.counts = True
            self.persister.when_in_force(self._let_count)

    def _let_count(self) -> None:
        self.keep()
        self.persister.counts()

    def view(self) -> None:
        """What was under way is dropped by all, and sent again."""
        self.own.suspend()
        self.ring.clear()
        self.resends = True
        self.own.resume(self.applied)
        self.resends = False

    def session(self) -> None:
        self.own.start(self.own.session + 1)
        self.ring.clear()
        self.parts.clear()
        self.applied = 0


STEPS = st.lists(
    st.sampled_from(
        (
            *[World.part, World.apply] * 4,
            *[World.keep, World.commit] * 2,
            *(World.ack, World.other, World.in_force, World.level),
            *(World.view, World.session, lambda it: it.adopt(True), lambda it: it.adopt(False)),
        )
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_waits_for_ever(steps: list[Callable[[World], None]]) -> None:
    it = World()
    for step in steps:
        step(it)
    it.level()
    for _ in range(len(steps) + 1):
        for step in (World.in_force, *[World.apply] * 4, World.keep, World.commit):
            step(it)
    assert it.own.outstanding == 0
    assert not it.ring
