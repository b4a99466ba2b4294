"""What the outbox sends, and in which order: confirms, delayed replies, deliveries, ends."""

import gc
import random
import weakref

import pytest

from broker.amqp import codec
from broker.frontend.channel import Confirms
from broker.machine import commands as c
from broker.machine.effects import Confirm, DeliverEffect, Effect, Reply
from tests.support.amqp_peer import ServerMethod, method, publish
from tests.support.gateway_loop import Loop, Peer

TRANSIENT = codec.encode_properties({"delivery_mode": 1})


def methods_of(received: list[ServerMethod]) -> list[tuple[object, ...]]:
    return [(one.method, *one.args) for one in received]


def confirming(loop: Loop, *queues: str) -> Peer:
    peer = loop.connect().open(1)
    for queue in queues:
        peer.declare(1, queue, durable=True)
    peer.call(1, "confirm.select", False)
    peer.take()
    return peer


# -- confirms -------------------------------------------------------------------------------------


def test_confirms_wait_until_durable_and_come_as_one() -> None:
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    base = loop.position
    assert peer.publish(1, "q", b"1", b"2", b"3") == []
    assert loop.confirmed == []
    loop.outbox.release(base + 2)
    loop.write()
    assert methods_of(peer.take()) == [("basic.ack", 2, True)]
    assert loop.confirmed == [base + 1, base + 2]
    loop.settle()
    assert methods_of(peer.take()) == [("basic.ack", 3, False)]


def test_positions_of_a_superseded_history_confirm_nothing() -> None:
    """G9: the positions are used again for other commands; and no client is connected any more."""
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    assert peer.publish(1, "q", b"waits") == []
    waits, released = loop.position, loop.outbox.durable_position
    assert released
    loop.outbox.set_aside()
    assert loop.outbox.durable_position == 0
    assert (loop.gateway.session, loop.gateway.clients) == (0, {})
    loop.outbox.release(waits)
    assert loop.outbox.flush() == []


def test_a_confirm_that_is_due_waits_while_the_member_is_fenced() -> None:
    """G7: it was released before, and is not written yet."""
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    peer.publish(1, "q", b"x")
    loop.outbox.release(loop.position)
    loop.outbox.fence()
    assert loop.outbox.flush() == []
    assert not peer.client.connection.out
    loop.outbox.unfence()
    loop.write()
    assert methods_of(peer.take()) == [("basic.ack", 1, False)]
    assert loop.confirmed == [loop.position]


def test_a_transient_message_waits_like_the_others() -> None:
    """G9: a confirm would be void if its only holder were the member that sent it."""
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    received = peer.send(
        publish(1, "", "q"), publish(1, "", "q", b"x", TRANSIENT), publish(1, "", "q")
    )
    assert methods_of(received) == []
    loop.settle()
    assert methods_of(peer.take()) == [("basic.ack", 3, True)]


def test_a_publish_that_is_settled_early_counts_once() -> None:
    confirms = Confirms(fresh=[(2, True), (3, False)])
    assert confirms.take() == [(2, False, True), (3, False, False)]
    assert confirms.taken == 2
    confirms.fresh = [(1, True)]
    assert confirms.take() == [(1, False, True)]
    assert confirms.taken == 3
    confirms.fresh = [(4, True), (5, True)]
    assert confirms.take() == [(5, True, True)]
    assert confirms.taken == 5


def test_a_return_precedes_its_confirm() -> None:
    loop = Loop()
    peer = confirming(loop)
    loop.durable = False
    (returned,) = peer.send(publish(1, "", "nowhere", b"body", mandatory=True))
    assert returned.args == (312, "NO_ROUTE", "", "nowhere")
    assert returned.body == b"body"
    loop.settle()
    assert methods_of(peer.take()) == [("basic.ack", 1, False)]


