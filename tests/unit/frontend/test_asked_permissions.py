"""Permissions that are asked of a server: which methods wait, for which answers, and the
outcome.
"""

from __future__ import annotations

import pytest

from broker.access.access import Resource
from broker.access.asked_rights import QUESTIONS_MAX
from broker.access.auth_server import LIMIT_S
from broker.amqp import codec
from broker.amqp.fields import Value
from broker.machine import commands as c
from broker.machine.state import FAILOVER
from tests.support.amqp_peer import method, opening, publish, start_ok
from tests.support.auth_wire import AuthWire
from tests.support.gateway_loop import Loop, Peer
from tests.unit.access.test_http_logins import login, names


class Rig:
    """A member, its server, and a client with channel 1 that the server admitted."""

    def __init__(self, kept_s: float = 15.0) -> None:
        self.wire = AuthWire(kept_s)
        self.backends = self.wire.backends()
        self.loop = Loop(backends=self.backends)
        self.peer = self.client()

    def client(self, *channels: int) -> Peer:
        peer = login(self.loop)
        self.wire.answer("allow")
        self.loop.turn()
        return peer.open(*(channels or (1,)))

    def answer(self, text: str = "allow", refused: str = "") -> list[str]:
        """Answer everything, with deny for questions about the refused name; return what the client
        gets."""
        self.wire.answer(lambda one: "deny" if refused and one["name"] == refused else text)
        self.loop.turn()
        return names(self.peer.take())

    def published(self) -> list[bytes]:
        return [
            c.Publish._make(command).body
            for command, _ in self.loop.applied
            if command[0] == c.PUBLISH
        ]


def declare(name: str, **arguments: Value) -> tuple[Value, ...]:
    return (name, False, False, False, False, False, arguments)


def test_a_method_waits_while_all_its_permissions_are_asked_at_once() -> None:
    rig = Rig()
    arguments = declare("q", **{"x-dead-letter-exchange": "x"})
    assert rig.peer.call(1, "queue.declare", *arguments) == []
    assert not rig.peer.client.may_be_read
    common = {"about": "resource", "username": "ada", "vhost": "/", "tags": ""}
    assert rig.wire.questions() == [
        {**common, "resource": "queue", "name": "q", "permission": "configure"},
        {**common, "resource": "queue", "name": "q", "permission": "read"},
        {**common, "resource": "exchange", "name": "x", "permission": "write"},
    ]
    assert rig.answer() == ["queue.declare-ok"]
    assert rig.peer.client.may_be_read
    assert not rig.peer.client.told, "the answers applied to this method"


def test_a_waiting_client_is_not_read_so_its_bytes_do_not_pile_up() -> None:
    rig = Rig()
    gateway, client = rig.loop.gateway, rig.peer.client
    gateway.data_received(client, publish(1, "", "q", b"m"), 0.0)
    assert client in gateway.take_writable(), "this is when reading is reconsidered"
    assert not client.may_be_read
    stranger = Peer(rig.loop, is_local=False).client
    gateway.data_received(stranger, codec.PROTOCOL_HEADER, 0.0)
    gateway.take_writable()
    gateway.data_received(stranger, start_ok("eve", "secret"), 0.0)
    assert stranger in gateway.take_writable()
    assert not stranger.may_be_read


def test_a_waiting_client_gets_heartbeats() -> None:
    rig = Rig()
    peer = Peer(rig.loop)
    peer.send(opening(heartbeat=2))
    rig.wire.answer("allow")
    rig.loop.turn()
    peer.open(1).send(publish(1, "", "q", b"m"))
    client, gateway = peer.client, rig.loop.gateway
    gateway.take_writable()
    due = client.next_timer()
    assert due is not None
    gateway.wake(client, due)  # something was sent within this half of the interval
    gateway.wake(client, due + 1.0)
    assert bytes(client.connection.out) == codec.HEARTBEAT_FRAME
    assert client in gateway.take_writable()


