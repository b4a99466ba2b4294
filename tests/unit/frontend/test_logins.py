"""Logins without a password, new secrets, and the messages for refused users."""

from __future__ import annotations

from broker.admin.operator_logins import OperatorLogins
from broker.amqp import codec
from broker.amqp.fields import Table
from tests.support.amqp_peer import ALL_CAPABILITIES, ServerMethod, method, opening
from tests.support.gateway_loop import Loop, Peer


def anonymous(loop: Loop, *, is_local: bool = True, properties: Table | None = None) -> Peer:
    peer = Peer(loop, is_local=is_local)
    given = ALL_CAPABILITIES if properties is None else properties
    start = method(0, "connection.start-ok", given, "ANONYMOUS", b"whoever", "en_US")
    peer.received = peer.send(codec.PROTOCOL_HEADER, start)
    return peer


def test_anonymous_is_refused_unless_an_operator_names_its_user() -> None:
    start, closed = anonymous(Loop({"nobody": "x"})).take()
    assert start.args[3] == b"PLAIN AMQPLAIN"
    assert closed.args[:2] == (
        503, "COMMAND_INVALID - unknown authentication mechanism 'ANONYMOUS'"
    )  # fmt: skip


def test_an_anonymous_client_is_that_user() -> None:
    loop = Loop({"nobody": "x"}, anonymous_user="nobody")
    peer = anonymous(loop, is_local=False)
    start, tune = peer.take()
    assert (start.args[3], tune.method) == (b"PLAIN AMQPLAIN ANONYMOUS", "connection.tune")
    assert peer.client.connection.user == "nobody"


def test_an_anonymous_user_must_exist_and_may_be_limited_to_the_loopback() -> None:
    for name in ("missing", "guest"):
        loop = Loop(anonymous_user=name)
        assert anonymous(loop, is_local=False).take()[-1].args[0] == 403
    assert anonymous(Loop(anonymous_user="guest")).take()[-1].method == "connection.tune"


def test_a_client_without_the_capability_gets_its_socket_closed() -> None:
    peer = anonymous(Loop(anonymous_user="missing"), properties={})
    assert [one.method for one in peer.take()] == ["connection.start"]
    assert peer.client.wants_close


def renewed(loop: Loop, secret: bytes) -> list[ServerMethod]:
    peer = loop.connect()
    peer.take()
    return peer.send(method(0, "connection.update-secret", secret, "rotation"))


def test_a_new_secret_is_checked_as_at_a_login() -> None:
    loop = Loop()
    (answer,) = renewed(loop, b"guest")
    assert answer.method == "connection.update-secret-ok"
    assert loop.log[-1].endswith("renewed its secret: rotation")


def test_a_wrong_new_secret_closes_the_connection() -> None:
    loop = Loop()
    (closed,) = renewed(loop, b"wrong")
    assert closed.args == (
        530, "NOT_ALLOWED - New secret was refused by one of the backends", 10, 70
    )  # fmt: skip
    assert any("it is not this user's password" in line for line in loop.log)
    assert not any("wrong" in line for line in loop.log)


def test_after_a_wrong_secret_no_other_in_the_segment_is_checked() -> None:
    """Otherwise one segment would hold as many guesses as fit into it."""
    loop = Loop()
    peer = loop.connect()
    peer.take()
    guesses = [method(0, "connection.update-secret", one, "x") for one in (b"a", b"b", b"guest")]
    (closed,) = peer.send(b"".join(guesses))
    assert closed.args[0] == 530
    assert len([line for line in loop.log if "not this user's password" in line]) == 1
    assert not any("renewed its secret" in line for line in loop.log)


def test_the_log_says_how_to_grant_access() -> None:
    loop = Loop()
    loop.define("vhost", "", "it's new", {"description": "", "tags": ()})
    peer = Peer(loop)
    (*_, closed) = peer.send(opening("it's new"))
    assert closed.args[0] == 530
    assert loop.log[-1].endswith(
        """qpidctl set_permissions -p 'it'"'"'s new' guest '.*' '.*' '.*'"""
    )


def test_logins_of_clients_and_operators_are_counted_apart() -> None:
    loop = Loop({"u": "p"})
    loop.connect()
    loop.connect(user="u")  # with another password
    logins = OperatorLogins(loop.gateway)
    for password in ("p", "p", "wrong"):
        logins.judge("u", password, "127.0.0.1:1", lambda *_: None)
    assert loop.gateway.logins.checks.counters == {
        "clients": 1, "clients_refused": 1, "operators": 2, "operators_refused": 1,
    }  # fmt: skip