def test_a_refused_message_is_nacked() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    arguments: c.Table = {"x-max-length": 1, "x-overflow": "reject-publish"}
    peer.call(1, "queue.declare", "q", False, False, False, False, False, arguments)
    peer.call(1, "confirm.select", False)
    received = peer.publish(1, "q", b"1", b"2", b"3")
    assert methods_of(received) == [
        ("basic.nack", 2, False, False), ("basic.nack", 3, False, False), ("basic.ack", 1, False),
    ]  # fmt: skip
    assert len(loop.confirmed) == 1


def test_confirms_are_as_few_as_possible() -> None:
    confirms = Confirms()
    confirms.fresh = [(2, True), (4, True)]
    assert confirms.take() == [(2, False, True), (4, False, True)]
    confirms.fresh = [(1, True)]
    assert confirms.take() == [(1, False, True)]
    confirms.fresh = [(3, False)]
    assert confirms.take() == [(3, False, False)]
    confirms.fresh = [(5, True), (7, True), (6, True)]
    assert confirms.take() == [(7, False, True), (6, True, True)]
    assert confirms.take() == []
    confirms.fresh = [(8, True), (9, False), (10, True)]
    assert confirms.take() == [(9, False, False), (10, True, True)]


def test_the_end_of_a_channel_follows_its_confirms() -> None:
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    assert peer.send(publish(1, "", "q"), publish(1, "none", "q")) == []
    assert peer.send(publish(1, "", "q")) == []
    loop.settle()
    ack, close = peer.take()
    assert methods_of([ack]) == [("basic.ack", 1, False)]
    assert close.args[0] == 404
    peer = confirming(loop)
    loop.durable = False
    assert peer.send(publish(1, "", "q"), method(1, "channel.close", 200, "", 0, 0)) == []
    loop.settle()
    assert methods_of(peer.take()) == [("basic.ack", 1, False), ("channel.close-ok",)]


def test_confirms_of_a_lost_client_are_dropped() -> None:
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    peer.publish(1, "q", b"1")
    peer.loop.gateway.connection_lost(peer.client)
    loop.turn()
    loop.settle()
    assert loop.confirmed == []
    assert peer.take() == []


# -- replies --------------------------------------------------------------------------------------


def test_replies_keep_their_order_behind_one_that_waits() -> None:
    loop = Loop()
    peer = loop.connect().open(1, 2)
    loop.durable = False
    declare = method(1, "queue.declare", "q", False, True, False, False, False, {})
    other = method(2, "queue.declare", "o", False, False, False, False, False, {})
    received = peer.send(declare, method(1, "basic.qos", 0, 5, False), other)
    assert methods_of(received) == [("queue.declare-ok", "o", 0, 0)]
    assert peer.call(1, "confirm.select", False) == []  # the gateway's reply, after the machine's
    assert peer.call(1, "basic.get", "q", False) == []
    loop.settle()
    assert methods_of(peer.take()) == [
        ("queue.declare-ok", "q", 0, 0), ("basic.qos-ok",), ("confirm.select-ok",),
        ("basic.get-empty",),
    ]  # fmt: skip


def test_local_replies_wait_for_those_under_way() -> None:
    peer = Loop().connect().open(1)
    received = peer.send(
        method(1, "basic.qos", 0, 5, False) + method(1, "tx.select") + method(1, "tx.rollback")
    )
    assert methods_of(received) == [("basic.qos-ok",), ("tx.select-ok",), ("tx.rollback-ok",)]


def test_an_error_of_the_gateway_follows_the_replies_before_it() -> None:
    peer = Loop().connect().open(1)
    received = peer.send(method(1, "basic.qos", 0, 5, False) + method(1, "tx.commit"))
    assert [one.method for one in received] == ["basic.qos-ok", "channel.close"]


def test_an_earlier_error_of_the_machine_comes_first() -> None:
    peer = Loop().connect().open(1)
    received = peer.send(method(1, "queue.purge", "none", False) + method(1, "tx.commit"))
    assert [one.args[0] for one in received] == [404]


