"""Virtual hosts, users, permissions, policies, parameters and limits over HTTP."""

from __future__ import annotations

import pytest

from tests.system.management.http import Api, seg

pytestmark = pytest.mark.system


def test_a_virtual_host_is_created_and_deleted(api: Api) -> None:
    body = {"description": "of the shop", "tags": "accounts,production"}
    assert api.ask("PUT", "vhosts/shop", body).status == 201
    assert api.ask("PUT", "vhosts/shop").status == 204
    row = api.row("vhosts/shop")
    assert (row["name"], row["description"], row["tags"]) == (
        "shop", "of the shop", ["accounts", "production"],
    )  # fmt: skip
    assert {"/", "shop"} <= set(api.rows("vhosts"))
    assert "amq.topic" in api.rows("exchanges/shop")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.get("vhosts/shop/permissions") == [{"user": "guest", "vhost": "shop", **everything}]
    assert api.ask("DELETE", "permissions/shop/guest").status == 204
    assert api.ask("PUT", "vhosts/shop", body).status == 204
    assert api.get("vhosts/shop/permissions") == [], "only who makes it may enter it at once"
    assert api.ask("DELETE", "vhosts/shop").status == 204
    assert api.ask("DELETE", "vhosts/shop").status == 404
    assert api.ask("GET", "vhosts/shop").status == 404


