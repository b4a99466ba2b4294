"""Ways to break the queue contract, told alike by all members: so only the contract can say it.

Each is a function of a story (`plain_story`) that has been lived; it changes what all members wrote
down, or what their machines hold, and returns the rule that must be named and the position.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine import commands as c
from broker.machine.tape import FLAG, MOVE, Op
from broker.memberlog.records import STANDING_ROW, Batch, Checkpoint, Record
from tests.system.movemaker import LIVES, MoveMaker, Row

Violation = Callable[[MoveMaker], tuple[str, int]]


def plain_story() -> MoveMaker:
    """Publishes, deliveries, acks, nacks, limits, a lost member, a purge, a cold start, an end."""
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
    maker.end()
    return maker


def _is(row: Row, op: Op, **fields: int) -> bool:
    names = dict(zip(("what", "index", "queue", "seq", "of", "detail"), row, strict=True))
    return row[0] & 15 == op and all(names[name] == value for name, value in fields.items())


def _with(row: Row, **fields: int) -> Row:
    names = dict(zip(("what", "index", "queue", "seq", "of", "detail"), row, strict=True))
    names |= fields
    return tuple(names.values())  # type: ignore[return-value]


def _first(maker: MoveMaker, wanted: Callable[[Row], bool], number: int = 0) -> tuple[int, Row]:
    """Return the n-th such move and its position."""
    found = [
        (record.first_position, row)
        for record in maker.lives[LIVES[0]]
        if isinstance(record, Batch)
        for row in MOVE.iter_unpack(record.moves)
        if wanted(row)
    ]
    return found[number]


def _at(maker: MoveMaker, position: int, change: Callable[[list[Row]], list[Row]]) -> None:
    maker.rewrite(lambda at, rows: change(rows) if at == position else rows)


def _delivered(row: Row) -> bool:
    return _is(row, Op.DELIVERED, queue=1)


def publish_becomes_nothing(maker: MoveMaker) -> tuple[str, int]:
    at, _ = _first(maker, lambda row: _is(row, Op.PUBLISHED), 3)
    _at(maker, at, lambda _: [])
    return "publish lost", at


def publish_becomes_two_messages(maker: MoveMaker) -> tuple[str, int]:
    at, _ = _first(maker, lambda row: _is(row, Op.PUBLISHED), 3)
    _at(maker, at, lambda rows: [*rows, *(_with(row, seq=row[3] + 1) for row in rows)])
    return "publish doubled", at


def ack_publishes(maker: MoveMaker) -> tuple[str, int]:
    _, published = _first(maker, lambda row: _is(row, Op.PUBLISHED), 5)
    at, settled = _first(maker, lambda row: _is(row, Op.SETTLED))
    made = _with(published, index=settled[1], seq=published[3] + 1)
    _at(maker, at, lambda rows: [*rows, made])
    return "publish invented", at


def transaction_of_a_publish(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, what=row[0] | 0x10) if _is(row, Op.PUBLISHED) else None)
    return "wrong cause", at


def number_is_skipped(maker: MoveMaker) -> tuple[str, int]:
    at, published = _first(maker, lambda row: _is(row, Op.PUBLISHED), 3)
    later = published[3]

    def change(_: int, rows: list[Row]) -> list[Row]:
        rows = [
            _with(r, seq=r[3] + 1) if _is(r, Op.PUBLISHED) and r[3] >= later else r for r in rows
        ]
        return [_with(r, of=r[4] + 1) if _is(r, Op.ENQUEUED) and r[4] >= later else r for r in rows]

    maker.rewrite(change)
    return "number", at


def enqueued_of_another_publish(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, of=row[4] - 1) if _is(row, Op.ENQUEUED) else None, 2)
    return "enqueued unpublished", at


def enqueued_twice(maker: MoveMaker) -> tuple[str, int]:
    at, entered = _first(maker, lambda row: _is(row, Op.ENQUEUED, queue=1), 5)
    _at(maker, at, lambda rows: [*rows, _with(entered, seq=entered[3] + 1)])
    return "enqueued twice", at


def _entered(row: Row) -> bool:
    return _is(row, Op.ENQUEUED, queue=1)


def two_at_one_place(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, seq=row[3] - 1) if _entered(row) else None, 3)
    return "place twice", at


def a_place_is_skipped(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, seq=row[3] + 20) if _entered(row) else None, 3)
    return "place", at


def delivered_but_never_enqueued(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, seq=99) if _delivered(row) else None)
    return "invented", at


def delivered_to_two_at_once(maker: MoveMaker) -> tuple[str, int]:
    at, returned = _first(maker, lambda row: _is(row, Op.RETURNED, queue=1))
    _at(maker, at, lambda rows: [row for row in rows if row != returned])
    return "delivered held", at


def delivered_after_the_ack(maker: MoveMaker) -> tuple[str, int]:
    _, delivered = _first(maker, _delivered)
    at, settled = _first(maker, lambda row: _is(row, Op.SETTLED, queue=1))
    again = _with(delivered, what=delivered[0] | FLAG, index=settled[1])
    _at(maker, at, lambda rows: [*rows, again])
    return "delivered ended", at


def second_delivery_without_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: _with(row, what=row[0] & 0x7F) if _delivered(row) and row[0] & FLAG else None
    )
    return "again unflagged", at


def recovered_delivery_without_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: _with(row, what=row[0] & 0x7F) if _delivered(row) and row[0] & FLAG else None, 1
    )
    return "again unflagged", at


def first_delivery_with_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, what=row[0] | FLAG) if _delivered(row) else None)
    return "first flagged", at


def settled_by_another_channel(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, of=row[4] ^ 1) if _is(row, Op.SETTLED) else None)
    return "other holder", at


def returned_by_another_channel(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, of=row[4] ^ 1) if _is(row, Op.RETURNED) else None)
    return "other holder", at


def settled_twice(maker: MoveMaker) -> tuple[str, int]:
    at, settled = _first(maker, lambda row: _is(row, Op.SETTLED, queue=1))
    _at(maker, at, lambda rows: [settled, *rows])
    return "ended twice", at


def settled_while_ready(maker: MoveMaker) -> tuple[str, int]:
    at, settled = _first(maker, lambda row: _is(row, Op.SETTLED, queue=1))
    _at(maker, at, lambda rows: [*rows, _with(settled, seq=5)])
    return "settled unheld", at


def returned_while_ready(maker: MoveMaker) -> tuple[str, int]:
    at, returned = _first(maker, lambda row: _is(row, Op.RETURNED, queue=1))
    _at(maker, at, lambda rows: [*rows, _with(returned, seq=5)])
    return "returned unheld", at


def older_one_is_overtaken(maker: MoveMaker) -> tuple[str, int]:
    def swap(_: int, rows: list[Row]) -> list[Row]:
        other = {0: 1, 1: 0}
        return [
            _with(row, seq=other.get(row[3], row[3])) if _delivered(row) and row[0] < FLAG else row
            for row in rows
        ]

    maker.rewrite(swap)
    at, _ = _first(maker, _delivered)
    return "overtaken", at


def channel_is_overtaken_by_itself(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, queue=row[2] - 2) if _is(row, Op.PUBLISHED) else None, 3)
    return "publisher order", at


def delivers_something_else(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, detail=row[5] ^ 1) if _delivered(row) else None, 2)
    return "content", at


def drops_what_is_held(maker: MoveMaker) -> tuple[str, int]:
    _, held = _first(maker, lambda row: _is(row, Op.DELIVERED, queue=3))
    at, dropped = _first(maker, lambda row: _is(row, Op.SETTLED, queue=3))
    made = (Op.DROPPED | 0x10, dropped[1], 3, held[3], 0, held[5])
    _at(maker, at, lambda rows: [made, *rows])
    return "dropped held", at


def drops_what_has_ended(maker: MoveMaker) -> tuple[str, int]:
    at, dropped = _first(maker, lambda row: _is(row, Op.DROPPED, queue=3), 1)
    _, before = _first(maker, lambda row: _is(row, Op.DROPPED, queue=3))
    _at(maker, at, lambda rows: [_with(before, index=dropped[1]), *rows])
    return "dropped ended", at


def comes_back_though_nothing_closed(maker: MoveMaker) -> tuple[str, int]:
    _, returned = _first(maker, lambda row: _is(row, Op.RETURNED, queue=1))
    at, settled = _first(maker, lambda row: _is(row, Op.SETTLED, queue=1))
    made = _with(settled, what=Op.RETURNED | 0x20, detail=returned[5])
    _at(maker, at, lambda rows: [made, *rows[1:]])
    return "return without cause", at


def nack_called_an_ack(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: (
            _with(row, what=int(Op.SETTLED)) if _is(row, Op.SETTLED) and row[0] >> 4 == 2 else None
        )
    )
    return "wrong cause", at


def purge_takes_more_than_there_was(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, of=row[4] + 1) if row[0] == Op.PURGED else None)
    return "purged count", at


def cold_start_keeps_a_transient_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: _with(row, of=row[4] + 1) if _is(row, Op.RECOVERED, queue=1) else None
    )
    return "kept others", at


def cold_start_loses_a_persistent_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: _with(row, of=row[4] - 1) if _is(row, Op.RECOVERED, queue=2) else None
    )
    return "kept others", at


def cold_start_keeps_more_than_there_was(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: _with(row, of=row[4] + 50) if _is(row, Op.RECOVERED, queue=1) else None
    )
    return "kept too many", at


def delivers_what_was_purged(maker: MoveMaker) -> tuple[str, int]:
    at, got = _first(maker, lambda row: _is(row, Op.DELIVERED, queue=1), -1)
    _, purged = _first(maker, lambda row: _is(row, Op.ENQUEUED, queue=4))
    made = _with(got, what=Op.DELIVERED | 0x10, queue=4, seq=purged[3], detail=purged[5])
    _at(maker, at, lambda rows: [*rows, made])
    return "delivered ended", at


def enters_a_deleted_queue(maker: MoveMaker) -> tuple[str, int]:
    at, _ = _first(maker, lambda row: _is(row, Op.ENQUEUED, queue=1), -1)
    _at(
        maker, at,
        lambda rows: [_with(r, queue=3, seq=4) if _is(r, Op.ENQUEUED) else r for r in rows],
    )  # fmt: skip
    return "into deleted", at


def message_vanishes(maker: MoveMaker) -> tuple[str, int]:
    """It entered the queue, and the log forgets to say so: what is there later says otherwise."""
    _, last = _first(maker, lambda row: _is(row, Op.ENQUEUED, queue=1), -1)
    at, _ = _first(maker, lambda row: row == last)
    _at(maker, at, lambda rows: [row for row in rows if row != last])
    return "balance", _checkpoint(maker, -1)[1].position


def checkpoint_counts_one_more(maker: MoveMaker) -> tuple[str, int]:
    return "balance", _change_standing(maker, 2, 1)


def checkpoint_has_another_sum(maker: MoveMaker) -> tuple[str, int]:
    return "wrong state", _change_standing(maker, 2, 4)


def queue_nobody_named(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, queue=77) if _is(row, Op.SETTLED) else None)
    return "unnamed queue", at


def queue_declared_otherwise(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, of=row[4] + 1) if _is(row, Op.DECLARED) else None)
    return "other queue", at


def move_of_no_command(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, index=row[1] + 1) if _is(row, Op.SETTLED) else None)
    return "foreign command", at + 1


def late_command_moves(maker: MoveMaker) -> tuple[str, int]:
    at, _ = _first(maker, lambda row: _is(row, Op.SETTLED))
    for life in LIVES:
        records = maker.lives[life]
        for i, record in enumerate(records):
            if isinstance(record, Batch) and record.first_position == at:
                records[i] = record._replace(outcomes=b"\1\0")
    return "late command", at


def newest_of_those_that_came_back(maker: MoveMaker) -> tuple[str, int]:
    """Of the two that were flagged and ready, the newer one is delivered first."""
    at, got = _first(maker, lambda row: _is(row, Op.DELIVERED, queue=1), -1)
    _at(maker, at, lambda rows: [_with(got, seq=got[3] + 1)])
    return "wrong message", at


def moves_in_another_order(maker: MoveMaker) -> tuple[str, int]:
    """Two commands share a batch, and the second one's moves stand first."""
    at, _ = _first(maker, lambda row: _is(row, Op.ENQUEUED, queue=1), 2)
    for life in LIVES:
        records = maker.lives[life]
        batches = [r for r in records if isinstance(r, Batch)]
        one = next(r for r in batches if r.first_position == at)
        two = next(r for r in batches if r.first_position == at + 1)
        both = one._replace(
            commands=2, kinds=one.kinds + two.kinds, outcomes=one.outcomes + two.outcomes,
            moves=two.moves + one.moves,
        )  # fmt: skip
        records[:] = [both if r == one else r for r in records if r != two]
    return "disorder", at


