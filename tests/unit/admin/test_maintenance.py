"""Operations through other members: drain, undrain, close a connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.admin.maintenance import ANNOUNCE_S, CLOSED, HEARD_S, Maintenance
from broker.replication.controller import Controller
from vsync.admin.protocol import Json, QueryRefused
from vsync.totem.events import Direct
from vsync.types import Member


class Clients:
    """Records the requests."""

    def __init__(self) -> None:
        self.refusal = ""
        self.closed: list[str] = []
        self.reasons: list[str] = []

    def disconnect(self, address: str, reason: str) -> None:
        self.closed.append(address)
        self.reasons.append(reason)

    def drain(self, reason: str) -> None:
        self.refusal = reason

    def details(self) -> dict[str, Json]:
        return {"127.0.0.1:50001": {"product": "pika"}}


class Cluster:
    """Members a, b and c in one view, each with a client in the replicated state."""

    def __init__(self) -> None:
        self.lost = False
        self.view = {name: Member(name, 1, f"{name}:1") for name in "abc"}
        self.clients = {name: Clients() for name in "abc"}
        sessions = {name: SimpleNamespace(session=n) for n, name in enumerate("abc", 1)}
        connections = {
            (n, 1): SimpleNamespace(
                peer=f"127.0.0.1:5000{n}", user="guest", channels={1: None},
                vhost=SimpleNamespace(name="/"),
            )
            for n in (1, 2, 3)
        }  # fmt: skip
        machine = SimpleNamespace(sessions=sessions, connections=connections)
        mark = SimpleNamespace(without_data=frozenset())
        labels = {name: f"amqp:tcp:{name}:5672" for name in "abc"}
        self.primary = SimpleNamespace(
            members=tuple(self.view.values()), caught_up_names=frozenset("abc"), mark=mark,
            labels=lambda: labels,
        )  # fmt: skip
        self.members: dict[str, Maintenance] = {}
        for name in "abc":
            controller: Any = SimpleNamespace(
                me=self.view[name], primary=self.primary, replica=SimpleNamespace(machine=machine)
            )
            self.members[name] = Maintenance(
                cast("Controller", controller), self.clients[name], self._sender(name),
                lambda text: None,
            )  # fmt: skip

    def _sender(self, name: str) -> Callable[[Member, bytes], None]:
        def send(to: Member, payload: bytes) -> None:
            if not self.lost:
                assert self.members[to.name].takes(Direct(self.view[name], payload))

        return send

    def drained(self) -> list[str]:
        """The drained members as each member sees them; one text for each."""
        return ["".join(sorted(self.members[name].drained)) for name in "abc"]

    def wake(self, now: float) -> None:
        for member in self.members.values():
            member.wake(now)


def test_a_member_is_drained_through_another_and_all_know_it() -> None:
    cluster = Cluster()
    cluster.members["a"].drain("b", on=True, force=False)
    assert cluster.drained() == ["b", "b", "b"]
    refusal = cluster.clients["b"].refusal
    assert refusal == (
        "member 'b' is drained for maintenance; try amqp:tcp:a:5672 or amqp:tcp:c:5672"
    )
    assert not cluster.clients["a"].refusal
    cluster.members["c"].drain("b", on=False, force=False)
    assert cluster.drained() == ["", "", ""]
    assert not cluster.clients["b"].refusal


def test_a_lost_announcement_is_repeated_and_an_ended_one_forgotten() -> None:
    cluster = Cluster()
    cluster.lost = True
    cluster.members["b"].drain("b", on=True, force=False)
    assert cluster.drained() == ["", "b", ""]
    cluster.lost = False
    cluster.wake(ANNOUNCE_S)
    assert cluster.drained() == ["b", "b", "b"]
    cluster.lost = True
    cluster.members["b"].drain("b", on=False, force=False)
    cluster.wake(ANNOUNCE_S)
    assert cluster.drained() == ["b", "", "b"]
    cluster.wake(ANNOUNCE_S + HEARD_S + 0.1)
    assert cluster.drained() == ["", "", ""]


def test_another_incarnation_of_a_member_is_not_drained() -> None:
    cluster = Cluster()
    cluster.members["b"].drain("b", on=True, force=False)
    again = Member("b", 2, "b:1")
    cluster.primary.members = (cluster.view["a"], again, cluster.view["c"])
    assert not cluster.members["a"].drained


def test_the_last_member_open_to_clients_is_drained_only_by_force() -> None:
    cluster = Cluster()
    cluster.members["a"].drain("b", on=True, force=False)
    cluster.members["a"].drain("c", on=True, force=False)
    with pytest.raises(QueryRefused, match="no other member would take clients while a is"):
        cluster.members["b"].drain("a", on=True, force=False)
    assert cluster.drained()[0] == "bc"
    cluster.members["b"].drain("a", on=True, force=True)
    assert cluster.clients["a"].refusal == "member 'a' is drained for maintenance"
    with pytest.raises(QueryRefused, match="no member of this view has the id x"):
        cluster.members["a"].drain("x", on=True, force=True)


def test_every_member_lists_all_clients_with_more_about_its_own() -> None:
    cluster = Cluster()
    found = cluster.members["a"].connections()
    assert [(one["member"], one["address"]) for one in found] == [
        ("a", "127.0.0.1:50001"), ("b", "127.0.0.1:50002"), ("c", "127.0.0.1:50003"),
    ]  # fmt: skip
    assert [one.get("product") for one in found] == ["pika", None, None]


def test_a_connection_is_closed_on_its_member() -> None:
    cluster = Cluster()
    assert cluster.members["a"].disconnect("127.0.0.1:50003", reason="für: alle") == ["c"]
    assert cluster.members["a"].disconnect("127.0.0.1:50001") == ["a"]
    assert cluster.members["a"].disconnect("127.0.0.1:1") == []
    assert cluster.members["a"].disconnect("127.0.0.1:50002", "c") == []
    assert cluster.members["a"].disconnect("127.0.0.1:50002", "b") == ["b"]
    assert [cluster.clients[name].closed for name in "abc"] == [
        ["127.0.0.1:50001"], ["127.0.0.1:50002"], ["127.0.0.1:50003"],
    ]  # fmt: skip
    assert cluster.clients["a"].reasons == [CLOSED]
    assert cluster.clients["c"].reasons == [f"{CLOSED}: für: alle"]


def test_closing_a_connection_collects_no_facts_of_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10,000 clients that took a tenth of a second of the loop, for each one closed."""
    cluster = Cluster()
    monkeypatch.delattr(Clients, "details")
    assert cluster.members["a"].disconnect("127.0.0.1:50001") == ["a"]


def test_other_datagrams_are_left_alone() -> None:
    cluster = Cluster()
    for payload in (b"", b"O", b"S", b"T123", b"K"):
        assert not cluster.members["a"].takes(Direct(cluster.view["b"], payload))