def test_a_user_is_created_and_deleted(api: Api) -> None:
    body = {"password": "secret", "tags": "monitoring"}
    assert api.ask("PUT", "users/ann", body).status == 201
    row = api.row("users/ann")
    assert (row["name"], row["tags"], row["limits"]) == ("ann", ["monitoring"], {})
    assert row["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert "secret" not in str(row)
    copied = {key: row[key] for key in ("password_hash", "hashing_algorithm", "tags")}
    assert api.ask("PUT", "users/ann", copied).status == 204
    assert api.row("users/ann") == row
    without = {one["name"] for one in api.get("users/without-permissions")}  # type: ignore[attr-defined]
    assert "ann" in without
    assert "guest" not in without
    assert api.ask("POST", "users/bulk-delete", {"users": ["ann", "nobody"]}).status == 204
    assert api.ask("GET", "users/ann").status == 404
    assert api.ask("DELETE", "users/ann").status == 404


def test_refused_users(api: Api) -> None:
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
    more = {"exchange": "more", "write": "", "read": "b"}
    assert api.ask("PUT", "topic-permissions/%2F/bob", more).status == 204
    one = "topic-permissions/%2F/bob/amq.topic"
    assert api.get(one) == [{"user": "bob", "vhost": "/", **topic}]
    assert [api.ask("DELETE", one).status for _ in range(2)] == [204, 404]
    assert api.get("topic-permissions/%2F/bob") == [{"user": "bob", "vhost": "/", **more}]
    assert api.ask("DELETE", "topic-permissions/%2F/bob").status == 204
    assert api.ask("GET", "topic-permissions/%2F/bob").status == 404
    assert api.ask("DELETE", "permissions/%2F/bob").status == 204
    assert api.ask("DELETE", "permissions/%2F/bob").status == 404
    assert api.ask("DELETE", "users/bob").status == 204


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_is_created_and_deleted(api: Api, kind: str) -> None:
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
        assert api.ask("DELETE", f"{path}/{names[0]}").status == 204, "as in RabbitMQ"
        assert api.ask("DELETE", f"{path}/max-nonsense").status == 400
        assert api.get(path) == []
    for path in ("vhost-limits/none/max-queues", "user-limits/none/max-channels"):
        assert api.ask("DELETE", path).status == 404


DOCUMENT: dict[str, list[dict[str, object]]] = {
    "vhosts": [{"name": "moved", "description": "elsewhere"}],
    "users": [
        {"name": "carol", "tags": ["monitoring"], "limits": {"max-channels": 9},
         "hashing_algorithm": "rabbit_password_hashing_sha256",
         "password_hash": "cXBpZJ873THijXLl//7s2zQUmXWlRQNBOFnwiWGMiI7mScqS"},
    ],
    "permissions": [
        {"user": "carol", "vhost": "moved", "configure": "", "write": "", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "carol", "vhost": "moved", "exchange": "news", "write": "", "read": ".*"}
    ],
    "parameters": [
        {"vhost": "moved", "component": "vhost-limits", "name": "limits",
         "value": {"max-queues": 99}},
        {"vhost": "moved", "component": "operator_policy", "name": "bound",
         "value": {"pattern": ".*", "definition": {"max-length": 1000}, "priority": 0,
                   "apply-to": "queues"}},
        {"vhost": "moved", "component": "mine", "name": "p", "value": [1]},
    ],
    "global_parameters": [{"name": "cluster_note", "value": "x"}],
    "policies": [
        {"vhost": "moved", "name": "short", "pattern": "^s", "definition": {"max-length": 10},
         "priority": 1, "apply-to": "queues"},
    ],
    "queues": [
        {"name": f"q{number}", "vhost": "moved", "durable": True, "auto_delete": False,
         "arguments": {"x-max-priority": 3} if number else {}}
        for number in range(90)
    ],
    "exchanges": [
        {"name": "news", "vhost": "moved", "type": "topic", "durable": True,
         "auto_delete": False, "internal": False, "arguments": {}},
    ],
    "bindings": [
        {"source": "news", "vhost": "moved", "destination": "q1", "destination_type": "queue",
         "routing_key": "a.#", "arguments": {}},
        {"source": "news", "vhost": "moved", "destination": "amq.fanout",
         "destination_type": "exchange", "routing_key": "b", "arguments": {"n": 1}},
    ],
}  # fmt: skip


def test_all_definitions_are_imported_and_exported(api: Api) -> None:
    assert api.ask("POST", "definitions", DOCUMENT).status == 204
    exported = api.row("definitions")
    for kind, rows in DOCUMENT.items():
        found = exported[kind]
        assert isinstance(found, list)
        for row in rows:
            assert any(row.items() <= one.items() for one in found), (kind, row)
    assert api.ask("POST", "definitions", exported).status == 204  # nothing is new
    assert api.row("definitions") == exported
    carol = Api(api.address, "carol", "guest")
    assert set(carol.rows("queues/moved")) == {f"q{number}" for number in range(90)}
    inside = api.row("definitions/moved")
    assert "users" not in inside
    assert len(inside["queues"]) == 90  # type: ignore[arg-type]
    assert api.ask("DELETE", "vhosts/moved").status == 204
    assert api.ask("PUT", "vhosts/moved").status == 201
    assert api.ask("POST", "definitions/moved", inside).status == 204
    assert api.row("definitions/moved") == inside
    for method in ("GET", "POST"):
        assert api.ask(method, "definitions/nowhere", {}).status == 404
    for path in ("vhosts/moved", "users/carol", "global-parameters/cluster_note"):
        assert api.ask("DELETE", path).status == 204
    again = api.ask("PUT", "vhosts/moved")  # otherwise its text reports the rest of the old one
    assert again.status == 201, again
    assert api.ask("DELETE", "vhosts/moved").status == 204


def test_a_virtual_host_has_a_default_queue_type(api: Api) -> None:
    """As RabbitMQ's documents do, some of them only in the metadata."""
    queues: list[object] = [
        {"name": "old", "vhost": "typed", "type": "classic", "arguments": {}},
        {"name": "new", "vhost": "typed"},
    ]
    metadata = {"default_queue_type": "quorum", "tags": ["eu"]}
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "vhosts": [{"name": "typed", "metadata": metadata}], "queues": queues,
        "permissions": [{"user": "guest", "vhost": "typed", **everything}],
    }  # fmt: skip
    assert api.ask("POST", "definitions", document).status == 204
    row = api.row("vhosts/typed")
    assert (row["default_queue_type"], row["tags"]) == ("quorum", ["eu"])
    assert api.ask("PUT", "queues/typed/q", {"durable": True}).status == 201
    assert api.ask("PUT", "queues/typed/gone", {"auto_delete": True}).status == 201
    kinds = {name: one["type"] for name, one in api.rows("queues/typed").items()}
    assert kinds == {"old": "classic", "new": "quorum", "q": "quorum", "gone": "classic"}
    exported = api.row("definitions")
    assert api.ask("POST", "definitions", exported).status == 204
    assert api.row("definitions") == exported
    assert api.ask("PUT", "vhosts/typed", {"default_queue_type": "undefined"}).status == 204
    assert api.row("vhosts/typed")["default_queue_type"] == "classic"
    refused = api.ask("PUT", "vhosts/typed", {"default_queue_type": "delayed"})
    assert (refused.status, refused.body) == (400, {
        "error": "bad_request",
        "reason": "default_queue_type 'delayed' is none of classic, quorum, stream",
    })  # fmt: skip
    assert api.ask("DELETE", "vhosts/typed").status == 204


