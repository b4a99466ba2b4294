"""Connects to one broker of a list: the first that accepts, in rounds, until a timeout.

The list may be in the form of ActiveMQ's clients, `failover:(tcp://a:5672,tcp://b:5672)?...`.
`tcp://` and `ssl://` stand for `amqp://` and `amqps://` (for the management API: `http://` and
`https://`), which are accepted, too. The parameters supported are those for the order, number and
duration of attempts; times are in milliseconds. ActiveMQ's other parameters are about its own
protocol, and are refused by name.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import parse_qsl

from tools.cli.streams import complain
from tools.client.amqp_client import (
    AmqpConnection,
    BrokerRefused,
    ConnectionLost,
    Login,
    TlsRefused,
)
from tools.client.broker_url import (
    AMQP,
    DEFAULT_USER,
    NEAR_ONLY,
    Address,
    BrokerUrl,
    Schemes,
    brokers,
)
from vsync.types import record

FAILOVER = "failover:"
FIRST_S, MAX_S = 0.1, 2.0
PARAMETERS = (
    "randomize", "initialReconnectDelay", "maxReconnectDelay", "maxReconnectAttempts", "timeout"
)  # fmt: skip
NEXT_S = 5.0
"""How long a silent broker is waited for while there is another one to try."""
_SCHEMES = {"tcp://": False, "ssl://": True}
"""Whether the scheme uses TLS."""
MemberAddress: TypeAlias = "Address | Path"
"""Address of a broker: a port, or the Unix socket of a library program."""
Connection = TypeVar("Connection")


@record
class Reconnect:
    """How the brokers of a list are tried when none accepts, or the current one is lost."""

    patience_s: float
    """The limit of time, counted from the loss of the last one."""
    first_s: float = FIRST_S
    """The pause after the first round; each later pause is twice as long, up to `max_s`."""
    max_s: float = MAX_S
    rounds: int | None = None
    """The limit of rounds after the first; None: as many as time allows."""
    shuffled: bool = False


def connect_any(
    brokers: Sequence[Address],
    login: Login,
    reconnect: Reconnect,
    first: int = 0,
    on_failure: Callable[[str], None] = lambda _: None,
) -> tuple[AmqpConnection, int]:
    """Connect to the first broker that accepts, from place `first` on, in rounds.

    A growing, jittered pause separates the rounds. After the time or rounds of `reconnect`,
    ConnectionLost gives the reasons of the last round; it comes at once if TLS failed with all,
    because time does not help there. `on_failure` is called with each reason, unless the same
    broker gave it in the round before. Returns the connection and its place.
    """
    deadline = time.monotonic() + reconnect.patience_s
    pause, rounds = reconnect.first_s, 0
    told: dict[int, str] = {}  # by place
    while True:
        reasons: list[str] = []
        refusals = 0
        greeting_s = NEXT_S if len(brokers) > 1 else login.timeout_seconds
        for step in range(len(brokers)):
            place = (first + step) % len(brokers)
            try:
                return AmqpConnection(brokers[place], login, greeting_s=greeting_s), place
            except ConnectionLost as lost:
                reasons.append(str(lost))
                refusals += isinstance(lost, TlsRefused)
                if told.get(place) != str(lost):
                    on_failure(str(lost))
                told[place] = str(lost)
        enough = reconnect.rounds is not None and rounds >= reconnect.rounds
        if refusals == len(brokers) or enough or time.monotonic() + pause > deadline:
            raise ConnectionLost("no broker can be reached: " + "; ".join(reasons))
        if not rounds:
            on_failure(f"trying again for {reconnect.patience_s:g} s (--patience)")
        rounds += 1
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, reconnect.max_s)


class BrokerList:
    """A client's list of brokers, and the current one; kept from one connection to the next."""

    def __init__(
        self,
        brokers: Sequence[Address],
        login: Login,
        reconnect: Reconnect,
        on_failure: Callable[[str], None],
    ) -> None:
        self.failovers = 0
        self._brokers, self._login, self._reconnect = brokers, login, reconnect
        self._on_failure = on_failure
        self._place = 0
        self._was_connected = False

    def connect(self) -> AmqpConnection:
        """Connect to the next broker that accepts; ConnectionLost after the timeout."""
        try:
            connection, self._place = connect_any(
                self._brokers, self._login, self._reconnect, self._place, self._on_failure
            )
        except BrokerRefused as refusal:
            if self._login.user == DEFAULT_USER and "Login was refused" in str(refusal):
                said = str(refusal).rstrip(".")
                raise BrokerRefused(refusal.code, f"{said}{NEAR_ONLY}") from None
            raise
        if self._was_connected:
            self.failovers += 1
        self._was_connected = True
        return connection

    def lost(self, connection: AmqpConnection, reason: str) -> None:
        """The connection broke: report why, and continue with the next broker."""
        connection.drop()
        self._on_failure(reason)
        self._place = (self._place + 1) % len(self._brokers)


