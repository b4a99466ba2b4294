"""What members tell one another about themselves, in datagrams outside the order.

Each member sends its figures every few seconds, with the byte counts of those of its connections on
which something moved. Facts about its clients (product, encryption, certificate), and the settings
of their channels (confirms, prefetch), are sent when they change, and now and then. A datagram may
be lost: the next one repeats it, and figures that were not repeated for a while are no longer
shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgpack

from broker.frontend.channel import ChannelFacts
from broker.machine.state import ConnectionRecord
from broker.statistics.figures import FIGURES, Figures
from vsync.totem.events import Direct
from vsync.types import Member

FIGURES_ARE, TRAFFIC_IS, CLIENTS_ARE, CHANNELS_ARE = b"Of", b"Ot", b"Op", b"Oh"
"""The first bytes of datagrams."""
TELL_S = 2.0
HEARD_S = 10.0
ROWS = 100
"""Connections looked at in one step, and so the most in one datagram."""
CLIENTS_EVERY, CLIENT_ROWS = 15, 20
"""Rounds until clients are announced again, new ones at once; and clients per datagram."""
CLIENTS_BYTES_MAX = 32 * 1024
"""Size of such a datagram: clients choose their own texts, and certificates have long names."""
CHANNEL_ROWS = 500
"""Channels in one datagram; one step looks at up to one connection's channels more."""
UNSET = ChannelFacts()


class Link(Protocol):
    """One client's socket."""

    received: int
    sent: int

    @property
    def conn(self) -> int:
        """The machine's number of the connection; 0: it has none."""

    def details(self, now: float) -> Mapping[str, object]:
        """Return facts about the client that only this member knows."""

    def channels(self) -> Iterator[tuple[int, ChannelFacts]]:
        """Return facts about its channels that only this member knows, by number."""


