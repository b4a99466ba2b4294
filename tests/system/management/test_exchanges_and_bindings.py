"""Exchanges, bindings and messages over HTTP, with AMQP beside it."""

from __future__ import annotations

import base64

import pika
import pytest

from tests.system.management.http import Api, seg

pytestmark = pytest.mark.system


def test_an_exchange_is_created_and_deleted(api: Api, amqp: pika.BlockingConnection) -> None:
    body = {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api.ask("PUT", "exchanges/%2F/news", body).status == 201
    assert api.ask("PUT", "exchanges/%2F/news", body).status == 204
    assert api.row("exchanges/%2F/news") == {
        "name": "news", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False,
        "internal": False, "arguments": {"alternate-exchange": "amq.fanout"}, "policy": None,
        "incoming": [], "outgoing": [],
    }  # fmt: skip
    amqp.channel().exchange_declare("news", passive=True)
    answered = api.ask("PUT", "exchanges/%2F/news", {**body, "type": "direct"})
    assert answered.status == 400
    assert isinstance(answered.body, dict)
    assert answered.body["reason"].startswith("inequivalent arg 'type' for exchange 'news'")
    assert api.ask("DELETE", "exchanges/%2F/news").status == 204
    assert api.ask("DELETE", "exchanges/%2F/news").status == 404


def test_messages_waiting_in_a_delaying_exchange(api: Api, amqp: pika.BlockingConnection) -> None:
    body = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    assert api.ask("PUT", "exchanges/%2F/late", body).status == 201
    channel = amqp.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "late", "k")
    for delay in (300, 3_600_000):
        delayed = pika.BasicProperties(headers={"x-delay": delay})
        channel.basic_publish("late", "k", b"m", delayed, mandatory=True)
    assert api.row("exchanges/%2F/late")["messages_delayed"] == 2
    for _method, properties, _body in channel.consume(queue, inactivity_timeout=20):
        assert properties is not None, "it did not arrive"
        assert properties.headers == {"x-delay": -300}
        break
    assert api.row("exchanges/%2F/late")["messages_delayed"] == 1
    assert "messages_delayed" not in api.row("exchanges/%2F/amq.topic")
    assert api.ask("DELETE", "exchanges/%2F/late").status == 204


def test_an_exchange_without_a_type_is_direct(api: Api) -> None:
    assert api.ask("PUT", "exchanges/%2F/plain", {}).status == 201
    row = api.row("exchanges/%2F/plain")
    assert (row["type"], row["durable"]) == ("direct", True)
    assert api.ask("DELETE", "exchanges/%2F/plain").status == 204


def test_refused_exchanges(api: Api) -> None:
    for path, body, status in (
        ("exchanges/%2F/x", {"type": 1}, 400),
        ("exchanges/%2F/x", {"type": "sideways"}, 400),
        ("exchanges/%2F/amq.mine", {"type": "direct"}, 401),
    ):
        assert api.ask("PUT", path, body).status == status, (path, body)
    assert api.ask("DELETE", "exchanges/%2F/amq.topic").status == 401


def test_the_exchanges_of_a_virtual_host(api: Api, amqp: pika.BlockingConnection) -> None:
    amqp.channel()
    assert {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"} <= set(
        api.rows("exchanges/%2F")
    )
    assert api.row("exchanges/%2F/amq.default")["name"] == ""


@pytest.mark.parametrize("key", ["", "a.b", "a b/c~d+e", "ü"])
@pytest.mark.parametrize("arguments", [{}, {"x-match": "any", "n": 1}])
def test_a_binding_is_found_by_its_location(
    api: Api, key: str, arguments: dict[str, object]
) -> None:
    api.ask("PUT", "queues/%2F/bound", {})
    path = "bindings/%2F/e/amq.headers/q/bound"
    made = api.ask("POST", path, {"routing_key": key, "arguments": arguments})
    assert made.status == 201
    row = api.row(made.headers["Location"])
    assert (row["source"], row["destination"], row["destination_type"]) == (
        "amq.headers", "bound", "queue",
    )  # fmt: skip
    assert (row["routing_key"], row["arguments"]) == (key, arguments)
    if key in ("", "a.b") and not arguments:
        assert row["properties_key"] == (key or "~")
    if key == "a.b":  # a plain key does not stand for a binding with arguments
        assert api.ask("GET", f"{path}/a.b").status == (404 if arguments else 200)
    assert api.get(path) == [row]  # without the queue's binding to the default exchange
    assert api.ask("DELETE", f"{path}/{seg(str(row['properties_key']))}").status == 204
    assert api.ask("GET", made.headers["Location"]).status == 404
    api.ask("DELETE", "queues/%2F/bound")


