"""A history of clients and queues from real machines, and helpers to change its logs."""

from __future__ import annotations

from collections.abc import Callable

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.move_log import MOVE, Op
from broker.memberlog.records import CHECKPOINT_ROW, Batch, Checkpoint, Record
from tests.support.three_machines import Client
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, MoveTuple


def plain_history() -> MoveMaker:
    """Publishes, gets, acks, limits, a lost member, a cold start, delays, repeats, remainders."""
    maker = MoveMaker()
    one, two = maker.rig.client("a"), maker.rig.client("b")
    one.queue("q")
    one.queue("ranked", {"x-max-priority": 3})
    one.queue("short", {"x-max-length": 2})
    one.queue("passing", durable=False)
    for i in range(6):
        one.publish("q", b"%d" % i, no=i + 1)
    two.qos(2)
    two.consume("q", "ct")
    two.ack(1)
    two.nack(2)
    two.nack(3, requeue=False)
    maker.checkpoint()
    for i in range(4):
        one.publish("short", b"l%d" % i, no=7 + i)
        one.publish("passing", b"t%d" % i, flags=0)
        one.publish("ranked", b"p%d" % i)
    one.publish("q", b"transient", flags=0)
    one.publish("nowhere", b"x", no=11)
    two.close()
    three = maker.rig.client("c")
    three.get("ranked")
    three.get("short", no_ack=True)
    three.sent(2)
    three.purge("passing")
    maker.checkpoint()
    maker.rig.activate(cold=True)
    four = maker.rig.client("a")
    four.get("q")
    four.get("ranked")
    four.ack(1)
    four.nack(2)
    four.delete("short")
    four.commit([c.TxPublish("", "q", c.PERSISTENT, b"\0\0", b"tx")])
    four.get("q")
    maker.rig.activate("a")
    five = maker.rig.client("b")
    five.exchange("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    five.bind("q", "late")
    for i, delay in enumerate((200, 100, 100, 60_000)):
        delayed = codec.encode_properties({"headers": {"x-delay": delay}})
        five.publish("", b"d%d" % i, "late", properties=delayed, no=i + 1)
    maker.rig.pass_time(600_000)
    five.get("q")
    five.ack(1)
    five.queue("once", {"x-message-deduplication": True})
    for i, key in enumerate(("k", "l", "t", "k", "l")):
        known_as = codec.encode_properties({"message_id": key})
        flags = 0 if key == "t" else c.PERSISTENT
        five.publish("once", b"o%d" % i, flags=flags, properties=known_as, no=i + 5)
    five.purge("once")
    known_as = codec.encode_properties({"message_id": "l"})
    for i in range(2):
        five.publish("once", b"o", properties=known_as, no=i + 10)
    _read_a_stream(maker.rig.client("c"))
    maker.end()
    return maker


def _read_a_stream(six: Client) -> None:
    """Readers that return messages in each way, and one that holds one to the end."""
    six.queue("log", {"x-queue-type": "stream", "x-max-length-bytes": 8})
    for i in range(4):
        six.publish("log", b"s%d" % i, flags=0 if i == 1 else c.PERSISTENT, no=i + 1)
    for tag in ("r", "s"):
        six.consume("log", tag, 2, {"x-stream-offset": "first"})
    six.ack(1)
    six.nack(3)
    for i in range(4, 6):
        six.publish("log", b"s%d" % i, no=i + 1)
    six.recover()
    six.commit([], [c.TxSettle(0, True, c.TX_ACK)])
    six.channel(2).consume("log", "t", 3, {"x-stream-offset": "first"})
    six.close_channel()
    _keep_last_values(six.rig.client("b"))


def _keep_last_values(seven: Client) -> None:
    """A value is replaced while it waits, after it returned, and while it is held."""
    seven.queue("last", {"qpid.last_value_queue": 1})
    publish_keyed(seven, "a1", "b1", "c1", "b2")
    seven.get("last")
    seven.nack(1)
    publish_keyed(seven, "a2")
    seven.get("last")
    publish_keyed(seven, "c2")
    seven.nack(2)
    seven.get("last")
    seven.ack(3)
    looker = seven.channel(2)
    publish_keyed(looker, "d1", "e1")
    looker.consume("last", "browser", 0, {"x-filter-no-consume": True})
    looker.nack(1)
    looker.channel(3).consume("last", "fast", 0, {"x-filter-no-consume": True}, no_ack=True)
    Client(seven.rig, seven.session, seven.conn, 3).sent(1)
    looker.get("last")


def publish_keyed(client: Client, *texts: str) -> None:
    """Publish to the queue "last", with the first letters as keys."""
    for text in texts:
        key = codec.encode_properties({"headers": {"qpid.LVQ_key": text[0]}})
        client.publish("last", text.encode(), properties=key)


def is_a(row: MoveTuple, op: Op, **fields: int) -> bool:
    names = dict(zip(("what", "index", "queue", "seq", "of", "detail"), row, strict=True))
    return row[0] & 15 == op and all(names[name] == value for name, value in fields.items())


def put(row: MoveTuple, **fields: int) -> MoveTuple:
    names = dict(zip(("what", "index", "queue", "seq", "of", "detail"), row, strict=True))
    names |= fields
    return tuple(names.values())  # type: ignore[return-value]


def first_move(
    maker: MoveMaker, wanted: Callable[[MoveTuple], bool], number: int = 0
) -> tuple[int, MoveTuple]:
    """Return the n-th such move and its position."""
    found = [
        (record.first_position, row)
        for record in maker.logs[INCARNATIONS[0]]
        if isinstance(record, Batch)
        for row in MOVE.iter_unpack(record.moves)
        if wanted(row)
    ]
    return found[number]


def rewrite_at(
    maker: MoveMaker, position: int, change: Callable[[list[MoveTuple]], list[MoveTuple]]
) -> None:
    maker.rewrite(lambda at, rows: change(rows) if at == position else rows)


def is_given(row: MoveTuple) -> bool:
    return is_a(row, Op.DELIVERED, queue=1)


def is_entered(row: MoveTuple) -> bool:
    return is_a(row, Op.ENQUEUED, queue=1)


def checkpoint_of(maker: MoveMaker, number: int) -> tuple[int, Checkpoint]:
    records = maker.logs[INCARNATIONS[0]]
    found = [(i, r) for i, r in enumerate(records) if isinstance(r, Checkpoint)]
    return found[number]


def change_checkpoint(maker: MoveMaker, number: int, field: int) -> int:
    """Add one to a field of the first row of a checkpoint in all logs."""
    _, original = checkpoint_of(maker, number)
    row = list(CHECKPOINT_ROW.unpack_from(original.queues))
    row[field] += 1
    changed = CHECKPOINT_ROW.pack(*row) + original.queues[CHECKPOINT_ROW.size :]
    for incarnation in INCARNATIONS:
        records: list[Record] = maker.logs[incarnation]
        records[:] = [r._replace(queues=changed) if r == original else r for r in records]
    return original.position
