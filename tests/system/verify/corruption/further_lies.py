"""Further lies: what a wrong broker, or a liar, might write into members' logs.

Each is a function that changes a correct history, mostly all members' logs alike, so that only the
promises contradict it, and returns the promise that must be named and the position.  `IN_VIEWS`
change `good_history`, `IN_QUEUES` the history of `plain_history`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from broker.machine import commands as c
from broker.machine.move_log import FLAG, MOVE, Op
from broker.memberlog.records import (
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Durable,
    Inactive,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from broker.replication.chain import History
from tests.system.verify.support.make_logs import IncarnationId, LogMaker, moves_of, root_of
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, MoveTuple
from tests.system.verify.support.recorded_history import first_move, is_a, put, rewrite_at

A, B, C, C2 = ("a", 1), ("b", 1), ("c", 1), ("c", 2)
R = TypeVar("R", bound=Record)
Named = tuple[str, int]  # promise, position
ViewLie = Callable[[LogMaker], Named]
QueueLie = Callable[[MoveMaker], Named]


def alike(maker: LogMaker, change: Callable[[Record], Record | None]) -> None:
    """Change each record of all logs; None drops it."""
    for records in maker.logs.values():
        changed = [change(record) for record in records]
        records[:] = [record for record in changed if record is not None]


def replace_in(
    maker: LogMaker, kind: type[R], when: Callable[[R], bool], change: Callable[[R], Record]
) -> None:
    """Change the records of one kind for which `when` holds, in all logs."""
    alike(maker, lambda r: change(r) if isinstance(r, kind) and when(r) else r)


def batch_of(maker: LogMaker, epoch: int, number: int, by: IncarnationId = A) -> Batch:
    """Return the n-th batch that an incarnation applied in an epoch."""
    found = [r for r in maker.logs[by] if isinstance(r, Batch) and r.epoch == epoch]
    return found[number]


def change_batch(maker: LogMaker, batch: Batch, change: Callable[[Batch], Batch]) -> int:
    """Change one batch in all logs; return its first position."""
    replace_in(maker, Batch, lambda r: r == batch, change)
    return batch.first_position


def base_of(maker: LogMaker, epoch: int) -> int:
    """Return the position after which an epoch began."""
    return next(
        r.base_position for r in maker.logs[A] if isinstance(r, Active) and r.epoch == epoch
    )


def after(batch: Batch) -> int:
    """Return the last position of a batch."""
    return batch.first_position + batch.commands - 1


# Views: G6.


def representative_of_no_view(maker: LogMaker) -> Named:
    replace_in(maker, ViewSeen, lambda r: r.ring_seq == 2, lambda r: r._replace(ring_rep="z"))
    replace_in(maker, Active, lambda r: r.ring_seq == 2, lambda r: r._replace(ring_rep="z"))
    return "G6", base_of(maker, 2)


def member_twice_in_a_view(maker: LogMaker) -> Named:
    """c, restarted, is in a view beside its former incarnation."""
    both = (A, B, C, C2)
    replace_in(maker, ViewSeen, lambda r: r.ring_seq == 3, lambda r: r._replace(members=both))
    members = tuple((*one, one == C2) for one in both)
    replace_in(maker, Active, lambda r: r.ring_seq == 3, lambda r: r._replace(members=members))
    return "G6", after(batch_of(maker, 2, -1))


def former_incarnation_returns(maker: LogMaker) -> Named:
    """After c's restart a view with its former incarnation forms."""
    for incarnation in (A, B, C2):
        maker.logs[incarnation].pop()
    where = maker.history.position
    maker.leave(A, B)
    maker.logs[C] += [ViewSeen(1, "a", False, (C,)), Inactive("alone")]
    maker.view(4, A, B, C)
    maker.stop(A, B)
    return "G6", where


def view_numbers_stand_still(maker: LogMaker) -> Named:
    replace_in(maker, ViewSeen, lambda r: r.ring_seq == 3, lambda r: r._replace(ring_seq=2))
    replace_in(maker, Active, lambda r: r.ring_seq == 3, lambda r: r._replace(ring_seq=2))
    replace_in(maker, Batch, lambda r: r.ring_seq == 3, lambda r: r._replace(ring_seq=2))
    return "G6", after(batch_of(maker, 2, -1))


