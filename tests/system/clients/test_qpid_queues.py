"""Queues declared as programs for Qpid's C++ broker do it, by an unmodified client."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system


def test_ring_queues_and_limits_under_qpids_names(cluster: LocalCluster) -> None:
    ring = {"qpid.max_count": 2, "qpid.policy_type": "ring"}
    with pika_connection(cluster[0]) as one, pika_connection(cluster[2]) as other:
        channel, reader = one.channel(), other.channel()
        channel.confirm_delivery()
        channel.queue_declare("qpid.ring", arguments=ring)
        channel.queue_declare("qpid.full", arguments={"qpid.max_count": 2})
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "qpid.ring", body)
        assert reader.basic_get("qpid.ring", auto_ack=True)[2] == b"2"
        for body in (b"1", b"2"):
            channel.basic_publish("", "qpid.full", body)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "qpid.full", b"3")
        reader.queue_declare("qpid.ring", arguments=ring)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"qpid\.shared_msg_group"):
            other.channel().queue_declare("qpid.groups", arguments={"qpid.shared_msg_group": 1})


def test_dead_letters_wait_until_their_exchange_exists(cluster: LocalCluster) -> None:
    """G31, with pika: a message rejected at one member arrives by an exchange declared at
    another."""
    at_least_once = {
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "graves",
    }
    with pika_connection(cluster[0]) as one, pika_connection(cluster[1]) as other:
        channel, late = one.channel(), other.channel()
        channel.confirm_delivery()
        channel.queue_declare("mortal", durable=True, arguments=at_least_once)
        for body in (b"1", b"2"):
            channel.basic_publish("", "mortal", body, pika.BasicProperties(delivery_mode=2))
            method, _, _ = channel.basic_get("mortal")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        assert channel.queue_declare("mortal", passive=True).method.message_count == 0
        late.exchange_declare("graves", "fanout")
        late.queue_declare("grave")
        late.queue_bind("grave", "graves")
        arrived = []
        for method, properties, body in late.consume("grave", auto_ack=True, inactivity_timeout=60):
            assert method is not None, "nothing arrived within a minute"
            assert properties.headers["x-first-death-reason"] == "rejected"
            arrived.append(body)
            if len(arrived) == 2:
                break
        assert arrived == [b"1", b"2"]
