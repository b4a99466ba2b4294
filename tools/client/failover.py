"""Connecting to one broker of a list: the first that accepts, in rounds, until a timeout."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from tools.client.amqp_client import AmqpConnection, ConnectionLost, Login, TlsRefused
from tools.client.broker_url import Address

BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX = 0.1, 2.0


def connect_any(
    brokers: Sequence[Address],
    login: Login,
    patience_seconds: float,
    first: int = 0,
    on_failure: Callable[[str], None] = lambda _: None,
) -> tuple[AmqpConnection, int]:
    """Connect to the first broker that accepts, from place `first` on, in rounds.

    Rounds are spaced by a growing, jittered pause; after `patience_seconds` ConnectionLost gives
    the reasons of the last round; at once when TLS failed with all, which time does not mend.
    `on_failure` is called with each reason, but not again with the one that the same broker gave
    in the round before.  Returns the connection and its place.
    """
    deadline = time.monotonic() + patience_seconds
    pause = BACKOFF_SECONDS_FIRST
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
        if refusals == len(brokers) or time.monotonic() + pause > deadline:
            raise ConnectionLost("no broker can be reached: " + "; ".join(reasons))
        if pause == BACKOFF_SECONDS_FIRST:
            on_failure(f"trying again for {patience_seconds:g} s (--patience)")
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, BACKOFF_SECONDS_MAX)


class BrokerList:
    """A client's list of brokers, and the one in use; kept from one connection to the next."""

    def __init__(
        self,
        brokers: Sequence[Address],
        login: Login,
        patience_seconds: float,
        on_failure: Callable[[str], None],
    ) -> None:
        self.failovers = 0
        self._brokers, self._login, self._patience = brokers, login, patience_seconds
        self._on_failure = on_failure
        self._place = 0
        self._was_connected = False

    def connect(self) -> AmqpConnection:
        """Connect to the next broker that accepts; ConnectionLost after the timeout."""
        connection, self._place = connect_any(
            self._brokers, self._login, self._patience, self._place, self._on_failure
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