def read_brokers(
    text: str, schemes: Schemes, patience_s: float = 0.0
) -> tuple[BrokerUrl, tuple[Address, ...], Reconnect]:
    """Parse a list of brokers, plain or in ActiveMQ's form. ValueErrors are for operators.

    Returns the settings of the first one, which apply to all, the addresses in the order of
    attempts, and the way of trying.
    """
    plain, reconnect = split_failover(text, patience_s, schemes)
    found = brokers(plain, schemes)
    addresses = [one.address for one in found]
    if reconnect.shuffled:
        random.shuffle(addresses)
    return found[0], tuple(addresses), reconnect


class NoneReached(Exception):
    """No connection to any broker of a list; `failures` has the reason for each."""

    def __init__(self, failures: Sequence[tuple[MemberAddress, OSError]]) -> None:
        super().__init__()
        self.failures = failures

    @property
    def is_down(self) -> bool:
        """Whether other members of the cluster may answer: neither TLS failed, nor is it a library
        program's address."""
        return not any(
            isinstance(problem, ssl.SSLError) or isinstance(place, Path)
            for place, problem in self.failures
        )


class Chosen:
    """The broker of a list that one command asks: the first that answers, for as long as it does.

    For commands that ask one member and want an answer now. Earlier brokers of the list were only
    greeted, so no change is made twice.
    """

    def __init__(self) -> None:
        self._at = 0

    @property
    def at(self) -> int:
        """Its place in the list."""
        return self._at

    def reach(
        self,
        places: Sequence[MemberAddress],
        connect: Callable[[MemberAddress, float | None], Connection],
        greet: Callable[[MemberAddress, float], None],
        timeout_s: float | None,
    ) -> tuple[MemberAddress, Connection]:
        """Connect, in one round; a broker silent for `NEXT_S` is skipped, and named on stderr.

        `greet` asks for any answer, also of a broker that has answered before, because it may have
        stopped since; it is not called if there is no other broker left. Raises NoneReached.
        """
        failures: list[tuple[MemberAddress, OSError]] = []
        start, patience_s = self._at, min(timeout_s or NEXT_S, NEXT_S)
        for step in range(len(places)):
            at = (start + step) % len(places)
            place, is_last = places[at], step + 1 == len(places)
            try:
                if not is_last:
                    greet(place, patience_s)
                connection = connect(place, timeout_s if is_last else patience_s)
            except OSError as problem:
                failures.append((place, problem))
                if isinstance(problem, TimeoutError) and not is_last:
                    following = places[(at + 1) % len(places)]
                    said = f"{place} says nothing for {patience_s:g} s: {following} is asked"
                    complain(said)
            else:
                self._at = at
                return place, connection
        raise NoneReached(failures)


def split_failover(text: str, patience_s: float, schemes: Schemes = AMQP) -> tuple[str, Reconnect]:
    """Return the plain list of brokers, and the way of trying. ValueErrors are for operators."""
    if not text.startswith(FAILOVER):
        return text, Reconnect(patience_s)
    inner = text.removeprefix(FAILOVER).removeprefix("//")
    if inner.startswith("("):
        listed, closed, rest = inner[1:].rpartition(")")
        if not closed or (rest and not rest.startswith("?")):
            raise ValueError("failover: is not of the form failover:(BROKER,...)?name=value&...")
    else:
        listed, _, rest = inner.partition("?")
        rest = f"?{rest}"
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if any("?" in part for part in parts):
        raise ValueError("failover: parameters go after the bracket, for all brokers")
    listed = ",".join(_plain(part, schemes) for part in parts)
    return listed, _reconnect(rest.removeprefix("?"), patience_s)


def _plain(part: str, schemes: Schemes) -> str:
    for theirs, tls in _SCHEMES.items():
        if part.startswith(theirs):
            ours = next(name for name, scheme in schemes.items() if scheme.tls is tls)
            return ours + part.removeprefix(theirs)
    return part


def _reconnect(query: str, patience_s: float) -> Reconnect:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in PARAMETERS:
            near = get_close_matches(name, PARAMETERS, 1)
            hint = f"; is {near[0]} meant?" if near else f": it takes {', '.join(PARAMETERS)}"
            raise ValueError(f"failover: there is no parameter '{name}' here{hint}")
        if name in given:
            raise ValueError(f"failover: {name} is there twice")
        given[name] = value
    shuffled = given.get("randomize", "true").lower()  # as in ActiveMQ
    if shuffled not in ("true", "false"):
        raise ValueError(f"failover: randomize is neither true nor false: '{shuffled}'")
    first_ms = _number("initialReconnectDelay", given, round(1000 * FIRST_S), 1)
    max_ms = _number("maxReconnectDelay", given, max(round(1000 * MAX_S), first_ms), 1)
    if max_ms < first_ms:
        raise ValueError("failover: maxReconnectDelay is less than initialReconnectDelay")
    rounds = _number("maxReconnectAttempts", given, -1, -1)
    timeout_ms = _number("timeout", given, -1, -1)
    return Reconnect(
        timeout_ms / 1000 if timeout_ms >= 0 else patience_s, first_ms / 1000, max_ms / 1000,
        rounds if rounds >= 0 else None, shuffled == "true",
    )  # fmt: skip


def _number(name: str, given: dict[str, str], default: int, low: int) -> int:
    text = given.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise ValueError(f"failover: {name} is no whole number from {low} on: '{text}'")
    return number
