"""A received store replaces the old one while its member goes on; checkpoints of such stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.machine import Machine
from broker.machine.version import MACHINE_VERSION
from broker.replication.chain import History, Promise
from broker.replication.persister import CheckpointFeed, Persister
from broker.replication.replica import Item, Replica
from store.api import Marker, Meta
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.primary.events import Activation
from vsync.types import RingId

RING = RingId(1, "a", 1)
PROMISE = Promise("cluster", ("a", "b"), 3)
OLD = Meta("prod", "a", "1", cluster_id="cluster", voters=("a", "b"), promised_epoch=7)


class SlowWriter:
    """Completes writes only when the test says so."""

    def __init__(self, store: MemoryStore, on_durable: Callable[[int], None]) -> None:
        self.store, self.on_durable = store, on_durable
        self.metas: list[Meta] = []
        self.entries: list[tuple[int, int]] = []
        self.waiting: list[Callable[[], None]] | None = None  # None: nothing waits for the disk

    def submit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        self.entries.append((first, last))
        self.metas.append(meta)

    def submit_meta(self, meta: Meta, done: Callable[[], None]) -> None:
        self.metas.append(meta)
        if self.waiting is None:
            done()
        else:
            self.waiting.append(done)

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointFeed:
        raise AssertionError("too little for a checkpoint")

    def close(self) -> None:
        raise AssertionError("the switch ends the writer, beside the loop")


class SlowDevice:
    """A device whose switch ends when the test says so."""

    def __init__(self) -> None:
        self.writers: list[SlowWriter] = []
        self.finish: Callable[[], None] | None = None

    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> SlowWriter:
        self.writers.append(SlowWriter(store, on_durable))
        return self.writers[-1]

    def switch(
        self, writer: SlowWriter, received: MemoryStore, current: MemoryStore, meta: Meta,
        done: Callable[[MemoryStore, tuple[int, int]], None],
    ) -> None:  # fmt: skip
        assert writer is self.writers[-1]

        def finish() -> None:
            received.put_meta(meta)
            done(received, received.bytes_to_start())

        self.finish = finish

    async def settled(self, patience_s: float) -> None:
        if self.finish is not None:
            self.finish()


class Switch:
    """A member whose received store, of one item, is about to come into force."""

    def __init__(self) -> None:
        self.device = SlowDevice()
        self.durable: list[int] = []
        old = MemoryStore(MemoryDisk(), OLD)
        self.persister = Persister(self.device, old, OLD, self.durable.append)
        self.replica = Replica("a", Machine("a"), History())
        self.apply()
        self.replica.cut()
        history = self.replica.history
        self.received = MemoryStore(
            MemoryDisk(), replace(OLD, position=history.position, promised_epoch=0)
        )
        self.persister.adopt(self.received, self.replica, counts=True)

    def apply(self) -> None:
        epoch = self.replica.history.position + 1
        activation = Activation(epoch, (("a", 1, True),), False, ("a", "b"), "cluster")
        ring = RingId(epoch, "a", 1)
        self.replica.apply(Item(epoch, ring, 1, "a", activation))

    def finish(self) -> None:
        assert self.device.finish is not None
        self.device.finish()


def test_items_applied_during_the_switch_go_to_the_new_store() -> None:
    it = Switch()
    first = it.replica.history.position
    it.apply()
    it.persister.keep(it.replica, PROMISE)
    assert not it.device.writers[0].entries
    it.finish()
    it.persister.keep(it.replica, PROMISE)
    old, new = it.device.writers
    assert not old.entries
    assert new.store is it.received
    assert new.entries == [(first + 1, it.replica.history.position)]


def test_a_received_state_brings_its_cluster() -> None:
    """Seed 7200314 of the broker stack: the old store had the cluster of a first start that broke
    off. A member that stopped after the switch was told of another cluster for ever."""
    it = Switch()
    it.finish()
    it.persister.meta = replace(it.persister.meta, cluster_id="that broke off")
    it.persister.adopt(it.received, it.replica, counts=True)
    assert it.persister.meta.cluster_id == it.replica.machine.cluster_id == "cluster"


def test_a_commit_of_the_replaced_store_is_not_reported() -> None:
    it = Switch()
    it.device.writers[0].on_durable(100)
    it.finish()
    it.device.writers[0].on_durable(100)
    assert not it.durable
    it.device.writers[1].on_durable(2)
    assert it.durable == [2]


@pytest.mark.parametrize("voted", [True, False])
def test_the_new_stores_commits_are_reported_even_below_the_olds(voted: bool) -> None:
    """The old store was of another history; confirms would wait until the new one is as long."""
    it = Switch()
    it.finish()
    if voted:
        it.device.writers[-1].on_durable(100)
    else:
        it.persister.meta = replace(it.persister.meta, position=100)
        it.persister.takes_back_vote(lambda: None)
    it.durable.clear()
    it.persister.adopt(it.received, it.replica, counts=True)
    it.finish()
    it.apply()
    it.persister.keep(it.replica, PROMISE)
    it.device.writers[-1].on_durable(it.replica.history.position)
    assert it.durable == [it.replica.history.position]


class Joining:
    """A member whose store is marked as joining, holds one item, and is about to count."""

    def __init__(self) -> None:
        it = self.it = Switch()
        it.finish()
        it.persister.adopt(it.received, it.replica, counts=False)
        it.finish()
        self.writer = it.device.writers[-1]
        self.writer.waiting = []
        self.position = it.persister.meta.position
        it.persister.counts()

    def mark_is_written(self) -> None:
        assert self.writer.waiting
        self.writer.waiting.pop()()


def test_a_commit_of_the_mark_with_later_items_is_reported_to_its_end() -> None:
    """Work that waits for the last position would wait for the next commit, if any came."""
    joining = Joining()
    last = joining.position + 3
    joining.writer.on_durable(last)
    joining.mark_is_written()
    assert joining.it.durable == [last]


def test_the_mark_of_a_store_that_is_being_replaced_is_not_reported() -> None:
    """That store may be of a history nobody else has."""
    joining = Joining()
    joining.it.persister.adopt(joining.it.received, joining.it.replica, counts=True)
    joining.mark_is_written()
    assert not joining.it.durable


def test_commits_of_a_store_that_does_not_count_are_not_reported() -> None:
    """G9: it has no vote, so what others release by its position could be lost with one of them."""
    it = Switch()
    it.finish()
    it.persister.adopt(it.received, it.replica, counts=False)
    it.finish()
    it.apply()
    it.persister.keep(it.replica, PROMISE, counts=False)
    it.device.writers[-1].on_durable(it.replica.history.position)
    assert not it.durable
    it.apply()
    it.persister.keep(it.replica, PROMISE)
    it.device.writers[-1].on_durable(it.replica.history.position)
    assert it.durable == [it.replica.history.position]


def test_a_store_that_gives_its_vote_back_reports_nothing() -> None:
    it = Switch()
    it.finish()
    it.persister.takes_back_vote(lambda: None)
    it.device.writers[-1].on_durable(it.persister.meta.position)
    assert not it.durable


def test_the_loop_asks_no_received_store_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """That reads the disk, which may not answer: it is for the thread of the switch."""
    device, replica = SlowDevice(), Replica("a", Machine("a"), History())
    persister = Persister(device, MemoryStore(MemoryDisk(), OLD), OLD, lambda _: None)
    received = MemoryStore(MemoryDisk(), OLD)
    received.write_checkpoint(0, [b"state"], OLD)
    with monkeypatch.context() as patch:
        patch.delattr(MemoryStore, "bytes_to_start")
        persister.adopt(received, replica, counts=True)
        assert persister.bytes_to_start == (0, 0)
    assert device.finish is not None
    device.finish()
    assert persister.bytes_to_start == (len(b"state"), 0)


def test_work_waiting_for_the_store_runs_in_order_once_it_is_in_force() -> None:
    it, called = Switch(), []  # type: tuple[Switch, list[str]]
    it.persister.when_in_force(lambda: called.append("one"))
    it.persister.when_in_force(
        lambda: it.persister.promise(PROMISE, lambda: called.append("promised"))
    )
    assert not called
    it.finish()
    assert called == ["one", "promised"]
    it.persister.when_in_force(lambda: called.append("at once"))
    assert called[-1] == "at once"


def test_a_promise_is_never_lowered() -> None:
    it = Switch()
    assert it.persister.meta.promised_epoch == OLD.promised_epoch
    it.persister.when_in_force(lambda: it.persister.promise(PROMISE, lambda: None))
    it.finish()
    assert it.received.meta.promised_epoch == OLD.promised_epoch
    assert it.device.writers[1].metas[-1].promised_epoch == OLD.promised_epoch


def test_a_commit_preserves_the_record_fields_it_does_not_set() -> None:
    """G7: its member's promise too, if the state it has now knows a lower one."""
    switch = Switch()
    switch.finish()
    persister = switch.persister
    before = persister.meta = replace(persister.meta, incarnation=5, note="damaged once")
    switch.apply()
    persister.keep(switch.replica, replace(PROMISE, promised_epoch=before.promised_epoch - 1))
    history = switch.replica.history
    assert persister.meta == switch.device.writers[-1].metas[-1] == replace(
        before, state_epoch=history.epoch, position=history.position, chain=history.chain,
        order=history.order, cluster_id=PROMISE.cluster_id, voters=PROMISE.voters,
        version=switch.replica.machine.version,
    )  # fmt: skip


