"""The history of one client in the format of a member log: the other side of the evidence.

A client that keeps a history records for each message that it published it, that it was confirmed,
that it received it, and that it acked it. Bodies are hashed, as in the members' logs, so that the
two can be compared (`tools.verify.clients.check`). This module knows no clock and no socket;
`flush` writes the file once per turn of the client.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from broker.memberlog.records import CLIENT_ROW, REDELIVERED, ROLE_CLIENT, Client, ClientOp
from broker.memberlog.writer import SEGMENT_BYTES, LogWriteFailed, MemberLogWriter

OPS_BYTES_MAX = 1 << 20
"""A record is written early when a turn produced this much."""


class ClusterName(NamedTuple):
    """The cluster that a broker says it belongs to; "" if it did not say."""

    name: str = ""
    id: str = ""  # hex


class ClientHistory:
    """The log of one incarnation of one client, over all its connections.

    Its file begins with the first connection: the header names the cluster, which a client learns
    from a broker.
    """

    def __init__(
        self,
        directory: Path,
        client: str,
        incarnation: int,
        wall_us: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`incarnation` must differ from that of every earlier log of this client, because sessions
        are numbered from 1 in each. Raises LogWriteFailed."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogWriteFailed(f"{directory}: {error.strerror}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise LogWriteFailed(f"{directory}: no file can be made there")

        def begin(of: ClusterName) -> MemberLogWriter:
            return MemberLogWriter(
                directory, *of, client, incarnation, wall_us, segment_bytes, role=ROLE_CLIENT
            )

        self._begin = begin
        self._log: MemberLogWriter | None = None
        self._wall_us = wall_us
        self._sessions = 0
        self._fresh: list[Session] = []

    def session(self, queue: str = "", of: ClusterName | None = None) -> Session:
        """Begin a connection that publishes to or consumes from `queue`; "" means several.

        `of`: the cluster of its broker, or None if unknown. Raises LogWriteFailed.
        """
        if self._log is None:
            self._log = self._begin(of or ClusterName())
        self._sessions += 1
        return Session(self, self._sessions, queue)

    def flush(self) -> None:
        """Write everything done since the last flush. Raises LogWriteFailed."""
        if self._log is None:
            return  # there was no connection
        now_us = self._wall_us() if self._fresh else 0
        for session in self._fresh:
            ops = bytes(session.ops)
            session.ops.clear()
            self._log.append(Client(session.number, session.queue, now_us, ops))
        self._fresh.clear()
        self._log.flush()

    def close(self) -> None:
        """Write everything and close the file. Raises LogWriteFailed."""
        self.flush()
        if self._log is not None:
            self._log.close()

    def mark_fresh(self, session: Session) -> None:
        """A session that had nothing to write now has operations."""
        self._fresh.append(session)


class Session:
    """One connection of a client with one channel."""

    def __init__(self, history: ClientHistory, number: int, queue: str) -> None:
        self.number = number
        self.queue = queue
        self.ops = bytearray()
        """Operations since the last flush; rows of CLIENT_ROW."""
        self._history = history
        self._published: dict[int, int] = {}  # unconfirmed publishes: body hash by publish number
        self._received: dict[int, int] = {}  # unacked deliveries: body hash by delivery tag

    def published(self, number: int, body: bytes) -> None:
        """A message is about to be sent; `number` is the one that its confirm will carry."""
        self._published[number] = hashed = xxh3_64_intdigest(body)
        self._record(ClientOp.PUBLISHED, hashed, number)

    def confirmed(self, number: int, *, multiple: bool = False) -> None:
        """The broker confirmed this publish, or all up to it."""
        self._settled(ClientOp.CONFIRMED, number, multiple=multiple)

    def refused(self, number: int, *, multiple: bool = False) -> None:
        """The broker refused this publish (basic.nack), or all up to it."""
        self._settled(ClientOp.REFUSED, number, multiple=multiple)

    def unroutable(self, body: bytes, number: int = 0) -> None:
        """The broker returned a message (basic.return); 0: it is unknown which publish it was."""
        self._record(ClientOp.UNROUTABLE, xxh3_64_intdigest(body), number)

    def received(self, tag: int, body: bytes, *, redelivered: bool, acks: bool = True) -> None:
        """A message was received. Without `acks` the broker waits for no ack."""
        hashed = xxh3_64_intdigest(body)
        if acks:
            self._received[tag] = hashed
        self._record(ClientOp.RECEIVED | (REDELIVERED if redelivered else 0), hashed, tag)

    def acked(self, tag: int, *, multiple: bool = False) -> None:
        """Ack this message, or all up to it."""
        for one in _up_to(self._received, tag, multiple=multiple):
            self._record(ClientOp.ACKED, self._received.pop(one), one)

    def lost(self) -> None:
        """The connection broke: unconfirmed and unacked operations may have been carried out or
        not."""
        self._published.clear()
        self._received.clear()
        self._record(ClientOp.LOST, 0, 0)

    def _settled(self, what: ClientOp, number: int, *, multiple: bool) -> None:
        for one in _up_to(self._published, number, multiple=multiple):
            self._record(what, self._published.pop(one), one)

    def _record(self, what: int, hashed: int, aux: int) -> None:
        if not self.ops:
            self._history.mark_fresh(self)
        self.ops += CLIENT_ROW.pack(what, hashed, aux)
        if len(self.ops) >= OPS_BYTES_MAX:
            self._history.flush()


def _up_to(open_ones: dict[int, int], number: int, *, multiple: bool) -> list[int]:
    """Return those of the open ones, in ascending order, that a confirm or ack covers."""
    if not multiple:
        return [number] if number in open_ones else []
    concerned: list[int] = []
    for one in open_ones:
        if number and one > number:  # 0 stands for all
            break
        concerned.append(one)
    return concerned
