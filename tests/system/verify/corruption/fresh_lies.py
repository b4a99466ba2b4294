"""Fresh lies, written from docs/GUARANTEES.md and docs/MEMBERLOG.md without reading the check's
rules.

Each changes the logs of all members alike and returns the promise that must be named and the
position.  `IN_QUEUES` change `eventful_history`, `IN_VIEWS` that of `good_history`.  Those about
clients are in `tests/unit/verify/clients`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker.machine import commands as c
from broker.machine.move_log import BOUND, FLAG, MOVE, NOWHERE, Op, way_marks
from broker.memberlog.records import (
    Active,
    Batch,
    ConfirmRecord,
    Durable,
    Snapshot,
    ViewSeen,
    Vote,
)
from tests.system.verify.corruption.further_lies import (
    C2,
    A,
    B,
    C,
    ViewLie,
    base_of,
    batch_of,
    replace_in,
)
from tests.system.verify.support.make_logs import LogMaker
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, MoveTuple
from tests.system.verify.support.recorded_history import (
    checkpoint_of,
    first_move,
    is_a,
    put,
    rewrite_at,
)
from tools.verify.contract.reasons import RULES

Named = tuple[str, int]  # promise, position
QueueLie = Callable[[MoveMaker], Named]
(
    GRAVE,
    BRIEF,
    LONG,
    SHORT,
    REFUSING,
    AGAIN,
    LEFT,
    RIGHT,
    NUMBERED,
    WORK,
    DONE,
    SHARED,
    KEPT,
    LATE,
) = range(1, 15)


def swap(maker: MoveMaker, one: MoveTuple, two: MoveTuple, **fields: int) -> None:
    """Swap the details of two moves."""
    other = {one: put(one, detail=two[5]), two: put(two, detail=one[5])}
    maker.rewrite(lambda _, rows: [other.get(row, row) for row in rows])


def published(maker: MoveMaker, cause: int, number: int = 0) -> tuple[int, MoveTuple]:
    return first_move(maker, lambda row: row[0] & 0x7F == Op.PUBLISHED | cause << 4, number)


def kind_at(maker: MoveMaker, position: int, kind: int, outcome: int | None = None) -> None:
    """Name another command there in all members' logs."""
    for records in maker.logs.values():
        for at, record in enumerate(records):
            if isinstance(record, Batch) and record.first_position == position:
                outcomes = record.outcomes if outcome is None else struct.pack("<H", outcome)
                records[at] = record._replace(kinds=bytes([kind]), outcomes=outcomes)


def move_rows(
    maker: MoveMaker, wanted: Callable[[int, MoveTuple], bool], to: int, *, last: bool = True
) -> None:
    """Move these moves to another position."""
    taken: list[MoveTuple] = []
    records = maker.logs[INCARNATIONS[0]]
    for r in records:
        if isinstance(r, Batch):
            taken += [x for x in MOVE.iter_unpack(r.moves) if wanted(r.first_position, x)]
    moved = [put(row, index=to & 0xFFFF) for row in taken]

    def change(at: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        rows = [row for row in rows if not wanted(at, row)]
        return (rows + moved if last else moved + rows) if at == to else rows

    maker.rewrite(change)


# A message that is published on keeps its body.


def dead_letter_of_another_body(maker: MoveMaker) -> Named:
    where, letter = published(maker, 2)
    rewrite_at(maker, where, lambda rows: [put(r, detail=7) if r == letter else r for r in rows])
    return "G20", where


def two_dead_letters_change_bodies(maker: MoveMaker) -> Named:
    where, one = published(maker, 2)
    swap(maker, one, published(maker, 2, 4)[1])
    return "G20", where


def repeated_number_of_another_body(maker: MoveMaker) -> Named:
    where, again = published(maker, 3)
    rewrite_at(maker, where, lambda rows: [put(again, detail=again[5] ^ 1)])
    return "G23", where


def repeat_names_another_message(maker: MoveMaker) -> Named:
    where, again = published(maker, 3)
    rewrite_at(maker, where, lambda rows: [put(again, seq=again[3] - 2)])
    return "G23", where


def due_with_another_body(maker: MoveMaker) -> Named:
    where, one = published(maker, 4)
    swap(maker, one, published(maker, 4, 1)[1])
    return "G20", where


def dead_letter_of_the_living(maker: MoveMaker) -> Named:
    """A dead letter is published at a position at which nothing died: its message is still
    there."""
    where, _ = published(maker, 2, 1)
    _, dropped = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=BRIEF), 1)
    rewrite_at(maker, where, lambda rows: [row for row in rows if row != dropped])
    return "G12", where


