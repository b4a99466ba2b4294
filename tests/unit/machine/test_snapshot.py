"""The state as bytes and back, the hash that verifies it, and the encoding of blobs."""

import gc
import struct
from collections import deque
from collections.abc import Callable

import msgpack
import pytest

from broker.machine import commands as c
from broker.machine.command_codec import BlobMalformed, pack_blob, unpack_blob
from broker.machine.digest import ALGORITHM
from broker.machine.image.restore import SnapshotError
from broker.machine.image.snapshot import CHUNK_BYTES, Cut
from broker.machine.machine import Machine
from broker.waiting.blocks import Block
from tests.support.replaced_message import replace_message
from tests.support.three_machines import Rig


def busy_rig() -> Rig:
    """A bit of everything: messages held by consumers and gets, cancelled consumers, deleted
    queues."""
    rig = Rig()
    one, two = rig.client("a"), rig.client("b")
    one.exchange("x", "topic", {"alternate-exchange": "amq.fanout"})
    one.bind_exchange("x", "amq.topic", "#")
    declared: list[tuple[str, c.Table]] = [
        ("q", {}),
        ("limited", {"x-max-length-bytes": 10, "x-message-ttl": 60_000}),
        ("gone", {}),
    ]
    for name, arguments in declared:
        one.queue(name, arguments)
        one.bind(name, "x", "a.*")
    two.queue("mine", durable=False, exclusive=True, auto_delete=True)
    for body in (b"1", b"22", b"333", b"4444", b"55555"):
        one.publish("a.b", body, "x")
    two.consume("q", "gone", prefetch=1)
    two.cancel("gone")
    two.consume("q", "stays", prefetch=1)
    two.consume("q", "nak", no_ack=True)
    two.get("limited")
    assert two.nack(6) == c.OK
    assert two.get("gone") == c.OK
    two.channel(2).qos(3)
    one.delete("gone")
    rig.pass_time(1_000_000)
    return rig


def test_a_restored_machine_is_the_same() -> None:
    rig = busy_rig()
    chunks = list(rig.machine.snapshot())
    copy = Machine.restore("b", chunks)
    copy.invariants()
    assert copy.root() == rig.machine.root()
    assert copy.local_session == rig.machine.sessions["b"].session
    assert list(copy.snapshot()) == chunks == list(rig.machines["c"].snapshot())


def test_a_restored_machine_continues_like_the_original() -> None:
    rig = busy_rig()
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    rig.machines["e"] = Machine.restore("e", rig.machine.snapshot())
    client = rig.client("c")
    client.consume("q")
    client.publish("a.c", b"more", "x")
    rig.pass_time(70_000_000)
    rig.activate(members=("a", "c"))
    rig.activate(cold=True)


def test_a_reused_tag_changes_no_turn_on_a_restored_member() -> None:
    """G14: a snapshot does not name cancelled consumers, so the messages they held give no other
    consumer a turn, whatever its tag."""
    rig = Rig()
    client = rig.client("a")
    client.queue("p")
    client.queue("q")
    for queue, tag in (("p", "reused"), ("q", "other"), ("q", "reused")):
        client.publish(queue)
        client.consume(queue, tag, 1)
        if queue == "p":
            client.cancel(tag)
    rig.restore()
    client.ack(0, multiple=True)
    client.publish("q")
    client.cancel("other")
    client.publish("q")


