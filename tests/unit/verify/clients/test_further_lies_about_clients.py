"""Further lies about clients, by members or by clients: each is found and rightly named.

Each is a contradiction between what a client was told and what all members logged alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from xxhash import xxh3_64_intdigest

from broker.machine.move_log import Op
from broker.memberlog.records import CLIENT_ROW, ClientOp
from tests.system.verify.support.client_fixture import ALL, ClientPair, check_all
from tests.system.verify.support.make_client_histories import (
    MOVES,
    OPERATIONS,
    Clients,
    Servers,
)
from tools.verify.clients import judgement
from tools.verify.clients.check import ClientReport
from tools.verify.clients.evidence import tables_of_moves, tables_of_operations
from tools.verify.input.tables import arrow_schema

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

CLIENT_COLUMNS, MOVE_COLUMNS = arrow_schema(OPERATIONS), arrow_schema(MOVES)
NOBODY = {"client": "c", "queue": "q", "flag": False}
HIGH = (1, 1 << 42, (1 << 43) + 7, (1 << 62) - 1)


def answer_both_ways(pair: ClientPair) -> None:
    """One publish was confirmed and refused."""
    pair.publish("both", pair.queue)
    refused = CLIENT_ROW.pack(ClientOp.REFUSED, xxh3_64_intdigest(pair.body("both")), 1)
    pair.writer.ops.extend(refused)


def confirm_what_a_transaction_published(pair: ClientPair) -> None:
    """Members logged the publish as part of a transaction, which has no confirm."""
    pair.writer.published(1, pair.body("in a transaction"))
    pair.servers.publish(pair.body("in a transaction"), 1, pair.queue, cause=1)
    pair.writer.confirmed(1)


def confirm_a_dead_letter(pair: ClientPair) -> None:
    """Only a dead letter with the same bytes exists, which no client published."""
    pair.writer.published(1, pair.body("dead"))
    pair.servers.publish(pair.body("dead"), 1, pair.queue, cause=2)
    pair.writer.confirmed(1)


def repeat_another_message(pair: ClientPair) -> None:
    """A publish was answered as a repeat; its number stands for other bytes."""
    pair.send("first")
    first = pair.servers.number
    pair.writer.published(2, pair.body("second"))
    pair.servers.again(pair.body("second"), 2, first)
    pair.writer.confirmed(2)


def repeat_in_another_queue(pair: ClientPair) -> None:
    """The original of a repeat had entered another queue than the one its client names."""
    pair.servers.publish(pair.body("again"), 7, pair.servers.queue("of somebody else"))
    pair.writer.published(1, pair.body("again"))
    pair.servers.again(pair.body("again"), 1, pair.servers.number)
    pair.writer.confirmed(1)


def know_the_key_in_another_queue(pair: ClientPair) -> None:
    """A repeat by its key, but the queue that its client names never had such a key."""
    (there,) = pair.servers.publish(pair.body("key"), 7, pair.servers.queue("of somebody else"))
    pair.writer.published(1, pair.body("key"))
    pair.servers.repeat(pair.body("key"), 1, there)
    pair.writer.confirmed(1)


def receive_a_repeat(pair: ClientPair) -> None:
    """Members claim a repeat by its key; a client received it twice, both times as new."""
    (there,) = pair.publish("again", pair.queue)
    pair.servers.repeat(pair.body("again"), 0, there)
    pair.servers.deliver(there)
    pair.servers.deliver(there)
    for _ in range(2):
        pair.receive("again")


def enter_the_same_queue_twice(pair: ClientPair) -> None:
    """One publish is two messages with two numbers in its queue, and both are delivered as new."""
    for message in pair.publish("twin", pair.queue) + pair.servers.publish(
        pair.body("twin"), 1, pair.queue
    ):
        pair.servers.deliver(message)
        pair.receive("twin")


def give_one_message_to_two_readers(pair: ClientPair) -> None:
    """It was delivered once, and two clients received it, both as new."""
    pair.send("only one")
    pair.clients.client("second reader", pair.name).received(
        1, pair.body("only one"), redelivered=False
    )


def receive_twice_what_two_members_logged(pair: ClientPair) -> None:
    """Two members logged the one delivery, the second as part of a superseded history."""
    (message,) = pair.publish("once", pair.queue)
    pair.servers.deliver(message)
    pair.servers.rows.append(pair.servers.rows[-1]._replace(epoch=0))
    for _ in range(2):
        pair.receive("once")


def read_in_a_stream_more_often_than_it_was_sent(pair: ClientPair) -> None:
    """Two readers were sent it, which is no lie; but it was received a third time."""
    (message,) = pair.publish("log", pair.queue)
    for _ in range(2):
        pair.servers.read(message)
    for _ in range(3):
        pair.receive("log")


def read_in_a_stream(pair: ClientPair) -> None:
    """No lie: each of three readers was sent it."""
    (message,) = pair.publish("log", pair.queue)
    for _ in range(3):
        pair.servers.read(message)
        pair.receive("log")


def receive_what_expired(pair: ClientPair) -> None:
    """Members claim that it expired in its queue; a client received it."""
    (message,) = pair.publish("expired", pair.queue)
    pair.servers.drop(message)
    pair.receive("expired")


def receive_what_was_purged(pair: ClientPair) -> None:
    """Members claim that it was purged before any client had it; a client received it as
    redelivered."""
    pair.publish("purged", pair.queue)
    pair.servers.purge(pair.queue, 1)
    pair.receive("purged", redelivered=True)


def receive_the_redelivery_of_another_queue(pair: ClientPair) -> None:
    """Redelivered in one of two queues; the reader of the other queue received it a second time."""
    other = pair.servers.queue("beside")
    here, there = pair.publish("both", pair.queue, other)
    pair.servers.deliver(here)
    pair.receive("both")
    pair.servers.deliver(there)
    pair.servers.give_back(there)
    pair.servers.deliver(there, redelivered=True)
    pair.receive("both", redelivered=True)


def return_what_entered_another_queue(pair: ClientPair) -> None:
    """A client was told that it is unroutable; it is in a queue that the client did not name."""
    pair.publish("astray", pair.servers.queue("unknown to it"))
    pair.writer.unroutable(pair.body("astray"), 1)


def return_what_only_a_dead_letter_missed(pair: ClientPair) -> None:
    """A client was told that it is unroutable; only the message's dead letter reached no queue."""
    pair.publish("routed", pair.queue)
    pair.servers.publish(pair.body("routed"), 0, cause=2)
    pair.writer.unroutable(pair.body("routed"))


