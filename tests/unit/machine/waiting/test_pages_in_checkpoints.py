"""Blocks of messages on disk go into a checkpoint, and come from it, as unchanged pages (G14).

Decision: docs/decisions/0086-a-checkpoint-has-pages-as-they-are.md.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest

from broker.machine import commands as c
from broker.machine.digest import MASK, elements_in_a_row, ready_element
from broker.machine.handlers.cold_start import find_survivors
from broker.machine.image.restore import SnapshotError
from broker.machine.machine import Machine
from broker.machine.state import BODY, Message, Queue
from broker.waiting.backlog import Backlog
from broker.waiting.page_format import contents_of, pack, unpack
from broker.waiting.pager import PageDamaged, Pager
from broker.waiting.stream_log import Recent, StreamLog
from tests.properties.models.memory_shelf import MemoryShelf, pager
from tests.support.three_machines import Rig

Items = list[list[object]]
MESSAGES = 40
BLOCK = 4


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 257])
def test_elements_of_a_page_are_those_of_its_messages(size: int, redelivered: bool) -> None:
    """A member claims their sum, however it came to know the messages (G10)."""
    first, number = (1 << 40) - 1, 1 << 33
    contents = [(MASK - index) * (index % 2) or index << 50 for index in range(size)]
    alone = [
        ready_element(content, number, first + index, redelivered)
        for index, content in enumerate(contents)
    ]
    assert elements_in_a_row(contents, number, first, redelivered) == sum(alone)


def filled(monkeypatch: pytest.MonkeyPatch, *, volatile: int = 0) -> tuple[Machine, Rig]:
    """One plain queue, most of it in pages, with the other things that a queue may hold."""
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", BLOCK)
    rig = Rig()
    rig.machines["b"].pager = pager()
    client = rig.client()
    client.queue("q")
    for number in range(MESSAGES):
        flags = 0 if number < volatile else c.PERSISTENT
        client.publish("q", b"body of %d" % number, flags=flags)
    client.get("q")  # so the first block is not full
    client.get("q")
    return rig.machines["b"], rig


def queue_of(machine: Machine) -> Queue:
    return machine.vhosts["/"].queues["q"]


def bodies(machine: Machine) -> list[bytes]:
    return [bytes(message[BODY]) for message in queue_of(machine).ready]


def items(chunks: list[bytes]) -> Items:
    unpacker = msgpack.Unpacker()
    for chunk in chunks:
        unpacker.feed(chunk)
    return list(unpacker)


def again(whole: Items, its: Pager | None, *, own: bool) -> Machine:
    return Machine.restore("b", [msgpack.packb(item) for item in whole], its, own=own)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("room", ["pages", "none", "full"])
def test_a_checkpoint_with_pages_restores_the_same_state(
    own: bool, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, _ = filled(monkeypatch)
    chunks = list(machine.snapshot(pages=True))
    assert [item[0] for item in items(chunks)].count("page") == 9
    assert b"".join(filter(None, machine.snapshot_in_steps(pages=True))) == b"".join(chunks)
    shelf = MemoryShelf()
    shelf.full = room == "full"
    copy = Machine.restore("b", chunks, None if room == "none" else pager(shelf=shelf), own=own)
    assert bool(shelf.pages) == (room == "pages")
    assert copy.root() == machine.root()
    copy.invariants()
    assert list(copy.snapshot()) == list(machine.snapshot())
    assert bodies(copy) == bodies(machine)


def test_pages_are_not_unpacked_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _ = filled(monkeypatch)
    monkeypatch.setattr("broker.waiting.pager.unpack", None)
    monkeypatch.setattr("broker.machine.image.page_items.unpack", None)
    copy = Machine.restore("b", machine.snapshot(pages=True), pager(), own=True)
    for _ in find_survivors(copy):
        pass
    assert list(copy.snapshot(pages=True)) == list(machine.snapshot(pages=True))


def test_large_pages_are_written_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.machine.image.page_items.PAGE_BYTES_MAX", 1)
    machine, _ = filled(monkeypatch)
    assert list(machine.snapshot(pages=True)) == list(machine.snapshot())


@pytest.mark.parametrize("volatile", [0, 17])
def test_a_cold_start_keeps_the_same_messages(
    volatile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, rig = filled(monkeypatch, volatile=volatile)
    copy = Machine.restore("b", machine.snapshot(pages=True), pager(), own=True)
    rig.machines["b"] = copy
    rig.activate(cold=True)  # roots and outcomes are compared with those of the other machines
    assert bodies(copy) == bodies(rig.machine)
    assert len(bodies(copy)) == MESSAGES - volatile
    assert queue_of(copy).recovered_seq == queue_of(copy).next_seq
    chunks = list(copy.snapshot(pages=True))  # some places date from a cold start now
    client = rig.client()
    client.publish("q", b"later")
    assert Machine.restore("b", chunks, pager(), own=True).root() != copy.root()
    after = Machine.restore("b", copy.snapshot(pages=True), pager(), own=True)
    assert after.root() == copy.root()


def harmed(whole: Items, harm: Callable[[list[object]], None]) -> Items:
    harm([item for item in whole if item[0] == "page"][3])
    return whole


def other_body(page: list[object]) -> None:
    data = page[-1]
    assert isinstance(data, bytes)
    page[-1] = data.replace(b"body", b"bodz", 1)


def other_hash(page: list[object]) -> None:
    data = page[-1]
    assert isinstance(data, bytes)
    first, *rest = unpack(data)
    page[-1] = pack(((first[0] ^ 1, *first[1:]), *rest))


def other_place(page: list[object]) -> None:
    page[2] = 0


def other_size(page: list[object]) -> None:
    page[4] = 0


def fewer(page: list[object]) -> None:
    page[3] = BLOCK - 1


def garbage(page: list[object]) -> None:
    page[-1] = b"\xc1"


@pytest.mark.parametrize("harm", [other_body, other_hash, other_place, other_size, fewer, garbage])
def test_pages_from_another_member_are_hashed_at_once(
    harm: Callable[[list[object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, _ = filled(monkeypatch)
    with pytest.raises(SnapshotError):
        again(harmed(items(list(machine.snapshot(pages=True))), harm), pager(), own=False)


@pytest.mark.parametrize("harm", [other_hash, other_place, fewer, garbage])
def test_hashes_and_places_are_compared_with_the_root_at_once(
    harm: Callable[[list[object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, _ = filled(monkeypatch)
    with pytest.raises(SnapshotError):
        again(harmed(items(list(machine.snapshot(pages=True))), harm), pager(), own=True)


def test_own_messages_are_hashed_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finds a bit that flipped in memory before the page was written, which checksums do not
    show."""
    machine, _ = filled(monkeypatch)
    whole = harmed(items(list(machine.snapshot(pages=True))), other_body)
    copy = again(whole, pager(), own=True)
    taken: list[Message] = []

    def take_all() -> None:
        while True:
            taken.append(queue_of(copy).ready.popleft())

    with pytest.raises(PageDamaged, match="not what was published: message"):
        take_all()
    assert 0 < len(taken) < MESSAGES
    assert all(bytes(message[BODY]).startswith(b"body") for message in taken)
    with pytest.raises(PageDamaged, match="not what was published"):
        list(again(whole, pager(), own=True).snapshot())
    with pytest.raises(SnapshotError, match="not what was published"):
        again(whole, None, own=True)


