"""Unmodified Python clients: publish with confirm on member 1, consume with ack from member 3.

pika (blocking), aio-pika (asyncio) and kombu (over py-amqp) each have their own codec and habits.
"""

from __future__ import annotations

import asyncio

import aio_pika
import pika
import pika.exceptions
import pytest
from aio_pika.abc import AbstractConnection
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.message import Message

from tests.system.support.clusters import admitted
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = pytest.mark.system

COUNT = 50


def pika_connection(member: BrokerProcess) -> pika.BlockingConnection:
    """A blocking connection to one member."""
    host, port = member.address
    parameters = pika.ConnectionParameters(host=host, port=port, heartbeat=20)
    return admitted(lambda: pika.BlockingConnection(parameters))


def test_pika(cluster: LocalCluster) -> None:
    publisher, consumer = pika_connection(cluster[0]), pika_connection(cluster[2])
    out, into = publisher.channel(), consumer.channel()
    out.queue_declare("pika", durable=True)
    out.confirm_delivery()
    for number in range(COUNT):
        # With confirms on, pika returns only when the broker has answered.
        out.basic_publish(
            "",
            "pika",
            f"message {number}".encode(),
            pika.BasicProperties(
                delivery_mode=2, message_id=str(number), headers={"n": number, "deep": {"a": [1]}}
            ),
            mandatory=True,
        )
    into.basic_qos(prefetch_count=10)
    arrived: list[bytes] = []
    for method, properties, body in into.consume("pika", inactivity_timeout=60):
        assert method is not None, "nothing arrived within a minute"
        assert not method.redelivered
        assert properties.headers == {"n": len(arrived), "deep": {"a": [1]}}
        arrived.append(body)
        into.basic_ack(method.delivery_tag)
        if len(arrived) == COUNT:
            break
    into.cancel()
    assert arrived == [f"message {number}".encode() for number in range(COUNT)]
    assert out.queue_declare("pika", passive=True).method.message_count == 0
    publisher.close()
    consumer.close()


def test_pika_gets_unroutable_messages_back(cluster: LocalCluster) -> None:
    connection = pika_connection(cluster[1])
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nobody-has-this-queue", b"x", mandatory=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("nobody-has-this-queue", passive=True)
    assert closed.value.reply_code == 404
    assert connection.channel().is_open, "the connection stays open"
    connection.close()


def test_pika_transaction_and_exchanges(cluster: LocalCluster) -> None:
    publisher, consumer = pika_connection(cluster[0]), pika_connection(cluster[2])
    out, into = publisher.channel(), consumer.channel()
    out.exchange_declare("topics", "topic", durable=True)
    name = into.queue_declare("", exclusive=True).method.queue
    into.queue_bind(name, "topics", "news.#")
    out.tx_select()
    out.basic_publish("topics", "news.today", b"kept")
    out.basic_publish("topics", "weather.today", b"not ours")
    out.tx_commit()
    out.basic_publish("topics", "news.today", b"taken back")
    out.tx_rollback()
    method, _, body = into.basic_get(name)
    assert body == b"kept"
    into.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = into.basic_get(name, auto_ack=True)
    assert (body, method.redelivered) == (b"kept", True)
    assert into.basic_get(name)[0] is None
    publisher.close()
    consumer.close()


def test_aio_pika(cluster: LocalCluster) -> None:
    async def connect(member: BrokerProcess) -> AbstractConnection:
        host, port = member.address
        return await aio_pika.connect(host=host, port=port)

    async def round_trip(
        publisher: AbstractConnection, consumer: AbstractConnection
    ) -> list[bytes]:
        async with publisher, consumer:
            out = await publisher.channel(publisher_confirms=True)
            into = await consumer.channel()
            await into.set_qos(prefetch_count=10)
            await out.declare_queue("aio", durable=True)
            queue = await into.declare_queue("aio", durable=True)
            for number in range(COUNT):
                message = aio_pika.Message(
                    b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                )
                await out.default_exchange.publish(message, "aio", timeout=60)
            arrived: list[bytes] = []
            async with queue.iterator(timeout=60) as messages:
                async for message_in in messages:
                    async with message_in.process():
                        arrived.append(message_in.body)
                    if len(arrived) == COUNT:
                        break
            return arrived

    with asyncio.Runner() as runner:
        publisher = admitted(lambda: runner.run(connect(cluster[0])))
        consumer = admitted(lambda: runner.run(connect(cluster[2])))
        arrived = runner.run(round_trip(publisher, consumer))
    assert arrived == [b"%d" % number for number in range(COUNT)]


def test_kombu(cluster: LocalCluster) -> None:
    arrived: list[object] = []

    def on_message(body: object, message: Message) -> None:
        arrived.append(body)
        message.ack()

    first, third = cluster[0].address, cluster[2].address
    queue = Queue("kombu", Exchange("kombu", "direct"), routing_key="k")
    confirms = {"confirm_publish": True}
    with (
        Connection(f"amqp://guest:guest@{first}//", transport_options=confirms) as publisher,
        Connection(f"amqp://guest:guest@{third}//") as consumer,
    ):
        for one in (publisher, consumer):
            admitted(one.connect)
        producer = publisher.Producer()
        for number in range(COUNT):
            producer.publish(
                {"number": number},
                exchange=queue.exchange,
                routing_key="k",
                declare=[queue],
                serializer="json",
            )
        with consumer.Consumer(queue, callbacks=[on_message], prefetch_count=10):
            while len(arrived) < COUNT:
                consumer.drain_events(timeout=60)
    assert arrived == [{"number": number} for number in range(COUNT)]


def test_a_consumer_that_does_not_acknowledge_loses_its_channel(cluster: LocalCluster) -> None:
    """It is closed with RabbitMQ's code; a consumer at another member gets its messages."""
    stuck, other = pika_connection(cluster[0]), pika_connection(cluster[1])
    channel = stuck.channel()
    channel.queue_declare("held", durable=True, arguments={"x-consumer-timeout": 1000})
    channel.basic_publish("", "held", b"m")
    channel.basic_consume("held", lambda *_: None)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.start_consuming()
    assert closed.value.reply_code == 406
    assert "delivery acknowledgement on channel 1 timed out" in closed.value.reply_text
    for method, _, body in other.channel().consume("held", auto_ack=True, inactivity_timeout=60):
        assert method is not None, "nothing arrived within a minute"
        assert (method.redelivered, body) == (True, b"m")
        break
    stuck.close()
    other.close()