def lose_the_way_to_a_purged_queue(pair: ClientPair) -> None:
    """A publish reached no queue, although the one that was purged before is still there."""
    pair.send("this client is where the queue is")
    pair.servers.purge(pair.queue, 0)
    pair.publish("astray")


def settle_and_drop_over_a_cold_start(pair: ClientPair) -> None:
    """A message was settled; kept by a cold start all the same, it expires at its new place."""
    message = pair.send("kept")
    (again,) = pair.servers.cold_start(pair.queue, [message])
    pair.servers.drop(again)


def confirm_twice(pair: ClientPair) -> None:
    """A client claims that one publish was confirmed a second time."""
    pair.publish("once", pair.queue)
    again = CLIENT_ROW.pack(ClientOp.CONFIRMED, xxh3_64_intdigest(pair.body("once")), 1)
    pair.writer.ops.extend(again)


def confirm_the_number_of_another(pair: ClientPair) -> None:
    """The first of two publishes is confirmed, and members have only the second."""
    for number, text in ((1, "first"), (2, "second")):
        pair.writer.published(number, pair.body(text))
    pair.servers.publish(pair.body("second"), 2, pair.queue)
    pair.writer.confirmed(1)


def swap_two_bodies(pair: ClientPair) -> None:
    """Of two publishes of equal length, all members have each with the body of the other."""
    for number, text in ((1, "x"), (2, "y")):
        pair.writer.published(number, pair.body(text))
    for number, text in ((1, "y"), (2, "x")):
        pair.servers.publish(pair.body(text), number, pair.queue)
    pair.writer.confirmed(1)
    pair.writer.confirmed(2)


def refuse_what_was_delivered(pair: ClientPair) -> None:
    """A client was told that its publish was refused; another client received it."""
    pair.writer.published(1, pair.body("refused"))
    (message,) = pair.servers.publish(pair.body("refused"), 1, pair.queue)
    pair.servers.deliver(message)
    pair.receive("refused")
    refused = CLIENT_ROW.pack(ClientOp.REFUSED, xxh3_64_intdigest(pair.body("refused")), 1)
    pair.writer.ops.extend(refused)