def second_view_without_the_end_of_the_first(maker: LogMaker) -> Named:
    alike(
        maker,
        lambda r: None if isinstance(r, ViewSeen) and r.ring_seq == 2 and not r.regular else r,
    )
    return "G6", after(batch_of(maker, 2, -1))


# The order: G1, G5.


def later_number_of_the_ring_first(maker: LogMaker) -> Named:
    """The ring ordered this item before the one that is applied before it."""
    return "G1", change_batch(maker, batch_of(maker, 1, 2), lambda r: r._replace(seq=1))


def item_of_an_outsider(maker: LogMaker) -> Named:
    return "G1", change_batch(
        maker, batch_of(maker, 1, 2), lambda r: r._replace(origin="z", session=99, blob_no=1)
    )


def item_of_a_dead_member(maker: LogMaker) -> Named:
    """c crashed in the epoch before, and an item of it is ordered in this one."""
    batch = batch_of(maker, 2, 2)
    return "G1", change_batch(maker, batch, lambda r: r._replace(origin="c", session=99, blob_no=1))


def session_of_another_member(maker: LogMaker) -> Named:
    first, second = batch_of(maker, 1, 2), batch_of(maker, 1, 3)
    assert first.origin != second.origin
    where = change_batch(
        maker, second, lambda r: r._replace(session=first.session, blob_no=first.blob_no + 1)
    )
    return "G5", where


def submission_twice(maker: LogMaker) -> Named:
    """The same submission of a session is applied at a second position."""
    batch = batch_of(maker, 2, 4)
    return "G5", change_batch(maker, batch, lambda r: r._replace(blob_no=batch.blob_no - 1))


def position_left_free(maker: LogMaker) -> Named:
    """All members skip a position, chain and all: nothing is there."""
    last = batch_of(maker, 3, -1)
    where = change_batch(maker, last, lambda r: r._replace(first_position=last.first_position + 1))
    replace_in(maker, Stop, lambda r: True, lambda r: r._replace(position=after(last) + 1))
    return "G1", where


# Primaries: G7.


def primary_beyond_its_view(maker: LogMaker) -> Named:
    """c counts in the primary, but is not in the view: nobody asked it."""
    members = (("a", 1, False), ("b", 1, False), ("c", 1, False))
    replace_in(maker, Active, lambda r: r.epoch == 2, lambda r: r._replace(members=members))
    return "G7", base_of(maker, 2)


def primary_of_half_its_view(maker: LogMaker) -> Named:
    """c is in the view and left out of the primary."""
    replace_in(
        maker,
        Active,
        lambda r: r.epoch == 1,
        lambda r: r._replace(members=(("a", 1, False), ("b", 1, False))),
    )
    return "G7", 0


def base_of_another_history(maker: LogMaker) -> Named:
    replace_in(maker, Active, lambda r: r.epoch == 2, lambda r: r._replace(base_chain=b"x" * 16))
    return "G7", base_of(maker, 2) + 1


def epoch_without_activation(maker: LogMaker) -> Named:
    first = batch_of(maker, 2, 0)
    assert first.kinds == bytes([c.ACTIVATE])
    return "G7", change_batch(maker, first, lambda r: r._replace(kinds=bytes([c.TICK])))


def second_activation(maker: LogMaker) -> Named:
    batch = batch_of(maker, 2, 3)
    where = change_batch(
        maker,
        batch,
        lambda r: r._replace(kinds=batch.kinds[:2] + bytes([c.ACTIVATE]) + batch.kinds[3:]),
    )
    return "G7", where + 2


def second_activation_in_the_first_epoch(maker: LogMaker) -> Named:
    batch = batch_of(maker, 1, 3)
    where = change_batch(
        maker,
        batch,
        lambda r: r._replace(kinds=batch.kinds[:2] + bytes([c.ACTIVATE]) + batch.kinds[3:]),
    )
    return "G7", where + 2


def base_before_what_was_decided(maker: LogMaker) -> Named:
    """The epoch claims to begin one position later than its activation."""
    where = base_of(maker, 2)
    replace_in(maker, Active, lambda r: r.epoch == 2, lambda r: r._replace(base_position=where + 1))
    return "G7", where + 2


