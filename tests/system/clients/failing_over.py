"""Programs on third-party clients that publish numbers with confirms, consume them, and fail over
as the libraries' manuals say; a number whose publish failed is published again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import aio_pika
import aio_pika.abc
import aio_pika.exceptions
import pika
import pika.exceptions
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.message import Message
from kombu.mixins import ConsumerMixin
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.support.load_clients import Patience

PAUSE_S = 0.01
KOMBU_RETRIES = {"interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}


class Numbers:
    """The numbers confirmed to a client, and those that arrived."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.confirmed: set[int] = set()
        self.arrived: set[int] = set()
        self.enough = threading.Event()
        """Stop publishing."""
        self.stop = threading.Event()
        """Stop consuming."""
        self.ended: BaseException | None = None
        """Why a program ended before it was told to."""

    def next(self) -> int:
        """The number to publish; the last one again if it was not confirmed."""
        return len(self.confirmed)


def pika_at_any(
    numbers: Numbers, ended: threading.Event, work: Callable[[BlockingChannel, Patience], None]
) -> None:
    """Work at any member that accepts the connection; go to the next when it is lost or gives no
    answer."""
    members = [pika.URLParameters(url) for url in numbers.urls]
    while not ended.is_set():
        with suppress(pika.exceptions.AMQPError, OSError):
            connection = pika.BlockingConnection(members)
            patience = Patience(connection)
            channel = connection.channel()
            channel.queue_declare("pika", durable=True)
            work(channel, patience)
            connection.close()
        members.append(members.pop(0))
        ended.wait(0.1)


def pika_publishes(numbers: Numbers) -> None:
    def publish(channel: BlockingChannel, patience: Patience) -> None:
        channel.confirm_delivery()
        while not numbers.enough.wait(PAUSE_S):
            body = b"%d" % numbers.next()
            channel.basic_publish("", "pika", body, pika.BasicProperties(delivery_mode=2))
            patience.answered()
            numbers.confirmed.add(int(body))

    pika_at_any(numbers, numbers.enough, publish)


def pika_consumes(numbers: Numbers) -> None:
    def consume(channel: BlockingChannel, patience: Patience) -> None:
        channel.basic_qos(prefetch_count=10)
        for method, _, body in channel.consume("pika", inactivity_timeout=0.2):
            patience.answered()  # heartbeats detect a missing answer
            if method is not None:
                numbers.arrived.add(int(body))
                channel.basic_ack(method.delivery_tag)
            if numbers.stop.is_set():
                break

    pika_at_any(numbers, numbers.stop, consume)


def kombu_publishes(numbers: Numbers) -> None:
    options = {"confirm_publish": True}
    queue = Queue("kombu", routing_key="kombu")
    with Connection(";".join(numbers.urls), transport_options=options) as connection:
        producer = connection.Producer()
        while not numbers.enough.wait(PAUSE_S):
            number = numbers.next()
            producer.publish(
                number, routing_key="kombu", declare=[queue], delivery_mode=2, retry=True,
                retry_policy=KOMBU_RETRIES, serializer="json",
            )  # fmt: skip
            numbers.confirmed.add(number)


class KombuWorker(ConsumerMixin):
    """Reconnects by itself."""

    def __init__(self, connection: Connection, numbers: Numbers) -> None:
        self.connection, self.numbers = connection, numbers

    @property
    def should_stop(self) -> bool:
        return self.numbers.stop.is_set()

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        """Ignored: the library clears its flag when it starts."""

    def get_consumers(self, consumer: type, _channel: object) -> list[object]:
        return [consumer([Queue("kombu")], callbacks=[self.on_number], prefetch_count=10)]

    def on_number(self, body: int, message: Message) -> None:
        self.numbers.arrived.add(body)
        message.ack()


def kombu_consumes(numbers: Numbers) -> None:
    with Connection(";".join(numbers.urls)) as connection:
        KombuWorker(connection, numbers).run(timeout=1)  # type: ignore[no-untyped-call]


def aio_pika_runs(numbers: Numbers) -> None:
    """Both in one loop; the robust connection waits for the member that it was connected to."""

    async def publish() -> None:
        connection = await aio_pika.connect_robust(numbers.urls[0], reconnect_interval=0.2)
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue("aio", durable=True)
        while not numbers.enough.is_set():
            number = numbers.next()
            message = aio_pika.Message(b"%d" % number, delivery_mode=2)
            with suppress(aio_pika.exceptions.AMQPError, OSError, RuntimeError, TimeoutError):
                await channel.default_exchange.publish(message, "aio", timeout=5)
                numbers.confirmed.add(number)
            await asyncio.sleep(PAUSE_S)
        await connection.close()

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        numbers.arrived.add(int(message.body))
        with suppress(aio_pika.exceptions.AMQPError, OSError, RuntimeError):
            await message.ack()

    async def consume() -> None:
        connection = await aio_pika.connect_robust(numbers.urls[0], reconnect_interval=0.2)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("aio", durable=True)
        await queue.consume(on_message)
        await asyncio.to_thread(numbers.stop.wait)
        await connection.close()

    async def both() -> None:
        await asyncio.gather(publish(), consume())

    asyncio.run(both())