def dead_letter_before_the_death(maker: MoveMaker) -> Named:
    """A message returned too often is dead-lettered already at the get before."""
    where, _ = first_move(maker, lambda row: row[0] == Op.SETTLED | 0x50 | FLAG)
    move_rows(maker, lambda at, row: at == where and row[0] & 15 != Op.SETTLED, where - 1)
    return "G20", where - 1


def dead_letter_twice(maker: MoveMaker) -> Named:
    """A rejected message is dead-lettered as the one that died before it."""
    where, letter = published(maker, 2, 8)
    _, before = published(maker, 2, 7)
    rewrite_at(
        maker, where, lambda rows: [put(r, detail=before[5]) if r == letter else r for r in rows]
    )
    return "G20", where


# Copies of one message.


def copy_of_another_content(maker: MoveMaker) -> Named:
    """Of two queues that a publish entered, one has another content."""
    where, copy = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=LEFT), 1)
    maker.rewrite(lambda _, rows: [
        put(r, detail=99) if r[2] == LEFT and r[5] == copy[5] else r for r in rows])  # fmt: skip
    return "G20", where


# The cause of an end.


def expired_by_the_limit(maker: MoveMaker) -> Named:
    """A message of a queue without a limit is dropped as over it."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=LONG))
    rewrite_at(maker, where, lambda rows: [put(r, what=0x16) if r == row else r for r in rows])
    return "G20", where


def over_the_limit_called_expired(maker: MoveMaker) -> Named:
    """The dead letter's reason is changed too, as it is in its header."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=SHORT))
    rewrite_at(maker, where, lambda rows: [put(r, what=0x06) if r == row else r for r in rows])
    return "G17", where


def expired_too_early(maker: MoveMaker) -> Named:
    """Half a second before its time, and its dead letter with it."""
    to = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=LONG))[0] + 1
    move_rows(maker, lambda at, row: is_a(row, Op.DROPPED, queue=LONG), to)
    return "G17", to


