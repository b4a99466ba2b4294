"""How qpid-route reads brokers, and what it makes of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click
import pytest

from broker.machine.policies.pattern import compiled
from broker.shovels.amqp_uri import parse_uri
from tools.client.broker_url import Address
from tools.client.http_api import Api, Json
from tools.operate.routes import Routes, exactly, peer_of


@pytest.mark.parametrize(
    ("text", "name", "uri"),
    [
        ("far", "far:5672", "amqp://far:5672"),
        ("link/se@cret@far:7", "far:7", "amqp://link:se%40cret@far:7"),
        ("amqps://u:p%2F@far/shop?cacertfile=/a", "far:5671/shop",
         "amqps://u:p%2F@far:5671/shop?cacertfile=/a"),
        ("amqp://far/%2F", "far:5672", "amqp://far:5672/%2F"),
    ],
)  # fmt: skip
def test_a_peer_may_be_written_as_in_qpid_or_as_a_uri(text: str, name: str, uri: str) -> None:
    peer = peer_of(text, tls=False, mechanism="")
    assert (peer.name, peer.uri) == (name, uri)
    parse_uri(peer.uri)  # the broker accepts it


def test_transport_and_mechanism_become_parts_of_the_uri() -> None:
    assert peer_of("far", tls=True, mechanism="").uri == "amqps://far:5671"
    peer = peer_of("amqps://far?certfile=/c", tls=False, mechanism="auth_mechanism=external")
    assert peer.uri == "amqps://far:5671?certfile=/c&auth_mechanism=external"


def test_an_invalid_peer_is_reported_without_its_password() -> None:
    with pytest.raises(click.UsageError) as bad:
        peer_of("me/sesame@far:port", tls=False, mechanism="")
    assert "sesame" not in str(bad.value)


@pytest.mark.parametrize("name", ["a.b", "x+y(z)", "with space", "a|b", "[1]{2}^$", "ü\\"])
def test_a_policy_applies_to_one_exchange_only(name: str) -> None:
    pattern = compiled(exactly(name))
    assert pattern.matches(name)
    assert not pattern.matches(name.replace(name[1], "q", 1))


class Defining(Api):
    """An API that stores definitions, and lists them without passwords."""

    def __init__(self) -> None:
        super().__init__(Address("near", 15672), "guest", "guest")
        self.defined: dict[tuple[str, ...], Json] = {}

    def rows(self, *names: str, **_: object) -> list[dict[str, Json]]:
        return [
            {"name": key[3], "value": body["value"]}
            for key, body in self.defined.items()
            if key[:2] == names[:2] and isinstance(body, dict)
        ]

    def fields(self, *_: str, **__: object) -> dict[str, Json]:
        return {}

    def put(self, *names: str, body: Mapping[str, Json] | None = None, **_: object) -> Json:
        self.defined[names] = dict(body or {})
        return None

    def post(self, *names: str, body: Mapping[str, Json] | None = None) -> Json:
        return self.put(*names, body=body)


def test_a_route_to_a_known_peer_keeps_its_login_by_default() -> None:
    api = Defining()
    routes = Routes(api, "/")
    link = "parameters", "federation-upstream", "/", "qpid-route far:5672"
    routes.add_link(peer_of("link/secret@far", tls=False, mechanism=""))
    routes.add_dynamic(peer_of("far", tls=False, mechanism=""), "news")
    assert api.defined[link] == {"value": {"uri": "amqp://link:secret@far:5672"}}
    routes.add_dynamic(peer_of("link/other@far", tls=False, mechanism=""), "logs")
    assert api.defined[link] == {"value": {"uri": "amqp://link:other@far:5672"}}
    routes.add_dynamic(peer_of("new", tls=False, mechanism=""), "logs")
    assert api.defined[*link[:3], "qpid-route new:5672"] == {"value": {"uri": "amqp://new:5672"}}
    routes.add_link(peer_of("far", tls=False, mechanism=""))
    assert api.defined[link] == {"value": {"uri": "amqp://far:5672"}}, (
        "a new login replaces the old one"
    )


def test_a_pulled_and_a_pushed_route_of_one_key_are_two() -> None:
    api = Defining()
    routes = Routes(api, "/")
    far = peer_of("far", tls=False, mechanism="")
    for push in (False, True):
        routes.add_static(far, "logs", "eu.#", push=push, credit=None)
        routes.add_queue(far, "logs", "work", push=push, credit=None)
    assert [one.words("near") for one in routes.listed()] == [
        ("near", "far:5672", "logs", "eu.#"),
        ("near", "far:5672", "logs", "queue=work"),
        ("far:5672", "near", "logs", "eu.#"),
        ("far:5672", "near", "logs", "queue=work"),
    ]


class Listed(Api):
    """An API with some parameters."""

    parameters: ClassVar[dict[str, list[tuple[str, Json]]]] = {}

    def rows(self, *names: str, **_: object) -> list[dict[str, Json]]:
        found = self.parameters.get(names[1], [])
        return [{"name": name, "value": value} for name, value in found]


def test_routes_are_recognized_by_their_definitions_and_others_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Listed(Address("near", 15672), "guest", "guest")
    name = "qpid-route far:5672 logs warn.a b"
    monkeypatch.setattr(Listed, "parameters", {
        "federation-upstream-set": [
            ("qpid-route news", [{"upstream": "qpid-route far:5672"}]), ("mine", []),
        ],
        "shovel": [
            ("mine", {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://far"}),
            ("qpid-route far:5672 logs #", {"src-uri": "amqp://u:***@far", "src-exchange": "logs",
             "src-exchange-key": "#", "dest-uri": "amqp://", "dest-exchange": "logs"}),
            (name, {"src-uri": "amqp://", "src-queue": name, "dest-uri": ["amqp://far"],
             "dest-exchange": "logs"}),
            ("qpid-route far:5672 logs queue=work", {"src-uri": "amqp://far", "src-queue": "work",
             "dest-uri": "amqp://", "dest-exchange": "logs"}),
        ],
    })  # fmt: skip
    found = Routes(api, "/").listed()
    assert [one.words("near") for one in found] == [
        ("near", "far:5672", "news", "<dynamic>"),
        ("near", "far:5672", "logs", "#"),
        ("far:5672", "near", "logs", "warn.a b"),
        ("near", "far:5672", "logs", "queue=work"),
    ]