def test_client_and_machine_end_a_channel_at_once() -> None:
    peer = Loop().connect().open(1)
    close = method(1, "channel.close", 200, "", 0, 0)
    received = peer.send(publish(1, "none", "x") + close)
    assert [one.method for one in received] == ["channel.close", "channel.close-ok"]
    assert peer.call(1, "channel.open") == [("channel.open-ok",)]


# -- deliveries -----------------------------------------------------------------------------------


def test_deliveries_do_not_wait_for_durability() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q", durable=True)
    peer.call(1, "basic.consume", "q", "t", False, False, False, False, {})
    loop.durable = False
    declare = method(1, "queue.declare", "p", False, True, False, False, False, {})
    received = peer.send(declare, publish(1, "", "q", b"body" * 50_000))
    assert methods_of(received) == [("basic.deliver", "t", 1, False, "", "q")]
    assert received[0].body == b"body" * 50_000


def test_a_delivery_does_not_overtake_its_consume_ok() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.durable = False
    received = peer.send(
        method(1, "queue.declare", "q", False, True, False, False, False, {}),
        method(1, "basic.consume", "q", "t", False, True, False, False, {}),
        publish(1, "", "q"),
    )
    assert received == []
    assert c.SENT not in [command[0] for command, _ in loop.applied]
    loop.settle()
    assert [one.method for one in peer.take()] == [
        "queue.declare-ok", "basic.consume-ok", "basic.deliver",
    ]  # fmt: skip
    assert loop.applied[-1] == ((c.SENT, 1, 1, 1), 0)


def test_deliveries_keep_their_order_when_some_had_to_wait() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    loop.durable = False
    first = method(1, "queue.declare", "p", False, True, False, False, False, {})
    second = method(1, "queue.declare", "r", False, True, False, False, False, {})
    peer.send(first, method(1, "basic.consume", "q", "t", False, True, False, False, {}))
    waiting = loop.position
    peer.send(second, publish(1, "", "q", b"1"))
    loop.outbox.release(waiting)
    assert [one.body for one in peer.publish(1, "q", b"2") if one.body] == []
    loop.settle()
    assert [one.body for one in peer.take() if one.body] == [b"1", b"2"]


def effects_of(rng: random.Random, count: int) -> list[tuple[int, Effect]]:
    """Runs of deliveries and confirms of two channels, of a third that is closed, and of no
    client."""
    effects: list[tuple[int, Effect]] = []
    sizes = rng.choice([(3, 9), (0, 3, 9), (3, 200_000), (400_000,)])
    for _ in range(count):
        conn, chan = rng.choice([(1, 1), (1, 1), (1, 2), (1, 3), (7, 1)])
        tag, key, no_ack = rng.choice("tu"), rng.choice("qr"), rng.random() < 0.5
        delivers, position = rng.random() < 0.5, 0
        for _ in range(rng.randrange(1, 9)):
            number, position = len(effects) + 1, len(effects) // 2 + 10
            body, again = bytes(rng.choice(sizes)), rng.random() < 0.1
            one: Effect = Confirm(conn, chan, number, True, not again)
            if delivers:
                one = DeliverEffect(conn, chan, tag, number, again, "", key, b"\0\0", body, no_ack)
            effects.append((position, one))
        if rng.random() < 0.1:
            waits = rng.random() < 0.5
            effects.append((position, Reply(1, 2, "basic.consume-ok", ("v",), waits)))
    return effects