def expired_though_its_queue_has_no_time(maker: MoveMaker) -> Named:
    """A message expires in a queue without a time to live."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=LEFT))
    _, given = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=LEFT))
    rewrite_at(maker, where - 1, lambda rows: [put(given, what=int(Op.DROPPED), of=0)])
    rewrite_at(maker, where, lambda rows: [])
    return "G17", where - 1


def expired_out_of_a_clock_that_went_back(maker: MoveMaker) -> Named:
    """The later of two expiries has the earlier time."""
    where, row = first_move(maker, lambda row: row[0] == 0x2E, 2)
    rewrite_at(maker, where, lambda rows: [put(r, detail=1) if r == row else r for r in rows])
    return "G17", where


def due_too_early(maker: MoveMaker) -> Named:
    where = published(maker, 4)[0]
    move_rows(maker, lambda at, row: at == where and row[0] != 0x2E, where - 1)
    return "G17", where - 1


def dropped_before_it_was_full(maker: MoveMaker) -> Named:
    """The first of three messages is dropped, although the queue may hold three."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=SHORT))
    after = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=SHORT), 2)[0]

    def change(at: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        if at == where:
            return [r for r in rows if r != row]
        return [*rows, put(row, index=at)] if at == after else rows

    maker.rewrite(change)
    return "G20", after


def limit_that_changes_by_itself(maker: MoveMaker) -> Named:
    """The limit at the second drop was two, at the first three."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=SHORT), 1)
    rewrite_at(maker, where, lambda rows: [put(r, of=2) if r == row else r for r in rows])
    return "G20", where


def newest_is_dropped_by_the_limit(maker: MoveMaker) -> Named:
    where, row = first_move(maker, lambda row: is_a(row, Op.DROPPED, queue=SHORT))
    _, newest = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=SHORT), 3)
    rewrite_at(
        maker, where,
        lambda rows: [put(r, seq=newest[3], detail=newest[5]) if r == row else r for r in rows],
    )  # fmt: skip
    return "G12", where


def given_up_at_the_first_time(maker: MoveMaker) -> Named:
    """A message that was never returned ends as returned too often."""
    where, row = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=AGAIN), 1)
    rewrite_at(
        maker, where, lambda rows: [put(r, what=0xD4, detail=1) if r == row else r for r in rows]
    )
    return "G20", where


def given_up_at_once(maker: MoveMaker) -> Named:
    """A message ends as returned too often in a queue without a delivery limit."""
    where, row = first_move(maker, lambda row: is_a(row, Op.RETURNED, queue=WORK))
    rewrite_at(maker, where, lambda rows: [
        put(r, what=0x54, detail=3) if r == row else r for r in rows])  # fmt: skip
    return "G20", where


def rejected_though_it_was_acked(maker: MoveMaker) -> Named:
    where, row = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=LEFT))
    rewrite_at(maker, where, lambda rows: [put(r, what=0x24) if r == row else r for r in rows])
    return "G20", where


# Transactions.


def transaction_publishes_before_it_settles(maker: MoveMaker) -> Named:
    where, row = first_move(maker, lambda row: row[0] == Op.RETURNED | 0x40)
    rewrite_at(maker, where, lambda rows: [*(r for r in rows if r != row), row])
    return "G12", where


def transaction_of_two_positions(maker: MoveMaker) -> Named:
    """Half of the messages that a commit settles are settled by the command before it."""
    where, row = first_move(maker, lambda row: row[0] == Op.SETTLED | 0x40)
    move_rows(maker, lambda at, one: one == row, where - 1)
    return "G20", where - 1


def transaction_settles_half(maker: MoveMaker) -> Named:
    """One acknowledgement of a commit is missing, and the message returns with its channel."""
    where, row = first_move(maker, lambda row: row[0] == Op.SETTLED | 0x40)
    rewrite_at(maker, where, lambda rows: [r for r in rows if r != row])
    return "G20", checkpoint_of(maker, 2)[1].position


# Tags.


def ack_of_another_message(maker: MoveMaker) -> Named:
    """The first ack settles the message of the second tag."""
    where, row = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=LEFT), 1)
    rewrite_at(maker, where, lambda rows: [put(r, detail=1) if r == row else r for r in rows])
    return "G20", where


# Routes.


def unroutable_though_bound(maker: MoveMaker) -> Named:
    """A publish whose key is bound reaches nothing; all that follows is renumbered."""
    where, entered = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=LEFT), 2)
    _, bound = first_move(maker, lambda row: row[0] == BOUND)
    return _reaches_nothing(maker, where, entered, bound[5])


def unroutable_though_its_queue_is_there(maker: MoveMaker) -> Named:
    """The same at the default exchange."""
    where, entered = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=WORK), 3)
    return _reaches_nothing(maker, where, entered, way_marks("/", "", "work")[1])


def _reaches_nothing(maker: MoveMaker, where: int, entered: MoveTuple, way: int) -> Named:
    _, _, queue, place, number, _ = entered

    def change(at: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        changed = []
        for r in rows:
            op, cause = r[0] & 15, r[0] >> 4 & 7
            if op == Op.PUBLISHED:
                r = put(r, seq=0 if r[3] == number else r[3] - (r[3] > number))
                r = put(r, queue=r[2] - 1) if cause == 4 else r
            elif op in (Op.ENQUEUED, Op.DROPPED):
                r = put(r, of=r[4] - (r[4] > number))
            if op != Op.PUBLISHED and r[2] == queue and op < Op.PURGED:
                if r[3] == place:
                    continue
                r = put(r, seq=r[3] - (r[3] > place))
            changed.append(r)
        if at == where:
            changed.append((NOWHERE, at & 0xFFFF, 0, 0, 0, way))
        return changed

    kind_at(maker, where, c.PUBLISH, c.UNROUTABLE)
    maker.rewrite(change)
    return "G20", where


# Groups.


def group_of_two_holders(maker: MoveMaker) -> Named:
    """The consumer of one group gets the next message of the other one, which is held."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=SHARED), 2)
    _, other = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=SHARED), 3)
    assert row[3] != other[3]
    rewrite_at(maker, where, lambda rows: [
        put(r, seq=other[3], detail=other[5]) if r == row else r for r in rows])  # fmt: skip
    return "G32", where


