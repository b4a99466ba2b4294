"""Operators' logins, by the management protocol and over HTTP, and their virtual hosts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from broker.access.asked_rights import AskedRights, Origin
from broker.access.auth_server import AT_ONCE_MAX, Answer, AuthQuestion, AuthServer
from broker.access.backends import HTTP, INTERNAL, Login
from broker.access.login_delays import LONGEST_S
from broker.access.logins import Claim
from broker.frontend.connections import is_loopback
from broker.frontend.entry.client_logins import host_of
from broker.frontend.gateway import Gateway
from vsync.admin.protocol import QueryRefused


class OperatorLogins:
    """Judges operators' logins like clients' logins, with which they share the delays."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def judge(
        self, user: str, password: str, peer: str, then: Callable[[Login, float], None]
    ) -> Login | None:
        """Return the verdict on an operator's login; None: `then` gets it later, with the time.

        A member that has no state yet knows no users and can only answer: it lets in those who
        could log in at any new cluster, and tells others that it cannot know. Raises QueryRefused.
        """
        if not self._gateway.access.has_state:
            if user == password == "guest" and is_loopback(peer):
                return Login(INTERNAL, ("administrator",))
            raise QueryRefused(
                "not-active", "this member has no state yet, so it does not know who may log in"
            )
        claim = Claim(user, password, host_of(peer), is_loopback(peer), operates=True)
        return self._gateway.logins.checks.judge(claim, time.monotonic(), then)

    def at_once(
        self, user: str, password: str, peer: str, then: Callable[[Login, float], None]
    ) -> Login | None:
        """Like `judge`, but refuses a login that would be delayed, and never delays the caller.

        Raises QueryRefused.
        """
        if wait := self._gateway.logins.checks.wait_s(host_of(peer), user, time.monotonic()):
            self._gateway.counters["slowed"] += 1
            text = f"too many logins failed from {host_of(peer)}: try again in {math.ceil(wait)} s"
            raise QueryRefused("access-refused", text)
        return self.judge(user, password, peer, then)

    async def in_turn(self, user: str, password: str, peer: str) -> Login:
        """Like `judge`, after waiting for a turn. Raises QueryRefused also when too many wait."""
        logins, host = self._gateway.logins.checks, host_of(peer)
        turn_s = logins.turn_s(host, user, time.monotonic())
        if turn_s != 0.0:
            self._gateway.counters["slowed"] += 1
        if turn_s is not None:
            await asyncio.sleep(turn_s)
        if turn_s is None or logins.is_full(host, user):
            text = f"too many logins failed from {host}: try again in {LONGEST_S:g} s"
            raise QueryRefused("access-refused", text)
        told: asyncio.Future[Login] = asyncio.get_running_loop().create_future()
        login = self.judge(
            user, password, peer, lambda login, _: None if told.done() else told.set_result(login)
        )
        return await told if login is None else login


async def entered(
    gateway: Gateway, user: str, login: Login, peer: str, vhosts: Sequence[str]
) -> frozenset[str]:
    """Return those of the virtual hosts that this user, let in by a server, may enter."""
    server = gateway.access.server
    if server is None or login.backend != HTTP:
        return frozenset()
    origin = Origin(login.tags, host_of(peer))

    async def enters(vhost: str) -> bool:
        told: dict[AuthQuestion, Answer] = {}
        rights = AskedRights(gateway.access, user, vhost, server, origin, told)
        while (refused := rights.refuses_entry()) is None:
            for question in rights.missing:
                told[question] = await _answer(server, question)
        return not refused

    found: list[str] = []
    for at in range(0, len(vhosts), AT_ONCE_MAX):
        some = vhosts[at : at + AT_ONCE_MAX]
        good = await asyncio.gather(*map(enters, some))
        found += [vhost for vhost, is_good in zip(some, good, strict=True) if is_good]
    return frozenset(found)


async def _answer(server: AuthServer, question: AuthQuestion) -> Answer:
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    server.ask(question, lambda answer, _: None if told.done() else told.set_result(answer))
    return await told
