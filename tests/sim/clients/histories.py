"""The histories of simulated clients, in the files that clients of real brokers write.

Each incarnation of a member has its own clients, which share one history.  A client is a separate
process: only its connections end with the member; by chance it dies too, as in one power cut, and
its file ends early.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from broker.machine.commands import Publish
from broker.machine.effects import DeliverEffect
from broker.memberlog.client_history import ClientHistory, ClusterName, Session
from broker.memberlog.segments import segment_name
from tests.sim.world.random_tape import Tape

CLIENTS = "clients"
"""The directory beside the members' logs."""
CUT_BYTES_MAX = 400


class SimHistory:
    """The records of one incarnation's clients; none without a directory."""

    def __init__(
        self,
        directory: Path | None,
        member: str,
        incarnation: int,
        tape: Tape,
        wall_us: Callable[[], int],
        cluster_id: Callable[[], str],
    ) -> None:
        """`cluster_id` as the member tells it to a client that connects."""
        self._history = self._file = None
        if directory is not None:
            name, place = f"clients-of-{member}", directory / CLIENTS
            self._history = ClientHistory(place, name, incarnation, wall_us)
            self._file = place / segment_name(name, incarnation, 0)
        self._tape, self._cluster_id = tape, cluster_id
        self._to: dict[str, Session] = {}  # the publisher's, by the queue that it publishes to
        self._by: dict[int, Session] = {}  # by the number of an unconfirmed publish
        self._of: dict[tuple[int, int], Session] = {}  # of consumers, by connection and channel

    def _session(self, queue: str) -> Session:
        assert self._history is not None
        return self._history.session(queue, ClusterName("simulated", self._cluster_id()))

    # -- the publisher ---------------------------------------------------------------------------

    def publishes(self, sent: Publish) -> None:
        """A message is about to be sent, whole."""
        if self._history is None:
            return
        session = self._to.get(sent.key)
        if session is None:
            session = self._to[sent.key] = self._session(sent.key)
        session.published(sent.publish_no, bytes(sent.body))
        self._by[sent.publish_no] = session

    def answered(self, number: int, *, ack: bool) -> None:
        """A confirm or a refusal arrived."""
        if (session := self._by.pop(number, None)) is not None:
            (session.confirmed if ack else session.refused)(number)

    def publisher_lost(self) -> None:
        """Its connection ended, whoever ended it."""
        for session in self._to.values():
            session.lost()
        self._to, self._by = {}, {}

    # -- consumers -------------------------------------------------------------------------------

    def consumes(self, conn: int, chan: int, queue: str) -> None:
        """A channel was opened, perhaps reopened, to consume from a queue."""
        if self._history is not None:
            self._of[conn, chan] = self._session(queue)

    def received(self, delivery: DeliverEffect) -> None:
        """A message arrived."""
        if (session := self._of.get((delivery.conn, delivery.chan))) is not None:
            session.received(
                delivery.delivery_tag, bytes(delivery.body), redelivered=delivery.redelivered,
                acks=not delivery.no_ack,
            )  # fmt: skip

    def acks(self, conn: int, chan: int, tag: int, *, multiple: bool) -> None:
        """An ack is about to be sent."""
        if (session := self._of.get((conn, chan))) is not None:
            session.acked(tag, multiple=multiple)

    def consumers_lost(self, conn: int) -> None:
        """A connection of consumers ended, whoever ended it."""
        for at in [at for at in self._of if at[0] == conn]:
            self._of.pop(at).lost()

    # -- the file --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Called before any recorded action is carried out."""
        if self._history is not None:
            self._history.flush()

    def member_ended(self, *, crashed: bool) -> None:
        """All connections broke; the clients go elsewhere, or end."""
        if self._history is None:
            return
        dies = crashed and self._tape.chance(0.3)
        if not dies:
            for session in (*self._to.values(), *self._of.values()):
                session.lost()
        self._history.close()
        self._history, self._to, self._by, self._of = None, {}, {}, {}
        if dies and self._file is not None and self._file.exists():
            size = self._file.stat().st_size
            os.truncate(self._file, max(0, size - self._tape.number(1, CUT_BYTES_MAX)))
