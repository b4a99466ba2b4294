"""Policies over HTTP, and their effect on a queue that clients use."""

from __future__ import annotations

import pika
import pytest

from tests.system.management.http import Api
from tests.system.support.clusters import wait_until

pytestmark = pytest.mark.system


def test_a_policy_takes_effect_and_is_shown(api: Api, amqp: pika.BlockingConnection) -> None:
    """Beside hundreds of queues of other tests: a change reaches them in slices (G15)."""

    def in_force(*policies: str | None) -> None:
        def reached() -> bool:
            row = api.row("queues/%2F/limited")
            return (row["policy"], row["operator_policy"]) == policies

        wait_until(reached, 10, f"the policies {policies}")

    channel = amqp.channel()
    channel.queue_declare("limited", durable=True, arguments={"x-message-ttl": 60_000})
    channel.confirm_delivery()
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "limited", body)
    policy = {
        "pattern": "^(?!amq\\.)lim",
        "definition": {
            "max-length": 2,
            "message-ttl": 70_000,
            "ha-mode": "exactly",
            "ha-params": 2,
        },
        "priority": 1,
        "apply-to": "queues",
    }
    assert api.ask("PUT", "policies/%2F/short", policy).status == 201
    limit = {"pattern": "^limited$", "definition": {"max-length": 5}, "apply-to": "all"}
    assert api.ask("PUT", "operator-policies/%2F/cap", limit).status == 201
    in_force("short", "cap")
    row = api.row("queues/%2F/limited")
    assert (row["messages"], row["message_bytes_ready"]) == (2, 2)
    assert row["effective_policy_definition"] == {
        "max-length": 2, "message-ttl": 70_000, "ha-mode": "exactly", "ha-params": 2,
    }  # fmt: skip
    assert api.ask("POST", "queues/%2F/limited/actions", {"action": "sync"}).status == 204
    assert api.ask("DELETE", "policies/%2F/short").status == 204
    assert api.ask("DELETE", "operator-policies/%2F/cap").status == 204
    in_force(None, None)
    assert api.row("queues/%2F/limited")["effective_policy_definition"] == {}
    channel.queue_delete("limited")


def test_an_invalid_policy_is_refused(api: Api) -> None:
    policy = {"pattern": "^x", "definition": {"no-such": 1}}
    answered = api.ask("PUT", "policies/%2F/bad", policy)
    assert answered.status == 400
    assert answered.body == {
        "error": "bad_request",
        "reason": 'Validation failed\n\n[{<<"no-such">>,1}] are not recognised policy settings\n',
    }
    answered = api.ask("PUT", "policies/%2F/bad", {"pattern": "(", "definition": {"expires": 1}})
    assert answered.status == 400
    assert "invalid regular expression '('" in str(answered.body)
    assert api.ask("GET", "policies/%2F/bad").status == 404
