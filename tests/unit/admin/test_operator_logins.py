"""Which operators a member accepts, before and after it has the state of its cluster."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest

from broker.access import passwords
from broker.access.access import Access
from broker.access.backends import REFUSED, Backends, FileUser, Login
from broker.access.login_delays import FIRST_S, USER_FREE
from broker.access.logins import LoginChecks
from broker.admin.operator_logins import OperatorLogins
from broker.frontend.gateway import Gateway
from broker.frontend.management import Managed, ManagementSession
from broker.machine.machine import Machine
from broker.machine.state import State
from tests.support.auth_wire import AuthWire
from tests.support.gateway_loop import Loop
from vsync.admin.protocol import QueryRefused

HERE, ELSEWHERE = "127.0.0.1:50000", "192.0.2.1:50000"


def login(state: State, user: str, password: str, peer: str) -> Login | None:
    return login_at(gateway_of(state), user, password, peer)


def gateway_of(state: State) -> SimpleNamespace:
    access = Access(lambda: state)
    return SimpleNamespace(access=access, logins=SimpleNamespace(checks=LoginChecks(access)))


def at_once(_login: Login, _now: float) -> None:
    raise AssertionError


def login_at(gateway: SimpleNamespace, user: str, password: str, peer: str) -> Login | None:
    return OperatorLogins(cast("Gateway", gateway)).judge(user, password, peer, at_once)


def test_without_a_state_guest_is_accepted_locally_and_others_get_the_reason() -> None:
    state = Machine("a")
    assert login(state, "guest", "guest", HERE) == Login("internal", ("administrator",))
    for user, peer in (("guest", ELSEWHERE), ("ada", HERE)):
        with pytest.raises(QueryRefused, match="no state yet") as refused:
            login(state, user, user, peer)
        assert refused.value.code == "not-active"


def test_with_a_file_only_its_users_are_accepted_without_a_state_and_not_guest() -> None:
    ada = FileUser(
        passwords.hashed("secret", b"salt"), passwords.DEFAULT_ALGORITHM, ("monitoring",)
    )
    access = Access(lambda: Machine("a"), backends=Backends(("file",), {"ada": ada}))
    gateway = SimpleNamespace(access=access, logins=SimpleNamespace(checks=LoginChecks(access)))
    assert login_at(gateway, "guest", "guest", HERE) == REFUSED
    assert login_at(gateway, "ada", "secret", ELSEWHERE) == Login("file", ("monitoring",))


def test_with_a_state_only_its_users_count_even_if_there_are_none() -> None:
    state = State("a", version=1)
    assert login(state, "guest", "guest", HERE) == REFUSED


def test_logins_refused_before_there_was_a_state_do_not_slow_later_ones() -> None:
    for state, slowed in ((Machine("a"), False), (State("a", version=1), True)):
        gateway = gateway_of(state)
        for _ in range(20):
            with suppress(QueryRefused):
                assert login_at(gateway, "ada", "wrong", HERE) == REFUSED
        turn_s = gateway.logins.checks.delays.turn_s("127.0.0.1", "ada", time.monotonic())
        assert (turn_s != 0.0) is slowed


def test_guessing_an_operators_password_locks_the_login_for_a_while() -> None:
    """Even the right one is refused: otherwise guessing would continue, and only failures be
    slow."""
    logins = OperatorLogins(Loop({"ada": "right"}).gateway)

    def ask(password: str, peer: str = ELSEWHERE) -> Login | None:
        return logins.at_once("ada", password, peer, at_once)

    for _ in range(USER_FREE):
        assert ask("wrong") == REFUSED
    with pytest.raises(QueryRefused, match="try again in 1 s") as refused:
        ask("right")
    assert refused.value.code == "access-refused"
    assert ask("right", "192.0.2.2:1") == Login("internal")


def test_an_operator_known_to_a_server_waits_for_its_answer() -> None:
    wire = AuthWire()
    gateway = Loop(backends=wire.backends("http", "internal")).gateway
    logins = OperatorLogins(gateway)
    written: list[bytes] = []
    member = SimpleNamespace(
        login=logins.at_once,
        status=lambda: {"is": "fine"},
    )
    session = ManagementSession(cast("Managed", member), ELSEWHERE, written.append)
    ask = b'{"op": "status", "user": "ada", "password": "secret"}\n'
    assert session.data_received(ask + ask) == b""
    assert wire.questions() == [{"about": "user", "username": "ada", "password": "secret"}]
    wire.answer("allow monitoring")
    assert written == [b'{"ok": true, "is": "fine"}\n'] * 2
    assert len(wire.all) == 2, "each request carries its own credentials"
    assert session.data_received(ask) == b""
    wire.answer("deny")
    assert b"the login of user 'ada' was refused" in written[-1]


def test_operators_are_named_for_orders_but_not_for_queries() -> None:
    """The log said that a cluster was shut down, but not by whom."""
    noted: list[str] = []
    ada = Login("internal", ("administrator",))
    member = SimpleNamespace(
        login=lambda _user, password, *_: ada if password == "right" else REFUSED,
        status=dict, shutdown=lambda: "5eed", stop_member=lambda _: None, note=noted.append,
    )  # fmt: skip
    session = ManagementSession(cast("Managed", member), ELSEWHERE, lambda _: None)
    for op, password in (("status", "right"), ("shutdown", "wrong"), ("shutdown", "right")):
        session.data_received(
            f'{{"op": "{op}", "user": "ada", "password": "{password}"}}\n'.encode()
        )
    session.data_received(b'{"op": "stop", "id": "b\\n", "user": "ada", "password": "right"}\n')
    assert noted == [
        f"user 'ada' at {ELSEWHERE} orders: shutdown",
        f"user 'ada' at {ELSEWHERE} orders: stop, id 'b\\n'",
    ]


def test_a_password_that_is_no_valid_text_is_refused_and_locks_nobody_out() -> None:
    """JSON may contain half a surrogate pair, which cannot be asked about."""
    wire = AuthWire()
    gateway = Loop({"ada": "right"}, backends=wire.backends("http", "internal")).gateway
    logins = OperatorLogins(gateway)
    member = SimpleNamespace(login=logins.at_once)
    session = ManagementSession(cast("Managed", member), ELSEWHERE, lambda _: None)
    for number in range(USER_FREE):
        asked = b'{"op": "status", "user": "ada", "password": "\\ud80%d"}\n' % number
        assert b"the login of user 'ada' was refused" in session.data_received(asked)
    assert not wire.all
    later = time.monotonic() + 3600
    assert gateway.logins.checks.wait_s("192.0.2.1", "ada", later) == 0.0


def test_over_http_simultaneous_guesses_are_bounded_too() -> None:
    wire = AuthWire()
    gateway = Loop(backends=wire.backends()).gateway
    logins = OperatorLogins(gateway)

    async def ask_all() -> list[Login | BaseException]:
        asked = [
            asyncio.ensure_future(logins.in_turn("ada", f"guess {number}", ELSEWHERE))
            for number in range(3 * USER_FREE)
        ]
        for _ in range(3):  # each goes as far as it can without an answer
            await asyncio.sleep(0)
        wire.answer("deny")
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(ask_all())
    assert found[:USER_FREE] == [REFUSED] * USER_FREE
    assert all("too many logins" in str(one) for one in found[USER_FREE:])
    assert len(wire.all) == USER_FREE


def test_over_http_slowed_logins_queue_and_beyond_that_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("broker.admin.operator_logins.asyncio.sleep", sleep)
    gateway = Loop({"ada": "right"}).gateway
    logins = OperatorLogins(gateway)

    def ask(password: str) -> Login:
        return asyncio.run(logins.in_turn("ada", password, ELSEWHERE))

    for _ in range(USER_FREE + 2):
        assert ask("wrong") == REFUSED
    assert waited[:USER_FREE] == [0.0] * USER_FREE
    assert waited[USER_FREE] == FIRST_S
    assert ask("right") == Login("internal")
    for _ in range(9):
        gateway.logins.checks.delays.turn_s("192.0.2.1", "ada", time.monotonic())
    with pytest.raises(QueryRefused, match="try again in 8 s"):
        ask("right")