def test_a_refusal_closes_the_channel_with_the_text_of_permissions() -> None:
    rig = Rig()
    rig.peer.call(1, "queue.declare", *declare("q"))
    rig.wire.answer("deny")
    rig.loop.turn()
    (closed,) = rig.peer.take()
    text = "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'ada'"
    assert closed.args == (403, text, 50, 10)


@pytest.mark.parametrize("late", [False, True])
def test_no_answer_is_a_refusal(late: bool) -> None:
    rig = Rig()
    rig.peer.send(publish(1, "", "q", b"m"))
    if late:
        rig.wire.go_on(LIMIT_S)
    else:
        rig.wire.answer("allow", status=500)
    rig.loop.turn()
    assert rig.peer.take()[-1].args[0] == 403
    assert rig.published() == []


@pytest.mark.parametrize(
    "sent",
    [
        publish(1, FAILOVER, "", b"elsewhere"),
        method(1, "exchange.bind", FAILOVER, "amq.fanout", "", False, {}),
    ],
    ids=["publish", "bind"],
)
def test_nobody_publishes_to_amq_failover_whatever_the_server_allows(sent: bytes) -> None:
    """A server that allows everything in a virtual host let any of its users announce other
    addresses there, to which listeners connect."""
    rig = Rig()
    answers = rig.peer.send(sent)
    rig.wire.answer("allow")
    rig.loop.turn()
    (closed,) = [one.args for one in (*answers, *rig.peer.take())]
    text = f"ACCESS_REFUSED - cannot publish to internal exchange '{FAILOVER}' in vhost '/'"
    assert closed[:2] == (403, text)


def test_later_methods_wait_behind_it_in_order() -> None:
    rig = Rig()
    bodies = [str(number).encode() for number in range(4)]
    more = publish(1, "amq.direct", "k", bodies[1]) + method(2, "channel.open")
    rig.peer.send(publish(1, "", "q", bodies[0]) + more + publish(2, "", "q", bodies[2]))
    rig.peer.send(publish(2, "", "q", bodies[3]) + method(0, "connection.close", 200, "", 0, 0))
    assert rig.published() == []
    assert [one["name"] for one in rig.wire.questions()] == ["amq.default"]
    assert rig.answer() == ["channel.open-ok", "connection.close-ok"]
    assert rig.published() == bodies
    assert len(rig.wire.all) == 4, "user and virtual host, and each of two exchanges once"


def test_another_client_does_not_wait() -> None:
    rig = Rig()
    other = rig.client()
    rig.peer.send(publish(1, "", "q", b"m"))
    assert other.call(1, "basic.qos", 0, 1, False) == [("basic.qos-ok",)]


@pytest.mark.parametrize("kept_s", [0.0, 15.0])
def test_an_answer_counts_for_its_method_even_if_not_cached(
    kept_s: float,
) -> None:
    rig = Rig(kept_s)
    asked = len(rig.wire.all)
    for number in range(3):
        rig.peer.send(publish(1, "", "q", str(number).encode()))
        rig.answer()
    assert rig.published() == [b"0", b"1", b"2"]
    assert len(rig.wire.all) - asked == (1 if kept_s else 3)


def test_an_answer_that_expires_before_another_is_not_asked_for_ever() -> None:
    """The first of two answers has expired when the second arrives."""
    rig = Rig(kept_s=1.0)
    rig.peer.call(1, "exchange.declare", "x", "topic", False, False, False, False, False, {})
    rig.answer()
    asked = len(rig.wire.all)
    rig.peer.send(publish(1, "x", "k", b"m"))
    first, second = rig.wire.sent
    rig.wire.server.answered(first, 200, b"allow")
    del rig.wire.sent[first]
    rig.wire.go_on(2.0)
    rig.wire.server.answered(second, 200, b"allow")
    del rig.wire.sent[second]
    rig.loop.turn()
    assert rig.published() == [b"m"]
    assert len(rig.wire.all) - asked == 2