def test_a_stream_with_adopted_blocks_finds_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", BLOCK)
    its = pager()
    rows = [(number, number, "", "q", 0, 0, -1, b"", b"x") for number in range(3 * BLOCK)]
    source, stream = Backlog[Message](rows), StreamLog[Message](rows[: BLOCK + 1])
    for block in source.blocks:
        its.full(block)
        stream.adopt(block)
    assert all(block.on_disk for block in source.blocks)
    expected = [*rows[: BLOCK + 1], *rows[BLOCK:]]
    recent = Recent[Message](len)
    assert [stream.at(index, recent) for index in range(len(stream))] == expected
    stream.popleft()
    assert [stream.at(index, recent) for index in range(len(stream))] == expected[1:]


def test_the_bytes_of_a_page_do_not_change() -> None:
    """Stores contain them: another layout needs another name in snapshots."""
    rows: tuple[Message, ...] = (
        (1, 2, "x", "k", 4, 5, -1, b"p", b"one"),
        ((1 << 64) - 1, 3, "x", "k", 0, 6, 7, b"", b"two"),
    )
    several = bytes.fromhex(
        "99c4100100000000000000ffffffffffffffffc41002000000000000000300000000000000"
        "91a17891a16b920400c41005000000000000000600000000000000"
        "c410ffffffffffffffff070000000000000092c40170c40092c4036f6e65c40374776f"
    )
    assert pack(rows) == several
    assert unpack(several) == rows
    assert list(contents_of(several)) == [row[0] for row in rows]
    one = pack(rows[:1])
    assert isinstance(one, bytes)
    assert one.hex() == "000000000d980102a178a16b0405ffc401706f6e65"
    assert list(contents_of(one)) == [1]