def test_a_reused_tag_changes_no_turn_without_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G14: the same where reports of the member settle deliveries."""
    monkeypatch.setattr("broker.machine.handlers.consumers.NO_ACK_HELD_MAX", 1)
    rig = Rig()
    client = rig.client("a")
    client.queue("p")
    client.queue("q")
    for queue, tag in (("p", "reused"), ("q", "other"), ("q", "reused")):
        client.publish(queue)
        client.consume(queue, tag, no_ack=True)
        if queue == "p":
            client.cancel(tag)
    rig.restore()
    client.sent(3)
    client.publish("q")
    client.cancel("other")
    client.publish("q")


def test_a_snapshot_in_steps_is_the_state_at_its_position() -> None:
    """G14: a checkpoint written in steps is exactly the state at its position, although the machine
    continues."""
    rig = busy_rig()
    more = rig.client("b")
    more.queue("many", {"x-max-priority": 3})
    for number in range(100):  # three machines check all messages after each publish
        more.publish("many", b"%d" % number)
        more.publish("q", b"%d" % number, properties=b"\x01\x00\x041000")
    expected = list(rig.machine.snapshot())
    steps = rig.machine.snapshot_in_steps()
    more.get("many")
    made = [next(steps)]
    for number in range(40):
        more.publish("a.b", b"new %d" % number, "x")
        more.get("q")
        made += [next(steps, b"") for _ in range(2)]
    more.purge("many")
    rig.client("c").delete("q")
    more.close()
    rig.pass_time(2_000_000)
    rig.activate(cold=True)
    made += steps
    found = [chunk for chunk in made if chunk]
    assert found == expected
    assert Machine.restore("a", found).root() != rig.machine.root()


def test_chunks_are_bounded_and_split_large_messages() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q")
    client.publish("q", bytes(3 * CHUNK_BYTES))
    chunks = list(rig.machine.snapshot())
    assert len(chunks) == 4
    assert max(map(len, chunks)) == CHUNK_BYTES
    assert Machine.restore("a", chunks).root() == rig.machine.root()


def items(chunks: list[bytes]) -> list[list[object]]:
    unpacker = msgpack.Unpacker()
    for chunk in chunks:
        unpacker.feed(chunk)
    return list(unpacker)


def without_end(whole: list[list[object]]) -> list[list[object]]:
    return whole[:-1]


def other_version(whole: list[list[object]]) -> list[list[object]]:
    return [["snapshot", 99, "md5"], *whole[1:]]


def twice(whole: list[list[object]]) -> list[list[object]]:
    return whole + whole


def other_root(whole: list[list[object]]) -> list[list[object]]:
    return [*whole[:-1], ["end", 1]]


def unknown_item(whole: list[list[object]]) -> list[list[object]]:
    return [whole[0], ["__init__", 1], *whole[1:]]


def without_messages(whole: list[list[object]]) -> list[list[object]]:
    return [item for item in whole if item[0] != "messages"]


@pytest.mark.parametrize(
    "harm", [without_end, other_version, twice, other_root, unknown_item, without_messages]
)
def test_damaged_snapshots_are_refused(
    harm: Callable[[list[list[object]]], list[list[object]]],
) -> None:
    harmed = harm(items(list(busy_rig().machine.snapshot())))
    with pytest.raises(SnapshotError):
        Machine.restore("a", [msgpack.packb(item) for item in harmed])


def test_a_state_hashed_by_another_rule_is_refused_with_advice() -> None:
    data = b"".join(busy_rig().machine.snapshot())
    older = data.replace(ALGORITHM.encode(), b"xxh3_64-sum-0", 1)
    with pytest.raises(SnapshotError, match=r"sum-0.*sum-1.*the release that wrote the store"):
        Machine.restore("a", [older])


def test_a_flipped_bit_in_a_body_is_refused() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q")
    client.publish("q", b"precious")
    data = b"".join(rig.machine.snapshot())
    with pytest.raises(SnapshotError, match="has root"):
        Machine.restore("a", [data.replace(b"precious", b"precioux")])
    with pytest.raises(SnapshotError, match="malformed"):
        Machine.restore("a", [data[:50] + b"\xc1" + data[51:]])


def test_a_message_corrupted_in_memory_does_not_cancel_out() -> None:
    """The message has left the state, but the root differs for ever."""
    healthy, sick = Rig(), Rig()
    for rig in (healthy, sick):
        client = rig.client()
        client.queue("q")
        client.publish("q", b"good")
    queue = sick.machine.vhosts["/"].queues["q"]
    replace_message(queue.ready, 0, (*queue.ready.first[:8], b"evil"))
    session = sick.machine.sessions["a"].session
    for command in (c.Get(c.GET, 1, 1, "q", False), c.Ack(c.ACK, 1, 1, 1, False)):
        for rig in (healthy, sick):
            rig.machine.apply(99, session, 0, command)
    assert not queue.ready
    assert sick.machine.root() != healthy.machine.root()
    healthy.machine.invariants()


def test_blobs_survive_encoding() -> None:
    commands: list[c.Command] = [
        c.Publish(c.PUBLISH, 1, 2, 3, "x", "k", 4, b"p", b"body"),
        c.QueueDeclare(
            c.QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {"a": ({"b": 1},)}
        ),
        c.TxCommit(
            c.TX_COMMIT, 1, 1, (c.TxPublish("", "q", 0, b"", b""),), (c.TxSettle(1, True, 0),)
        ),
        c.Activate(c.ACTIVATE, 1, (c.ActiveMember("a", 1, True),), False, ("a",), ""),
        c.Tick(c.TICK, 5, 0, 0),
    ]
    assert unpack_blob(pack_blob(7, 8, 9, commands)) == (7, 8, 9, tuple(commands))


def nested(depth: int) -> c.Value:
    value: c.Value = 1
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        msgpack.packb([1, 1, 1, 1]),
        msgpack.packb([3, 1, 1, 1, []]),
        msgpack.packb([0, 1, 1, 1, []]),
        msgpack.packb([1, 1, -1, 1, []]),
        msgpack.packb([1, 1, 1, 1, [[]]]),
        msgpack.packb([1, 1, 1, 1, [7]]),
        msgpack.packb([1, 1, 1, 1, [["14", 1]]]),
        msgpack.packb([1, 1, 1, 1, [[99]]]),
        msgpack.packb([1, 1, 1, 1, [[c.ACK, 1, 1, 1, 1]]]),
        msgpack.packb([1, 1, 1, 1, [[c.ACK, True, 1, 1, True]]]),
        msgpack.packb([1, 1, 1, 1, [[c.TX_COMMIT, 1, 1, [["", "k"]], []]]]),
        msgpack.packb([1, 1, 1, 1, [[c.TX_COMMIT, 1, 1, [], [[1, 1, 1]]]]]),
        msgpack.packb([1, 1, 1, 1, [[c.ACTIVATE, 1, [["a", 1]], False, [], ""]]]),
        msgpack.packb([1, 1, 1, 1, [[c.ACTIVATE, 1, [], False, [1], ""]]]),
        msgpack.packb([1, 1, 1, 1, []]) + b"\x00",
        msgpack.packb([1, 1, 1, 1, [[c.SHUTDOWN, msgpack.Timestamp(1)]]]),
        msgpack.packb([1, 1, 1, 1, [[c.SHUTDOWN, b"\xff"]]], use_bin_type=False),
        struct.pack(">BI", 0xDD, 1 << 31),
    ],
)
def test_malformed_blobs_are_refused(data: bytes) -> None:
    with pytest.raises(BlobMalformed):
        unpack_blob(data)


@pytest.mark.parametrize(
    "arguments",
    [{"a": nested(40)}, {"a": msgpack.Timestamp(1)}, {"a": {1: 2}}, {"a": tuple(range(5000))}],
)
def test_tables_are_bounded(arguments: c.Table) -> None:
    command = c.QueueDeclare(9, 1, 1, "q", False, True, False, False, False, arguments)
    with pytest.raises(BlobMalformed):
        unpack_blob(pack_blob(1, 1, 1, [command]))


def test_the_garbage_collector_does_not_visit_restored_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the first collections after a restore, at unpredictable times, take 40 ms."""
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 8)
    rig = Rig()
    client = rig.client()
    client.queue("q")
    for number in range(60):
        client.publish("q", bytes([number]))
    restored = Machine.restore("b", list(rig.machine.snapshot()))
    ready = restored.vhosts["/"].queues["q"].ready
    deques = [one for one in gc.get_referents(ready) if isinstance(one, deque)]
    held = [one for some in deques for one in some]
    assert 0 < len(held) < 30, "the two ends and the blocks"
    parts = [one.messages() if isinstance(one, Block) else one for one in held]
    assert any(isinstance(one, Block) for one in held)
    assert not any(map(gc.is_tracked, parts))


