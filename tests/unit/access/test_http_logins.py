"""Logins that a server decides: when it is asked, what clients are told, and how guessing is
slowed.
"""

from __future__ import annotations

import pytest

from broker.access.access import SYSTEM, USER_BYTES_MAX, Access
from broker.access.auth_server import LIMIT_S
from broker.access.backends import REFUSED, Backends, FileUser, Login, ToAsk
from broker.access.login_delays import FIRST_S, USER_FREE
from broker.access.passwords import DEFAULT_ALGORITHM, hashed
from broker.amqp import codec
from broker.machine.machine import Machine
from tests.support.amqp_peer import ServerMethod, method, publish, start_ok, tune_ok
from tests.support.auth_wire import AuthWire
from tests.support.gateway_loop import Loop, Peer


def login(loop: Loop, user: str = "ada", password: str = "secret") -> Peer:
    """A client that has sent everything that opens its connection."""
    peer = Peer(loop, is_local=False)
    opening = start_ok(user, password) + tune_ok() + method(0, "connection.open", "/")
    peer.received = peer.send(codec.PROTOCOL_HEADER, opening)
    return peer


def names(received: list[ServerMethod]) -> list[str]:
    return [one.method for one in received]


def member(*order: str, kept_s: float = 15.0) -> tuple[Loop, AuthWire]:
    wire = AuthWire(kept_s)
    return Loop({"bob": "hidden"}, backends=wire.backends(*order)), wire


def test_the_server_decides_who_may_log_in_and_where() -> None:
    loop, wire = member()
    peer = login(loop)
    assert names(peer.take()) == ["connection.start"]
    assert not peer.client.may_be_read, "its input waits in the socket"
    assert wire.questions() == [{"about": "user", "username": "ada", "password": "secret"}]
    wire.answer(lambda one: "allow impersonator" if one["about"] == "user" else "allow")
    loop.turn()
    assert names(peer.take()) == ["connection.tune", "connection.open-ok"]
    assert dict(wire.all[1].fields) == {
        "username": "ada", "vhost": "/", "ip": "127.0.0.1", "tags": "impersonator"
    }  # fmt: skip
    assert peer.client.login == Login("http", ("impersonator",))
    assert peer.client.may_be_read


@pytest.mark.parametrize("said", ["deny", "nonsense"])
def test_a_refused_client_gets_the_usual_message(said: str) -> None:
    loop, wire = member()
    peer = login(loop)
    wire.answer(said)
    loop.turn()
    closed = peer.take()[-1]
    assert closed.args[0] == 403
    assert "Login was refused" in str(closed.args[1])
    assert not any("secret" in line for line in loop.log + wire.log)


def test_a_silent_server_refuses_and_slows_nobody() -> None:
    loop, wire = member()
    for _ in range(2 * USER_FREE):
        peer = login(loop)
        loop.now += LIMIT_S
        wire.go_on()
        loop.turn()
        assert peer.take()[-1].args[0] == 403
    assert not loop.gateway.counters["slowed"]


def test_a_user_who_may_not_enter_the_virtual_host_is_refused_there() -> None:
    loop, wire = member()
    peer = login(loop)
    wire.answer(lambda one: "allow" if one["about"] == "user" else "deny")
    loop.turn()
    assert peer.take()[-1].args[:2] == (
        530, "NOT_ALLOWED - access to vhost '/' refused for user 'ada'"
    )  # fmt: skip
    assert not any("set_permissions" in line for line in loop.log), "asking would not help"


def test_the_order_decides_which_back_end_is_asked() -> None:
    loop, wire = member("internal", "http")
    assert login(loop, "bob", "hidden").client.login.backend == "internal"
    assert not wire.sent, "the first back end has accepted it"
    peer = login(loop, "bob", "of the server")
    wire.answer("allow")
    loop.turn()
    assert peer.client.login.backend == "http"
    loop, wire = member("http", "internal")
    for said, backend in (("deny", "internal"), ("allow", "http"), ("nonsense", "internal")):
        peer = login(loop, "bob", "hidden")
        assert wire.answer(said)
        loop.turn()
        assert peer.client.login.backend == backend


@pytest.mark.parametrize("order", [("http", "internal", "file"), ("internal", "http", "file")])
def test_of_two_that_know_a_user_the_first_gives_the_tags(order: tuple[str, ...]) -> None:
    """Whatever the server says, and wherever it stands in the order."""
    wire = AuthWire(15.0)
    bob = FileUser(hashed("hidden", b"salt"), DEFAULT_ALGORITHM, ("administrator",))
    backends = Backends(order, {"bob": bob}, None, wire.server)
    loop = Loop({"bob": "hidden"}, backends=backends)
    found = loop.gateway.access.login("bob", "hidden", is_local=False)
    assert (found.otherwise if isinstance(found, ToAsk) else found) == Login("internal")


def test_two_back_ends_beside_a_server_count_in_their_order() -> None:
    ada = FileUser(hashed("secret", b"salt"), DEFAULT_ALGORITHM, ("monitoring",))
    wire = AuthWire()
    for order, before in ((("file", "http"), True), (("http", "file"), False)):
        backends = Backends(order, {"ada": ada}, None, wire.server)
        access = Access(lambda: Machine("a"), backends=backends)
        found = access.login("ada", "secret", is_local=False)
        of_file = Login("file", ("monitoring",))
        assert found == of_file if before else isinstance(found, ToAsk)
        assert isinstance(found, Login) or found.otherwise == of_file
        wrong = access.login("ada", "wrong", is_local=False)
        assert isinstance(wrong, ToAsk)
        assert wrong.otherwise == REFUSED