def primary_goes_on_alone(maker: LogMaker) -> Named:
    """c, alone, makes itself the voters of an epoch and confirms in it."""
    held = History()
    for record in maker.logs[C]:
        if isinstance(record, Batch):
            held = History(record.epoch, after(record), record.chain, record.order)
    own = ("c", 1, False)
    active = Active(7, 5, "c", held.position, held.chain, (own,), ("c",), False)
    first = held.position + 1
    items = [
        (bytes([c.ACTIVATE]), struct.pack("<H", c.OK)),
        (bytes([c.PUBLISH]), struct.pack("<H", c.UNROUTABLE)),
    ]
    maker.logs[C] += [
        ViewSeen(1, "a", False, (C,)), Inactive("alone"), ViewSeen(5, "c", True, (C,)), active,
    ]  # fmt: skip
    for number, (kinds, outcomes) in enumerate(items, 1):
        hashed = bytes([number]) * 16
        held = held.after(7, 1, hashed, outcomes)
        codes = list(struct.unpack("<H", outcomes))
        batch = Batch(
            7, 5, number, held.position, 1, "c", 70, number, 1, kinds, outcomes, hashed,
            held.chain, root_of(held), held.order, moves_of(held.position, codes),
        )  # fmt: skip
        maker.logs[C].append(batch)
    maker.logs[C] += [Durable(held.position), ConfirmRecord(7, held.position, (first + 1,))]
    return "G7", first - 1


def votes_of_the_dead(maker: LogMaker) -> Named:
    """An epoch counts five voters of which two are there."""
    replace_in(
        maker,
        Active,
        lambda r: r.epoch == 2,
        lambda r: r._replace(voters=("a", "b", "c", "d", "e")),
    )
    return "G7", base_of(maker, 2)


def weight_of_its_own(maker: LogMaker) -> Named:
    """a suddenly has three votes, so that it could continue alone."""
    replace_in(
        maker, Active, lambda r: r.epoch >= 2, lambda r: r._replace(voters=("a=3", "b", "c"))
    )
    return "G7", base_of(maker, 2)


def confirms_of_another_epoch(maker: LogMaker) -> Named:
    wrong = next(r for r in maker.logs[A] if isinstance(r, ConfirmRecord) and r.epoch == 2)
    maker.logs[A] = [r._replace(epoch=1) if r is wrong else r for r in maker.logs[A]]
    return "G7", wrong.positions[0]


# What is kept: G8, G9.


def disk_forgets(maker: LogMaker) -> Named:
    """b reports less on disk than it had reported before."""
    places = [i for i, r in enumerate(maker.logs[B]) if isinstance(r, Durable)]
    maker.logs[B].insert(places[2] + 1, Durable(3))
    return "G9", 3


def confirmed_twice(maker: LogMaker) -> Named:
    given = [r for r in maker.logs[A] if isinstance(r, ConfirmRecord)]
    at = maker.logs[A].index(given[0])
    maker.logs[A].insert(at + 1, given[0])
    return "unpaired", given[0].positions[0]


def confirmed_by_the_next_incarnation(maker: LogMaker) -> Named:
    """c, restarted, confirms a message that it published before its crash."""
    given = next(r for r in maker.logs[C] if isinstance(r, ConfirmRecord))
    last = max(i for i, r in enumerate(maker.logs[C2]) if isinstance(r, ConfirmRecord))
    maker.logs[C2].insert(last + 1, given._replace(epoch=3))
    return "unpaired", given.positions[0]


def confirmed_before_it_was_applied(maker: LogMaker) -> Named:
    given = [r for r in maker.logs[B] if isinstance(r, ConfirmRecord)][1]
    at = next(
        i
        for i, r in enumerate(maker.logs[B])
        if isinstance(r, Batch) and r.first_position <= given.positions[0] <= after(r)
    )
    maker.logs[B].remove(given)
    maker.logs[B].insert(at, given._replace(durable_mark=given.positions[-1]))
    return "unpaired", given.positions[0]


def durable_before_it_was_applied(maker: LogMaker) -> Named:
    batch = batch_of(maker, 2, 2, B)
    at = maker.logs[B].index(batch)
    maker.logs[B].insert(at, Durable(after(batch)))
    return "G9", after(batch)