def receive_from_nowhere(pair: ClientPair) -> None:
    """A client received a message that nobody published."""
    pair.receive("from nowhere")


def flag_a_first_delivery(pair: ClientPair) -> None:
    """A client received it as redelivered, and members delivered it once, as new."""
    (message,) = pair.publish("new", pair.queue)
    pair.servers.deliver(message)
    pair.receive("new", redelivered=True)


def reject_what_was_acked(pair: ClientPair) -> None:
    """A client acked the only delivery; members say that it rejected it."""
    (message,) = pair.publish("acked", pair.queue)
    pair.servers.deliver(message)
    pair.receive("acked")
    pair.servers.settle(message, cause=2)


def reject_after_an_ack_that_was_lost(pair: ClientPair) -> None:
    """No lie: the ack did not arrive, and the message was rejected as it came again."""
    (message,) = pair.publish("twice", pair.queue)
    pair.servers.deliver(message)
    pair.receive("twice")
    pair.servers.give_back(message)
    pair.servers.deliver(message, redelivered=True)
    pair.receive("twice", redelivered=True, acks=False)
    pair.servers.settle(message, cause=2)


def be_replaced_after_an_ack_that_was_lost(pair: ClientPair) -> None:
    """No lie: nobody rejected it; as it came back, a newer one of its key was there."""
    (message,) = pair.publish("older", pair.queue)
    pair.servers.deliver(message)
    pair.receive("older")
    pair.servers.settle(message, cause=6)


def refuse_what_reached_no_queue(pair: ClientPair) -> None:
    """A client was told that its publish was refused, which only a full queue does."""
    pair.writer.published(1, pair.body("nowhere"))
    pair.servers.publish(pair.body("nowhere"), 1)
    pair.writer.refused(1)


def refuse_to_a_nameless_client(pair: ClientPair) -> None:
    """The same where the client names no queue."""
    nameless = pair.clients.client(f"nameless writer of {pair.name}")
    nameless.published(1, pair.body("somewhere"))
    pair.servers.publish(pair.body("somewhere"), 1)
    nameless.refused(1)


def confirm_what_a_full_queue_refused(pair: ClientPair) -> None:
    pair.writer.published(1, pair.body("full"))
    pair.servers.publish(pair.body("full"), 1, pair.queue)
    pair.servers.without_last(Op.ENQUEUED)
    pair.writer.confirmed(1)


def receive_without_naming_a_queue(pair: ClientPair) -> None:
    """No lie: who names no queue may have been sent the messages of any."""
    (message,) = pair.publish("anywhere", pair.queue)
    pair.servers.deliver(message)
    nameless = pair.clients.client(f"nameless reader of {pair.name}")
    nameless.received(1, pair.body("anywhere"), redelivered=False)
    nameless.acked(1)
    pair.servers.settle(message)


def receive_from_a_queue_of_a_lost_name(pair: ClientPair) -> None:
    """No lie: a queue that the logs do not name may be the client's."""
    (message,) = pair.publish("lost", pair.servers.queue(""))
    pair.servers.deliver(message)
    pair.receive("lost")
    pair.servers.settle(message)


def settle_for_a_client_that_was_killed(pair: ClientPair) -> None:
    """No lie: of two receivers of one body one lost its connection, and the history of the other
    ends before the ack that it sent."""
    hold_one_body_at_two_readers(pair)
    pair.clients.made(f"second reader of {pair.name}").ops[-17:] = b""


def hold_one_body_at_two_readers(pair: ClientPair) -> None:
    """Both lost their connections and acked nothing, and both messages count as acknowledged."""
    second = pair.clients.client(f"second reader of {pair.name}", pair.name)
    for message in [*pair.publish("held", pair.queue), *pair.publish("held", pair.queue)]:
        pair.servers.deliver(message)
        pair.servers.settle(message)
    pair.receive("held", acks=False)
    second.received(1, pair.body("held"), redelivered=False)
    for one in (pair.reader, second):
        one.lost()


