"""What users who are not administrators may see and do over HTTP, at a broker.

tests/unit/management/test_permission_matrix.py has all cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pika
import pytest

from tests.system.management.http import Api

pytestmark = pytest.mark.system

TAGS = ("administrator", "monitoring", "policymaker", "management", "")


@pytest.fixture(scope="module")
def users(broker: object) -> Iterator[dict[str, Api]]:
    """A user for each tag, who may read names that begin with `r` in their own virtual host."""
    api = Api(broker[0].management)  # type: ignore[index]
    api.ask("PUT", "vhosts/theirs")
    api.ask("PUT", "vhosts/others")
    for name in ("readable", "closed"):  # the creator of a virtual host has all permissions in it
        assert api.ask("PUT", f"queues/theirs/{name}", {}).status == 201
    api.ask("DELETE", "permissions/theirs/guest")
    assert api.ask("DELETE", "queues/theirs/readable").status == 401
    found = {}
    for tag in TAGS:
        name = f"user-{tag}"
        api.ask("PUT", f"users/{name}", {"password": "pw", "tags": tag})
        permission = {"configure": "^mine", "write": "^mine", "read": "^r"}
        api.ask("PUT", f"permissions/theirs/{name}", permission)
        found[tag] = Api(api.address, name, "pw")
    yield found
    for tag in TAGS:
        api.ask("DELETE", f"users/user-{tag}")
    api.ask("DELETE", "vhosts/theirs")
    api.ask("DELETE", "vhosts/others")


def test_changes_need_the_permissions_of_amqp(users: dict[str, Api]) -> None:
    api = users["management"]
    assert api.ask("PUT", "queues/theirs/mine-1", {}).status == 201
    for method, path, body in (
        ("PUT", "queues/theirs/yours", {}),
        ("DELETE", "queues/theirs/closed", None),
        ("DELETE", "queues/theirs/closed/contents", None),
        ("PUT", "exchanges/theirs/yours", {"type": "fanout"}),
        ("POST", "bindings/theirs/e/amq.topic/q/closed", {}),
        ("POST", "queues/theirs/closed/get",
         {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
        ("POST", "exchanges/theirs/amq.default/publish",
         {"routing_key": "x", "payload": "", "payload_encoding": "string", "properties": {}}),
        ("PUT", "queues/others/mine-1", {}),
        ("GET", "queues/others", None),
        ("PUT", "vhosts/new", {}),
        ("PUT", "users/new", {"tags": ""}),
        ("PUT", "permissions/theirs/user-management", {"configure": "", "write": "", "read": ""}),
        ("PUT", "policies/theirs/p", {"pattern": "", "definition": {"max-length": 1}}),
        ("PUT", "vhost-limits/theirs/max-queues", {"value": 1}),
        ("POST", "definitions", {}),
        ("DELETE", "qpid/members/x", None),
    ):  # fmt: skip
        answered = api.ask(method, path, body)
        assert answered.status == 401, (method, path, answered)
        assert isinstance(answered.body, dict)
        assert answered.body["error"] == "not_authorised"
    assert "readable" in api.rows("queues")
    assert set(api.rows("vhosts")) == {"theirs"}
    assert set(users["monitoring"].rows("vhosts")) >= {"/", "theirs", "others"}


def test_a_policymaker_sets_policies_in_its_virtual_hosts(users: dict[str, Api]) -> None:
    api = users["policymaker"]
    policy = {"pattern": "^x", "definition": {"max-length": 1}}
    assert api.ask("PUT", "policies/theirs/p", policy).status == 201
    assert api.ask("PUT", "policies/others/p", policy).status == 401
    assert api.ask("PUT", "operator-policies/theirs/p", policy).status == 401
    assert api.ask("DELETE", "policies/theirs/p").status == 204


def test_only_administrators_and_its_user_may_close_a_connection(
    users: dict[str, Api], amqp: pika.BlockingConnection
) -> None:
    """A monitoring user sees all of them."""
    admin = Api(users["monitoring"].address)
    amqp.channel()
    (name,) = admin.rows("connections")
    path = quote(name, safe="")
    monitoring = users["monitoring"]
    assert monitoring.ask("GET", f"connections/{path}").status == 200
    assert monitoring.ask("DELETE", f"connections/{path}").status == 401
    assert monitoring.ask("DELETE", "connections/username/guest").status == 401
    amqp.process_data_events(0)
    assert amqp.is_open
    assert users["management"].ask("DELETE", f"connections/{path}").status == 404


def test_a_policymaker_cannot_set_limits_or_operator_policies(users: dict[str, Api]) -> None:
    """As parameters they would become real ones when definitions are exported and imported."""
    api = users["policymaker"]
    for component in ("vhost-limits", "operator_policy", "policy"):
        path = f"parameters/{component}/theirs/limits"
        answered = api.ask("PUT", path, {"value": {"max-connections": 0}})
        assert answered.status == 400, component
    assert api.ask("PUT", "parameters/own/theirs/x", {"value": {"a": 1}}).status == 201
    assert api.ask("DELETE", "parameters/own/theirs/x").status == 204


def test_a_user_without_monitoring_sees_counts_of_own_connections(
    users: dict[str, Api], amqp: pika.BlockingConnection
) -> None:
    amqp.channel()
    seen = {
        tag: users[tag].row("overview")["object_totals"] for tag in ("monitoring", "management")
    }
    assert seen["monitoring"]["connections"] >= 1  # type: ignore[index]
    for what in ("connections", "channels", "consumers"):
        assert seen["management"][what] == 0  # type: ignore[index]
