"""Logins of the API: cached for a moment; and a member that knows no users yet."""

from __future__ import annotations

import asyncio
import base64

import pytest

from broker.access.access import Access
from broker.access.backends import REFUSED, Login
from broker.machine.handlers.definitions import define_first
from broker.machine.machine import Machine
from broker.management.access import CREDENTIALS_BYTES_MAX, KEPT_S, Logins, credentials


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock advances only by sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0

    def time(self) -> float:
        return self.at


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


def test_a_password_may_have_colons() -> None:
    assert credentials(basic("ü:p:q".encode())) == ("ü", "p:q")


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Bearer " + basic(b"u:p").split()[1], "Basic !!", basic(b"user"),
     basic(b"\xff:x"),
     basic(b"u:" + b"x" * CREDENTIALS_BYTES_MAX)],
)  # fmt: skip
def test_other_credentials_are_none(header: str) -> None:
    assert credentials(header) is None


def test_a_slow_login_is_cached_as_long_as_a_fast_one() -> None:
    loop = VirtualLoop()
    asked = []

    async def check(user: str, _password: str, _address: str) -> Login:
        asked.append(user)
        loop.at += 2 * KEPT_S
        return Login("internal", ("management",))

    async def twice() -> None:
        logins = Logins(check, lambda: 0)
        for _ in range(2):
            assert await logins.login("u", "p", "a:1") is not None

    loop.run_until_complete(twice())
    loop.close()
    assert asked == ["u"]


def test_a_member_without_any_state_knows_no_users() -> None:
    machine = Machine("a")
    access = Access(lambda: machine)
    assert not access.has_state
    define_first(machine)
    assert access.has_state


def test_a_cached_login_is_of_one_user_with_one_password() -> None:
    """However the two are separated: either may contain a NUL."""
    asked: list[tuple[str, str]] = []

    async def check(user: str, password: str, _address: str) -> Login:
        asked.append((user, password))
        return Login("internal", ("management",)) if len(asked) == 1 else REFUSED

    async def work() -> None:
        logins = Logins(check, lambda: 0)
        assert await logins.login("a", "b\0c", "a:1") is not None
        assert await logins.login("a\0b", "c", "a:1") is None
        assert await logins.login("a", "b\0c", "a:1") is not None

    asyncio.run(work())
    assert asked == [("a", "b\0c"), ("a\0b", "c")]


def test_a_login_is_kept_for_one_address_and_until_users_change() -> None:
    """Who may log in from this machine only is not let in from another one for that."""
    version = 0
    asked = []

    async def check(_user: str, _password: str, address: str) -> Login:
        asked.append((version, address))
        return Login("internal", ("administrator",)) if address == "127.0.0.1:1" else REFUSED

    async def story() -> None:
        nonlocal version
        logins = Logins(check, lambda: version)
        for _ in range(2):
            assert await logins.login("guest", "guest", "127.0.0.1:1") is not None
        assert await logins.login("guest", "guest", "10.0.0.1:1") is None
        version = 1
        assert await logins.login("guest", "guest", "127.0.0.1:1") is not None

    asyncio.run(story())
    assert asked == [(0, "127.0.0.1:1"), (0, "10.0.0.1:1"), (1, "127.0.0.1:1")]