def group_overtakes_itself(maker: MoveMaker) -> Named:
    """The last message of a group is delivered before the middle one."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=SHARED), 2)
    _, later = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=SHARED), 4)
    other = {row[3]: (later[3], later[5]), later[3]: (row[3], row[5])}
    maker.rewrite(lambda at, rows: [
        put(r, seq=other[r[3]][0], detail=other[r[3]][1] if r[0] & 15 != Op.SETTLED else r[5])
        if r[2] == SHARED and r[3] in other and r[0] & 15 in (3, 4, 5) else r for r in rows
    ])  # fmt: skip
    return "G32", where


def kept_group_moves(maker: MoveMaker) -> Named:
    """A kept group's next message goes to the other consumer, though the first one is there."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=KEPT), 2)
    _, other = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=KEPT), 1)
    maker.rewrite(lambda at, rows: [
        put(r, of=other[4]) if r[2] == KEPT and r[3] == row[3] and r[0] & 15 in (3, 4) else r
        for r in rows
    ])  # fmt: skip
    return "G34", where


# Commands.


def declared_by_a_tick(maker: MoveMaker) -> Named:
    where, _ = first_move(maker, lambda row: is_a(row, Op.DECLARED, queue=WORK))
    kind_at(maker, where, c.TICK)
    return "G20", where


def purged_by_a_passive_look(maker: MoveMaker) -> Named:
    """A declare empties a queue."""
    where, row = first_move(maker, lambda row: is_a(row, Op.PURGED, queue=RIGHT))
    kind_at(maker, where, c.QUEUE_DECLARE)
    rewrite_at(maker, where, lambda rows: [put(row, what=int(Op.PURGED))])
    return "G20", where


def deletes_the_queue_beside(maker: MoveMaker) -> Named:
    """A delete also deletes a queue that it did not name."""
    where, row = first_move(maker, lambda row: is_a(row, Op.PURGED, queue=RIGHT))
    rewrite_at(maker, where, lambda rows: [put(row, queue=LEFT, of=4, seq=4)])
    return "G20", where + 1  # as above


def delete_that_deletes_nothing(maker: MoveMaker) -> Named:
    """It was carried out, and its queue remains."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.PURGED, queue=RIGHT))
    rewrite_at(maker, where, lambda rows: [])
    return "G20", where + 1  # a publish to it is unroutable


def get_takes_from_what_another_holds(maker: MoveMaker) -> Named:
    """A get returns an unsettled message of a consumer, as if for the first time."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=WORK), 1)
    _, before = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=WORK))
    rewrite_at(maker, where, lambda rows: [put(row, seq=before[3], detail=before[5], of=5)])
    return "G13", where