class View(Protocol):
    """The primary layer, as seen here."""

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of the current view."""


class Client(NamedTuple):
    """A client at another member, as that member described it."""

    details: dict[str, object]
    at: float
    """When it was received."""

    def now(self, now: float) -> dict[str, object]:
        """Return its current description."""
        since = self.details.get("connected_s")
        passed = round(now - self.at)
        return self.details | ({"connected_s": since + passed} if isinstance(since, int) else {})


class Traffic(NamedTuple):
    """Bytes of one connection."""

    received: int
    sent: int
    received_rate: float
    sent_rate: float
    at: float

    def next(self, received: int, sent: int, now: float) -> Traffic:
        """Return a copy with newer counts."""
        interval = max(now - self.at, 0.1)
        more, out = (received - self.received) / interval, (sent - self.sent) / interval
        return Traffic(received, sent, max(more, 0.0), max(out, 0.0), now)


class MemberFigures:
    """The figures of all members, as far as received."""

    def __init__(
        self,
        me: Member,
        view: View,
        session: Callable[[], int],
        connections: Callable[[], Mapping[tuple[int, int], ConnectionRecord]],
        read: Callable[[], Figures],
        links: Callable[[], list[Link]],
        send: Callable[[Member, bytes], None],
    ) -> None:
        self.counters = {"told": 0, "malformed": 0}
        self._me, self._view, self._session, self._connections = me, view, session, connections
        self._read, self._links, self._send = read, links, send
        self._heard: dict[str, tuple[float, Figures]] = {}
        self._traffic: dict[tuple[int, int], Traffic] = {}
        self._clients: dict[tuple[int, int], Client] = {}  # of the others
        self._told_clients: set[int] = set()  # of this member's connections
        self._channels: dict[tuple[int, int, int], ChannelFacts] = {}  # of the others
        self._told_channels: dict[tuple[int, int], ChannelFacts] = {}  # of this member
        self._rounds = 0
        self._round: Iterator[None] = iter(())
        self._now = self._told_at = 0.0
        self._told_to: tuple[Member, ...] = ()

    def of(self, name: str) -> Figures | None:
        """Return the figures of a member; None if none were received lately."""
        if name == self._me.name:
            return self._read()
        found = self._heard.get(name)
        return found[1] if found is not None and self._now - found[0] <= HEARD_S else None

    def told(self, name: str) -> tuple[float, Figures] | None:
        """Return the last figures of a member, which may be this one, and their time."""
        return self._heard.get(name)

    def traffic(self, connection: tuple[int, int]) -> Traffic | None:
        """Return the bytes of a connection; None if its member has not reported them."""
        found = self._traffic.get(connection)
        if found is not None and self._now - found.at > HEARD_S:
            return found._replace(received_rate=0.0, sent_rate=0.0)
        return found

    def client(self, connection: tuple[int, int]) -> dict[str, object] | None:
        """Return another member's description of its client; None if none was received."""
        found = self._clients.get(connection)
        return found.now(self._now) if found is not None else None

    def channel(self, channel: tuple[int, int, int]) -> ChannelFacts | None:
        """Return another member's description of a channel; None if its client was not described.

        Only values other than `UNSET` are sent, and kept.
        """
        found = self._channels.get(channel)
        return UNSET if found is None and channel[:2] in self._clients else found

    def step(self, now: float) -> None:
        """Send the others what is due, and look at some of the connections."""
        self._now = now
        if now - self._told_at >= TELL_S or self._told_to != self._view.members:
            # A member that comes, and those that it meets, inform each other at once.
            self._told_at, self._told_to = now, self._view.members
            self._heard[self._me.name] = now, self._read()
            self._tell(FIGURES_ARE + bytes(msgpack.packb(self._heard[self._me.name][1])))
        if next(self._round, self) is self:
            self._round = self._look_at_all()
            next(self._round, None)

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram belongs here; if so it has been handled."""
        kind, content = direct.payload[:2], direct.payload[2:]
        if kind not in (FIGURES_ARE, TRAFFIC_IS, CLIENTS_ARE, CHANNELS_ARE):
            return False
        try:
            told = msgpack.unpackb(content, strict_map_key=True)
            if kind == FIGURES_ARE:
                self._heard[direct.sender.name] = self._now, _figures(told)
            elif kind == CLIENTS_ARE:
                self._hear_clients(told)
            elif kind == CHANNELS_ARE:
                self._hear_channels(told)
            else:
                self._hear_traffic(told)
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
            self.counters["malformed"] += 1
        return True

    def _hear_traffic(self, told: object) -> None:
        session, rows = _traffic(told)
        connections = self._connections()
        for conn, received, sent in rows:
            if (session, conn) in connections:
                self._take((session, conn), received, sent)

    def _hear_clients(self, told: object) -> None:
        session, rows = _clients(told)
        connections = self._connections()
        for conn, details in rows:
            if (session, conn) in connections:
                self._clients[session, conn] = Client(details, self._now)

    def _hear_channels(self, told: object) -> None:
        session, rows = _channels(told)
        connections = self._connections()
        for conn, number, facts in rows:
            record = connections.get((session, conn))
            if facts == UNSET or record is None or number not in record.channels:
                self._channels.pop((session, conn, number), None)
            else:
                self._channels[session, conn, number] = facts

    def _take(self, key: tuple[int, int], received: int, sent: int) -> None:
        before = self._traffic.get(key)
        if before is None:
            self._traffic[key] = Traffic(received, sent, 0.0, 0.0, self._now)
        else:
            self._traffic[key] = before.next(received, sent, self._now)

    def _tell(self, datagram: bytes) -> None:
        self.counters["told"] += 1
        for member in self._view.members:
            if member != self._me:
                self._send(member, datagram)

    def _look_at_all(self) -> Iterator[None]:
        """One step per batch of this member's connections; then forget those that ended."""
        session = self._session()
        links = self._links()
        began = self._now
        # Now and then all are sent: a member may have come, or missed a datagram. Clients and
        # channels in one round, as a member that knows a client takes its other channels for unset.
        if self._rounds % CLIENTS_EVERY == 0:
            self._told_clients, self._told_channels = set(), {}
        self._rounds += 1
        yield from self._tell_clients(session, links)
        yield from self._tell_channels(session, links)
        for place in range(0, len(links), ROWS):
            rows: list[tuple[int, int, int]] = []
            for link in links[place : place + ROWS]:
                conn = link.conn
                if not conn:
                    continue
                before = self._traffic.get((session, conn))
                told = None if before is None else (before.received, before.sent)
                if told != (link.received, link.sent):
                    rows.append((conn, link.received, link.sent))
                    self._take((session, conn), link.received, link.sent)
                elif before is not None and before.received_rate + before.sent_rate:
                    self._take((session, conn), link.received, link.sent)
            if rows:
                self._tell(TRAFFIC_IS + bytes(msgpack.packb((session, rows))))
            yield
        keys = [*self._traffic, *self._clients]
        for place in range(0, len(keys), ROWS):
            connections = self._connections()
            for key in keys[place : place + ROWS]:
                if key not in connections:
                    self._traffic.pop(key, None)
                    self._clients.pop(key, None)
            yield
        yield from self._forget_channels()
        while self._now - began < TELL_S:
            yield

    def _forget_channels(self) -> Iterator[None]:
        keys = list(self._channels)
        for place in range(0, len(keys), CHANNEL_ROWS):
            connections = self._connections()
            for key in keys[place : place + CHANNEL_ROWS]:
                record = connections.get(key[:2])
                if record is None or key[2] not in record.channels:
                    self._channels.pop(key, None)
            yield

    def _tell_channels(self, session: int, links: list[Link]) -> Iterator[None]:
        """Send changed channels."""
        before = self._told_channels
        self._told_channels = told = {}
        rows: list[tuple[int, ...]] = []
        looked = 0
        for link in links:
            if not (conn := link.conn):
                continue
            for number, facts in link.channels():
                looked += 1
                if facts != before.get((conn, number), UNSET):
                    rows.append((conn, number, *facts))
                if facts != UNSET:
                    told[conn, number] = facts
            looked += 1
            if looked >= CHANNEL_ROWS:
                self._tell_rows(session, rows)
                looked = 0
                yield
        self._tell_rows(session, rows)

    def _tell_rows(self, session: int, rows: list[tuple[int, ...]]) -> None:
        while rows:
            self._tell(CHANNELS_ARE + bytes(msgpack.packb((session, rows[:CHANNEL_ROWS]))))
            del rows[:CHANNEL_ROWS]

    def _tell_clients(self, session: int, links: list[Link]) -> Iterator[None]:
        """Send new clients."""
        new = [link for link in links if link.conn and link.conn not in self._told_clients]
        for place in range(0, len(new), CLIENT_ROWS):
            some = new[place : place + CLIENT_ROWS]
            rows = [bytes(msgpack.packb((link.conn, link.details(self._now)))) for link in some]
            for datagram in _client_datagrams(session, rows):
                self._tell(datagram)
            self._told_clients.update(link.conn for link in some)
            yield