def epoch_that_begins_before_a_confirm(maker: LogMaker) -> Named:
    """c confirms in the first epoch, without being told, what the second never had."""
    base = base_of(maker, 2)
    hashed, outcomes = b"q" * 16, struct.pack("<H", c.UNROUTABLE)
    held = History()
    for record in maker.logs[C]:
        if isinstance(record, Batch):
            held = History(record.epoch, after(record), record.chain, record.order)
    while held.position <= base:
        held = held.after(1, 1, hashed, outcomes)
        batch = Batch(
            1, 1, 90 + held.position, held.position, 1, "c", 3, 90 + held.position, 1,
            bytes([c.PUBLISH]), outcomes, hashed, held.chain, root_of(held), held.order,
            moves_of(held.position, [c.UNROUTABLE]),
        )  # fmt: skip
        maker.logs[C] += [batch, Durable(held.position)]
    maker.logs[C].append(ConfirmRecord(1, held.position, (held.position,)))
    return "G8", held.position


# States: G10, G14.


def state_from_nowhere(maker: LogMaker) -> Named:
    """c returns with the state of epochs that it was not in, without a SNAPSHOT."""
    given = next(r for r in maker.logs[C2] if isinstance(r, Snapshot))
    maker.logs[C2].remove(given)
    maker.logs[C2][0] = Start(*given[:4])
    return "G14", given.position


def snapshot_left_out(maker: LogMaker) -> Named:
    given = next(r for r in maker.logs[C2] if isinstance(r, Snapshot))
    maker.logs[C2].remove(given)
    start = maker.logs[C2][0]
    assert isinstance(start, Start)
    return "G1", start.position + 1


def state_from_the_future(maker: LogMaker) -> Named:
    """After all others stopped, c has a state that no log reaches."""
    position = maker.history.position + 100
    view = ViewSeen(4, "c", True, (("c", 3),))
    snapshot = Snapshot(3, position, b"y" * 16, 7, "a")
    stop = Stop("shutdown", position, b"y" * 16)
    maker.logs["c", 3] = [Start(0, 0, bytes(16), 0), view, snapshot, stop]
    return "G14", position


def start_above_the_stop(maker: LogMaker) -> Named:
    stop = maker.logs[C2][-1]
    assert isinstance(stop, Stop)
    maker.logs["c", 3] = [Start(3, stop.position + 4, stop.chain, 1)]
    return "G14", stop.position + 4


def vote_about_the_future(maker: LogMaker) -> Named:
    at = next(i for i, r in enumerate(maker.logs[B]) if isinstance(r, Vote))
    vote = maker.logs[B][at]
    assert isinstance(vote, Vote)
    maker.logs[B][at] = vote._replace(position=vote.position + 6)
    return "G10", vote.position + 6


def verdict_turned_round(maker: LogMaker) -> Named:
    """b counts the votes in which all others found agreement, and finds a divergent one."""
    at = max(i for i, r in enumerate(maker.logs[B]) if isinstance(r, Vote))
    vote = maker.logs[B][at]
    assert isinstance(vote, Vote)
    maker.logs[B][at] = vote._replace(verdict="divergent")
    return "G10", vote.position


def outcome_that_the_chain_does_not_have(maker: LogMaker) -> Named:
    batch = batch_of(maker, 2, 2)
    return "G14", change_batch(
        maker, batch, lambda r: r._replace(outcomes=struct.pack("<4H", 200, 404, 0, 0))
    )


def order_that_does_not_follow(maker: LogMaker) -> Named:
    return "G14", change_batch(maker, batch_of(maker, 2, 2), lambda r: r._replace(order=b"o" * 16))


# The log itself: LOG.


def goes_on_after_its_stop(maker: LogMaker) -> Named:
    given = [r for r in maker.logs[B] if isinstance(r, ConfirmRecord)][-1]
    maker.logs[B].remove(given)
    maker.logs[B].append(given)
    return "LOG", maker.history.position


def begins_in_the_middle(maker: LogMaker) -> Named:
    """A second START: as if the process had begun again within its own log."""
    batch = batch_of(maker, 2, 2, B)
    at = maker.logs[B].index(batch)
    start = Start(batch.epoch, after(batch), batch.chain, batch.root)
    maker.logs[B].insert(at + 1, start)
    return "LOG", after(batch)


def begins_with_a_snapshot(maker: LogMaker) -> Named:
    start = maker.logs[C2][0]
    assert isinstance(start, Start)
    maker.logs[C2][0] = Snapshot(*start, "a")
    return "LOG", -1