def flagged_by_a_wish(maker: MoveMaker) -> Named:
    """A dead letter is redelivered in its new queue though it was never delivered there."""
    where, row = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=LEFT), 3)
    rewrite_at(maker, where, lambda rows: [put(row, what=row[0] | FLAG)])
    return "G11", where


def persistent_one_is_dead_lettered_as_transient(maker: MoveMaker) -> Named:
    where, letter = published(maker, 2)
    rewrite_at(maker, where, lambda rows: [
        put(r, what=r[0] & ~FLAG) if r in (letter, rows[rows.index(letter) + 1]) else r
        for r in rows])  # fmt: skip
    return "G20", where


def delayed_one_is_published_as_transient(maker: MoveMaker) -> Named:
    where, due = published(maker, 4)
    rewrite_at(maker, where, lambda rows: [
        put(r, what=r[0] & ~FLAG) if r in (due, rows[rows.index(due) + 1]) else r
        for r in rows])  # fmt: skip
    return "G20", where


def dead_letter_overtakes(maker: MoveMaker) -> Named:
    """Of two that die at one position the newer one is published first."""
    where, one = published(maker, 2)
    _, two = published(maker, 2, 1)
    swap(maker, one, two)
    return "G20", where


BROKEN_BY_LIES = {
    *RULES, "other copy", "other number", "commit order", "two channels", "taken twice", "rank",
    "left behind",
}  # fmt: skip
"""Rules that no other test breaks, but for broken brokers."""


def session_without_its_first_submission(maker: MoveMaker) -> Named:
    """What the last member's session submitted first is applied nowhere, and missed by nobody."""
    log = maker.logs[INCARNATIONS[0]]
    first = max((r for r in log if isinstance(r, Batch)), key=lambda r: (r.session, -r.blob_no))
    for records in maker.logs.values():
        records[:] = [
            r._replace(blob_no=r.blob_no + 1)
            if isinstance(r, Batch) and r.session == first.session else r
            for r in records
        ]  # fmt: skip
    return "G5", first.first_position


IN_QUEUES: tuple[QueueLie, ...] = (
    dead_letter_of_another_body, two_dead_letters_change_bodies, repeated_number_of_another_body,
    repeat_names_another_message, due_with_another_body, dead_letter_of_the_living,
    dead_letter_before_the_death, dead_letter_twice, copy_of_another_content,
    expired_by_the_limit, over_the_limit_called_expired, expired_too_early,
    expired_though_its_queue_has_no_time, expired_out_of_a_clock_that_went_back, due_too_early,
    dropped_before_it_was_full, limit_that_changes_by_itself, newest_is_dropped_by_the_limit,
    given_up_at_the_first_time, given_up_at_once, rejected_though_it_was_acked,
    transaction_publishes_before_it_settles, transaction_of_two_positions,
    transaction_settles_half, ack_of_another_message, unroutable_though_bound,
    unroutable_though_its_queue_is_there, group_of_two_holders,
    group_overtakes_itself, kept_group_moves, declared_by_a_tick,
    purged_by_a_passive_look, deletes_the_queue_beside, delete_that_deletes_nothing,
    get_takes_from_what_another_holds, flagged_by_a_wish,
    persistent_one_is_dead_lettered_as_transient, delayed_one_is_published_as_transient,
    dead_letter_overtakes, session_without_its_first_submission,
)  # fmt: skip


# Views, primaries and disks, by `good_history`.


def epoch_twice(maker: LogMaker) -> Named:
    """Two successive primaries have the same epoch."""
    where = base_of(maker, 3)
    replace_in(maker, Active, lambda r: r.epoch == 3, lambda r: r._replace(epoch=2))
    replace_in(maker, Batch, lambda r: r.epoch == 3, lambda r: r._replace(epoch=2))
    replace_in(maker, ConfirmRecord, lambda r: r.epoch == 3, lambda r: r._replace(epoch=2))
    return "G7", where


def log_of_a_ghost(maker: LogMaker) -> Named:
    """A member that no view names has b's log."""
    maker.logs["z", 1] = list(maker.logs[B])
    return "G6", 0