def test_nobody_reads_a_store_that_is_being_replaced() -> None:
    it = Switch()
    assert it.persister.for_others is None
    it.finish()
    assert it.persister.for_others is it.received


def test_a_member_that_ends_during_a_switch_waits_for_it() -> None:
    it = Switch()
    asyncio.run(it.persister.settled(1.0))
    assert not it.persister.switching
    assert it.persister.meta.marker is Marker.DIRTY


class CountingWriter(SlowWriter):
    """Accepts checkpoints without writing them."""

    checkpoints = 0
    done: Callable[[], None]
    given_up: Callable[[], None]

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointFeed:
        self.checkpoints += 1
        self.done, self.given_up = done, given_up
        return EmptyFeed()


class EmptyFeed:
    bytes = 0

    def cancel(self) -> None: ...
    def hurry(self) -> None: ...


class CountingDevice(SlowDevice):
    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> SlowWriter:
        self.writers.append(CountingWriter(store, on_durable))
        return self.writers[-1]


def test_an_arriving_large_message_is_not_written_twice_by_a_checkpoint() -> None:
    device = CountingDevice()
    persister = Persister(
        device, MemoryStore(MemoryDisk(), OLD), OLD, lambda _: None, checkpoint_bytes_min=5000
    )
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, True),), False, ("a",), "cluster", version=MACHINE_VERSION)
    replica.apply(Item(1, RING, 1, "a", activation))
    session, number = replica.machine.local_session, 0

    def apply(*commands: c.Command) -> None:
        nonlocal number
        number += 1
        blob = pack_blob(session, number, 0, list(commands))
        replica.apply(Item(1, RING, number + 1, "a", blob))
        persister.keep(replica, PROMISE)

    apply(
        c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "peer"),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
    )
    writer = device.writers[0]
    assert isinstance(writer, CountingWriter)
    for _ in range(20):
        apply(c.BodyPart(c.BODY_PART, 1, 1, bytes(1000)))
    assert replica.machine.unfinished_bytes == 20_000
    assert writer.checkpoints == 0
    apply(c.Publish(c.PUBLISH, 1, 1, 0, "", "q", 4 | c.IN_PARTS, b"", b"rest"))
    assert writer.checkpoints == 1


