"""Clients that go on whatever happens to the brokers, and remember what they were promised: in
memory, and each in a history of its own for qpid-cluster-verify.
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
"""After so long without a sign of life a client tries another broker; a stopped process gives
none."""
SILENCE_S = 10.0
"""After so long without an answer it hangs up; a member of a minority gives none, and is alive."""
PAUSE_S = 0.2
JOIN_S = 60.0
REST_S = 120.0
"""How long what is left may take to come, whatever becomes of the connections."""
TROUBLE = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
"""What a broker that is away, or away again, looks like; pika's own time limit of a handshake is
not among its other errors."""


class Patience:
    """That of a client with its broker, from one answer to the next: then it hangs up."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._timer: object = None
        self.answered()

    def answered(self) -> None:
        """The broker has answered."""
        # The timers of BlockingConnection itself do not run while it waits for an answer.
        impl = self._connection._impl
        if self._timer is not None:
            impl._adapter_remove_timeout(self._timer)
        self._timer = impl._adapter_call_later(SILENCE_S, lambda: hang_up(self._connection))


class Notes:
    """What a client writes down of one connection; on disk before anything is done about it."""

    def __init__(self, history: ClientHistory) -> None:
        self._history = history
        self._session: Session = history.session(QUEUE)
        self._published = 0

    def publish(self, channel: BlockingChannel, body: bytes) -> None:
        """Publish and wait for the confirm, which is noted; so is a refusal, which is raised."""
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
        """The connection broke."""
        self._session.lost()
        self._history.flush()


class Load:
    """Some publishers and one consumer, each in a thread, until `stop`."""

    def __init__(
        self, brokers: Sequence[Address], seed: int, publishers: int, rate: float, histories: Path
    ) -> None:
        """`rate` is how many messages a second each publisher sends at most; `histories` is where
        they write down what they did.
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
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[str]:
        """End every client; what was wrong with them, in sentences.

        They look up several times a second, or when their patience is out.
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
        """Return work that publishes the numbers which are `number` modulo `count`."""
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
    """Open the history of a client whose life begins now."""
    return ClientHistory(directory, name, wall_us(), wall_us)


def connect(broker: Address) -> pika.BlockingConnection:
    """Connect with little patience."""
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
    """Break a connection, from any thread, as a client does that has no more patience.

    pika notices a process that stands still by its heartbeat only: it looks each time when that and
    five seconds are over, and believes the second look.
    """
    with contextlib.suppress(AttributeError, OSError):  # it is not connected, or not any more
        connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def take_the_rest(broker: Address, histories: Path, received: set[int]) -> None:
    """Take what is left in the queue, as one more client that writes down what it does.

    A member that was away comes back once more, and closes its connections then; raises what was
    wrong with the last one when the time is up.
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