@pytest.mark.parametrize("user", [SYSTEM, "x" * (USER_BYTES_MAX + 1), "a\nb", "ö" * 200])
def test_an_internal_or_empty_name_is_not_asked_about(user: str) -> None:
    loop, wire = member()
    peer = login(loop, user)
    assert peer.take()[-1].args[0] == 403
    assert not wire.all


def test_an_empty_password_is_never_accepted() -> None:
    loop, wire = member()
    assert login(loop, "ada", "").take()[-1].args[0] == 403
    assert not wire.all


def test_guest_of_another_machine_is_not_asked_about() -> None:
    loop, wire = member()
    assert login(loop, "guest", "guest").take()[-1].args[0] == 403
    assert not wire.all


def test_a_user_with_a_certificate_is_asked_about_without_a_password() -> None:
    wire = AuthWire()
    loop = Loop(anonymous_user="nobody", backends=wire.backends())
    peer = Peer(loop, is_local=False)
    start = method(0, "connection.start-ok", {}, "ANONYMOUS", b"", "en_US")
    peer.send(codec.PROTOCOL_HEADER, start)
    assert wire.questions() == [{"about": "user", "username": "nobody"}]
    wire.answer("allow")
    assert peer.client.connection.user == "nobody"


def test_guessing_is_slowed_even_with_many_connections() -> None:
    loop, wire = member()
    for number in range(USER_FREE):
        login(loop, password=f"guess {number}")
    refused = login(loop, password="one more").take()[-1]
    assert refused.args[0] == 403
    assert "too many logins have failed" in str(refused.args[1])
    assert wire.answer("deny") == USER_FREE
    loop.turn()
    slowed = login(loop, password="again")
    wire.answer("allow")
    loop.turn()
    assert names(slowed.take()) == ["connection.start"], "the verdict is known, and told later"
    loop.now = wire.now = FIRST_S
    loop.gateway.refuse_overdue(loop.now)
    loop.turn()
    assert names(slowed.take())[-1] == "connection.tune"


def test_any_number_of_clients_log_in_at_once_with_one_password() -> None:
    loop, wire = member()
    peers = [login(loop) for _ in range(10 * USER_FREE)]
    wire.answer("allow")
    loop.turn()
    assert all(names(peer.take())[-1] == "connection.open-ok" for peer in peers)
    assert len(wire.all) == 2


def test_nothing_is_kept_of_logins_that_are_answered() -> None:
    """Strangers claim any number of names."""
    loop, wire = member()
    for number in range(3):
        login(loop, f"user {number}")
    wire.answer("deny")
    assert loop.gateway.logins.checks._asked == {}


def test_an_answer_for_a_client_that_has_gone_is_ignored() -> None:
    loop, wire = member()
    gone, ended = login(loop), login(loop)
    loop.gateway.connection_lost(gone.client)
    ended.client.force_close("the member stops")
    wire.answer("allow")
    loop.turn()
    assert not loop.gateway.clients
    assert not gone.client.conn + ended.client.conn


def test_outside_the_primary_view_a_refused_client_is_sent_on() -> None:
    """What the member knows of the cluster's own users may be old."""
    for order, code in ((("internal", "http"), 320), (("http",), 403)):
        loop, wire = member(*order)
        loop.outbox.fence()
        peer = login(loop)
        wire.answer("deny")
        loop.turn()
        assert peer.take()[-1].args[0] == code


def renewed(secret: bytes, said: str) -> tuple[list[ServerMethod], Peer, Loop, AuthWire]:
    loop, wire = member()
    peer = login(loop)
    wire.answer("allow")
    loop.turn()
    peer.open(1)
    more = method(0, "connection.update-secret", secret, "rotation")
    assert peer.send(more + publish(1, "", "q", b"m")) == []
    assert wire.questions()[0]["password"] == secret.decode()
    wire.answer(lambda one: said if one["about"] == "user" else "allow")
    loop.turn()
    return peer.take(), peer, loop, wire


def test_a_new_secret_is_asked_about_and_later_methods_wait() -> None:
    received, peer, loop, _ = renewed(b"new", "allow impersonator")
    assert names(received) == ["connection.update-secret-ok"]
    assert peer.client.login.tags == ("impersonator",)
    assert loop.gateway.counters["publishes"] == 1


def test_a_wrong_new_secret_closes_the_connection_and_nothing_after_it_is_done() -> None:
    received, _, loop, wire = renewed(b"topsecret", "deny")
    assert received[-1].args[:2] == (
        530, "NOT_ALLOWED - New secret was refused by one of the backends"
    )  # fmt: skip
    assert not loop.gateway.counters["publishes"]
    assert not any("topsecret" in line for line in loop.log + wire.log)


def test_the_tags_are_those_that_the_server_gave() -> None:
    for tags, refused in ((" impersonator", []), ("", [406])):
        loop, wire = member()
        peer = login(loop)
        said = {"user": f"allow{tags}", "vhost": "allow"}
        while wire.sent:
            wire.answer_first(said[wire.questions()[0]["about"]])
        loop.turn()
        peer.open(1)
        other = codec.encode_properties({"user_id": "bob"})
        peer.send(publish(1, "", "q", b"", other))
        wire.answer("allow")
        loop.turn()
        assert [one.args[0] for one in peer.take()] == refused