@pytest.mark.parametrize("why", ["half way", "disputed", "broken", "one is made"])
def test_no_checkpoint_is_made_of_a_state_that_must_not_be_kept(why: str) -> None:
    """One that waits within an item for a page is at the position of the item before."""
    device = CountingDevice()
    persister = Persister(device, MemoryStore(MemoryDisk(), OLD), OLD, lambda _: None)
    replica = Replica("a", Machine("a"), History())
    (writer,) = device.writers
    assert isinstance(writer, CountingWriter)
    if why == "one is made":
        persister.request_checkpoint()
        persister.keep(replica, PROMISE)
        writer.checkpoints = 0
    replica.half_way, replica.broken = why == "half way", why == "broken"
    persister.hold_checkpoints = why == "disputed"
    persister.request_checkpoint()
    persister.keep(replica, PROMISE)
    assert writer.checkpoints == 0
    assert persister.checkpoint_to_come
    replica.half_way = replica.broken = persister.hold_checkpoints = False
    if why == "one is made":
        writer.done()
    persister.keep(replica, PROMISE)
    assert writer.checkpoints == 1


@pytest.mark.parametrize("given_up", [False, True])
def test_the_next_checkpoint_is_due_after_as_much_log_again(*, given_up: bool) -> None:
    """Or half as much, where there was no space for the last one."""
    device = CountingDevice()
    persister = Persister(
        device, MemoryStore(MemoryDisk(), OLD), OLD, lambda _: None, checkpoint_bytes_min=4000
    )
    replica, written, at = Replica("a", Machine("a"), History()), 0, [0]
    (writer,) = device.writers
    assert isinstance(writer, CountingWriter)
    while len(at) < 4:
        position = replica.history.position + 1
        voters = tuple(f"v{number}" for number in range(20))
        activation = Activation(position, (("a", 1, True),), False, voters, "cluster")
        replica.apply(Item(position, RingId(position, "a", 1), 1, "a", activation))
        before = persister.bytes_to_start[1]
        persister.keep(replica, PROMISE)
        written += persister.bytes_to_start[1] - before
        if writer.checkpoints == len(at):
            at.append(written)
            (writer.given_up if given_up else writer.done)()
    first, *more = (later - former for former, later in pairwise(at))
    assert 4000 < first < 4500
    assert all(2000 < one < 2500 if given_up else 4000 < one < 4500 for one in more)


