"""Paging changes no result: one history with all messages in memory, and with most on disk.

The members of every `Rig` differ in this too; here the blocks are tiny, and what one member shows
its clients is compared as well.
"""

from __future__ import annotations

import pytest

from broker.machine import commands as c
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.state import EXCHANGE, KEY, Message
from broker.machine.version import MACHINE_VERSION
from broker.waiting.backlog import Backlog
from broker.waiting.page_format import pack, unpack
from broker.waiting.pager import PageLost, Pager, Place
from broker.waiting.stream_log import RECENT_BYTES
from tests.properties.models.memory_shelf import MemoryShelf, pager
from tests.properties.test_machine_slices import LIMITS, Clients
from tests.support.three_machines import Rig

LARGEST = (1 << 64) - 1
ROWS: tuple[tuple[Message, ...], ...] = (
    ((0, 0, "", "", 0, -1, -1, b"", b""),),
    ((LARGEST, LARGEST, "ä", "k" * 255, 4, 1 << 62, 1 << 62, b"\0\xff", bytes(70_000)),),
    ((1, 2, "x", "one", 2, 3, 4, b"", b"a"), (5, 6, "x", "two", 0, 3, -1, b"p", b"b")) * 3,
    ((1, 2, "x", "one", 2, 3, 4, b"", b"a"),) * 300,
)


@pytest.mark.parametrize("messages", ROWS)
def test_packed_messages_unpack_unchanged(messages: tuple[Message, ...]) -> None:
    packed = pack(messages)
    assert isinstance(packed, bytes)
    found = unpack(packed)
    assert found == messages
    for name in (EXCHANGE, KEY):
        assert len({id(one[name]) for one in found}) == len({one[name] for one in found})


def _shown(rig: Rig, its: Pager | None) -> tuple[list[object], Machine]:
    machine, shown = Machine("a", its), list[object]()
    for position, session, time_us, command in rig.log:
        outcome = machine.apply(position, session, time_us, command)
        shown.append((outcome, machine.root(), machine.take_effects(), machine.take_moves()[0]))
        machine.free(3)
    return shown, machine


@pytest.mark.parametrize("seed", [101, 102])
def test_paging_is_invisible_to_clients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in LIMITS.items():
        monkeypatch.setattr(limit, value)
    clients = Clients(seed)
    client = clients.rig.client()
    for number in range(30):
        client.queue(f"q{number % 3}")
        client.publish(f"q{number % 3}", bytes([number]), flags=c.PERSISTENT if number > 9 else 0)
    clients.rig.activate(cold=True)
    for _ in range(50):
        clients.step()
    expected, without = _shown(clients.rig, None)
    shelf = MemoryShelf()
    its = pager(shelf=shelf)
    found, machine = _shown(clients.rig, its)
    assert found == expected
    assert its.counters["written"], "otherwise nothing was tested"
    assert list(machine.snapshot_in_steps()) == list(without.snapshot_in_steps())
    chunks = list(machine.snapshot())
    assert chunks == list(without.snapshot())
    assert list(Machine.restore("a", chunks, pager()).snapshot()) == chunks
    while machine.free(1 << 30):
        pass
    queues = [queue for vhost in machine.vhosts.values() for queue in vhost.queues.values()]
    waiting = sum(block.on_disk for queue in queues for block in queue.ready.blocks)
    assert len(shelf.pages) == waiting, "a page is freed with the last reference"


def _filled(its: Pager, monkeypatch: pytest.MonkeyPatch, messages: int = 40) -> Rig:
    """One queue; most of its messages are on the shelf of member `b`."""
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)
    rig = Rig()
    rig.machines["b"].pager = its
    client = rig.client()
    client.queue("q")
    for number in range(messages):
        client.publish("q", bytes([number]))
    return rig


def test_a_purge_reads_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = MemoryShelf()
    its = pager(shelf=shelf)
    rig = _filled(its, monkeypatch)
    machine = rig.machines["b"]
    assert len(shelf.pages) == 9
    read = its.counters["at_once"], its.counters["ahead"]
    queue = machine.vhosts["/"].queues["q"]
    machine.discarded.append(queue.ready.copy())
    while machine.free(5):
        pass
    assert len(shelf.pages) == 9, "the queue still has them"
    machine.discarded.append(queue.ready)
    del queue.ready
    while machine.free(5):
        pass
    assert not shelf.pages
    assert read == (its.counters["at_once"], its.counters["ahead"])


def test_the_next_block_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    its = pager()
    rig = _filled(its, monkeypatch)
    ready = rig.machines["b"].vhosts["/"].queues["q"].ready
    before = its.counters["at_once"]
    for expected in range(40):
        assert ready.popleft()[-1] == bytes([expected])
    assert its.counters["at_once"] == before + 1, "only the very first block was read on demand"


