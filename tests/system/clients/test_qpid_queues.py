"""Queues as programs written for Qpid's C++ broker declare them, by an unmodified client."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system


def test_rings_and_limits_by_qpids_names(cluster: LocalCluster) -> None:
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
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"qpid\.browse-only"):
            other.channel().queue_declare("qpid.browsed", arguments={"qpid.browse-only": True})