LIES: dict[Callable[[ClientPair], None], list[tuple[str, str]]] = {
    receive_without_naming_a_queue: [],
    receive_from_a_queue_of_a_lost_name: [],
    settle_for_a_client_that_was_killed: [],
    hold_one_body_at_two_readers: [("G20", "acked it never (counting all clients), but it was")],
    answer_both_ways: [("G8", "(1 confirmed, 1 refused, counting all clients), but the members'")],
    confirm_what_a_transaction_published: [("G8", "have it never")],
    confirm_a_dead_letter: [("G8", "have it never")],
    repeat_another_message: [("G8", "publish 2 was confirmed, but entered no queue")],
    repeat_in_another_queue: [("G8", "publish 1 was confirmed, but did not enter repeat_in")],
    know_the_key_in_another_queue: [("G8", "publish 1 was confirmed, but did not enter know_the")],
    receive_a_repeat: [("G11", "without the redelivered flag (counting all clients), but it ent")],
    enter_the_same_queue_twice: [("G20", "was sent once, but became 2 messages")],
    give_one_message_to_two_readers: [("G11", "received it twice (counting all clients), but it")],
    receive_twice_what_two_members_logged: [
        ("G11", "received it twice (counting all clients), but it was delivered once")
    ],
    read_in_a_stream_more_often_than_it_was_sent: [
        ("G11", "received it 3 times (counting all clients), but it was delivered twice")
    ],
    read_in_a_stream: [],
    receive_what_expired: [("G20", "delivered never, and entered once")],
    receive_what_was_purged: [("G20", "delivered never, and entered once")],
    receive_the_redelivery_of_another_queue: [("G11", "received it twice (counting all clients)")],
    return_what_entered_another_queue: [
        ("G20", "0 of 1 publishes of it reached no queue"),
        ("G8", "did not enter return_what_entered_another_queue"),
    ],
    return_what_only_a_dead_letter_missed: [("G20", "0 of 1 publishes of it reached no queue")],
    lose_the_way_to_a_purged_queue: [("G8", "publish 2 was confirmed, but did not enter lose_the")],
    confirm_twice: [
        ("G8", "(2 confirmed, counting all clients), but the members' logs have it once")
    ],
    confirm_the_number_of_another: [("G8", "was answered for its publish 1")],
    swap_two_bodies: [
        ("G8", "was answered for its publish 1"),
        ("G8", "was answered for its publish 2"),
    ],
    refuse_what_was_delivered: [("G20", "its publish 1 was refused, but it entered")],
    receive_from_nowhere: [("G20", "received it once (counting all")],
    flag_a_first_delivery: [("G11", "received it once with the redelivered flag")],
    reject_what_was_acked: [("G20", "acked it once (counting all clients), but it was delivered")],
    reject_after_an_ack_that_was_lost: [],
    be_replaced_after_an_ack_that_was_lost: [],
    refuse_what_reached_no_queue: [("G20", "publish 1 was refused, but it reached no queue")],
    refuse_to_a_nameless_client: [("G20", "publish 1 was refused, but it reached no queue")],
    confirm_what_a_full_queue_refused: [("G8", "publish 1 was confirmed, but entered no queue")],
    settle_and_drop_over_a_cold_start: [("G20", "ended 2 times in settle_and_drop")],
}


@cache
def everything() -> ClientReport:
    """Return the findings in one history with all lies."""
    servers, clients = Servers(), Clients()
    for lie in LIES:
        lie(ClientPair(lie.__name__, servers, clients))
    return check_all(servers, clients, bins=3)


@pytest.mark.lies
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_each_lie_is_named(lie: Callable[[ClientPair], None]) -> None:
    found = [one for one in everything().findings if f" of {lie.__name__} " in one.what]
    assert sorted(one.property for one in found) == sorted(promise for promise, _ in LIES[lie])
    for promise, text in LIES[lie]:
        assert any(text in one.what for one in found if one.property == promise), found


def test_nobody_else_is_accused() -> None:
    assert len(everything().findings) == sum(map(len, LIES.values())), everything().findings


@pytest.mark.parametrize("to_end", [True, False])
def test_a_returned_publish_may_be_behind_the_end_of_the_logs(*, to_end: bool) -> None:
    """G20: it reached no queue there."""
    pair = ClientPair("pair", Servers(), Clients())
    pair.send("found")
    pair.writer.published(2, pair.body("late"))
    pair.writer.unroutable(pair.body("late"), 2)
    found = check_all(pair.servers, pair.clients, ALL._replace(to_end=to_end)).findings
    assert [one.property for one in found] == ["G20"] * to_end


