"""Violations of the queue contract in the logs of all members, which only the contract can find.

Each is a function of a history (`plain_history`): it changes all members' records, or their
machines' states, and returns the rule that must be named and the position.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine.move_log import (
    DUE,
    FLAG,
    NACKED,
    OVER_LIMIT,
    QUEUE_DELETED,
    REPLACED,
    SUPERSEDED,
    Op,
)
from broker.memberlog.records import Batch
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, MoveTuple
from tests.system.verify.support.recorded_history import (
    change_checkpoint,
    checkpoint_of,
    first_move,
    is_a,
    is_entered,
    is_given,
    put,
    rewrite_at,
)

Violation = Callable[[MoveMaker], tuple[str, int]]


def publish_becomes_nothing(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, lambda row: is_a(row, Op.PUBLISHED), 3)
    rewrite_at(maker, at, lambda _: [])
    return "publish lost", at


def publish_becomes_two_messages(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, lambda row: is_a(row, Op.PUBLISHED), 3)
    rewrite_at(maker, at, lambda rows: [*rows, *(put(row, seq=row[3] + 1) for row in rows)])
    return "publish doubled", at


def ack_publishes(maker: MoveMaker) -> tuple[str, int]:
    _, published = first_move(maker, lambda row: is_a(row, Op.PUBLISHED), 5)
    at, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED))
    made = put(published, index=settled[1], seq=published[3] + 1)
    rewrite_at(maker, at, lambda rows: [*rows, made])
    return "wrong cause", at


def transaction_of_a_publish(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=row[0] | 0x10) if is_a(row, Op.PUBLISHED) else None)
    return "wrong cause", at


def number_is_skipped(maker: MoveMaker) -> tuple[str, int]:
    at, published = first_move(maker, lambda row: is_a(row, Op.PUBLISHED), 3)
    later = published[3]

    def change(_: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        rows = [
            put(r, seq=r[3] + 1) if is_a(r, Op.PUBLISHED) and r[3] >= later else r for r in rows
        ]
        return [put(r, of=r[4] + 1) if is_a(r, Op.ENQUEUED) and r[4] >= later else r for r in rows]

    maker.rewrite(change)
    return "impossible", at


def enqueued_of_another_publish(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] - 1) if is_a(row, Op.ENQUEUED) else None, 2)
    return "enqueued unpublished", at


def enters_before_any_publish(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, lambda row: is_a(row, Op.PUBLISHED))
    rewrite_at(maker, at, lambda rows: [row for row in rows if not is_a(row, Op.PUBLISHED)])
    return "enqueued unpublished", at


def enqueued_twice(maker: MoveMaker) -> tuple[str, int]:
    at, entered = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), 5)
    rewrite_at(maker, at, lambda rows: [*rows, put(entered, seq=entered[3] + 1)])
    return "enqueued twice", at


def two_at_one_place(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] - 1) if is_entered(row) else None, 3)
    return "place twice", at


def a_place_is_skipped(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] + 20) if is_entered(row) else None, 3)
    return "impossible", at


def delivered_but_never_enqueued(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=99) if is_given(row) else None)
    return "invented", at


def delivered_to_two_at_once(maker: MoveMaker) -> tuple[str, int]:
    at, returned = first_move(maker, lambda row: is_a(row, Op.RETURNED, queue=1))
    rewrite_at(maker, at, lambda rows: [row for row in rows if row != returned])
    return "delivered held", at


def delivered_after_the_ack(maker: MoveMaker) -> tuple[str, int]:
    _, delivered = first_move(maker, is_given)
    at, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=1))
    again = put(delivered, what=delivered[0] | FLAG, index=settled[1])
    rewrite_at(maker, at, lambda rows: [*rows, again])
    return "delivered ended", at


def second_delivery_without_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, what=row[0] & 0x7F) if is_given(row) and row[0] & FLAG else None
    )
    return "again unflagged", at


def recovered_delivery_without_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, what=row[0] & 0x7F) if is_given(row) and row[0] & FLAG else None,
        1,
    )
    return "again unflagged", at


def first_delivery_with_flag(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=row[0] | FLAG) if is_given(row) else None)
    return "first flagged", at


def settled_by_another_channel(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] ^ 1) if is_a(row, Op.SETTLED) else None)
    return "other holder", at


def returned_by_another_channel(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] ^ 1) if is_a(row, Op.RETURNED) else None)
    return "other holder", at


def settled_twice(maker: MoveMaker) -> tuple[str, int]:
    at, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=1))
    rewrite_at(maker, at, lambda rows: [settled, *rows])
    return "ended twice", at


def settled_while_ready(maker: MoveMaker) -> tuple[str, int]:
    at, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=1))
    rewrite_at(maker, at, lambda rows: [*rows, put(settled, seq=5)])
    return "settled unheld", at


def returned_while_ready(maker: MoveMaker) -> tuple[str, int]:
    at, returned = first_move(maker, lambda row: is_a(row, Op.RETURNED, queue=1))
    rewrite_at(maker, at, lambda rows: [*rows, put(returned, seq=5)])
    return "returned unheld", at


def older_one_is_overtaken(maker: MoveMaker) -> tuple[str, int]:
    def swap(_: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        other = {0: 1, 1: 0}
        return [
            put(row, seq=other.get(row[3], row[3])) if is_given(row) and row[0] < FLAG else row
            for row in rows
        ]

    maker.rewrite(swap)
    at, _ = first_move(maker, is_given)
    return "overtaken", at


def channel_is_overtaken_by_itself(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, queue=row[2] - 2) if is_a(row, Op.PUBLISHED) else None, 3)
    return "publisher order", at


def delivers_something_else(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, detail=row[5] ^ 1) if is_given(row) else None, 2)
    return "content", at


def drops_what_is_held(maker: MoveMaker) -> tuple[str, int]:
    _, held = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=3))
    at, dropped = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=3))
    made = (Op.DROPPED | 0x10, dropped[1], 3, held[3], 0, held[5])
    rewrite_at(maker, at, lambda rows: [made, *rows])
    return "dropped held", at


def drops_what_has_ended(maker: MoveMaker) -> tuple[str, int]:
    at, dropped = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=3), 1)
    _, before = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=3))
    rewrite_at(maker, at, lambda rows: [put(before, index=dropped[1]), *rows])
    return "dropped ended", at


def comes_back_though_nothing_closed(maker: MoveMaker) -> tuple[str, int]:
    _, returned = first_move(maker, lambda row: is_a(row, Op.RETURNED, queue=1))
    at, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=1))
    made = put(settled, what=Op.RETURNED | 0x20, detail=returned[5])
    rewrite_at(maker, at, lambda rows: [made, *rows[1:]])
    return "return without cause", at


def nack_called_an_ack(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: (
            put(row, what=int(Op.SETTLED)) if is_a(row, Op.SETTLED) and row[0] >> 4 == 2 else None
        )
    )
    return "wrong cause", at


def purge_takes_more_than_there_was(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] + 1) if row[0] == Op.PURGED else None)
    return "wrong state", at


def cold_start_keeps_a_transient_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, of=row[4] + 1) if is_a(row, Op.RECOVERED, queue=1) else None
    )
    return "kept others", at


def cold_start_loses_a_persistent_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, of=row[4] - 1) if is_a(row, Op.RECOVERED, queue=2) else None
    )
    return "kept others", at


def cold_start_keeps_more_than_there_was(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, of=row[4] + 50) if is_a(row, Op.RECOVERED, queue=1) else None
    )
    return "wrong state", at


def delivers_what_was_purged(maker: MoveMaker) -> tuple[str, int]:
    at, got = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=1), -1)
    _, purged = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=4))
    made = put(got, what=Op.DELIVERED | 0x10, queue=4, seq=purged[3], detail=purged[5])
    rewrite_at(maker, at, lambda rows: [*rows, made])
    return "delivered ended", at


def enters_a_deleted_queue(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), -1)
    rewrite_at(
        maker, at,
        lambda rows: [put(r, queue=3, seq=4) if is_a(r, Op.ENQUEUED) else r for r in rows],
    )  # fmt: skip
    return "into deleted", at


def message_vanishes(maker: MoveMaker) -> tuple[str, int]:
    """An enqueue is missing in the log: the next checkpoint counts one message more."""
    _, last = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), -1)
    at, _ = first_move(maker, lambda row: row == last)
    rewrite_at(maker, at, lambda rows: [row for row in rows if row != last])
    return "wrong state", checkpoint_of(maker, -1)[1].position


def checkpoint_counts_one_more(maker: MoveMaker) -> tuple[str, int]:
    return "wrong state", change_checkpoint(maker, 2, 1)


def checkpoint_has_another_sum(maker: MoveMaker) -> tuple[str, int]:
    return "wrong state", change_checkpoint(maker, 2, 4)


def queue_nobody_named(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, queue=77) if is_a(row, Op.SETTLED) else None)
    return "unnamed queue", at


def queue_declared_otherwise(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] + 1) if is_a(row, Op.DECLARED) else None)
    return "other queue", at


def move_of_no_command(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, index=row[1] + 1) if is_a(row, Op.SETTLED) else None)
    return "foreign command", at + 1


def late_command_moves(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, lambda row: is_a(row, Op.SETTLED))
    for incarnation in INCARNATIONS:
        records = maker.logs[incarnation]
        for i, record in enumerate(records):
            if isinstance(record, Batch) and record.first_position == at:
                records[i] = record._replace(outcomes=b"\1\0")
    return "late command", at


def newest_of_those_that_came_back(maker: MoveMaker) -> tuple[str, int]:
    """Of two flagged ready messages, the newer one is delivered first."""
    at, got = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=1), -1)
    rewrite_at(maker, at, lambda rows: [put(got, seq=got[3] + 1)])
    return "wrong message", at


def moves_in_another_order(maker: MoveMaker) -> tuple[str, int]:
    """Two commands share a batch, and the moves of the second come first."""
    at, _ = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), 2)
    for incarnation in INCARNATIONS:
        records = maker.logs[incarnation]
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
    at, purged = first_move(maker, lambda row: is_a(row, Op.PURGED, queue=4))
    made = put(purged, what=int(Op.DELIVERED), seq=0)
    rewrite_at(maker, at, lambda rows: [*rows, made])
    return "impossible", at


def queue_declared_twice(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, queue=1) if is_a(row, Op.DECLARED) else None)
    return "impossible", at


def deletion_says_it_emptied_a_window(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=row[0] | FLAG) if row[0] == QUEUE_DELETED else None)
    return "stray", at


def transient_enters_as_persistent(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=row[0] ^ FLAG) if is_entered(row) else None, 4)
    return "persistence", at


def _is_due(row: MoveTuple) -> bool:
    return row[0] & ~FLAG == DUE


def due_is_not_published(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, _is_due)
    rewrite_at(maker, at, lambda rows: rows[:2])
    return "due unpublished", at


def published_without_being_due(maker: MoveMaker) -> tuple[str, int]:
    at, _ = first_move(maker, _is_due)
    rewrite_at(maker, at, lambda rows: [rows[0], *rows[2:]])
    return "due invented", at


def another_one_is_due(maker: MoveMaker) -> tuple[str, int]:
    at, (*_, number, _) = first_move(maker, _is_due)

    def change(rows: list[MoveTuple]) -> list[MoveTuple]:
        time, due, published, *others = rows
        return [time, put(due, of=number + 1), put(published, queue=number + 1), *others]

    rewrite_at(maker, at, change)
    return "other due", at


def delayed_one_expires(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=row[0] & ~0x70) if _is_due(row) else None)
    return "left otherwise", at


def repeat_of_another_publish(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] + 1) if is_a(row, Op.REPEATED) else None)
    return "enqueued unpublished", at


def repeat_of_what_never_entered(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=9) if is_a(row, Op.REPEATED) else None)
    return "repeat of nothing", at


def repeat_of_a_transient_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] + 2) if is_a(row, Op.REPEATED) else None)
    return "repeat of what goes", at


def repeat_of_what_was_purged(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=0) if is_a(row, Op.REPEATED, seq=3) else None)
    return "repeat of what goes", at


def repeat_that_enters_nevertheless(maker: MoveMaker) -> tuple[str, int]:
    at, repeat = first_move(maker, lambda row: is_a(row, Op.REPEATED))
    entered = put(repeat, what=repeat[0] ^ Op.REPEATED ^ Op.ENQUEUED, seq=2)
    rewrite_at(maker, at, lambda rows: [rows[0], entered, *rows[1:]])
    return "enqueued twice", at


def reader_is_sent_the_next_but_one(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] + 1) if is_a(row, Op.READ) else None)
    return "wrong read", at


def reader_is_sent_one_twice(maker: MoveMaker) -> tuple[str, int]:
    at, read = first_move(maker, lambda row: is_a(row, Op.READ), 1)
    rewrite_at(maker, at, lambda rows: [*rows, read])
    return "reader order", at


def reader_begins_later_than_it_reads(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] + 1) if is_a(row, Op.READER) else None)
    return "reader order", at


def stream_is_consumed(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=int(Op.DELIVERED)) if is_a(row, Op.READ) else None)
    return "consumed stream", at


def read_by_nobody(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=int(Op.READ)) if is_given(row) else None)
    return "wrong read", at


def browser_passes_one(maker: MoveMaker) -> tuple[str, int]:
    at, read = first_move(maker, _is_browsed)
    rewrite_at(maker, at, lambda rows: [row for row in rows if row != read])
    return "wrong read", at


def browser_sees_what_is_gone(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, seq=row[3] + 98) if _is_browsed(row) else None)
    return "wrong read", at


def priority_queue_is_read(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, queue=2) if _is_browsed(row) else None)
    return "consumed stream", at


def _is_browsed(row: MoveTuple) -> bool:
    return is_a(row, Op.READ, queue=8)


def _is_replaced(row: MoveTuple) -> bool:
    return row[0] & 0x7F == REPLACED


def expired_one_is_called_replaced(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(
        lambda row: put(row, what=REPLACED) if row[0] == OVER_LIMIT and row[2] == 3 else None
    )
    return "replaced elsewhere", at


def replaced_by_none(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, of=row[4] + 1) if _is_replaced(row) else None)
    return "replaced by nothing", at


def replaced_one_stays(maker: MoveMaker) -> tuple[str, int]:
    at, gone = first_move(maker, _is_replaced)
    rewrite_at(maker, at, lambda rows: [row for row in rows if row != gone])
    later, _ = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=gone[2], seq=4))
    return "wrong message", later


def superseded_one_comes_back(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=int(NACKED)) if row[0] == SUPERSEDED else None)
    return "content", at


def ack_called_superseded(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=SUPERSEDED) if row[0] == Op.SETTLED else None)
    return "replaced elsewhere", at


def ack_called_an_end_with_its_queue(maker: MoveMaker) -> tuple[str, int]:
    at = maker.edit(lambda row: put(row, what=0x34) if row[0] == Op.SETTLED else None)
    return "lapsed alive", at


def checkpoint_has_another_root(maker: MoveMaker) -> tuple[str, int]:
    _, original = checkpoint_of(maker, 2)
    for incarnation in INCARNATIONS:
        records = maker.logs[incarnation]
        records[:] = [r._replace(root=r.root ^ 1) if r == original else r for r in records]
    return "other root", original.position


def blob_is_passed_over(maker: MoveMaker) -> tuple[str, int]:
    first = maker.logs[INCARNATIONS[0]]
    third = next(r for r in first if isinstance(r, Batch) and r.blob_no == 3)
    changed = third._replace(blob_no=4)
    for incarnation in INCARNATIONS:
        maker.logs[incarnation][:] = [changed if r == third else r for r in maker.logs[incarnation]]
    return "blob order", third.first_position


def answered_as_unroutable(maker: MoveMaker) -> tuple[str, int]:
    return _answered(maker, b"\xc8\0")


def answered_as_sent_again(maker: MoveMaker) -> tuple[str, int]:
    return _answered(maker, b"\xc9\0")


def _answered(maker: MoveMaker, outcomes: bytes) -> tuple[str, int]:
    at, _ = first_move(maker, is_entered, 2)
    for incarnation in INCARNATIONS:
        maker.logs[incarnation][:] = [
            r._replace(outcomes=outcomes) if isinstance(r, Batch) and r.first_position == at else r
            for r in maker.logs[incarnation]
        ]
    return "publish misrouted", at


def session_that_another_goes_on_with(maker: MoveMaker) -> tuple[str, int]:
    own = [r for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Batch) and r.session][3]
    changed = own._replace(origin="c" if own.origin != "c" else "b")
    for incarnation in INCARNATIONS:
        maker.logs[incarnation][:] = [changed if r == own else r for r in maker.logs[incarnation]]
    return "other session", own.first_position


VIOLATIONS: tuple[Violation, ...] = (
    reader_is_sent_the_next_but_one, reader_is_sent_one_twice, reader_begins_later_than_it_reads,
    stream_is_consumed, read_by_nobody,
    publish_becomes_nothing, publish_becomes_two_messages, ack_publishes, transaction_of_a_publish,
    number_is_skipped, enqueued_of_another_publish, enters_before_any_publish, enqueued_twice,
    two_at_one_place,
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
    more_leave_than_were_there, queue_declared_twice, deletion_says_it_emptied_a_window,
    checkpoint_has_another_root, blob_is_passed_over, transient_enters_as_persistent,
    ack_called_an_end_with_its_queue, answered_as_unroutable, answered_as_sent_again,
    session_that_another_goes_on_with, due_is_not_published, published_without_being_due,
    another_one_is_due, delayed_one_expires, repeat_of_another_publish,
    repeat_of_what_never_entered, repeat_of_a_transient_one, repeat_of_what_was_purged,
    repeat_that_enters_nevertheless, expired_one_is_called_replaced, replaced_by_none,
    replaced_one_stays, superseded_one_comes_back, ack_called_superseded,
    browser_passes_one, browser_sees_what_is_gone, priority_queue_is_read,
)  # fmt: skip