def cold_start_of_the_living(maker: LogMaker) -> Named:
    """A primary whose members carried their state over calls itself a cold start."""
    replace_in(maker, Active, lambda r: r.epoch == 2, lambda r: r._replace(cold=True))
    return "G20", base_of(maker, 2)


IN_VIEWS: tuple[ViewLie, ...] = (
    representative_of_no_view, member_twice_in_a_view, former_incarnation_returns,
    view_numbers_stand_still, second_view_without_the_end_of_the_first,
    later_number_of_the_ring_first, item_of_an_outsider, item_of_a_dead_member,
    session_of_another_member, submission_twice, position_left_free, primary_beyond_its_view,
    primary_of_half_its_view, base_of_another_history, epoch_without_activation, second_activation,
    second_activation_in_the_first_epoch, base_before_what_was_decided, primary_goes_on_alone,
    votes_of_the_dead, weight_of_its_own, confirms_of_another_epoch, disk_forgets, confirmed_twice,
    confirmed_by_the_next_incarnation, confirmed_before_it_was_applied,
    durable_before_it_was_applied, epoch_that_begins_before_a_confirm, state_from_nowhere,
    snapshot_left_out, state_from_the_future, start_above_the_stop, vote_about_the_future,
    verdict_turned_round, outcome_that_the_chain_does_not_have, order_that_does_not_follow,
    goes_on_after_its_stop, begins_in_the_middle, begins_with_a_snapshot, cold_start_of_the_living,
)  # fmt: skip


# Queues: G11, G12, G13, G20.


def batch_at(maker: MoveMaker, position: int) -> Batch:
    """Return the batch that begins at a position."""
    records = maker.logs[INCARNATIONS[0]]
    return next(r for r in records if isinstance(r, Batch) and r.first_position == position)


def relink(maker: MoveMaker) -> None:
    """Rebuild the chains, as a broker would that believes its own records."""
    for records in maker.logs.values():
        held, known = History(), {0: bytes(16)}
        for at, record in enumerate(records):
            match record:
                case Batch():
                    held = held.after(
                        record.epoch, record.commands, record.blob_hash, record.outcomes
                    )
                    known[held.position] = held.chain
                    records[at] = record._replace(chain=held.chain, order=held.order)
                case Active(base_position=base):
                    records[at] = record._replace(base_chain=known[base])
                case Stop(position=position):
                    records[at] = record._replace(chain=known[position])
                case _:
                    pass


def entered_and_called_unroutable(maker: MoveMaker) -> Named:
    """All members say that no queue took a publish, and their moves have it in one."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), 2)
    change_batch(
        maker,
        batch_at(maker, where),
        lambda r: r._replace(outcomes=struct.pack("<H", c.UNROUTABLE)),
    )
    relink(maker)
    return "G20", where


def routed_to_nothing(maker: MoveMaker) -> Named:
    """All members say that a publish was routed, and their moves have it in no queue."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.PUBLISHED, seq=0))
    change_batch(
        maker, batch_at(maker, where), lambda r: r._replace(outcomes=struct.pack("<H", c.OK))
    )
    relink(maker)
    return "G20", where


def refused_and_entered(maker: MoveMaker) -> Named:
    """A publish is answered with 404, and enters its queue."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.ENQUEUED, queue=1), 2)
    change_batch(
        maker, batch_at(maker, where), lambda r: r._replace(outcomes=struct.pack("<H", 404))
    )
    relink(maker)
    return "G20", where


def cold_start_that_is_none(maker: MoveMaker) -> Named:
    where, _ = first_move(maker, lambda row: is_a(row, Op.RECOVERED))
    replace_in(
        maker, Active, lambda r: r.base_position == where - 1, lambda r: r._replace(cold=False)
    )
    return "G20", where


def purge_without_a_purge(maker: MoveMaker) -> Named:
    """A get empties its queue."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.PURGED, queue=4))
    change_batch(maker, batch_at(maker, where), lambda r: r._replace(kinds=bytes([c.GET])))
    return "G20", where


def expired_by_an_ack(maker: MoveMaker) -> Named:
    where, settled = first_move(maker, lambda row: is_a(row, Op.SETTLED, queue=1))
    dropped = put(settled, what=int(Op.DROPPED), of=0)
    rewrite_at(maker, where, lambda rows: [dropped if row == settled else row for row in rows])
    return "G20", where