def test_large_blocks_are_not_all_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.waiting.blocks.AHEAD_BYTES", 1)
    its = pager()
    rig = _filled(its, monkeypatch)
    ready = rig.machines["b"].vhosts["/"].queues["q"].ready
    before, unasked = its.counters["ahead"], its.counters["at_once"]
    for _ in range(4):  # the next block becomes the head
        ready.popleft()
    assert its.counters["ahead"] == before + 1
    assert len(list(ready)) == 36
    assert its.counters["ahead"] == before + 8, "each of the other blocks, one after another"
    assert its.counters["at_once"] == unasked + 1


def test_reading_ahead_is_bounded_over_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)
    its = pager(limit_bytes=40_000)
    queues = [Backlog[Message]() for _ in range(50)]
    for queue in queues:
        for number in range(60):
            block = queue.append((number, number, "", "q", 0, 0, -1, b"", b"x"), 1)
            if block is not None:
                its.full(block)
    assert its.kept_bytes <= 40_000
    block_bytes = 4 * 401
    for queue in queues:
        queue.drop(8)  # the messages that stayed in memory may be the last ones
        for _ in range(4):
            queue.popleft()
    assert its.ahead_bytes <= 10_000 + block_bytes * len(queues), (
        "a share, and the next block of each"
    )
    assert its.counters["ahead"] <= 10_000 // block_bytes + 1 + len(queues)
    for queue in queues:
        assert len(list(queue)) == 48
        for _ in range(48):
            queue.popleft()
    assert its.ahead_bytes == 0


def test_a_block_read_ahead_too_late_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = MemoryShelf()
    its = pager(shelf=shelf)
    rig = _filled(its, monkeypatch)
    block = rig.machines["b"].vhosts["/"].queues["q"].ready.blocks[3]
    get, found = shelf.get, list[tuple[Message, ...]]()

    def slow(place: Place) -> bytes:
        if not found:
            found.append(())
            found.append(block.messages())  # a reader does not wait for another one
        return get(place)

    monkeypatch.setattr(shelf, "get", slow)
    block.ask()
    assert its.ahead_bytes == 0
    unasked = its.counters["at_once"]
    assert block.messages() == found[1]
    assert its.counters["at_once"] == unasked + 1, (
        "otherwise it stayed in memory until its turn came"
    )


def test_blocks_that_find_no_room_on_disk_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = MemoryShelf()
    shelf.full = True
    rig = _filled(pager(shelf=shelf), monkeypatch, 30)
    assert not shelf.pages
    shelf.full = False
    client = rig.client()
    for _ in range(30):
        client.publish("q", b"later")
    assert len(shelf.pages) > 8, "blocks go to disk when there is room"


def test_an_unreadable_page_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = MemoryShelf()
    rig = _filled(pager(shelf=shelf), monkeypatch)
    for place in shelf.pages:
        shelf.pages[place] = b"\xc1"
    with pytest.raises(PageLost, match="cannot be read from disk"):
        list(rig.machines["b"].vhosts["/"].queues["q"].ready)


def test_streams_and_queues_share_one_limit() -> None:
    """The memory of streams counts towards the common limit, even while a reader reads a whole
    stream. What readers read last from disk is bounded over all streams."""
    limit = 400_000
    pages = pager(limit_bytes=limit)
    machine = Machine("a", pages)
    member = (c.ActiveMember("a", 1, True),)
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, member, False, ("a",), "x", MACHINE_VERSION))
    session = machine.sessions["a"].session
    position = 1

    def do(*commands: c.Command) -> None:
        nonlocal position
        for command in commands:
            position += 1
            assert machine.apply(position, session, 0, command) == c.OK
            machine.take_moves()

    do(
        c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "p:1"),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
    )
    kinds: dict[str, c.Table] = {"plain": {}, "log": {"x-queue-type": "stream"}}
    for name, kind in kinds.items():
        do(c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, name, False, True, False, False, False, kind))
    for _ in range(4_000):
        for name in kinds:
            do(c.Publish(c.PUBLISH, 1, 1, 0, "", name, c.PERSISTENT, b"\0\0", bytes(200)))
    assert pages.counters["written"] > 10
    assert 0 < pages.kept_bytes <= limit
    do(
        c.Consume(
            c.CONSUME, 1, 1, "log", "t", False, False, False, True, {"x-stream-offset": "first"},
            4_000,
        )
    )  # fmt: skip
    sent = 0
    while sent < 4_000:
        sent += sum(isinstance(one, DeliverEffect) for one in machine.take_effects())
        do(c.Qos(c.QOS, 1, 1, 0, False))  # any ordered command
    assert sent == 4_000
    assert pages.kept_bytes <= limit
    assert 0 < machine.recent.bytes <= RECENT_BYTES