def test_a_documents_queues_are_declared_before_its_shovels_run(api: Api) -> None:
    """A shovel that ran first would declare its queue without arguments, and these would remain."""
    shovel = {"src-uri": "amqp:///tools", "src-queue": "from", "dest-uri": "amqp:///tools",
              "dest-queue": "to"}  # fmt: skip
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "vhosts": [{"name": "tools"}],
        "permissions": [{"user": "guest", "vhost": "tools", **everything}],
        "parameters": [
            {"vhost": "tools", "component": "shovel", "name": "first", "value": shovel},
        ],
        "queues": [
            {"name": name, "vhost": "tools", "arguments": {"x-max-priority": 5}}
            for name in ("from", "to")
        ],
    }  # fmt: skip
    assert api.ask("POST", "definitions", document).status == 204
    queues = api.rows("queues/tools")
    for name in ("from", "to"):
        assert queues[name]["arguments"] == {"x-max-priority": 5}
    assert api.row("parameters/shovel/tools/first")["value"] == shovel
    # A shovel that cannot run is reported after all else is loaded.
    broken = {"vhost": "tools", "component": "shovel", "name": "second",
              "value": {**shovel, "src-protocol": "amqp10"}}  # fmt: skip
    more = {"parameters": [broken], "queues": [{"name": "later", "vhost": "tools"}]}
    refused = api.ask("POST", "definitions", more)
    assert refused.status == 400
    assert "parameters[0]" in str(refused.body)
    assert "later" in api.rows("queues/tools")
    assert api.ask("DELETE", "vhosts/tools").status == 204


def test_rabbitmqs_federation_queues_are_not_imported(api: Api) -> None:
    """The links declare their queues and exchanges again; the exchanges are in no document."""
    link = "federation: events -> far"
    document = {
        "vhosts": [{"name": "up"}],
        "permissions": [
            {"user": "guest", "vhost": "up", "configure": ".*", "write": ".*", "read": ".*"}
        ],
        "exchanges": [{"name": "events", "vhost": "up", "type": "topic"}],
        "queues": [
            {"name": link, "vhost": "up", "arguments": {"x-internal-purpose": "federation"}},
            {"name": "federation: mine", "vhost": "up"},
        ],
        "bindings": [
            {"source": "events", "vhost": "up", "destination": f"{link} A",
             "destination_type": "exchange", "routing_key": "#"},
            {"source": f"{link} A", "vhost": "up", "destination": link,
             "destination_type": "queue", "routing_key": ""},
            {"source": "events", "vhost": "up", "destination": "federation: mine",
             "destination_type": "queue", "routing_key": "a"},
        ],
    }  # fmt: skip
    assert api.ask("POST", "definitions", document).status == 204
    assert set(api.rows("queues/up")) == {"federation: mine"}
    bindings = api.row("definitions/up")["bindings"]
    assert [one["destination"] for one in bindings] == ["federation: mine"]  # type: ignore[attr-defined]
    assert api.ask("DELETE", "vhosts/up").status == 204


