"""More lies, of kinds that the other lists lack: each is found at its place, with its promise.

`IN_VIEWS` change `good_history`.  Each of `IN_QUEUES` makes a small history of its own, in which
all members tell it alike, and returns it with what must be named; None: no log shows it, and
docs/reference/memberlog-blind-spots.md says why.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine import commands as c
from broker.machine.move_log import FLAG, MOVE, Op
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    Active,
    Batch,
    Checkpoint,
    ConfirmRecord,
    Queues,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
)
from broker.replication.chain import History
from tests.system.verify.corruption.fresh_lies import swap
from tests.system.verify.corruption.further_lies import (
    A,
    Named,
    ViewLie,
    after,
    base_of,
    batch_of,
    replace_in,
)
from tests.system.verify.support.make_logs import LogMaker, root_of
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, MoveTuple
from tests.system.verify.support.recorded_history import first_move, is_a, put, rewrite_at

C3 = ("c", 3)
SmallLie = Callable[[], tuple[MoveMaker, Named | None]]


# Views: G6.


def view_of_nobody(maker: LogMaker) -> Named:
    """a records the first view without any member."""
    at, seen = next((i, r) for i, r in enumerate(maker.logs[A]) if isinstance(r, ViewSeen))
    maker.logs[A][at] = seen._replace(members=())
    return "G6", 0


# Primaries: G7.


def epoch_nought(maker: LogMaker) -> Named:
    """The first epoch has the number of no epoch."""
    replace_in(maker, Active, lambda r: r.epoch == 1, lambda r: r._replace(epoch=0))
    replace_in(maker, Batch, lambda r: r.epoch == 1, lambda r: r._replace(epoch=0))
    replace_in(maker, ConfirmRecord, lambda r: r.epoch == 1, lambda r: r._replace(epoch=0))
    return "G7", 0


def voters_in_another_order(maker: LogMaker) -> Named:
    """The order of voters is that of an ordered command as well."""
    replace_in(maker, Active, lambda r: r.epoch >= 2, lambda r: r._replace(voters=("b", "a", "c")))
    return "G7", base_of(maker, 2)


def member_twice_in_a_primary(maker: LogMaker) -> Named:
    """b counts as two of three."""
    members = (("a", 1, False), ("b", 1, False), ("b", 1, False))
    replace_in(maker, Active, lambda r: r.epoch == 2, lambda r: r._replace(members=members))
    return "G7", base_of(maker, 2)


def member_with_and_without_a_state(maker: LogMaker) -> Named:
    """c counts as one that has the state, and receives it."""
    members = (("a", 1, False), ("b", 1, False), ("c", 2, False), ("c", 2, True))
    replace_in(maker, Active, lambda r: r.epoch == 3, lambda r: r._replace(members=members))
    return "G7", base_of(maker, 3)


def last_one_goes_on_alone(maker: LogMaker) -> Named:
    """All have stopped in order; c starts, and calls itself a primary of the same voters."""
    h = maker.history
    own = (("c", 3, False),)
    maker.logs[C3] = [
        Start(h.epoch, h.position, h.chain, root_of(h)),
        ViewSeen(7, "c", True, (C3,)),
        Active(h.epoch + 1, 7, "c", h.position, h.chain, own, maker.voters, False),
        Stop("shutdown", h.position, h.chain),
    ]
    return "G7", h.position


# What is kept: G8, G9.


def all_restart_with_less(maker: LogMaker) -> Named:
    """All have stopped in order; all start with less than the last one confirmed, and go on."""
    confirmed = maker.history.position
    old = batch_of(maker, 3, -4)
    maker.history = History(old.epoch, after(old), old.chain, old.order)
    again = ("a", 5), ("b", 5), ("c", 5)
    for incarnation in again:
        maker.start(incarnation, maker.history)
    maker.view(9, *again)
    maker.activate(*again)
    maker.traffic(3, *again)
    maker.stop(*again)
    return "G8", confirmed


def state_of_its_own_received(maker: LogMaker) -> Named:
    """a receives the state that it has, and confirms then what it applied before.

    Its clients' sessions ended when its state was replaced."""
    log = maker.logs[A]
    at = max(i for i, r in enumerate(log) if isinstance(r, ConfirmRecord))
    last = next(r for r in log[at::-1] if isinstance(r, Batch))
    log.insert(at, Snapshot(last.epoch, after(last), last.chain, last.root, "b"))
    given = log[at + 1]
    assert isinstance(given, ConfirmRecord)
    return "unpaired", given.positions[0]