def test_bindings_of_exchanges_and_queues(api: Api) -> None:
    api.ask("PUT", "exchanges/%2F/up", {"type": "fanout"})
    api.ask("PUT", "exchanges/%2F/down", {"type": "fanout"})
    api.ask("PUT", "queues/%2F/end", {})
    assert api.ask("POST", "bindings/%2F/e/up/e/down", {"routing_key": "k"}).status == 201
    assert api.ask("POST", "bindings/%2F/e/down/q/end").status == 201
    assert api.ask("POST", "bindings/%2F/e/none/q/end").status == 404
    by_default = ("", "end", "end")

    def ends(path: str) -> set[tuple[str, str, str]]:
        rows = api.get(path)
        assert isinstance(rows, list)
        return {(row["source"], row["destination"], row["properties_key"]) for row in rows}

    assert ends("queues/%2F/end/bindings") == {by_default, ("down", "end", "~")}
    assert ends("exchanges/%2F/up/bindings/source") == {("up", "down", "k")}
    assert ends("exchanges/%2F/down/bindings/destination") == {("up", "down", "k")}
    assert by_default in ends("exchanges/%2F/amq.default/bindings/source")
    assert ends("bindings") == ends("bindings/%2F") >= {("up", "down", "k"), by_default}
    assert api.ask("DELETE", "bindings/%2F/e/amq.default/q/end/end").status == 400
    assert api.ask("DELETE", "bindings/%2F/e/up/e/down/k").status == 204
    assert ends("exchanges/%2F/up/bindings/source") == set()
    for path in ("exchanges/%2F/up", "exchanges/%2F/down", "queues/%2F/end"):
        assert api.ask("DELETE", path).status == 204


def test_a_message_published_over_http_is_consumed_over_amqp(
    api: Api, amqp: pika.BlockingConnection
) -> None:
    api.ask("PUT", "queues/%2F/mail", {})
    message = {
        "properties": {"delivery_mode": 2, "headers": {"n": 1, "list": ["a", True]},
                       "content_type": "text/plain"},
        "routing_key": "mail", "payload": "grüße", "payload_encoding": "string",
    }  # fmt: skip
    answered = api.ask("POST", "exchanges/%2F/amq.default/publish", message)
    assert (answered.status, answered.body) == (200, {"routed": True})
    _, properties, body = amqp.channel().basic_get("mail", auto_ack=True)
    assert body == "grüße".encode()
    assert properties.headers == {"n": 1, "list": ["a", True]}
    assert (properties.delivery_mode, properties.content_type) == (2, "text/plain")
    lost = api.ask("POST", "exchanges/%2F/amq.default/publish", {**message, "routing_key": "no"})
    assert lost.body == {"routed": False}


def test_a_message_of_the_largest_size(api: Api, amqp: pika.BlockingConnection) -> None:
    api.ask("PUT", "queues/%2F/large", {})
    content = bytes(range(256)) * 4096 * 15
    message = {
        "properties": {}, "routing_key": "large", "payload_encoding": "base64",
        "payload": base64.b64encode(content).decode(),
    }  # fmt: skip
    answered = api.ask("POST", "exchanges/%2F/amq.default/publish", message)
    assert answered.body == {"routed": True}
    assert amqp.channel().basic_get("large", auto_ack=True)[2] == content


@pytest.mark.parametrize(
    "change",
    [{"payload": 1}, {"payload_encoding": "rot13"}, {"payload_encoding": "base64"},
     {"properties": {"priority": 256}}, {"properties": {"nonsense": "x"}}, {"properties": "x"},
     {"routing_key": "x" * 256}, {"routing_key": None}, {"properties": {"headers": 3}},
     {"properties": {"app_id": "x" * 256}}, {"properties": {"user_id": "somebody"}}],
)  # fmt: skip
def test_refused_messages(api: Api, change: dict[str, object]) -> None:
    message: dict[str, object] = {
        "properties": {}, "routing_key": "mail", "payload": "?", "payload_encoding": "string",
    }  # fmt: skip
    answered = api.ask("POST", "exchanges/%2F/amq.default/publish", {**message, **change})
    assert answered.status == 400


@pytest.mark.parametrize(
    ("mode", "left"),
    [("ack_requeue_true", 2), ("reject_requeue_true", 2), ("ack_requeue_false", 0),
     ("reject_requeue_false", 0)],
)  # fmt: skip
def test_fetched_messages_are_kept_or_removed(
    api: Api, amqp: pika.BlockingConnection, mode: str, left: int
) -> None:
    channel = amqp.channel()
    channel.queue_declare("looked-at", durable=True)
    channel.queue_purge("looked-at")
    channel.confirm_delivery()
    channel.basic_publish("", "looked-at", b"text", pika.BasicProperties(type="t"))
    channel.basic_publish("", "looked-at", b"\xff\x00")
    ask = {"count": 5, "ackmode": mode, "encoding": "auto", "truncate": 3}
    answered = api.ask("POST", "queues/%2F/looked-at/get", ask)
    assert answered.body == [
        {"payload": "tex", "payload_encoding": "string", "payload_bytes": 4, "redelivered": False,
         "exchange": "", "routing_key": "looked-at", "message_count": 1,
         "properties": {"type": "t"}},
        {"payload": "/wA=", "payload_encoding": "base64", "payload_bytes": 2,
         "redelivered": False, "exchange": "", "routing_key": "looked-at", "message_count": 0,
         "properties": {}},
    ]  # fmt: skip
    assert api.row("queues/%2F/looked-at")["messages"] == left


def test_refused_fetches(api: Api) -> None:
    api.ask("PUT", "queues/%2F/looked-at", {})
    good = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for change in ({"count": -1}, {"count": "x"}, {"ackmode": "x"}, {"encoding": "x"}):
        assert api.ask("POST", "queues/%2F/looked-at/get", {**good, **change}).status == 400


def test_the_member_moves_messages(api: Api) -> None:
    assert api.get("aliveness-test/%2F") == {"status": "ok"}
    assert api.ask("GET", "aliveness-test/none").status == 404
