"""Direct reply-to: requests whose replies need no queue, as far as the client can see."""

import pytest

from broker.amqp import codec
from broker.frontend.direct_reply import REPLY_TO, UNUSED_MS
from broker.machine import commands as c
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer


def asking(channel: int = 1) -> bytes:
    values: dict[str, c.Value] = {
        "content_type": "text/plain", "headers": {"a": REPLY_TO}, "delivery_mode": 1,
        "correlation_id": "7", "reply_to": REPLY_TO, "message_id": "m",
    }  # fmt: skip
    return publish(channel, "", "service", b"ask", codec.encode_properties(values))


def consume(peer: Peer, tag: str = "replies", *, no_ack: bool = True) -> list[tuple[object, ...]]:
    return peer.call(1, "basic.consume", REPLY_TO, tag, False, no_ack, False, False, {})


def requested(loop: Loop) -> tuple[Peer, str]:
    """A client that has sent a request, and the address for the reply."""
    peer = loop.connect().open(1, 2)
    peer.declare(1, "service")
    assert consume(peer) == [("basic.consume-ok", "replies")]
    assert peer.send(asking()) == []
    (got,) = peer.send(method(1, "basic.get", "service", True))
    properties = codec.decode_properties(got.properties)
    assert properties.pop("reply_to") == "amq.rabbitmq.reply-to.1"
    assert properties == {
        "content_type": "text/plain", "headers": {"a": REPLY_TO}, "delivery_mode": 1,
        "correlation_id": "7", "message_id": "m",
    }  # fmt: skip
    return peer, "amq.rabbitmq.reply-to.1"


def test_a_request_and_its_reply() -> None:
    loop = Loop()
    client, reply_to = requested(loop)
    server = loop.connect().open(1, 2)
    assert server.call(1, "queue.declare", reply_to, True, False, False, False, False, {}) == [
        ("queue.declare-ok", reply_to, 0, 1)
    ]
    assert server.call(1, "queue.declare", reply_to, False, False, False, False, False, {}) == [
        ("queue.declare-ok", reply_to, 0, 1)
    ]
    server.publish(1, reply_to, b"answer")
    (delivered,) = client.take()
    assert (delivered.method, delivered.body) == ("basic.deliver", b"answer")
    assert delivered.args == ("replies", 2, False, "", reply_to)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("basic.consume", ("", False, True, False, False, {})),
        ("basic.get", (True,)),
        ("queue.bind", ("amq.direct", "k", False, {})),
        ("queue.purge", (False,)),
        ("queue.delete", (False, False, False)),
    ],
)
@pytest.mark.parametrize("as_the_last_declared", [False, True])
def test_no_other_client_can_use_the_queue(
    name: str, args: tuple[c.Value, ...], *, as_the_last_declared: bool
) -> None:
    loop = Loop()
    client, reply_to = requested(loop)
    other = loop.connect().open(1)
    if as_the_last_declared:
        other.call(1, "queue.declare", reply_to, True, False, False, False, False, {})
    (refused,) = other.call(1, name, "" if as_the_last_declared else reply_to, *args)
    assert refused[:2] == ("channel.close", 404)
    other.call(1, "channel.close-ok")
    other.open(1).publish(1, reply_to, b"answer")
    assert [one.body for one in client.take()] == [b"answer"]


def test_it_ends_with_its_consumer_and_its_channel() -> None:
    for end in (("basic.cancel", "replies", False), ("channel.close", 200, "", 0, 0)):
        loop = Loop()
        client, reply_to = requested(loop)
        client.call(1, *end)
        assert reply_to not in loop.machine.vhosts["/"].queues
        if end[0] == "basic.cancel":
            assert consume(client, "again") == [("basic.consume-ok", "again")]


def test_a_reply_queue_without_its_consumer_is_deleted() -> None:
    """The machine may refuse the consumer, or the member be lost between the two commands."""
    loop = Loop()
    client, reply_to = requested(loop)
    refused = client.call(
        2, "basic.consume", REPLY_TO, "x", False, True, False, False, {"x-stream-offset": "first"}
    )
    assert refused[0][:2] == ("channel.close", 406)
    assert len(loop.machine.vhosts["/"].queues) == 3
    while loop.machine.now_us < 2 * UNUSED_MS * 1000:
        tick = c.Tick(c.TICK, loop.machine.now_us + UNUSED_MS * 1000, 0, loop.machine.position)
        assert loop.apply(loop.gateway.session, tick) == c.OK
    assert list(loop.machine.vhosts["/"].queues) == ["service", reply_to]
    loop.connect().open(1).publish(1, reply_to, b"answer")
    assert [one.body for one in client.take()] == [b"answer"]


@pytest.mark.parametrize("no_ack", [False, True])
def test_invalid_uses_are_refused(no_ack: bool) -> None:
    peer = Loop().connect().open(1, 2)
    if no_ack:
        consume(peer)
    (refused,) = consume(peer, "second", no_ack=no_ack)
    words = "already set" if no_ack else "cannot acknowledge"
    assert refused[:3] == ("channel.close", 406, f"PRECONDITION_FAILED - reply consumer {words}")


def test_a_request_needs_a_consumer_of_replies() -> None:
    loop = Loop()
    requested(loop)
    peer = loop.connect().open(2)
    peer.call(2, "tx.select")
    (refused,) = peer.send(asking(2))
    assert refused.args[:2] == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")


def test_the_common_name_looks_like_a_queue() -> None:
    peer = Loop().connect().open(1)
    for passive in (True, False):
        declared = peer.call(1, "queue.declare", REPLY_TO, passive, *(False,) * 4, {})
        assert declared == [("queue.declare-ok", REPLY_TO, 0, 1)]
    assert peer.call(1, "basic.get", REPLY_TO, True)[0][:2] == ("channel.close", 404)
