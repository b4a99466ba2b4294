"""Logins of clients and operators: judged at once, or when a server has answered.

`turn_s` and `wait_s` say how a login is slowed, before it is judged; failures are counted here.
While a server is being asked nothing has failed yet. So for one user at one address the number of
passwords in progress is limited to the number that may be wrong before anything is slowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker.access.access import Access
from broker.access.auth_server import Answer, AuthQuestion
from broker.access.backends import Login, ToAsk
from broker.access.login_delays import FIRST_S, USER_FREE, LoginDelays, source_of


class Claim(NamedTuple):
    """The user that somebody claims to be."""

    user: str
    password: str | None
    """None: the user was identified in another way."""
    address: str
    """The host it connects from."""
    is_local: bool
    operates: bool = False
    """Whether it uses the management API or a tool, not AMQP."""


class LoginChecks:
    """The login checks of one member."""

    def __init__(self, access: Access) -> None:
        self.delays = LoginDelays()
        self.counters = dict.fromkeys(
            ("clients", "clients_refused", "operators", "operators_refused"), 0
        )
        self._access = access
        self._asked: dict[tuple[str, str], Counter[AuthQuestion]] = {}  # by address and user

    def turn_s(self, address: str, user: str, now: float) -> float | None:
        """How long the verdict is delayed; None: the login is not to be looked at."""
        if self.is_full(address, user):
            return None
        return self.delays.turn_s(address, user, now)

    def wait_s(self, address: str, user: str, now: float) -> float:
        """For callers that nobody can delay: how long from now the next login is refused a look."""
        if self.is_full(address, user):
            return FIRST_S
        return self.delays.wait_s(address, user, now)

    def is_full(self, address: str, user: str) -> bool:
        """Whether so many passwords of this user at this address are in progress that none is
        looked at. Callers that `turn_s` made wait must ask again, because others may have come
        meanwhile."""
        return len(self._asked.get((source_of(address), user), ())) >= USER_FREE

    def judge(self, claim: Claim, now: float, then: Callable[[Login, float], None]) -> Login | None:
        """Return the result of this login; None: `then` gets it later, with the time."""
        found = self._access.login(claim.user, claim.password, is_local=claim.is_local)
        server = self._access.server
        if not isinstance(found, ToAsk) or server is None:
            login = found.otherwise if isinstance(found, ToAsk) else found
            self._count(claim, login, now)
            return login
        key = source_of(claim.address), claim.user
        self._asked.setdefault(key, Counter())[found.question] += 1
        server.ask(found.question, partial(self._answered, claim, found, then))
        return None

    def _answered(
        self,
        claim: Claim,
        asked: ToAsk,
        then: Callable[[Login, float], None],
        answer: Answer,
        now: float,
    ) -> None:
        key = source_of(claim.address), claim.user
        passwords = self._asked[key]
        passwords[asked.question] -= 1
        if not passwords[asked.question]:
            del passwords[asked.question]
        if not passwords:
            del self._asked[key]
        login = asked.decided(answer)
        if not answer.fault:  # a slow server slows down no user's next login
            self._count(claim, login, now)
        then(login, now)

    def _count(self, claim: Claim, login: Login, now: float) -> None:
        kind = "operators" if claim.operates else "clients"
        self.counters[kind if login.backend else f"{kind}_refused"] += 1
        if not login.backend and self._access.has_state:
            self.delays.failed(claim.address, claim.user, now)