def half_without_its_tie_breaker(maker: LogMaker) -> Named:
    """Of four voters those two continue that lack the tie breaker."""
    voters = ("a", "b", "c", "d", "@auto_tie_breaker=d")
    replace_in(maker, Active, lambda r: True, lambda r: r._replace(voters=voters))
    return "G7", base_of(maker, 2)


def votes_that_nobody_has(maker: LogMaker) -> Named:
    voters = ("a", "b", "c", "@expected_votes=7")
    replace_in(maker, Active, lambda r: True, lambda r: r._replace(voters=voters))
    return "G7", 0


def new_voters_did_not_agree(maker: LogMaker) -> Named:
    """While the voters change, only the old ones are a majority."""
    voters = ("a", "b", "c", "->", "c", "d", "e")
    replace_in(maker, Active, lambda r: True, lambda r: r._replace(voters=voters))
    return "G7", 0


def arbitrator_with_data(maker: LogMaker) -> Named:
    """b, which has a log and applies commands, counts as a voter without data."""
    voters = ("a", "c", "@arbitrator=b")
    replace_in(maker, Active, lambda r: True, lambda r: r._replace(voters=voters))
    return "G7", 0


def submission_is_skipped(maker: LogMaker) -> Named:
    """All members skip a session's next number."""
    batch = batch_of(maker, 3, 4)
    replace_in(
        maker, Batch,
        lambda r: r.session == batch.session and r.first_position >= batch.first_position,
        lambda r: r._replace(blob_no=r.blob_no + 1),
    )  # fmt: skip
    return "G5", batch.first_position


def view_with_the_dead(maker: LogMaker) -> Named:
    """a and b say that c was in the view after its crash."""
    replace_in(maker, ViewSeen, lambda r: r.ring_seq == 2, lambda r: r._replace(members=(A, B, C)))
    return "G7", base_of(maker, 2)


def moved_alone(maker: LogMaker) -> Named:
    """Both say that only a moved on to the second view."""
    replace_in(
        maker, ViewSeen, lambda r: r.ring_seq == 1 and not r.regular,
        lambda r: r._replace(members=(A,)),
    )  # fmt: skip
    return "G6", base_of(maker, 2) - 1


def restarted_as_an_older_one(maker: LogMaker) -> Named:
    """All logs restart c with a lower incarnation than before."""
    older = ("c", 0)
    maker.logs[older] = maker.logs.pop(C2)
    replace_in(
        maker, ViewSeen, lambda r: True,
        lambda r: r._replace(members=tuple(older if one == C2 else one for one in r.members)),
    )  # fmt: skip
    members = (("a", 1, False), ("b", 1, False), ("c", 0, True))
    replace_in(maker, Active, lambda r: r.epoch == 3, lambda r: r._replace(members=members))
    return "G6", base_of(maker, 3)


def on_disk_before_it_was_received(maker: LogMaker) -> Named:
    """c reports a state as durable that it receives only then."""
    records = maker.logs[C2]
    at = next(i for i, r in enumerate(records) if isinstance(r, Snapshot))
    received = records[at]
    assert isinstance(received, Snapshot)
    records.insert(at, Durable(received.position))
    return "G9", received.position


def undecided_though_all_agree(maker: LogMaker) -> Named:
    where = next(r.position for r in maker.logs[A] if isinstance(r, Vote))
    replace_in(maker, Vote, lambda r: True, lambda r: r._replace(verdict="undecided"))
    return "G10", where


IN_VIEWS: tuple[ViewLie, ...] = (
    epoch_twice, log_of_a_ghost, half_without_its_tie_breaker, votes_that_nobody_has,
    new_voters_did_not_agree, arbitrator_with_data, submission_is_skipped, view_with_the_dead,
    moved_alone, restarted_as_an_older_one,
    on_disk_before_it_was_received, undecided_though_all_agree,
)  # fmt: skip
