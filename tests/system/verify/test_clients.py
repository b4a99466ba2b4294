"""What clients wrote down against what members did: lies of either side, and what is no lie.

Spark takes seconds for each check, so all lies are told in one history, each by clients and in
queues of its own, and then looked for one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from broker.machine.move_log import Op
from tests.system.verify.support.client_fixture import Corner, judge
from tests.system.verify.support.make_client_histories import Clients, Servers
from tools.verify.clients.check import ClientReport
from tools.verify.clients.lookup import Known

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


# What is as it should be


def tell_the_truth(corner: Corner) -> None:
    """Messages of which some have the same bytes."""
    for text in ("one", "two", "one", "three"):
        corner.send(text)


def be_refused_and_unroutable(corner: Corner) -> None:
    """What was refused is in no queue, and what found none is nowhere."""
    corner.writer.published(5, corner.body("too much"))
    corner.servers.publish(corner.body("too much"), 5, corner.queue)
    corner.servers.without_last(Op.ENQUEUED)
    corner.writer.refused(5)
    corner.writer.published(6, corner.body("astray"))
    corner.servers.publish(corner.body("astray"), 6)
    corner.writer.unroutable(corner.body("astray"))
    corner.writer.confirmed(6)
    corner.publish("nobody asked whether it is routed")


def lose_the_connection(corner: Corner) -> None:
    """Of two publishes without an answer one is there; it is sent again and doubled."""
    for number, text in enumerate(("there", "gone"), 1):
        corner.writer.published(number, corner.body(text))
    corner.servers.publish(corner.body("there"), 1, corner.queue)
    corner.writer.lost()
    corner.publish("there", corner.queue)


def redeliver_flagged(corner: Corner) -> None:
    """What came back is delivered again, and says so."""
    corner.send_twice("twice")


def hear_a_stranger(corner: Corner) -> None:
    """A client that keeps no history publishes, and another one consumes."""
    body = corner.body("same bytes")
    corner.servers.publish(body, 1, corner.queue)
    (message,) = corner.servers.publish(body, 1, corner.queue)
    corner.servers.deliver(message)
    corner.receive("same bytes")


def fan_out(corner: Corner) -> None:
    """One publish to two queues is received twice without the flag."""
    other = corner.servers.queue(f"second of {corner.name}")
    for message in corner.publish("both", corner.queue, other):
        corner.servers.deliver(message)
    corner.receive("both")
    corner.clients.client("second reader", f"second of {corner.name}").received(
        1, corner.body("both"), redelivered=False
    )


def die_together(corner: Corner) -> None:
    """GUARANTEES, what is not promised: all members of a primary died within one fsync."""
    (message,) = corner.publish("superseded", corner.queue)
    for epoch in (0, 1):
        corner.servers.deliver(message, epoch=epoch)
        corner.receive("superseded")


def begin_with_a_full_queue(corner: Corner) -> None:
    """Of messages that are older than the logs nobody knows the body."""
    (message,) = corner.servers.publish(corner.body("older"), 1, corner.queue)
    corner.servers.without_last(Op.ENQUEUED)
    corner.servers.without_last(Op.PUBLISHED)
    corner.servers.deliver(message)
    corner.receive("older")


TRUTHS = [
    tell_the_truth, be_refused_and_unroutable, lose_the_connection, redeliver_flagged,
    hear_a_stranger, fan_out, die_together, begin_with_a_full_queue,
]  # fmt: skip

# Lies


def confirm_what_is_not_there(corner: Corner) -> None:
    """A client was told yes, and no member has it."""
    corner.writer.published(9, corner.body("nowhere"))
    corner.writer.confirmed(9)


def confirm_under_another_number(corner: Corner) -> None:
    """The right bytes, but the confirm of another publish."""
    corner.writer.published(9, corner.body("bytes"))
    corner.servers.publish(corner.body("bytes"), 10, corner.queue)
    corner.writer.confirmed(9)


def confirm_two_of_which_one_is_there(corner: Corner) -> None:
    """Two clients send the same; one message comes of it."""
    for one in (corner.writer, corner.clients.client("other", corner.name)):
        one.published(9, corner.body("same"))
        one.confirmed(9)
    corner.servers.publish(corner.body("same"), 9, corner.queue)


def forget_a_publish(corner: Corner) -> None:
    """A message that was confirmed vanishes from all logs."""
    corner.publish("forgotten", corner.queue)
    corner.servers.without_last(Op.ENQUEUED)
    corner.servers.without_last(Op.PUBLISHED)


def forget_an_entry(corner: Corner) -> None:
    """A message that was confirmed never entered a queue."""
    corner.publish("forgotten", corner.queue)
    corner.servers.without_last(Op.ENQUEUED)


def enter_another_queue(corner: Corner) -> None:
    """What was for one queue is in another."""
    corner.publish("elsewhere", corner.servers.queue("another"))


def double_a_publish(corner: Corner) -> None:
    """What was sent once is there twice."""
    corner.publish("doubled", corner.queue)
    corner.servers.publish(corner.body("doubled"), 1, corner.queue)


def refuse_what_is_there(corner: Corner) -> None:
    """A client was told no, and the message is in the queue."""
    corner.writer.published(9, corner.body("refused"))
    corner.servers.publish(corner.body("refused"), 9, corner.queue)
    corner.writer.refused(9)


def call_unroutable_what_is_there(corner: Corner) -> None:
    """A client was told that there is no queue, and the message is in one."""
    corner.publish("routed", corner.queue)
    corner.writer.unroutable(corner.body("routed"))


def receive_what_nobody_sent(corner: Corner) -> None:
    """A client has a message that no member knows."""
    corner.receive("from nowhere")


def receive_what_nobody_delivered(corner: Corner) -> None:
    """A client has a message that is still in the queue."""
    corner.publish("not yet", corner.queue)
    corner.receive("not yet")


def receive_again_what_was_acked(corner: Corner) -> None:
    """What was acked and settled comes back, though no member says that it sent it."""
    corner.send("acked")
    corner.receive("acked", redelivered=True)


def receive_twice_unflagged(corner: Corner) -> None:
    """What was acked comes again as if it were new."""
    corner.send("acked")
    corner.receive("acked")


def deliver_twice_unflagged(corner: Corner) -> None:
    """The same, and the servers say so themselves."""
    (message,) = corner.publish("acked", corner.queue)
    for _ in range(2):
        corner.servers.deliver(message)
        corner.receive("acked")


def lose_the_flag(corner: Corner) -> None:
    """What was delivered again with the flag came without it."""
    (message,) = corner.publish("flagged", corner.queue)
    corner.servers.deliver(message)
    corner.servers.give_back(message)
    corner.servers.deliver(message, redelivered=True)
    corner.receive("flagged")
    corner.receive("flagged")


def invent_a_flag(corner: Corner) -> None:
    """What was delivered for the first time came with the flag."""
    (message,) = corner.publish("flagged", corner.queue)
    corner.servers.deliver(message)
    corner.receive("flagged", redelivered=True)


def receive_from_another_queue(corner: Corner) -> None:
    """What was delivered from one queue came from another."""
    (message,) = corner.servers.publish(corner.body("astray"), 9, corner.servers.queue("third"))
    corner.servers.deliver(message)
    corner.receive("astray")


def end_twice(corner: Corner) -> None:
    """What was confirmed and settled expires as well."""
    corner.servers.drop(corner.send("two ends"))


LIES: dict[Callable[[Corner], None], tuple[str, str]] = {
    confirm_what_is_not_there: ("G8", "publish 9 (1 confirmed, counting all clients)"),
    confirm_under_another_number: ("G8", "have it never"),
    confirm_two_of_which_one_is_there: ("G8", "(2 confirmed, counting all clients), but the "),
    forget_a_publish: ("G8", "have it never"),
    forget_an_entry: ("G8", "entered no queue"),
    enter_another_queue: ("G8", "did not enter enter_another_queue"),
    double_a_publish: ("G20", "its publish 1 was sent once, but became 2 messages"),
    refuse_what_is_there: ("G20", "was refused, but it entered refuse_what_is_there"),
    call_unroutable_what_is_there: ("G20", "0 of 1 publishes of it reached no queue"),
    receive_what_nobody_sent: ("G20", "delivered never, and entered never"),
    receive_what_nobody_delivered: ("G20", "delivered never, and entered once"),
    receive_again_what_was_acked: ("G11", "received it twice"),
    receive_twice_unflagged: ("G11", "received it twice"),
    deliver_twice_unflagged: (
        "G11",
        "without the redelivered flag (counting all clients), but it ",
    ),
    lose_the_flag: ("G11", "received it twice without the redelivered flag"),
    invent_a_flag: ("G11", "received it once with the redelivered flag"),
    receive_from_another_queue: ("G20", "delivered never"),
    end_twice: ("G20", "ended 2 times in end_twice"),
}


@cache
def everything() -> ClientReport:
    """Return what is found when all of these are told at once."""
    servers, clients = Servers(), Clients()
    for tell in (*TRUTHS, *LIES):
        tell(Corner(tell.__name__, servers, clients))
    return judge(servers, clients)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_named(lie: Callable[[Corner], None]) -> None:
    """G8, G11, G20: with the client, the body, the queue, and a sentence."""
    promise, says = LIES[lie]
    found = [one for one in everything().findings if f" of {lie.__name__} " in one.what]
    found = found or [one for one in everything().findings if one.queue == lie.__name__]
    assert [one.property for one in found] == [promise], everything().findings
    assert says in found[0].what
    assert found[0].what.startswith("client ")
    assert ", body " in found[0].what


def test_nothing_else_is_accused() -> None:
    findings = everything().findings
    named = [lie.__name__ for lie in LIES]
    assert len(findings) == len(LIES)
    for finding in findings:
        assert any(name in finding.what or name == finding.queue for name in named), finding


def test_what_was_looked_at_is_counted() -> None:
    report = everything()
    counts = report.counts
    assert counts.operations > counts.published + counts.confirmed + counts.received > 70
    assert (counts.clients, counts.refused) == (39, 2)
    assert report.notes == [
        "1 bodies that clients received are not judged, as messages were in their queues before "
        "the logs begin"
    ]  # begin_with_a_full_queue
    assert str(report.account).startswith("26 confirmed by clients, 4 NOT accounted for")


def test_logs_that_tell_a_part() -> None:
    """What a client did before they begin and after they end is not looked up."""
    servers, clients = Servers(), Clients()
    early, late, between = (Corner(name, servers, clients) for name in ("early", "late", "between"))
    confirm_what_is_not_there(early)
    receive_what_nobody_sent(early)
    for corner in (early, late, between):
        corner.send("one")
        corner.send("two")
    confirm_what_is_not_there(between)
    receive_what_nobody_sent(between)
    for corner in (early, between):
        corner.send("three")
    confirm_what_is_not_there(late)
    receive_what_nobody_sent(late)
    report = judge(servers, clients, Known(begin=False, end=False, whole=True))
    assert sorted((one.property, one.queue) for one in report.findings) == [
        ("G20", "between"), ("G8", "between"),
    ]  # fmt: skip
    assert report.account is None
    gap = judge(servers, clients, Known(begin=True, end=True, whole=False))
    assert gap.findings == []
    assert len(gap.notes) == 1


def test_where_everything_ended() -> None:
    servers, clients = Servers(), Clients()
    corner = Corner("work", servers, clients)
    held = [
        corner.publish(text, corner.queue)[0] for text in ("drop", "purge", "stay", "die", "ack")
    ]
    dropped, _, stays, dies, acked = held
    servers.drop(dropped)
    servers.deliver(stays)  # held by a client, so that the purge does not take it
    grave = servers.queue("grave")
    servers.deliver(dies)
    servers.settle(dies, cause=2)
    servers.publish(corner.body("die"), 0, grave, cause=2, also=True)
    servers.deliver(acked)
    servers.purge(corner.queue, 1)
    servers.give_back(acked)
    servers.give_back(stays)
    (_, acked) = servers.cold_start(corner.queue, [stays, acked])
    servers.deliver(acked, redelivered=True)
    servers.settle(acked)
    report = judge(servers, clients)
    assert str(report.account) == (
        "5 confirmed by clients, all accounted for: 1 settled, 1 dropped, 1 dead-lettered, "
        "1 purged, 1 still there"
    )