def test_a_cached_permission_expires() -> None:
    rig = Rig(kept_s=10.0)
    rig.peer.send(publish(1, "", "q", b"0"))
    rig.answer()
    rig.wire.go_on(9.0)
    assert rig.peer.send(publish(1, "", "q", b"1")) == []
    rig.wire.go_on(2.0)
    rig.peer.send(publish(1, "", "q", b"2"))
    assert rig.answer("deny") == ["channel.close"]
    assert rig.published() == [b"0", b"1"]


def test_an_answer_that_is_not_cached_does_not_count_for_the_next_method() -> None:
    """Not even if that waited behind it: a client that always has something under way would keep a
    right that it no longer has."""
    rig = Rig(kept_s=0.0)
    rig.peer.send(publish(1, "", "q", b"0") + publish(1, "", "q", b"1"))
    rig.wire.answer_first("allow")
    rig.loop.turn()
    assert rig.answer("deny") == ["channel.close"]
    assert rig.published() == [b"0"]


def test_a_publish_is_allowed_until_the_first_of_its_permissions_expires() -> None:
    """That for the exchange is older here than that for the key."""
    rig = Rig(kept_s=10.0)
    rig.peer.call(1, "exchange.declare", "x", "topic", False, False, False, False, False, {})
    rig.answer()
    for at, key in ((0.0, "a"), (6.0, "b")):
        rig.wire.go_on(at)
        rig.peer.send(publish(1, "x", key, key.encode()))
        rig.answer()
    rig.wire.go_on(6.0)
    rig.peer.send(publish(1, "x", "b", b"late"))
    assert rig.answer("deny") == ["channel.close"]
    assert rig.published() == [b"a", b"b"]


def test_everything_is_asked_again_when_the_cache_is_cleared() -> None:
    rig = Rig()
    rig.peer.send(publish(1, "", "q", b"0"))
    rig.answer()
    rig.backends.replace({})  # as at SIGHUP
    rig.loop.turn()
    rig.peer.send(publish(1, "", "q", b"1"))
    assert rig.answer("deny") == ["channel.close"]


def test_keys_are_asked_for_topic_exchanges_and_missing_exchanges() -> None:
    rig = Rig()
    for exchange, kinds in (
        ("amq.topic", ["resource", "topic"]), ("amq.direct", ["resource"]),
        ("absent", ["resource", "topic"]),
    ):  # fmt: skip
        rig.peer.send(publish(1, exchange, "a.b", b""))
        assert [one["about"] for one in rig.wire.questions()] == kinds
        found = rig.wire.questions()[-1]
        if "topic" in kinds:
            assert {name: found[name] for name in ("resource", "name", "permission")} == {
                "resource": "topic", "name": exchange, "permission": "write"
            }  # fmt: skip
            assert found["routing_key"] == "a.b"
        rig.answer()


def test_each_key_of_a_topic_exchange_is_asked_with_those_of_cc_and_bcc() -> None:
    rig = Rig()
    copies = codec.encode_properties({"headers": {"CC": ("theirs",)}})
    rig.peer.send(publish(1, "amq.topic", "mine", b"0"))
    rig.answer()
    rig.peer.send(publish(1, "amq.topic", "mine", b"1", copies))
    assert [one["routing_key"] for one in rig.wire.questions()] == ["theirs"]
    rig.wire.answer("deny")
    rig.loop.turn()
    (closed,) = rig.peer.take()
    assert "access to topic 'theirs' in exchange 'amq.topic'" in str(closed.args[1])
    assert rig.published() == [b"0"]


def test_the_questions_for_a_message_are_bounded() -> None:
    rig = Rig()
    keys = tuple(str(number) for number in range(QUESTIONS_MAX))
    copies = codec.encode_properties({"headers": {"BCC": keys}})
    (closed,) = rig.peer.send(publish(1, "amq.topic", "mine", b"", copies))
    assert "name fewer keys in CC and BCC" in str(closed.args[1])
    assert not rig.wire.sent