def holder_that_no_model_knows(maker: MoveMaker) -> tuple[str, int]:
    _, at = settled_by_another_channel(maker)
    return "impossible", at


def more_leave_than_were_there(maker: MoveMaker) -> tuple[str, int]:
    at, purged = _first(maker, lambda row: _is(row, Op.PURGED, queue=4))
    made = _with(purged, what=int(Op.DELIVERED), seq=0)
    _at(maker, at, lambda rows: [*rows, made])
    return "less than none", at


def queue_declared_twice(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: _with(row, queue=1) if _is(row, Op.DECLARED) else None)
    return "queue twice", at


VIOLATIONS: tuple[Violation, ...] = (
    publish_becomes_nothing, publish_becomes_two_messages, ack_publishes, transaction_of_a_publish,
    number_is_skipped, enqueued_of_another_publish, enqueued_twice, two_at_one_place,
    a_place_is_skipped, delivered_but_never_enqueued, delivered_to_two_at_once,
    delivered_after_the_ack, second_delivery_without_flag, recovered_delivery_without_flag,
    first_delivery_with_flag, settled_by_another_channel, returned_by_another_channel,
    settled_twice, settled_while_ready, returned_while_ready, older_one_is_overtaken,
    channel_is_overtaken_by_itself, delivers_something_else, drops_what_is_held,
    drops_what_has_ended, comes_back_though_nothing_closed, nack_called_an_ack,
    purge_takes_more_than_there_was, cold_start_keeps_a_transient_one,
    cold_start_loses_a_persistent_one, cold_start_keeps_more_than_there_was,
    delivers_what_was_purged, enters_a_deleted_queue, message_vanishes,
    checkpoint_counts_one_more, checkpoint_has_another_sum, queue_nobody_named,
    queue_declared_otherwise, move_of_no_command, late_command_moves,
    newest_of_those_that_came_back, moves_in_another_order, holder_that_no_model_knows,
    more_leave_than_were_there, queue_declared_twice,
)  # fmt: skip


def _checkpoint(maker: MoveMaker, number: int) -> tuple[int, Checkpoint]:
    records = maker.lives[LIVES[0]]
    found = [(i, r) for i, r in enumerate(records) if isinstance(r, Checkpoint)]
    return found[number]


def _change_standing(maker: MoveMaker, number: int, field: int) -> int:
    """Add one to a field of the first row of a checkpoint in all logs."""
    _, honest = _checkpoint(maker, number)
    row = list(STANDING_ROW.unpack_from(honest.queues))
    row[field] += 1
    told = STANDING_ROW.pack(*row) + honest.queues[STANDING_ROW.size :]
    for life in LIVES:
        records: list[Record] = maker.lives[life]
        records[:] = [r._replace(queues=told) if r == honest else r for r in records]
    return honest.position