def transaction_publishes_first(maker: MoveMaker) -> Named:
    """A transaction's publish is logged as if it were a plain publish of its channel."""
    where, _ = first_move(maker, lambda row: is_a(row, Op.PUBLISHED) and row[0] & 0x70 == 0x10)
    rewrite_at(maker, where, lambda rows: [put(r, what=r[0] & ~0x70) for r in rows])
    return "G20", where


def priority_turned_round(maker: MoveMaker) -> Named:
    """The newest message of a priority queue is taken first."""
    where, got = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=2))
    others = [row for row in _moves(maker) if is_a(row, Op.ENQUEUED, queue=2) and row[3] != got[3]]
    rewrite_at(
        maker, where,
        lambda rows: [put(r, seq=others[-1][3], detail=others[-1][5]) if r == got else r
                      for r in rows],
    )  # fmt: skip
    return "G12", where


def two_channels_take_one_message(maker: MoveMaker) -> Named:
    """Both get the message at one position."""
    where, given = first_move(maker, lambda row: is_a(row, Op.DELIVERED, queue=1))
    second = put(given, what=given[0] | FLAG, of=given[4] ^ 7)
    rewrite_at(maker, where, lambda rows: [*rows, second])
    return "G13", where


def another_body_in_one_queue(maker: MoveMaker) -> Named:
    """A message has another content than when it was returned."""
    where, returned = first_move(maker, lambda row: is_a(row, Op.RETURNED, queue=1))

    def swap(at: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        return [put(r, detail=r[5] ^ 1) if at >= where and r[5] == returned[5] else r for r in rows]

    maker.rewrite(swap)
    return "G20", where


def message_number_from_before(maker: MoveMaker) -> Named:
    """After the cold start the numbers of messages begin again."""
    where, published = first_move(
        maker, lambda row: is_a(row, Op.PUBLISHED) and row[0] & 0x70 == 0x10
    )

    def anew(at: int, rows: list[MoveTuple]) -> list[MoveTuple]:
        if at != where:
            return rows
        return [
            put(r, seq=1) if is_a(r, Op.PUBLISHED) else put(r, of=1) if r[4] == published[3] else r
            for r in rows
        ]

    maker.rewrite(anew)
    return "G20", where


def acked_though_written_without(maker: MoveMaker) -> Named:
    """A delivery without ack ends by an ack that nobody sent."""
    where, sent = first_move(maker, lambda row: row[0] == (Op.SETTLED | 0x10))
    rewrite_at(
        maker, where,
        lambda rows: [put(r, what=int(Op.SETTLED)) if r == sent else r for r in rows],
    )  # fmt: skip
    return "G20", where


def checkpoint_of_another_time(maker: MoveMaker) -> Named:
    """The state of the queues is the one of an earlier record."""
    found = [r for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Checkpoint)]
    replace_in(
        maker, Checkpoint, lambda r: r == found[2], lambda r: r._replace(queues=found[1].queues)
    )
    return "G20", found[2].position


def checkpoint_after_a_snapshot(maker: MoveMaker) -> Named:
    """c received a state, and reports its queues as empty."""
    found = [r for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Checkpoint)][1]
    records = maker.logs[INCARNATIONS[2]]
    at = records.index(found)
    before = next(r for r in records[at::-1] if isinstance(r, Batch))
    snapshot = Snapshot(before.epoch, after(before), before.chain, before.root, "a")
    records[at : at + 1] = [snapshot, found._replace(root=before.root ^ 1)]
    return "G14", found.position


def _moves(maker: MoveMaker) -> list[MoveTuple]:
    records = maker.logs[INCARNATIONS[0]]
    return [row for r in records if isinstance(r, Batch) for row in MOVE.iter_unpack(r.moves)]


IN_QUEUES: tuple[QueueLie, ...] = (
    entered_and_called_unroutable, routed_to_nothing, refused_and_entered, cold_start_that_is_none,
    purge_without_a_purge, expired_by_an_ack, transaction_publishes_first, priority_turned_round,
    two_channels_take_one_message, another_body_in_one_queue, message_number_from_before,
    acked_though_written_without, checkpoint_of_another_time, checkpoint_after_a_snapshot,
)  # fmt: skip
