"""Connecting to one broker of a list: the first that accepts, in rounds, until a timeout.

The list may be written as ActiveMQ's clients write it, `failover:(tcp://a:5672,tcp://b:5672)?...`.
`tcp://` and `ssl://` stand for `amqp://` and `amqps://`, which may be written, too.  The parameters
are those that say in which order, how often and how long brokers are tried; times are in
milliseconds.  What else ActiveMQ has is about its own protocol, and is refused by its name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from urllib.parse import parse_qsl

from tools.client.amqp_client import AmqpConnection, ConnectionLost, Login, TlsRefused
from tools.client.broker_url import Address
from vsync.types import record

FAILOVER = "failover:"
FIRST_S, MAX_S = 0.1, 2.0
PARAMETERS = (
    "randomize", "initialReconnectDelay", "maxReconnectDelay", "maxReconnectAttempts", "timeout"
)  # fmt: skip
_SCHEMES = {"tcp://": "amqp://", "ssl://": "amqps://"}


@record
class Reconnect:
    """How the brokers of a list are tried when none accepts, or the one in use is lost."""

    patience_s: float
    """So long at most, from when the last one was lost."""
    first_s: float = FIRST_S
    """The pause behind the first round; the next ones are twice as long each, up to `max_s`."""
    max_s: float = MAX_S
    rounds: int | None = None
    """So many times behind the first one at most; None: as the time allows."""
    shuffled: bool = False


def connect_any(
    brokers: Sequence[Address],
    login: Login,
    reconnect: Reconnect,
    first: int = 0,
    on_failure: Callable[[str], None] = lambda _: None,
) -> tuple[AmqpConnection, int]:
    """Connect to the first broker that accepts, from place `first` on, in rounds.

    Rounds are spaced by a growing, jittered pause; after time or rounds of `reconnect`
    ConnectionLost gives the reasons of the last one; at once when TLS failed with all, which time
    does not mend.
    `on_failure` is called with each reason, but not again with the one that the same broker gave
    in the round before.  Returns the connection and its place.
    """
    deadline = time.monotonic() + reconnect.patience_s
    pause, rounds = reconnect.first_s, 0
    told: dict[int, str] = {}  # by place
    while True:
        reasons: list[str] = []
        refusals = 0
        for step in range(len(brokers)):
            place = (first + step) % len(brokers)
            try:
                return AmqpConnection(brokers[place], login), place
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
    """A client's list of brokers, and the one in use; kept from one connection to the next."""

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
        connection, self._place = connect_any(
            self._brokers, self._login, self._reconnect, self._place, self._on_failure
        )
        if self._was_connected:
            self.failovers += 1
        self._was_connected = True
        return connection

    def lost(self, connection: AmqpConnection, reason: str) -> None:
        """The connection broke: report why, and continue with the next broker."""
        connection.drop()
        self._on_failure(reason)
        self._place = (self._place + 1) % len(self._brokers)


def split_failover(text: str, patience_s: float) -> tuple[str, Reconnect]:
    """Return the plain list of brokers, and how they are tried.  ValueError is for operators."""
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
        raise ValueError("failover: parameters stand behind the bracket, for all brokers")
    return ",".join(_plain(part) for part in parts), _reconnect(rest.removeprefix("?"), patience_s)


def _plain(part: str) -> str:
    for theirs, ours in _SCHEMES.items():
        if part.startswith(theirs):
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
    shuffled = given.get("randomize", "true").lower()  # as ActiveMQ does
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