# States: G14.


def stops_before_its_start(maker: LogMaker) -> Named:
    """c starts with the last state, and stops with an earlier one."""
    h, old = maker.history, batch_of(maker, 3, -3)
    maker.logs[C3] = [
        Start(h.epoch, h.position, h.chain, root_of(h)), Stop("shutdown", after(old), old.chain)
    ]  # fmt: skip
    return "G14", after(old)


IN_VIEWS: tuple[ViewLie, ...] = (
    view_of_nobody, epoch_nought, voters_in_another_order, member_twice_in_a_primary,
    member_with_and_without_a_state, last_one_goes_on_alone, all_restart_with_less,
    state_of_its_own_received, stops_before_its_start,
)  # fmt: skip


# Queues: G11, G12, G13, G20.


def moves_of(maker: MoveMaker, op: Op) -> list[tuple[int, MoveTuple]]:
    """Return the moves of a kind, with their positions."""
    return [
        (record.first_position, row)
        for record in maker.logs[INCARNATIONS[0]]
        if isinstance(record, Batch)
        for row in MOVE.iter_unpack(record.moves)
        if is_a(row, op)
    ]


def change_move(maker: MoveMaker, where: int, move: MoveTuple, **fields: int) -> None:
    """Change one move in all logs."""
    rewrite_at(maker, where, lambda rows: [put(r, **fields) if r == move else r for r in rows])


def with_messages(count: int, *queues: str) -> MoveMaker:
    """Return a history of queues, and so many messages in the first one."""
    maker = MoveMaker()
    one = maker.rig.client("a")
    for name in queues:
        one.queue(name)
    for number in range(count):
        one.publish(queues[0], b"%d" % number)
    return maker


def passes_those_that_wait() -> tuple[MoveMaker, Named]:
    """Messages pass their queue to a consumer while an older one waits there."""
    maker = with_messages(2, "q")
    one = maker.rig.client("a")
    maker.rig.client("b").consume("q", "t", 0)
    last = 0
    for number in range(3):
        one.publish("q", b"passes %d" % number)
        last = maker.machine.position
    maker.end()
    where, waits = moves_of(maker, Op.DELIVERED)[1]
    rewrite_at(maker, where, lambda rows: [row for row in rows if row != waits])
    rewrite_at(maker, last, lambda rows: [*rows, put(waits, index=last)])
    return maker, ("G12", last - 2)


def stream_forgets_from_the_middle() -> tuple[MoveMaker, Named]:
    """A stream above its limit drops its third message, not the oldest one."""
    maker = MoveMaker()
    one = maker.rig.client("a")
    one.queue("log", {"x-queue-type": "stream", "x-max-length-bytes": 8})
    for number in range(6):
        one.publish("log", b"s%d" % number)
    maker.end()
    where, dropped = moves_of(maker, Op.DROPPED)[0]
    _, third = moves_of(maker, Op.ENQUEUED)[2]
    change_move(maker, where, dropped, seq=third[3], detail=third[5])
    return maker, ("G12", where)


def full_queue_keeps_one_more() -> tuple[MoveMaker, Named]:
    """The last message over the limit stays, and the figures of the queue do not have it."""
    maker = MoveMaker()
    one = maker.rig.client("a")
    one.queue("short", {"x-max-length": 2})
    for number in range(5):
        one.publish("short", b"%d" % number)
    maker.end()
    where, dropped = moves_of(maker, Op.DROPPED)[-1]
    rewrite_at(maker, where, lambda rows: [row for row in rows if row != dropped])
    return maker, ("G20", maker.history.position)


def cold_start_turns_order_round() -> tuple[MoveMaker, Named]:
    """The first and the last of three messages change places in a cold start."""
    maker = with_messages(3, "q")
    maker.rig.activate(cold=True)
    getter = maker.rig.client("a")
    for _ in range(3):
        getter.get("q")
    maker.end()
    (where, first), _, (_, last) = moves_of(maker, Op.DELIVERED)
    swap(maker, first, last)
    return maker, ("G20", where)


