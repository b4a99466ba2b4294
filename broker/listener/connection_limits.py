"""Limits on connections: how many at one time, per address, and of those not open yet.

Counts only; it knows no sockets. A connection is *negotiating* from its accepted socket to its
connection.open (TLS, login), and costs memory and work before its user is known. So these have
their own limit and time limit, and one address may have half of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from broker.access.login_delays import source_of
from broker.options.client_ports import ClientLimits

FILES_KEPT = 200
"""Open files not available to clients: the store, the log, the ring, transfers, management."""


class Admission:
    """One accepted connection, from its accepted socket on."""

    def __init__(self, source: str, since: float) -> None:
        self.source, self.since = source, since


class NotLetIn(NamedTuple):
    """Why a socket is closed at once: its counter, and a sentence."""

    counter: str
    reason: str


class ConnectionLimits:
    """Counts all connections of one service. `open_files`: the limit of this process, where the
    limits derive the number of connections from it."""

    def __init__(self, limits: ClientLimits, open_files: int = 0) -> None:
        self.limits = limits
        self.counters = dict.fromkeys(
            ("refused_full", "refused_of_address", "refused_negotiating", "negotiation_timeouts"), 0
        )
        self._open_files = open_files
        self._connections = 0
        self._of_source: Counter[str] = Counter()
        self._negotiating: dict[Admission, None] = {}
        self._negotiating_of: Counter[str] = Counter()

    @property
    def connections_max(self) -> int:
        """How many connections there may be."""
        if self.limits.connections is not None:
            return self.limits.connections
        return max(16, self._open_files - FILES_KEPT)

    @property
    def connections(self) -> int:
        """How many there are."""
        return self._connections

    @property
    def negotiating(self) -> int:
        """How many of them are not open yet."""
        return len(self._negotiating)

    def accept(self, host: str, now: float) -> Admission | NotLetIn:
        """A socket was accepted: count it, or return why it is refused."""
        source = source_of(host)
        if (found := self._full(source)) is not None:
            self.counters[found.counter] += 1
            return found
        one = Admission(source, now)
        self._connections += 1
        self._of_source[source] += 1
        self._negotiating[one] = None
        self._negotiating_of[source] += 1
        return one

    def _full(self, source: str) -> NotLetIn | None:
        limits = self.limits
        if self._connections >= self.connections_max:
            reason = f"there are {self._connections} connections already"
            if limits.connections is None:
                reason += f", as this process may open {self._open_files} files"
            return NotLetIn("refused_full", reason)
        if limits.per_address and self._of_source[source] >= limits.per_address:
            return NotLetIn(
                "refused_of_address", f"there are {limits.per_address} connections of {source}"
            )
        if len(self._negotiating) >= limits.negotiating:
            reason = f"{limits.negotiating} connections are not open yet"
            return NotLetIn("refused_negotiating", reason)
        if (of_source := self._negotiating_of[source]) >= limits.negotiating // 2:
            reason = f"{of_source} connections of {source} are not open yet, half of what may be so"
            return NotLetIn("refused_negotiating", reason)
        return None

    def opened(self, one: Admission) -> None:
        """The client has logged in; harmless if that is known already."""
        if one in self._negotiating:
            del self._negotiating[one]
            _less(self._negotiating_of, one.source)

    def closed(self, one: Admission) -> None:
        """Its socket is gone. Call it once."""
        self.opened(one)
        self._connections -= 1
        _less(self._of_source, one.source)

    def overdue(self, now: float) -> Iterator[Admission]:
        """Connections that have negotiated for too long; the caller ends them."""
        for one in list(self._negotiating):
            if now - one.since > self.limits.negotiate_s:
                yield one


def _less(counted: Counter[str], source: str) -> None:
    counted[source] -= 1
    if not counted[source]:
        del counted[source]