def _client_datagrams(session: int, rows: list[bytes]) -> Iterator[bytes]:
    """These rows in datagrams that are small enough; a row too large for any is left out."""
    packer = msgpack.Packer()
    head = CLIENTS_ARE + packer.pack_array_header(2) + packer.pack(session)
    room = CLIENTS_BYTES_MAX - len(head) - len(packer.pack_array_header(CLIENT_ROWS))
    some: list[bytes] = []
    size = 0
    for row in rows:
        if len(row) > room:
            continue
        if size + len(row) > room:
            yield head + packer.pack_array_header(len(some)) + b"".join(some)
            some, size = [], 0
        some.append(row)
        size += len(row)
    if some:
        yield head + packer.pack_array_header(len(some)) + b"".join(some)


def _of_session(told: object) -> tuple[int, list[Any]]:
    """A session, and rows about its connections."""
    if not isinstance(told, list) or len(told) != 2 or not isinstance(told[1], list):
        raise ValueError("no session and rows")
    return int(told[0]), told[1]


def _clients(told: object) -> tuple[int, list[tuple[int, dict[str, object]]]]:
    session, given = _of_session(told)
    rows: list[tuple[int, dict[str, object]]] = []
    for conn, details in given:
        if not isinstance(details, dict):
            raise ValueError("no details")
        kept: dict[str, object] = {
            str(name): one for name, one in details.items() if isinstance(one, str | int)
        }
        rows.append((int(conn), kept))
    return session, rows


def _channels(told: object) -> tuple[int, list[tuple[int, int, ChannelFacts]]]:
    session, given = _of_session(told)
    return session, [
        (int(conn), int(number), ChannelFacts._make(map(int, facts)))
        for conn, number, *facts in given
    ]


def _traffic(told: object) -> tuple[int, list[tuple[int, int, int]]]:
    session, given = _of_session(told)
    return session, [(int(conn), int(received), int(sent)) for conn, received, sent in given]


def _figures(told: object) -> Figures:
    """Return the figures of a member; 0 for those that its release does not measure."""
    if not isinstance(told, dict):
        raise ValueError("no figures")
    found = {name: float(value) for name, value in told.items() if name in FIGURES}
    if not found or not all(map(math.isfinite, found.values())):
        raise ValueError("other figures")
    return dict.fromkeys(FIGURES, 0.0) | found