def transient_one_survives_a_cold_start() -> tuple[MoveMaker, Named]:
    """It is delivered in place of the persistent one behind it."""
    maker = with_messages(0, "q")
    one = maker.rig.client("a")
    one.publish("q", b"transient", flags=0)
    one.publish("q", b"persistent")
    maker.rig.activate(cold=True)
    maker.rig.client("a").get("q")
    maker.end()
    _, transient = moves_of(maker, Op.ENQUEUED)[0]
    where, given = moves_of(maker, Op.DELIVERED)[0]
    change_move(maker, where, given, detail=transient[5])
    return maker, ("G20", where)


def flag_is_lost_in_a_cold_start() -> tuple[MoveMaker, Named]:
    """What was delivered before comes again, behind a cold start, as if for the first time."""
    maker = with_messages(1, "q")
    getter = maker.rig.client("a")
    getter.get("q")
    getter.nack(1)
    maker.rig.activate(cold=True)
    maker.rig.client("b").get("q")
    maker.end()
    where, again = moves_of(maker, Op.DELIVERED)[1]
    change_move(maker, where, again, what=again[0] & ~FLAG)
    return maker, ("G11", where)


def comes_back_to_another_queue() -> tuple[MoveMaker, Named]:
    maker = with_messages(1, "q", "other")
    one = maker.rig.client("a")
    one.publish("other", b"there")
    one.get("q")
    one.nack(1)
    maker.end()
    where, returned = moves_of(maker, Op.RETURNED)[0]
    change_move(maker, where, returned, queue=2)
    return maker, ("G20", where)


def delivered_to_a_closed_connection() -> tuple[MoveMaker, Named]:
    """What came back as a connection closed is delivered to it once more."""
    maker = with_messages(3, "q")
    gone = maker.rig.client("b")
    gone.qos(1)
    gone.consume("q", "t", 1)
    gone.close()
    maker.rig.client("c").get("q")
    maker.end()
    _, before = moves_of(maker, Op.DELIVERED)[0]
    where, again = moves_of(maker, Op.DELIVERED)[-1]
    change_move(maker, where, again, of=before[4])
    return maker, ("G11", moves_of(maker, Op.RETURNED)[0][0])


def held_by_a_lost_member() -> tuple[MoveMaker, Named]:
    """An activation without a does not return what a client of a held."""
    maker = with_messages(0, "q")
    two = maker.rig.client("b")
    for number in range(2):
        two.publish("q", b"%d" % number)
    maker.rig.client("a").get("q")
    maker.rig.activate("a")
    maker.rig.client("b").get("q")
    maker.end()
    where, returned = moves_of(maker, Op.RETURNED)[0]
    rewrite_at(maker, where, lambda rows: [row for row in rows if row != returned])
    return maker, ("G13", moves_of(maker, Op.DELIVERED)[1][0])


def purges_the_queue_beside() -> tuple[MoveMaker, Named]:
    """The purge of an empty queue empties a full one, as the moves say, but not the figures."""
    maker = with_messages(3, "q", "empty")
    maker.rig.client("a").purge("empty")
    maker.end()
    where, purged = moves_of(maker, Op.PURGED)[0]
    change_move(maker, where, purged, queue=1, seq=3, of=3)
    return maker, ("G20", maker.history.position)


def number_of_a_queue_comes_again() -> tuple[MoveMaker, Named]:
    """A queue is deleted, and declared anew with the number that it had."""
    maker = with_messages(1, "q")
    one = maker.rig.client("a")
    one.delete("q")
    one.queue("q")
    one.publish("q", b"again")
    maker.end()
    former, number = (row[2] for _, row in moves_of(maker, Op.DECLARED))
    maker.rewrite(
        lambda _, rows: [
            put(row, queue=former) if row[2] == number and not is_a(row, Op.PUBLISHED) else row
            for row in rows
        ]
    )
    figures = CHECKPOINT_ROW.unpack

    def renamed(rows: bytes) -> bytes:
        return CHECKPOINT_ROW.pack(former, *figures(rows)[1:]) if rows else rows

    replace_in(maker, Checkpoint, lambda _: True, lambda r: r._replace(queues=renamed(r.queues)))
    replace_in(
        maker, Queues, lambda _: True,
        lambda r: Queues(tuple((former, *rest) for _, *rest in r.queues)),  # type: ignore[misc]
    )  # fmt: skip
    return maker, ("G20", moves_of(maker, Op.ENQUEUED)[1][0])


