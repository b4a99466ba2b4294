"""Who may ask a member as an operator, before and after it has the state of its cluster."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from broker.access import passwords
from broker.access.access import Access
from broker.access.backends import Backends, FileUser
from broker.access.login_delays import FIRST_S, USER_FREE, LoginDelays
from broker.frontend.connections import Connections
from broker.machine.machine import Machine
from broker.machine.state import State
from tests.support.gateway_loop import Loop
from vsync.admin.protocol import QueryRefused

HERE, ELSEWHERE = "127.0.0.1:50000", "192.0.2.1:50000"


def login(state: State, user: str, password: str, peer: str) -> tuple[str, ...] | None:
    return login_at(gateway_of(state), user, password, peer)


def gateway_of(state: State) -> SimpleNamespace:
    return SimpleNamespace(access=Access(lambda: state), login_delays=LoginDelays())


def login_at(
    gateway: SimpleNamespace, user: str, password: str, peer: str
) -> tuple[str, ...] | None:
    return Connections.login(
        cast("Connections", SimpleNamespace(gateway=gateway)), user, password, peer
    )


def test_a_member_without_state_answers_guest_on_its_own_machine_and_tells_others_why() -> None:
    state = Machine("a")
    assert login(state, "guest", "guest", HERE) == ("administrator",)
    for user, peer in (("guest", ELSEWHERE), ("ada", HERE)):
        with pytest.raises(QueryRefused, match="no state yet") as refused:
            login(state, user, user, peer)
        assert refused.value.code == "not-active"


def test_a_member_that_asks_a_file_only_knows_its_users_without_a_state_and_no_guest() -> None:
    ada = FileUser(
        passwords.hashed("secret", b"salt"), passwords.DEFAULT_ALGORITHM, ("monitoring",)
    )
    access = Access(lambda: Machine("a"), backends=Backends(("file",), {"ada": ada}))
    gateway = SimpleNamespace(access=access, login_delays=LoginDelays())
    assert login_at(gateway, "guest", "guest", HERE) is None
    assert login_at(gateway, "ada", "secret", ELSEWHERE) == ("monitoring",)


def test_with_a_state_only_its_users_count_even_if_there_is_none() -> None:
    state = State("a", version=8)
    assert login(state, "guest", "guest", HERE) is None


def test_who_asked_before_there_was_a_state_is_not_slowed_as_one_who_guesses() -> None:
    for state, slowed in ((Machine("a"), False), (State("a", version=8), True)):
        gateway = gateway_of(state)
        for _ in range(20):
            with suppress(QueryRefused):
                assert login_at(gateway, "ada", "wrong", HERE) is None
        turn_s = gateway.login_delays.turn_s("127.0.0.1", "ada", time.monotonic())
        assert (turn_s != 0.0) is slowed


def test_who_guesses_an_operators_password_is_not_heard_for_a_while() -> None:
    """A right one is not either: else guessing goes on, and only failures are slow."""
    loop = Loop({"ada": "right"})
    clients = SimpleNamespace(gateway=loop.gateway)
    clients.login = partial(Connections.login, cast("Connections", clients))

    def ask(password: str, peer: str = ELSEWHERE) -> tuple[str, ...] | None:
        return Connections.operator_login(cast("Connections", clients), "ada", password, peer)

    for _ in range(USER_FREE):
        assert ask("wrong") is None
    with pytest.raises(QueryRefused, match="try again in 1 s") as refused:
        ask("right")
    assert refused.value.code == "access-refused"
    assert ask("right", "192.0.2.2:1") == ()


def test_over_http_who_is_slowed_waits_in_line_and_past_its_end_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("broker.frontend.connections.asyncio.sleep", sleep)
    gateway = Loop({"ada": "right"}).gateway
    clients = SimpleNamespace(gateway=gateway)
    clients.login = partial(Connections.login, cast("Connections", clients))

    def ask(password: str) -> tuple[str, ...] | None:
        work = Connections.patient_login(cast("Connections", clients), "ada", password, ELSEWHERE)
        return asyncio.run(work)

    for _ in range(USER_FREE + 2):
        assert ask("wrong") is None
    assert waited[:USER_FREE] == [0.0] * USER_FREE
    assert waited[USER_FREE] == FIRST_S
    assert ask("right") == ()
    for _ in range(9):
        gateway.login_delays.turn_s("192.0.2.1", "ada", time.monotonic())
    with pytest.raises(QueryRefused, match="try again in 8 s"):
        ask("right")
