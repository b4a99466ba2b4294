"""Messages moved from queue to queue over HTTP: all of them in order, or none."""

from __future__ import annotations

import pika
import pytest

from tests.system.management.http import Api

pytestmark = pytest.mark.system


def bodies(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[bytes]:
    """The messages of a queue, taken out of it."""
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        assert body is not None
        found.append(body)


def test_messages_move_in_order_with_their_properties(
    api: Api, amqp: pika.BlockingConnection
) -> None:
    channel = amqp.channel()
    channel.confirm_delivery()
    for name in ("move-from", "move-to"):
        channel.queue_declare(name, durable=True)
    properties = pika.BasicProperties(delivery_mode=2, headers={"k": "v"}, message_id="m")
    for number in range(5):
        channel.basic_publish("", "move-from", b"%d" % number, properties)
    answered = api.ask("POST", "queues/%2F/move-from/move", {"to": "move-to", "count": 2})
    assert (answered.status, answered.body) == (200, {"moved": 2, "left": 3})
    method, moved, body = channel.basic_get("move-to", auto_ack=True)
    assert method is not None
    assert moved is not None
    assert (body, moved.headers, moved.message_id) == (b"0", {"k": "v"}, "m")
    assert api.ask("POST", "queues/%2F/move-from/move", {"to": "move-to"}).body == {
        "moved": 3, "left": 0
    }  # fmt: skip
    assert bodies(channel, "move-to") == [b"1", b"2", b"3", b"4"]


def test_a_refused_move_loses_nothing(api: Api, amqp: pika.BlockingConnection) -> None:
    channel = amqp.channel()
    channel.confirm_delivery()
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("kept-from", durable=True)
    channel.queue_declare("full-to", durable=True, arguments=full)
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", "kept-from", body)
    for target in ("nowhere", "kept-from"):
        assert api.ask("POST", "queues/%2F/kept-from/move", {"to": target}).status == 400
    answered = api.ask("POST", "queues/%2F/kept-from/move", {"to": "full-to"})
    assert answered.status == 503
    assert isinstance(answered.body, dict)
    reason = answered.body["reason"]
    assert reason == "queue 'full-to' does not take messages; 1 were moved"
    assert bodies(channel, "full-to") == [b"a"]
    assert bodies(channel, "kept-from") == [b"b", b"c"]
