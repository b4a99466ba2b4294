"""Queues over HTTP: those declared there exist for AMQP, and the other way round."""

from __future__ import annotations

import pika
import pytest

from tests.system.management.http import Api, seg
from tests.system.support.clusters import wait_until

pytestmark = pytest.mark.system

HOSTILE = ["a/b", "../..", "..", "%2F", "<script>alert(1)</script>", "ä ö", "a?b#c", "x" * 255]


def test_whoami(api: Api) -> None:
    assert api.get("whoami") == {"name": "guest", "tags": ["administrator"]}


def test_a_queue_declared_over_http_exists_for_amqp(
    api: Api, amqp: pika.BlockingConnection
) -> None:
    assert api.ask("PUT", "queues/%2F/made-here", {"durable": True}).status == 201
    assert api.ask("PUT", "queues/%2F/made-here", {"durable": True}).status == 204
    found = amqp.channel().queue_declare("made-here", passive=True)
    assert found.method.message_count == 0


def test_a_deduplicating_queue_reports_keys_and_repeats(
    api: Api, amqp: pika.BlockingConnection
) -> None:
    once = {"x-message-deduplication": True, "x-cache-size": 100}
    body = {"durable": True, "arguments": once}
    assert api.ask("PUT", "queues/%2F/once", body).status == 201
    channel = amqp.channel()
    channel.confirm_delivery()
    for key in ("one", "two", "one"):
        known_as = pika.BasicProperties(message_id=key)
        channel.basic_publish("", "once", b"m", known_as, mandatory=True)
    row = api.row("queues/%2F/once")
    assert (row["deduplication_keys"], row["deduplicated"]) == (2, 1)
    assert row["arguments"] == once
    assert channel.queue_declare("once", passive=True).method.message_count == 2
    assert "deduplication_keys" not in api.row("queues/%2F/made-here")


def test_a_last_value_queue_reports_replaced_messages(
    api: Api, amqp: pika.BlockingConnection
) -> None:
    body = {"durable": True, "arguments": {"qpid.last_value_queue": 1}}
    assert api.ask("PUT", "queues/%2F/prices", body).status == 201
    channel = amqp.channel()
    channel.confirm_delivery()
    for key in ("one", "two", "one"):
        ticker = pika.BasicProperties(headers={"qpid.LVQ_key": key})
        channel.basic_publish("", "prices", b"m", ticker, mandatory=True)
    row = api.row("queues/%2F/prices")
    assert row["arguments"] == {"qpid.last_value_queue_key": "qpid.LVQ_key"}
    assert row["replaced"] == 1
    assert channel.queue_declare("prices", passive=True).method.message_count == 2


def test_a_contradictory_declaration_is_refused_as_over_amqp(api: Api) -> None:
    api.ask("PUT", "queues/%2F/kept", {"durable": True})
    answered = api.ask("PUT", "queues/%2F/kept", {"durable": False})
    assert answered.status == 400
    assert answered.body == {
        "error": "bad_request",
        "reason": "inequivalent arg 'durable' for queue 'kept' in vhost '/': received 'false' but "
        "current is 'true'",
    }
    assert api.row("queues/%2F/kept")["durable"] is True


def test_counts_equal_those_of_amqp(api: Api, amqp: pika.BlockingConnection) -> None:
    channel = amqp.channel()
    channel.queue_declare("counted", durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "counted", b"x")
    channel.basic_get("counted")
    row = api.row("queues/%2F/counted")
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (3, 2, 1)
    channel.close()
    assert api.ask("DELETE", "queues/%2F/counted/contents").status == 204
    assert api.row("queues/%2F/counted")["messages"] == 0


def test_samples_stand_beside_the_rates(api: Api, amqp: pika.BlockingConnection) -> None:
    """For each kind of object, through the real sweep; their values: tests/unit/statistics."""
    channel = amqp.channel()
    channel.confirm_delivery()
    channel.queue_declare("sampled", durable=True)
    channel.basic_publish("", "sampled", b"x")
    span = "&".join(
        f"{name}_{what}" for name in ("lengths", "msg_rates", "data_rates", "node_stats")
        for what in ("age=60", "incr=1")
    )  # fmt: skip
    (connection,) = api.rows("vhosts/%2F/connections")
    (node,) = api.rows("nodes")
    shown = {
        f"queues/%2F/sampled?{span}": "messages_details",
        f"vhosts/%2F?{span}": "messages_ready_details",
        f"exchanges/%2F/amq.default?{span}": "message_stats.publish_in_details",
        f"connections/{seg(connection)}?{span}": "recv_oct_details",
        f"channels/{seg(connection + ' (1)')}?{span}": "message_stats.confirm_details",
        f"nodes/{seg(node)}?{span}": "mem_used_details",
        f"overview?{span}": "message_stats.publish_details",
    }

    def lacking() -> list[str]:
        return [
            path for path, keys in shown.items()
            if not _at(api.row(path), [*keys.split("."), "samples"])
        ]  # fmt: skip

    wait_until(lambda: not lacking(), 20, "samples of everything")
    rows = api.rows(f"queues?{span}")
    assert "samples" not in str(rows["sampled"])
    for path in shown:
        answered = api.ask("GET", path.replace("lengths_incr=1", "lengths_incr=soon"))
        reason = "lengths_incr is not a whole number from 1 to 31536000"
        assert answered.status == 400, path
        assert answered.body == {"error": "bad_request", "reason": reason}


def _at(found: object, keys: list[str]) -> object:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def test_unknown_names_are_not_found(api: Api) -> None:
    for method, path in (
        ("GET", "queues/%2F/none"), ("DELETE", "queues/%2F/none"),
        ("DELETE", "queues/%2F/none/contents"), ("GET", "queues/nowhere"),
        ("PUT", "queues/nowhere/q"), ("GET", "no/such/path"),
    ):  # fmt: skip
        answered = api.ask(method, path, {} if method == "PUT" else None)
        assert answered.status == 404, (path, answered)
        assert answered.body == {"error": "Object Not Found", "reason": "Not Found"}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_one_name(api: Api, name: str) -> None:
    path = f"queues/%2F/{seg(name).replace('.', '%2E')}"
    assert api.ask("PUT", path, {}).status == 201
    assert api.row(path)["name"] == name
    assert name in api.rows("queues/%2F")
    assert api.ask("DELETE", path).status == 204
    assert api.ask("GET", path).status == 404


def test_conditions_of_a_delete(api: Api, amqp: pika.BlockingConnection) -> None:
    channel = amqp.channel()
    channel.queue_declare("filled", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "filled", b"x")
    answered = api.ask("DELETE", "queues/%2F/filled?if-empty=true")
    assert answered.status == 400
    assert answered.body == {
        "error": "bad_request", "reason": "queue 'filled' in vhost '/' not empty"
    }  # fmt: skip
    assert api.ask("DELETE", "queues/%2F/filled?if-unused=true").status == 204
    channel.queue_declare("used")
    channel.basic_consume("used", lambda *_: None)
    answered = api.ask("DELETE", "queues/%2F/used?if-unused=true")
    assert answered.status == 400
    assert answered.body == {
        "error": "bad_request", "reason": "queue 'used' in vhost '/' in use"
    }  # fmt: skip
    assert api.ask("DELETE", "queues/%2F/used?if-empty=true").status == 204
    channel.queue_declare("bound", exclusive=True)
    channel.exchange_declare("source")
    channel.queue_bind("bound", "source", "k")
    assert api.ask("DELETE", "exchanges/%2F/source?if-unused=true").status == 400
    assert api.ask("DELETE", "exchanges/%2F/source").status == 204