@pytest.mark.parametrize("seed", range(40))
def test_runs_are_written_like_single_effects(seed: int) -> None:
    found: list[list[object]] = []
    for at_once in (True, False):
        rng = random.Random(seed)
        loop = Loop()
        peer = loop.connect().open(1, 2)
        peer.reads = False
        effects = effects_of(rng, 30)
        released = rng.randrange(10, 200)
        parts = [effects] if at_once else [[one] for one in effects]
        written: list[object] = [bytes(peer.client.take_output())]
        loop.outbox.release(rng.randrange(10, 30))
        for part in parts:
            loop.outbox.effects(part)
        written += [loop.outbox.flush(), bytes(peer.client.connection.out)]
        loop.outbox.release(released)
        written += [loop.outbox.flush(), bytes(peer.client.take_output()), loop.gateway.commands]
        loop.outbox.release(1000)
        written += [loop.outbox.flush(), bytes(peer.client.take_output())]
        found.append(written)
    assert found[0] == found[1]
    sent = found[0][2]
    assert isinstance(sent, bytes)
    assert len(sent) > 500


def test_messages_for_a_client_that_does_not_read_are_not_copied() -> None:
    loop = Loop()
    peer, other = loop.connect().open(1), loop.connect().open(1)
    peer.declare(1, "q")
    peer.call(1, "basic.consume", "q", "t", False, False, False, False, {})
    peer.reads = False
    body = bytes(300_000)
    for _ in range(40):
        other.publish(1, "q", body)
    other.call(1, "basic.get", "q", True)
    assert 1_000_000 < len(peer.client.connection.out) < 2_000_000
    assert not peer.client.may_be_read
    assert other.client.may_be_read
    peer.loop.gateway.data_received(peer.client, method(1, "basic.qos", 0, 5, False), 0.0)
    loop.turn()
    peer.reads = True
    loop.gateway.mark_writable(peer.client)
    loop.turn()
    received = peer.take()
    assert [one.args[1] for one in received[:-1]] == list(range(1, 41))
    assert received[-1].method == "basic.qos-ok"
    assert peer.client.may_be_read
    assert not loop.gateway.has_work
    loop.durable = False  # a delivery waits for nothing, now that it reads again
    other.publish(1, "q", b"later")
    assert [one.method for one in peer.take()] == ["basic.deliver"]


def test_a_reply_of_our_own_follows_the_return_of_what_was_published_just_before() -> None:
    """Also if all came at once, and the client had published nothing before."""
    loop = Loop()
    peer = loop.connect().open(1)
    received = peer.send(
        publish(1, "", "nowhere", mandatory=True) + method(1, "confirm.select", False)
    )
    assert [one.method for one in received] == ["basic.return", "confirm.select-ok"]


def test_a_client_lost_while_it_did_not_read_leaves_nothing() -> None:
    loop = Loop()
    peer, other = loop.connect().open(1), loop.connect().open(1)
    peer.declare(1, "q")
    peer.call(1, "basic.consume", "q", "t", False, False, False, False, {})
    peer.reads = False
    for _ in range(10):
        other.publish(1, "q", bytes(300_000))
    lost = weakref.ref(peer.client)
    loop.gateway.connection_lost(peer.client)
    loop.turn()
    gc.disable()  # it is not to wait for a full collection
    try:
        del Peer.of[peer.client], peer
        assert lost() is None
    finally:
        gc.enable()


def test_publishers_are_not_read_while_the_member_is_full_or_fenced() -> None:
    loop = Loop()
    peer, other = loop.connect().open(1), loop.connect().open(1)
    peer.publish(1, "q", b"x")
    loop.gateway.paused = True
    assert (peer.client.may_be_read, other.client.may_be_read) == (False, True)
    loop.gateway.paused = False
    assert peer.client.may_be_read
    loop.outbox.fence()
    assert (peer.client.may_be_read, other.client.may_be_read) == (False, True)


def test_no_ack_deliveries_are_reported_once_written() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    peer.call(1, "basic.consume", "q", "t", False, True, False, False, {})
    peer.publish(1, "q", b"1", b"2", b"3")
    sent = [command for command, _ in loop.applied if command[0] == c.SENT]
    assert sent == [(c.SENT, 1, 1, 3)]
    peer.publish(1, "q", b"4")
    peer.call(1, "basic.cancel", "t", False)
    peer.publish(1, "q", b"5")
    received = peer.call(1, "basic.get", "q", True)
    assert received == [("basic.get-ok", 5, False, "", "q", 0)]
    assert loop.applied[-1][0] == (c.SENT, 1, 1, 5)