@pytest.mark.parametrize("lost_ends", [False, True])
def test_what_entered_no_queue_may_be_lost_with_the_end_of_a_log(*, lost_ends: bool) -> None:
    """G11, G20: a message that did enter one is judged all the same."""
    servers, clients = Servers(), Clients()
    for lie in (receive_from_nowhere, give_one_message_to_two_readers):
        lie(ClientPair(lie.__name__, servers, clients))
    found = check_all(servers, clients, ALL._replace(lost_ends=lost_ends)).findings
    assert sorted(one.property for one in found) == ["G11", "G20"][: 2 - lost_ends]


def test_of_each_promise_the_first_findings_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "FINDINGS_MAX", 1)
    servers, clients = Servers(), Clients()
    for lie in (confirm_a_dead_letter, confirm_twice, enter_the_same_queue_twice):
        lie(ClientPair(lie.__name__, servers, clients))
    found = check_all(servers, clients).findings
    assert [one.property for one in found] == ["G8", "G20"]
    assert "confirm_a_dead_letter" in found[0].what


@pytest.mark.parametrize(("readers", "restarted"), [(1, False), (2, False), (2, True)])
def test_who_else_acked_is_unknown_where_logs_may_end_early(
    readers: int, *, restarted: bool
) -> None:
    """G20: the ack of the other one, or of a later life, may be in the part of the history that is
    missing."""
    pair = ClientPair("held", Servers(), Clients())
    hold_one_body_at_two_readers(pair)
    if readers == 1:
        pair.clients.forget(f"second reader of {pair.name}")
        for op in (Op.DELIVERED, Op.SETTLED):
            pair.servers.without_last(op)
    pair.send("after it")
    if readers == 2:
        (later,) = pair.publish("for the second", pair.queue)
        pair.servers.deliver(later)
        second = pair.clients.made(f"second reader of {pair.name}")
        second.received(2, pair.body("for the second"), redelivered=False)
    if restarted:
        pair.clients.is_later_life(f"second reader of {pair.name}", f"reader of {pair.name}")
    early = ALL._replace(to_end=False)
    found = [one.property for one in check_all(pair.servers, pair.clients, early).findings]
    assert found == ["G20"] * (readers == 1)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("unnamed", ["nothing", "by the client", "in the logs"])
def test_a_reception_is_looked_up_wherever_it_may_be_from(unnamed: str, older: bool) -> None:
    """No lie: a superseded history delivered it too, or it is older than the logs."""
    pair = ClientPair("pair", Servers(), Clients())
    servers, body = pair.servers, pair.body("m")
    reader = pair.clients.client("nameless") if unnamed == "by the client" else pair.reader
    queue = servers.queue("") if unnamed == "in the logs" else pair.queue
    (message,) = servers.publish(body, 0, queue)
    if older:
        for op in (Op.ENQUEUED, Op.PUBLISHED):
            servers.without_last(op)
    for tag, epoch in enumerate((0, 1), 1):
        servers.deliver(message, epoch=epoch)
        reader.received(tag, body, redelivered=False)
    report = check_all(servers, pair.clients)
    assert report.findings == []
    assert any("are not judged" in note for note in report.notes) is older


def test_numbers_beyond_all_logs_do_not_end_the_check() -> None:
    """A forged record may have any number below 2^62, and a move a position above its batch."""
    operations = pa.Table.from_pylist(
        [dict.fromkeys(CLIENT_COLUMNS.names, 0) | NOBODY | {"op": 2, "lsn": lsn} for lsn in HIGH],
        schema=CLIENT_COLUMNS,
    )
    places = tables_of_operations(operations)["operations"]["place"].to_pylist()
    assert places == sorted(places)
    moves = pa.Table.from_pylist(
        [
            dict.fromkeys(MOVE_COLUMNS.names, 0) | {"op": 2, "flag": True, "position": position}
            for position in HIGH
        ],
        schema=MOVE_COLUMNS,
    )
    times = tables_of_moves(moves)["moves"]["time"].to_pylist()
    assert times == sorted(times)