def test_the_log_behind_a_large_checkpoint_may_be_twice_as_long() -> None:
    """Whatever a state takes, writing it stays a share of all writing."""
    store = MemoryStore(MemoryDisk(), OLD)
    store.write_checkpoint(0, [bytes(3000)], OLD)
    persister = Persister(CountingDevice(), store, OLD, lambda _: None, checkpoint_bytes_min=5000)
    replica = Replica("a", Machine("a"), History())
    assert persister.log_bytes_limit(replica) == 2 * store.bytes_to_start()[0] >= 6000


def test_the_log_of_former_processes_counts_for_the_next_checkpoint() -> None:
    """A member killed more often than it makes a checkpoint never made one: its store grew, and
    each start executed its whole history again."""
    disk, replica = MemoryDisk(), Replica("a", Machine("a"), History())
    size = 0
    for position in range(1, 6):
        activation = Activation(position, (("a", 1, True),), False, ("a", "b"), "cluster")
        replica.apply(Item(position, RingId(position, "a", 1), 1, "a", activation))
        batch = replica.cut()
        assert batch is not None
        size += len(batch.entry)
        store = MemoryStore(disk, OLD)
        store.commit(batch.entry, batch.first, batch.last, replace(OLD, position=position))
        device = CountingDevice()
        persister = Persister(device, store, store.meta, lambda _: None, checkpoint_bytes_min=200)
        persister.keep(replica, PROMISE)
        (writer,) = device.writers
        assert isinstance(writer, CountingWriter)
        assert writer.checkpoints == (size > 200)
        store.close()
    assert size > 200


def test_the_log_of_a_received_store_counts_once_it_is_in_force() -> None:
    device = CountingDevice()
    persister = Persister(
        device, MemoryStore(MemoryDisk(), OLD), OLD, lambda _: None, checkpoint_bytes_min=50
    )
    replica = Replica("a", Machine("a"), History())
    activation = Activation(1, (("a", 1, True),), False, ("a", "b"), "cluster")
    replica.apply(Item(1, RING, 1, "a", activation))
    batch = replica.cut()
    assert batch is not None
    received = MemoryStore(MemoryDisk(), replace(OLD, position=0))
    received.commit(batch.entry, batch.first, batch.last, replace(OLD, position=1))
    persister.adopt(received, replica, counts=True)
    assert device.finish is not None
    device.finish()
    persister.keep(replica, PROMISE)
    writer = device.writers[-1]
    assert isinstance(writer, CountingWriter)
    assert writer.checkpoints == 1
