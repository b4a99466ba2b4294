"""Clients that continue through all faults of the brokers, and remember their confirms: in memory,
and each in its own history for qpid-cluster-verify.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from broker.memberlog.client_history import ClientHistory, Session
from broker.options.addresses import Address
from tests.system.support.clusters import admitted
from tools.client.history import wall_us

QUEUE = "hardship"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PATIENCE_S = 4.0
"""A client that has heard nothing for this long, such as from a stopped process, tries another
broker."""
SILENCE_S = 10.0
"""A client hangs up without a reply for this long; a minority's member gives none, but is alive."""
PAUSE_S = 0.2
JOIN_S = 60.0
REST_S = 120.0
"""How long remaining messages may take to arrive, whatever happens to the connections."""
TROUBLE = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
"""The errors of a broker that is absent or becomes so; pika's time limit of a handshake is not
among its other errors."""


class Patience:
    """A client's patience with its broker between two replies: when it ends, the client hangs
    up."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._timer: object = None
        self.answered()

    def answered(self) -> None:
        """The broker has replied."""
        # BlockingConnection's own timers do not run while it waits for a reply.
        impl = self._connection._impl
        if self._timer is not None:
            impl._adapter_remove_timeout(self._timer)
        self._timer = impl._adapter_call_later(SILENCE_S, lambda: hang_up(self._connection))


class Notes:
    """A client's records of one connection; each is on disk before the client acts on it."""

    def __init__(self, history: ClientHistory) -> None:
        self._history = history
        self._session: Session = history.session(QUEUE)
        self._published = 0

    def publish(self, channel: BlockingChannel, body: bytes) -> None:
        """Publish and record the confirm; a refusal is recorded and raised."""
        self._published += 1
        self._session.published(self._published, body)
        self._history.flush()
        try:
            channel.basic_publish("", QUEUE, body, PERSISTENT)
        except pika.exceptions.NackError:
            self._session.refused(self._published)
            raise
        self._session.confirmed(self._published)

    def take_one(self, channel: BlockingChannel, received: set[int]) -> bool:
        """Take and acknowledge one message; False when there is none."""
        method, _, body = channel.basic_get(QUEUE)
        if method is None or body is None:
            return False
        received.add(int(body))
        self._session.received(method.delivery_tag, body, redelivered=method.redelivered)
        self._session.acked(method.delivery_tag)
        self._history.flush()
        channel.basic_ack(method.delivery_tag)
        return True

    def lost(self) -> None:
        """Record that the connection broke."""
        self._session.lost()
        self._history.flush()


class Load:
    """Some publishers and one consumer, each in a thread, until `stop`."""

    def __init__(
        self, brokers: Sequence[Address], seed: int, publishers: int, rate: float, histories: Path
    ) -> None:
        """`rate` is the most messages a second of each publisher; `histories` is the directory of
        their histories.
        """
        self.confirmed: set[int] = set()
        self.received: set[int] = set()
        self.reconnects = 0
        self._brokers = tuple(brokers)
        self._pause_s = 1.0 / rate
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run,
                name=f"client {number}",
                args=(number, random.Random(f"{seed} {number}"), work, histories),
                daemon=True,
            )
            for number, work in enumerate(
                [*(self._publisher(n, publishers) for n in range(publishers)), self._consume]
            )
        ]

    def start(self) -> None:
        """Start all clients."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[str]:
        """End every client; return what was wrong with them, in sentences.

        They check several times a second, or when their patience ends.
        """
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        self._ending.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        return [
            *(f"{name} died of an error of its own" for name in dead),
            *(f"{name} still waited for a broker {JOIN_S:g} s after the end" for name in stuck),
        ]

    def _run(
        self,
        number: int,
        chance: random.Random,
        work: Callable[[BlockingChannel, Notes, Patience], None],
        histories: Path,
    ) -> None:
        broker = chance.choice(self._brokers)
        with contextlib.closing(history(histories, f"load-{number}")) as mine:
            while not self._ending.is_set():
                notes = Notes(mine)
                try:
                    with connect(broker) as connection:
                        patience = Patience(connection)
                        channel = connection.channel()
                        channel.queue_declare(QUEUE, durable=True)
                        work(channel, notes, patience)
                except TROUBLE:
                    notes.lost()
                    self.reconnects += 1
                    others = [one for one in self._brokers if one != broker]
                    broker = chance.choice(others or self._brokers)
                    self._ending.wait(PAUSE_S)

    def _publisher(
        self, number: int, count: int
    ) -> Callable[[BlockingChannel, Notes, Patience], None]:
        """Return a function that publishes the numbers which are `number` modulo `count`."""
        place = number

        def publish(channel: BlockingChannel, notes: Notes, patience: Patience) -> None:
            nonlocal place
            channel.confirm_delivery()
            while not self._ending.wait(self._pause_s):
                now = place
                place += count  # a number whose confirm was lost is never used again
                notes.publish(channel, b"%d" % now)
                patience.answered()
                self.confirmed.add(now)

        return publish

    def _consume(self, channel: BlockingChannel, notes: Notes, patience: Patience) -> None:
        while not self._ending.is_set():
            taken = notes.take_one(channel, self.received)
            patience.answered()
            if not taken:
                self._ending.wait(PAUSE_S)


def history(directory: Path, name: str) -> ClientHistory:
    """Open the history of a client that begins now."""
    return ClientHistory(directory, name, wall_us(), wall_us)


def connect(broker: Address) -> pika.BlockingConnection:
    """Connect with short time limits."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host,
            broker.port,
            heartbeat=int(PATIENCE_S),
            socket_timeout=PATIENCE_S,
            stack_timeout=PATIENCE_S,
            blocked_connection_timeout=PATIENCE_S,
        )
    )


def hang_up(connection: pika.BlockingConnection | None) -> None:
    """Break a connection, from any thread, as a client does whose patience ends.

    pika notices a stalled process only by its heartbeat: it checks each time after that and five
    seconds, and trusts its second check.
    """
    with contextlib.suppress(AttributeError, OSError):  # it is not connected, or no longer
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def take_the_rest(broker: Address, histories: Path, received: set[int]) -> None:
    """Take the remaining messages, as one more client with a history.

    A member that was away joins once more, and closes its connections then.  Raises the error of
    the last connection when the time is up.
    """
    until = time.monotonic() + REST_S
    with contextlib.closing(history(histories, "last")) as mine:
        while True:
            notes = Notes(mine)
            try:
                with admitted(lambda: connect(broker)) as open_now:
                    channel = open_now.channel()
                    channel.queue_declare(QUEUE, durable=True)
                    while notes.take_one(channel, received):
                        pass
                    return
            except TROUBLE:
                notes.lost()
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
