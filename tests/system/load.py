"""Clients that go on whatever happens to the brokers, and remember what they were promised."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from broker.options import Address

QUEUE = "hardship"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PATIENCE_S = 4.0
"""After so long without a sign of life a client tries another broker; a stopped process gives
none."""
PAUSE_S = 0.2
JOIN_S = 60.0


class Load:
    """Some publishers and one consumer, each in a thread, until `stop`."""

    def __init__(self, brokers: Sequence[Address], seed: int, publishers: int, rate: float) -> None:
        """`rate` is how many messages a second each publisher sends at most."""
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
                args=(random.Random(f"{seed} {number}"), work),
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

    def _run(self, chance: random.Random, work: Callable[[BlockingChannel], None]) -> None:
        while not self._ending.is_set():
            try:
                with connect(chance.choice(self._brokers)) as connection:
                    channel = connection.channel()
                    channel.queue_declare(QUEUE, durable=True)
                    work(channel)
            except (pika.exceptions.AMQPError, OSError):
                self.reconnects += 1
                self._ending.wait(PAUSE_S)

    def _publisher(self, number: int, count: int) -> Callable[[BlockingChannel], None]:
        """Return work that publishes the numbers which are `number` modulo `count`."""
        place = number

        def publish(channel: BlockingChannel) -> None:
            nonlocal place
            channel.confirm_delivery()
            while not self._ending.wait(self._pause_s):
                now = place
                place += count  # a number whose confirm was lost is never used again
                channel.basic_publish("", QUEUE, b"%d" % now, PERSISTENT)
                self.confirmed.add(now)

        return publish

    def _consume(self, channel: BlockingChannel) -> None:
        while not self._ending.is_set():
            if not take_one(channel, self.received):
                self._ending.wait(PAUSE_S)


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


def take_one(channel: BlockingChannel, received: set[int]) -> bool:
    """Take and acknowledge one message; False when there is none."""
    method, _, body = channel.basic_get(QUEUE)
    if method is None or body is None:
        return False
    received.add(int(body))
    channel.basic_ack(method.delivery_tag)
    return True