def settled_by_a_recover() -> tuple[MoveMaker, Named]:
    """What a client took back is gone, as if it had acknowledged it."""
    maker = with_messages(1, "q")
    one = maker.rig.client("a")
    one.get("q")
    one.ack(1)
    maker.end()
    where, _ = first_move(maker, lambda row: is_a(row, Op.SETTLED))
    replace_in(
        maker, Batch, lambda r: r.first_position == where,
        lambda r: r._replace(kinds=bytes([c.RECOVER])),
    )  # fmt: skip
    return maker, ("G20", where)


def get_that_publishes() -> tuple[MoveMaker, Named]:
    """The message of a publish enters its queue at the get before it."""
    maker = with_messages(1, "q")
    one = maker.rig.client("a")
    one.get("q")
    one.publish("q", b"next")
    maker.end()
    where, _ = moves_of(maker, Op.DELIVERED)[0]
    (later, published), (_, entered) = (
        moves_of(maker, op)[1] for op in (Op.PUBLISHED, Op.ENQUEUED)
    )
    rewrite_at(maker, later, lambda _: [])
    made = [put(row, index=where) for row in (published, entered)]
    rewrite_at(maker, where, lambda rows: [*rows, *made])
    return maker, ("G20", where)


def consumer_of_no_queue() -> tuple[MoveMaker, Named]:
    """Its queue was deleted, and it is sent the messages of another one, which keeps them."""
    maker = with_messages(0, "q", "other")
    one = maker.rig.client("a")
    maker.rig.client("b").consume("q", "t", 5)
    one.publish("q", b"0")
    one.delete("q")
    one.publish("other", b"1")
    maker.end()
    _, given = moves_of(maker, Op.DELIVERED)[0]
    where, entered = moves_of(maker, Op.ENQUEUED)[-1]
    sent = put(given, index=where, queue=2, seq=entered[3], detail=entered[5])
    rewrite_at(maker, where, lambda rows: [*rows, sent])
    return maker, ("G20", maker.history.position)


def fanout_misses_a_queue() -> tuple[MoveMaker, None]:
    """Of two queues that an exchange fills, one gets nothing: only what no queue gets is judged."""
    maker = with_messages(0, "left", "right")
    one = maker.rig.client("a")
    one.exchange("all", "fanout")
    for name in ("left", "right"):
        one.bind(name, "all")
    maker.checkpoint()
    one.publish("", b"for both", "all")
    where = maker.machine.position
    maker.end()
    _, missed = moves_of(maker, Op.ENQUEUED)[1]
    rewrite_at(maker, where, lambda rows: [row for row in rows if row != missed])
    last = [r for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Checkpoint)][-1]
    rows = [row for row in CHECKPOINT_ROW.iter_unpack(last.queues) if row[0] != missed[2]]
    figures = b"".join(CHECKPOINT_ROW.pack(*row) for row in (*rows, (missed[2], 0, 0, 0, 0)))
    replace_in(maker, Checkpoint, lambda r: r == last, lambda r: r._replace(queues=figures))
    return maker, None


def last_figures_are_left_out() -> tuple[MoveMaker, None]:
    """No checkpoint before the stop, as by a member that fails half-way through a command."""
    maker = with_messages(2, "q")
    maker.end()
    last = [r for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Checkpoint)][-1]
    for records in maker.logs.values():
        records.remove(last)
    return maker, None


IN_QUEUES: tuple[SmallLie, ...] = (
    passes_those_that_wait, stream_forgets_from_the_middle, full_queue_keeps_one_more,
    cold_start_turns_order_round, transient_one_survives_a_cold_start,
    flag_is_lost_in_a_cold_start, comes_back_to_another_queue, delivered_to_a_closed_connection,
    held_by_a_lost_member, purges_the_queue_beside, number_of_a_queue_comes_again,
    settled_by_a_recover, get_that_publishes, consumer_of_no_queue, fanout_misses_a_queue,
    last_figures_are_left_out,
)  # fmt: skip
