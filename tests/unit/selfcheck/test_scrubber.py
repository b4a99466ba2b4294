"""Corruption at rest is found within one pass, in memory and on disk (G10).

Decision: docs/decisions/0017-digests-are-voted-on.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.durability.recovery import checkpoint_of
from broker.machine import commands as c
from broker.machine.image.scrub import Fault, Scrub
from broker.machine.machine import Machine
from broker.machine.state import BODY, PROPERTIES, Queue
from broker.selfcheck.scrubber import SLICE_MESSAGES_MAX, DiskScrubber, MemoryScrubber
from store import schema
from store.lmdb_store import LmdbStore
from tests.properties.models.memory_shelf import MemoryShelf, pager
from tests.support.replaced_message import replace_message
from tests.support.stores.poisoned import META, Author, flip_on_disk, publish
from tests.support.three_machines import EMPTY, Rig

MESSAGES = 40


def stocked() -> tuple[Rig, Machine]:
    """Two queues with ready, returned and held messages, and a priority queue."""
    rig = Rig()
    client = rig.client("a")
    rig.apply(client.session, c.QueueDeclare(
        c.QUEUE_DECLARE, client.conn, 1, "ranked", False, True, False, False, False,
        {"x-max-priority": 3},
    ))  # fmt: skip
    for name in ("one", "two"):
        rig.apply(client.session, c.QueueDeclare(
            c.QUEUE_DECLARE, client.conn, 1, name, False, True, False, False, False, {}
        ))  # fmt: skip
        for number in range(MESSAGES):
            body = b"%s %d" % (name.encode(), number)
            rig.apply(client.session, c.Publish(
                c.PUBLISH, client.conn, 1, 0, "", name, 4, EMPTY, body
            ))  # fmt: skip
    rig.apply(client.session, c.Publish(
        c.PUBLISH, client.conn, 1, 0, "", "ranked", 4, EMPTY, b"r"
    ))  # fmt: skip
    for _ in range(4):
        rig.apply(client.session, c.Get(c.GET, client.conn, 1, "one", False))
    rig.apply(client.session, c.Nack(c.NACK, client.conn, 1, 1, False, True))
    rig.apply(client.session, c.Nack(c.NACK, client.conn, 1, 3, False, True))
    return rig, rig.machine


def whole_pass(machine: Machine, slice_messages: int = 7) -> list[Fault]:
    scrub = Scrub(machine)
    faults = []
    for _ in range(1000):
        fault = scrub.step(slice_messages)
        if fault is not None:
            faults.append(fault)
        if scrub.done:
            break
    assert scrub.done
    assert len(faults) <= 1
    return faults


def queue_of(machine: Machine, name: str = "two") -> Queue:
    return machine.vhosts["/"].queues[name]


def test_a_healthy_state_passes_in_slices_of_any_size() -> None:
    _, machine = stocked()
    for size in (1, 7, 39, 40, 41, 10_000):
        assert not whole_pass(machine, size)


def test_changes_between_slices_are_not_faults() -> None:
    rig, machine = stocked()
    client = rig.client("b")
    scrub = Scrub(machine)
    number = 0
    while not scrub.done:
        assert scrub.step(3) is None
        number += 1
        rig.apply(client.session, c.Get(c.GET, client.conn, 1, "two", True))
        rig.apply(client.session, c.Publish(
            c.PUBLISH, client.conn, 1, 0, "", "one", 4, EMPTY, b"more"
        ))  # fmt: skip
        if number == 4:
            rig.apply(client.session, c.QueueDelete(
                c.QUEUE_DELETE, client.conn, 1, "two", False, False, False
            ))  # fmt: skip


def flip_body(machine: Machine) -> None:
    queue = queue_of(machine)
    message = list(queue.ready)[17]
    replace_message(
        queue.ready,
        17,
        (*message[:BODY], bytes([bytes(message[BODY])[0] ^ 1]) + bytes(message[BODY])[1:]),
    )


def flip_returned_body(machine: Machine) -> None:
    queue = queue_of(machine, "one")
    at, message = queue.returned.popleft()
    queue.returned.put(at, (*message[:PROPERTIES], b"\0\1", message[BODY]))


def swap_two(machine: Machine) -> None:
    ready = queue_of(machine).ready
    third, fourth = list(ready)[3:5]
    replace_message(ready, 3, fourth)
    replace_message(ready, 4, third)


def lose_one(machine: Machine) -> None:
    queue_of(machine).ready.pop()


def flip_number(machine: Machine) -> None:
    queue_of(machine).next_seq ^= 4


def flip_sum(machine: Machine) -> None:
    queue_of(machine).ready_sum ^= 1 << 40


def flip_held(machine: Machine) -> None:
    channel = next(one for one in machine.channels.values() if one.unacked)
    tag, held = next(iter(channel.unacked.items()))
    queue, seq, message, consumer, redelivered = held
    channel.unacked[tag] = (queue, seq, (*message[:BODY], b"x"), consumer, redelivered)


def flip_root(machine: Machine) -> None:
    machine.digest ^= 1


@pytest.mark.parametrize(
    ("corrupt", "where", "what"),
    [
        (flip_body, "queue 'two'", "is not what was published"),
        (flip_returned_body, "queue 'one'", "is not what was published"),
        (swap_two, "queue 'two'", "not those that it took in"),
        (lose_one, "queue 'two'", "not those that it took in"),
        (flip_number, "queue 'two'", "not those that it took in"),
        (flip_sum, "queue 'two'", "not those that it took in"),
        (flip_held, "the rest", "not the root"),
        (flip_root, "the rest", "not the root"),
    ],
)
def test_corruption_in_memory_is_found_within_one_pass_and_named(
    corrupt: Callable[[Machine], None], where: str, what: str
) -> None:
    """G10."""
    _, machine = stocked()
    corrupt(machine)
    fault = whole_pass(machine)[0]
    assert where in fault.where
    assert what in fault.what


@pytest.mark.parametrize("purge", [False, True])
def test_leaving_messages_are_hashed_again_and_do_not_cancel_out(purge: bool) -> None:
    """G10: a flipped byte of a message that is acked, expired or rejected stays in the root. A
    purge hashes nothing; nobody received what it drops."""
    rig, machine = stocked()
    client = rig.client("b")
    session, conn = client.session, client.conn
    flip_body(machine)
    done: list[c.Command] = [c.QueuePurge(c.QUEUE_PURGE, conn, 1, "two", False)]
    if not purge:
        done = [
            *[c.Get(c.GET, conn, 1, "two", False)] * MESSAGES,
            c.Ack(c.ACK, conn, 1, 0, True),
        ]
    for command in done:
        for one in rig.machines.values():
            one.apply(rig.position + 1, session, 1, command)
        rig.position += 1
    assert (machine.root() == rig.machines["b"].root()) is purge
    assert (machine.root() == machine.recompute_root()) is purge


def test_a_queue_drained_ahead_of_the_scrub_takes_no_memory_or_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass over a million messages takes minutes. (Regression: it held all it had not
    yet read.)"""
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)
    rig = Rig()
    shelf = MemoryShelf()
    rig.machines["b"].pager = pager(shelf=shelf)
    client = rig.client()
    client.queue("q")
    for number in range(40):
        client.publish("q", bytes([number]))
    machine = rig.machines["b"]
    scrub = Scrub(machine)
    assert scrub.step(10) is None
    seen = scrub.messages
    assert seen >= 9
    held = len(shelf.pages)
    for _ in range(9):
        client.get("q")
    assert scrub.step(2) is None
    assert seen < scrub.messages < 40, "the scrub is ahead of the consumer"
    assert len(shelf.pages) < held, "what both have passed is released"
    for _ in range(27):
        client.get("q")
    before = scrub.messages
    assert scrub.step(1_000) is None
    assert scrub.done
    assert scrub.messages == before, "their consumer has hashed them, or will"
    while machine.free(5):
        pass
    assert not shelf.pages