def test_a_snapshot_allocates_nothing_for_each_empty_queue() -> None:
    """A tuple for each of 100,000 queues caused a pause of 0.2 s, most of it garbage collection."""
    client = Rig().client()
    machine = client.rig.machine
    for number in range(200):  # on one member: the rig checks all queues after each command
        declare = c.QueueDeclare(
            c.QUEUE_DECLARE, client.conn, client.chan, f"q{number}", False, True, False, False,
            False, {},
        )  # fmt: skip
        assert machine.apply(machine.position + 1, client.session, 0, declare) == c.OK
    gc.disable()
    try:
        before = len(gc.get_objects())
        cut = Cut(machine, at_once=False)
        made = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert made < 100
    assert Machine.restore("a", cut.chunks()).root() == machine.root()


def test_a_step_builds_no_pair_for_each_returned_message() -> None:
    """Sorting 100,000 messages as pairs made a step of 15 ms and more."""
    client = Rig().client()
    client.queue("q", {"x-delivery-limit": 5})
    machine = client.rig.machine
    machine.vhosts["/"].queues["q"].returns = dict.fromkeys(range(30_000), 1)
    gc.disable()
    try:
        before = len(gc.get_objects())
        made = [len(gc.get_objects()) - before for _ in Cut(machine, at_once=False).steps()]
    finally:
        gc.enable()
    assert max(made) < 10_000