def test_a_binding_needs_both_ends_and_the_key() -> None:
    rig = Rig()
    rig.peer.call(1, "queue.declare", *declare("q"))
    rig.answer()
    rig.peer.call(1, "queue.bind", "q", "amq.topic", "k", False, {})
    wanted = [(one["permission"], one["resource"], one["name"]) for one in rig.wire.questions()]
    assert wanted == [
        Resource("write", "queue", "q"), Resource("read", "exchange", "amq.topic"),
        ("read", "topic", "amq.topic"),
    ]  # fmt: skip
    assert rig.answer() == ["queue.bind-ok"]


def test_the_machine_may_close_the_channel_of_a_waiting_method() -> None:
    rig = Rig()
    rig.peer.open(2)
    get, late = method(1, "basic.get", "missing", False), publish(1, "", "q", b"lost")
    rig.peer.send(get)
    rig.wire.answer("allow")  # its command is in the batch, but not yet applied
    rig.loop.gateway.data_received(rig.peer.client, late + publish(2, "", "q", b"kept"), 0.0)
    assert [one["name"] for one in rig.wire.questions()] == ["amq.default"]
    rig.loop.turn()
    assert names(rig.peer.take()) == ["channel.close"]
    rig.answer()
    assert rig.published() == [b"kept"]


def test_nothing_is_done_for_a_connection_that_ended_while_it_waited() -> None:
    for end in ("lost", "sent away", "session", "stopped"):
        rig = Rig()
        client, gateway = rig.peer.client, rig.loop.gateway
        rig.peer.send(publish(1, "", "q", b"m"))
        if end == "lost":
            gateway.connection_lost(client)
        elif end == "sent away":
            gateway.drain("maintenance")
        elif end == "session":
            rig.loop.outbox.session_started(gateway.session + 1)
        else:
            gateway.drop_all("the member stops")
        rig.answer()
        assert rig.published() == [], end
        assert not client.conn, end
        assert not client.told, end


def test_a_fence_meanwhile_holds_back_only_the_replies() -> None:
    rig = Rig()
    rig.peer.send(publish(1, "", "q", b"m"))
    rig.loop.outbox.fence()
    rig.answer()
    rig.loop.outbox.unfence()
    rig.loop.turn()
    assert rig.published() == [b"m"]


def test_a_client_waiting_for_its_virtual_host_is_admitted_after_a_fence() -> None:
    rig = Rig(kept_s=0.0)
    peer = login(rig.loop)
    number = next(iter(rig.wire.sent))
    del rig.wire.sent[number]
    rig.wire.server.answered(number, 200, b"allow")
    rig.loop.outbox.fence()
    rig.loop.gateway.admission.admit_waiting(soon=True)
    rig.wire.answer("allow")
    rig.loop.turn()
    assert "connection.open-ok" not in names(peer.take())
    rig.loop.outbox.unfence()
    rig.loop.gateway.admission.admit_waiting(soon=False)
    rig.wire.answer("allow")
    rig.loop.turn()
    assert names(peer.take())[-1] == "connection.open-ok"


def test_an_alarm_holds_a_publish_whose_permission_has_arrived() -> None:
    rig = Rig()
    rig.peer.send(publish(1, "", "q", b"m"))
    rig.loop.gateway.block("low on disk")
    rig.answer()
    assert rig.published() == []
    rig.loop.gateway.block("")
    rig.answer()
    assert rig.published() == [b"m"]


def test_for_users_of_the_server_definitions_do_not_count_but_limits_do() -> None:
    rig = Rig()
    rig.loop.define("vhost_limit", "/", "limits", {"max-connections": 1})
    peer = login(rig.loop)
    rig.wire.answer("allow")
    rig.loop.turn()
    assert "connection limit (1) is reached" in str(peer.take()[-1].args[1])
