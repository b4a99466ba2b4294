"""A large message beside small ones: it arrives whole, and they are not held up."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pika
import pika.exceptions
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import START_SECONDS
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

T = TypeVar("T")
LARGE_BYTES = 24 << 20
"""More than one command may have (16 MiB), but not much: on a machine that gives a member little
processor time, handling a body in one piece delays the token."""
PATIENCE_S = 180.0
TURNS_MIN = 10
"""The large message is ordered in some two hundred parts, so this many in between are few."""


def test_a_large_message_beside_small_ones(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(LARGE_BYTES)
    with LocalCluster(tmp_path, extra={"max-message-size": "24MiB"}) as cluster:
        cluster.start(START_SECONDS)
        served(lambda: publish_beside(cluster[0], large))
        method, body = served(lambda: first_of(cluster[2]))
        assert hashlib.sha256(body).digest() == hashlib.sha256(large).digest()
        cluster[2].kill()
        cluster[2].start()
        cluster.wait_active(timeout_seconds=START_SECONDS)
        method, body = served(lambda: first_of(cluster[2]))
        assert (method.redelivered, body == large) == (True, True)
        refusal = served(lambda: refusal_of(cluster[1], large + b"x"))
        assert refusal.reply_code == 406
        assert f"is larger than configured max size {LARGE_BYTES}" in refusal.reply_text


def served(step: Callable[[], T]) -> T:
    """The result of a client that reconnects if its member had to leave (G7): on a machine that
    gives the member no processor for longer than the token timeout that happens, and is not the
    subject here."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return step()
        except (pika.exceptions.AMQPConnectionError, pika.exceptions.ChannelWrongStateError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def publish_beside(member: BrokerProcess, large: bytes) -> None:
    """Publish the large message on one connection, and small ones on another until it is
    confirmed."""
    with closing(pika_connection(member)) as one, closing(pika_connection(member)) as two:
        out, beside = one.channel(), two.channel()
        for channel, queue in ((out, "large"), (beside, "small")):
            channel.queue_declare(queue, durable=True)
            channel.queue_purge(queue)
            channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        ended: list[pika.exceptions.AMQPError | None] = []

        def publish_large() -> None:
            try:
                out.basic_publish("", "large", large, persistent, mandatory=True)
                ended.append(None)
            except pika.exceptions.AMQPError as error:
                ended.append(error)

        sender = threading.Thread(target=publish_large)
        sender.start()
        turns = 0
        try:
            while sender.is_alive():
                beside.basic_publish("", "small", b"small", persistent, mandatory=True)
                turns += 1
        finally:
            sender.join()
        (error,) = ended
        if error is not None:
            raise error
        assert turns >= TURNS_MIN


def first_of(member: BrokerProcess) -> tuple[pika.spec.Basic.GetOk, bytes]:
    """The first message of the queue, which stays there."""
    with closing(pika_connection(member)) as consumer:
        method, _, body = consumer.channel().basic_get("large")
        return method, body


def refusal_of(member: BrokerProcess, body: bytes) -> pika.exceptions.ChannelClosedByBroker:
    with closing(pika_connection(member)) as publisher:
        channel = publisher.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.basic_publish("", "large", body, mandatory=True)
    return closed.value