def test_the_pace_is_kept_and_counted() -> None:
    _, machine = stocked()
    scrubber = MemoryScrubber(rate=100, now=0.0)
    for tenth in range(1, 11):
        assert scrubber.wake(machine, tenth / 10) is None
    assert 0 < scrubber.counters["messages"] <= 100
    assert scrubber.wake(machine, 1e6) is None
    assert scrubber.counters["messages"] <= 100 + SLICE_MESSAGES_MAX
    assert scrubber.counters["passes"] == 2
    slow = MemoryScrubber(rate=10, now=0.0)
    for tenth in range(1, 11):
        slow.wake(machine, tenth / 10)
        assert slow.counters["messages"] <= tenth
    off = MemoryScrubber(rate=0, now=0.0)
    flip_body(machine)
    assert off.wake(machine, 1e9) is None


def test_a_replaced_state_is_read_from_its_start() -> None:
    _, machine = stocked()
    scrubber = MemoryScrubber(rate=10, now=0.0)
    assert scrubber.wake(machine, 1.0) is None
    _, other = stocked()
    flip_body(other)
    found = None
    for second in range(2, 30):
        found = found or scrubber.wake(other, float(second))
    assert found is not None
    assert scrubber.counters["faults"] >= 1


def disk(path: Path) -> LmdbStore:
    """A store with a checkpoint followed by entries."""
    store = LmdbStore(path / "store", META)
    author = Author()
    author.submit(publish(1, b"one"))
    author.keep(store)
    h = author.replica.history
    store.write_checkpoint(h.position, checkpoint_of(author.replica), store.meta)
    for number in (2, 3):
        author.submit(publish(number, b"more"))
        author.keep(store)
    return store


@pytest.mark.parametrize("prefix", [schema.CHUNK_PREFIX, schema.LOG_PREFIX])
def test_a_flipped_byte_on_disk_is_found_within_one_pass(tmp_path: Path, prefix: bytes) -> None:
    """G10: in a checkpoint, in an entry."""
    store = disk(tmp_path)
    scrubber = DiskScrubber(store)
    assert scrubber.step() is None
    assert scrubber.counters["passes"] == 1
    flip_on_disk(store, prefix)
    fault = scrubber.step()
    assert fault is not None
    assert "checksum" in fault.what
    assert scrubber.counters["faults"] == 1
    store.close()
    assert scrubber.step() is None  # a closed store is not a corrupt one


def test_replacing_the_checkpoint_being_read_is_not_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.selfcheck.scrubber.DISK_SLICE_BYTES", 1)
    store = disk(tmp_path)
    scrubber = DiskScrubber(store)
    assert scrubber.step() is None
    author = Author()
    for number in (1, 2, 3):
        author.submit(publish(number, b"one" if number == 1 else b"more"))
    h = author.replica.history
    assert h.position == store.meta.position
    meta = replace(store.meta, chain=h.chain)
    store.write_checkpoint(h.position, checkpoint_of(author.replica), meta)
    for _ in range(10):
        assert scrubber.step() is None
    assert scrubber.counters["restarts"] <= 1
    assert scrubber.counters["passes"] >= 1
    store.close()