def test_an_operator_policy_as_rabbitmqctl_writes_it(api: Api) -> None:
    """RabbitMQ 3.10's command line writes its definition as pairs, which it cannot read itself."""
    value = {"pattern": "^capped", "priority": 0, "apply-to": "queues"}

    def document(definition: object) -> dict[str, object]:
        row = {"vhost": "/", "component": "operator_policy", "name": "cap",
               "value": {**value, "definition": definition}}  # fmt: skip
        return {"parameters": [row]}

    meant = {"expires": 864000, "max-length": 10}
    for definition in ([[name, number] for name, number in meant.items()], meant):
        assert api.ask("POST", "definitions", document(definition)).status == 204
        assert api.row("operator-policies/%2F/cap")["definition"] == meant
        assert api.ask("DELETE", "operator-policies/%2F/cap").status == 204
    refused = api.ask("POST", "definitions", document([["expires"]]))
    assert refused.status == 400
    assert "definition must be a dictionary" in str(refused.body)


def test_what_is_refused_keeps_nothing_else_from_being_defined(api: Api) -> None:
    """And all of it is told at once: whoever moves from RabbitMQ corrects the document once."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    queues: list[object] = [{"name": f"q{n}", "vhost": "part"} for n in range(150)]
    queues[3] = {"name": "q3", "vhost": "part", "arguments": {"x-max-length": "x"}}
    queues[4] = {"name": "q4", "vhost": "nowhere"}
    queues[5] = "q5"
    queues[149] = {"name": "q149", "vhost": "part", "arguments": {"x-queue-type": "other"}}
    document = {
        "vhosts": [{"name": "part"}],
        "permissions": [{"user": "guest", "vhost": "part", **everything}],
        "users": [{"name": "u", "tags": 1}, {"name": "ada", "tags": "", "password": "x"}],
        "parameters": ["none", {"vhost": "part", "component": "shovel", "name": "s",
                                "value": {"src-protocol": "amqp10"}}],
        "policies": [
            {"vhost": "part", "name": "bad", "pattern": "(", "definition": {}},
            {"vhost": "part", "name": "good", "pattern": "q", "definition": {"max-length": 9}},
        ],
        "exchanges": {},
        "queues": queues,
        "bindings": [
            {"source": "none", "vhost": "part", "destination": "q0"},
            {"source": "amq.topic", "vhost": "part", "destination": "q0", "routing_key": "a"},
        ],
    }  # fmt: skip
    answered = api.ask("POST", "definitions", document)
    assert answered.status == 400
    assert isinstance(answered.body, dict)
    refused = answered.body["refused"]
    assert [one.partition(": ")[0] for one in refused] == [
        "users[0]", "parameters[0]", "policies[0]", "exchanges", "queues[4]", "queues[5]",
        "queues[3]", "queues[149]", "bindings[0]", "parameters[1]",
    ]  # fmt: skip
    assert "there is no vhost 'nowhere'" in refused[4]
    head, *lines = answered.body["reason"].split("\n")
    assert head == "10 entries are refused, everything else is defined:"
    assert lines == refused
    missing = {f"q{n}" for n in range(150)} - set(api.rows("queues/part"))
    assert missing == {"q3", "q4", "q5", "q149"}
    assert "ada" in api.rows("users")
    assert set(api.rows("policies/part")) == {"good"}
    assert api.row("definitions/part")["bindings"] != []
    for path in ("vhosts/part", "users/ada"):
        assert api.ask("DELETE", path).status == 204


def test_refused_documents_are_answered_with_the_place(api: Api) -> None:
    for document, named in (
        ({"queues": {}}, "queues"),
        ({"queues": [{"name": "x", "vhost": "nowhere"}]}, "queues[0]: there is no vhost 'nowhere'"),
        ({"queues": [{"name": "there"}, 1]}, "queues[1]: is not an object"),
        ({"policies": [{"name": "p"}]}, "policies[0]"),
        ({"queues": [{"name": "x", "arguments": {"x-max-length": "x"}}]}, "queue 'x'"),
        ({"users": [{"name": "u", "tags": 1}]}, "user 'u'"),
        ({"policies": [{"name": "p", "pattern": "(", "definition": {}}]}, "policy 'p'"),
        ({"bindings": [{"source": "none", "destination": "q"}]}, "binding of 'none'"),
    ):
        answered = api.ask("POST", "definitions", document)
        assert answered.status in (400, 404), (document, answered)
        assert isinstance(answered.body, dict)
        assert named in answered.body["reason"]