def test_a_cancel_is_sent_to_consumers_with_the_capability() -> None:
    loop = Loop()
    one, two = loop.connect().open(1), loop.connect(properties={}).open(1)
    one.declare(1, "q")
    for peer, tag in ((one, "a"), (two, "b")):
        peer.call(1, "basic.consume", "q", tag, False, False, False, False, {})
    received = one.call(1, "queue.delete", "q", False, False, False)
    assert received == [("queue.delete-ok", 0), ("basic.cancel", "a", True)]
    assert two.take() == []


def test_a_cancel_does_not_overtake_waiting_replies() -> None:
    """Its consume-ok, or the delete-ok of a durable queue: otherwise the client would not know the
    tag, or take the queue for lost."""
    loop = Loop()
    one = loop.connect().open(1)
    loop.durable = False
    one.send(
        method(1, "queue.declare", "q", False, True, False, False, False, {}),
        method(1, "basic.consume", "q", "a", False, False, False, False, {}),
    )
    two = loop.connect().open(1)
    two.call(1, "queue.delete", "q", False, False, False)
    assert one.take() == []
    loop.durable = True
    loop.settle()
    assert [(reply.method, reply.args[0]) for reply in one.take()] == [
        ("queue.declare-ok", "q"), ("basic.consume-ok", "a"), ("basic.cancel", "a"),
    ]  # fmt: skip


def test_nothing_is_sent_without_a_lease() -> None:
    loop = Loop()
    peer = confirming(loop, "q")
    peer.call(1, "basic.consume", "q", "t", False, False, False, False, {})
    loop.outbox.fence()
    assert peer.publish(1, "q", b"1", b"2") == []
    assert loop.confirmed == []
    loop.outbox.fence()
    loop.outbox.unfence()
    loop.outbox.unfence()
    loop.turn()
    assert [one.method for one in peer.take()] == ["basic.deliver", "basic.deliver", "basic.ack"]
    assert len(loop.confirmed) == 2


def test_replies_for_an_ended_session_are_dropped() -> None:
    loop = Loop()
    peer = confirming(loop, "q")
    loop.durable = False
    peer.publish(1, "q", b"1")
    loop.outbox.fence()
    peer.publish(1, "q", b"2")
    loop.activate(fresh=True)
    loop.outbox.unfence()
    loop.settle()
    assert loop.confirmed == []
    assert [one.method for one in peer.take()] == ["connection.close"]


def test_other_clients_continue_when_one_ends_its_connection_with_an_error() -> None:
    loop = Loop()
    one, two = loop.connect().open(1), loop.connect().open(1)
    two.declare(1, "q")
    consume = method(1, "basic.consume", "q", "t", False, False, False, False, {})
    received = one.send(consume, consume, publish(1, "", "q"))
    assert received[-1].args[0] == 530
    assert two.call(1, "basic.get", "q", True) == [("basic.get-empty",)]


def test_a_reply_of_the_gateway_follows_returns_of_earlier_publishes() -> None:
    """As with a single process: otherwise a client would take the return for that of a later
    publish."""
    peer = Loop().connect().open(1, 2)
    unroutable = publish(1, "", "nowhere", mandatory=True)
    select = method(1, "confirm.select", False)
    received = peer.send(unroutable, select, unroutable)
    assert [one.method for one in received] == [
        "basic.return", "confirm.select-ok", "basic.return", "basic.ack",
    ]  # fmt: skip
    received = peer.send(publish(2, "", "nowhere", mandatory=True), method(2, "tx.select"))
    assert [one.method for one in received] == ["basic.return", "tx.select-ok"]
    received = peer.send(method(2, "tx.rollback"), method(2, "basic.qos", 0, 3, False))
    assert [one.method for one in received] == ["tx.rollback-ok", "basic.qos-ok"]
