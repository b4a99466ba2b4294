"""Virtual hosts, users, permissions, policies, parameters and limits over HTTP."""

from __future__ import annotations

import pytest

from tests.system.management.http import Api, seg

pytestmark = pytest.mark.system


def test_a_virtual_host_comes_and_goes(api: Api) -> None:
    body = {"description": "of the shop", "tags": "accounts,production"}
    assert api.ask("PUT", "vhosts/shop", body).status == 201
    assert api.ask("PUT", "vhosts/shop").status == 204
    row = api.row("vhosts/shop")
    assert (row["name"], row["description"], row["tags"]) == (
        "shop", "of the shop", ["accounts", "production"],
    )  # fmt: skip
    assert {"/", "shop"} <= set(api.rows("vhosts"))
    assert "amq.topic" in api.rows("exchanges/shop")
    assert api.ask("DELETE", "vhosts/shop").status == 204
    assert api.ask("DELETE", "vhosts/shop").status == 404
    assert api.ask("GET", "vhosts/shop").status == 404


def test_a_user_comes_and_goes(api: Api) -> None:
    body = {"password": "secret", "tags": "monitoring"}
    assert api.ask("PUT", "users/ann", body).status == 201
    row = api.row("users/ann")
    assert (row["name"], row["tags"], row["limits"]) == ("ann", ["monitoring"], {})
    assert row["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert "secret" not in str(row)
    copied = {key: row[key] for key in ("password_hash", "hashing_algorithm", "tags")}
    assert api.ask("PUT", "users/ann", copied).status == 204
    assert api.row("users/ann") == row
    assert "ann" in {one["name"] for one in api.get("users/without-permissions")}  # type: ignore[attr-defined]
    assert api.ask("POST", "users/bulk-delete", {"users": ["ann", "nobody"]}).status == 204
    assert api.ask("GET", "users/ann").status == 404
    assert api.ask("DELETE", "users/ann").status == 404


def test_users_that_are_refused(api: Api) -> None:
    for body in (
        {}, {"password": "x"}, {"tags": 1}, {"tags": "", "password": 1},
        {"tags": "", "password_hash": "!"}, {"tags": "", "hashing_algorithm": "rot13"},
    ):  # fmt: skip
        assert api.ask("PUT", "users/never", body).status == 400, body
    assert api.ask("POST", "users/bulk-delete", {"users": "x"}).status == 400
    assert api.ask("GET", "users/never").status == 404


def test_permissions_of_a_user(api: Api) -> None:
    everything = {"configure": ".*", "write": "^a", "read": ""}
    assert api.ask("PUT", "permissions/%2F/bob", everything).status == 404  # no such user
    api.ask("PUT", "users/bob", {"password": "x", "tags": ""})
    assert api.ask("PUT", "permissions/%2F/bob", {**everything, "write": "("}).status == 400
    assert api.ask("PUT", "permissions/%2F/bob", {"read": ""}).status == 400
    assert api.ask("PUT", "permissions/%2F/bob", everything).status == 201
    row = {"user": "bob", "vhost": "/", **everything}
    assert api.row("permissions/%2F/bob") == row
    for path in ("permissions", "users/bob/permissions", "vhosts/%2F/permissions"):
        rows = api.get(path)
        assert isinstance(rows, list)
        assert row in rows
    assert api.get("users/bob/permissions") == [row]
    assert api.ask("PUT", "permissions/nowhere/bob", everything).status == 404
    topic = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    assert api.ask("PUT", "topic-permissions/%2F/bob", topic).status == 201
    assert api.get("topic-permissions/%2F/bob") == [{"user": "bob", "vhost": "/", **topic}]
    assert api.ask("DELETE", "topic-permissions/%2F/bob").status == 204
    assert api.ask("DELETE", "permissions/%2F/bob").status == 204
    assert api.ask("DELETE", "permissions/%2F/bob").status == 404
    assert api.ask("DELETE", "users/bob").status == 204


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_comes_and_goes(api: Api, kind: str) -> None:
    path = f"{kind}/%2F/{seg('a/b')}"
    body = {"pattern": "^short", "definition": {"max-length": 5}, "apply-to": "queues"}
    assert api.ask("PUT", path, body).status == 201
    row = {"vhost": "/", "name": "a/b", "priority": 0, **body}
    assert api.row(path) == row
    assert api.get(f"{kind}/%2F") == api.get(kind) == [row]
    assert api.ask("PUT", path, {**body, "pattern": "("}).status == 400
    assert api.ask("PUT", path, {"pattern": "x"}).status == 400
    assert api.ask("DELETE", path).status == 204
    assert api.ask("GET", path).status == 404


def test_parameters(api: Api) -> None:
    path = "parameters/mine/%2F/limit"
    assert api.ask("PUT", path, {"value": {"n": [1, 2]}}).status == 201
    row = {"vhost": "/", "component": "mine", "name": "limit", "value": {"n": [1, 2]}}
    assert api.row(path) == row
    assert api.get("parameters/mine") == api.get("parameters/mine/%2F") == [row]
    assert api.get("parameters/others") == []
    assert api.ask("PUT", path, {}).status == 400
    assert api.ask("DELETE", path).status == 204
    assert api.ask("PUT", "global-parameters/mine", {"value": "x"}).status == 201
    assert api.row("global-parameters/mine") == {"name": "mine", "value": "x"}
    assert "mine" in api.rows("global-parameters")
    assert api.ask("DELETE", "global-parameters/mine").status == 204


def test_limits(api: Api) -> None:
    for path, names, row in (
        ("vhost-limits/%2F", ("max-connections", "max-queues"), {"vhost": "/"}),
        ("user-limits/guest", ("max-connections", "max-channels"), {"user": "guest"}),
    ):
        assert api.get(path) == []
        for number, name in enumerate(names):
            assert api.ask("PUT", f"{path}/{name}", {"value": 100 + number}).status == 204
        value = {names[0]: 100, names[1]: 101}
        assert api.get(path) == [{**row, "value": value}]
        assert api.ask("PUT", f"{path}/max-nonsense", {"value": 1}).status == 400
        assert api.ask("PUT", f"{path}/{names[0]}", {"value": "x"}).status == 400
        for name in names:
            assert api.ask("DELETE", f"{path}/{name}").status == 204
        assert api.ask("DELETE", f"{path}/{names[0]}").status == 404
        assert api.get(path) == []
