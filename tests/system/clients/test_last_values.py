"""G30: last-value queues at real members, whichever dies: each key has its newest value, and a
value is only lost to a newer one.  G32, G34: message groups, whose holder dies with its member."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pika
import pytest

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import running_cluster, wait_until
from tools.demo.local_cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]
KEYS = 20
LAST = {"qpid.last_value_queue_key": "ticker"}
GROUPED = {
    "kept": {"qpid.group_header_key": "customer"},
    "shared": {"qpid.group_header_key": "customer", "qpid.shared_msg_group": 1},
}


def publish(cluster: LocalCluster, member: int, first: int, count: int) -> None:
    """Publish these values, all confirmed, alternating between the keys."""
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        channel.queue_declare("prices", durable=True, arguments=LAST)
        channel.confirm_delivery()
        for number in range(first, first + count):
            ticker = pika.BasicProperties(delivery_mode=2, headers={"ticker": number % KEYS})
            channel.basic_publish("", "prices", b"%d" % number, ticker, mandatory=True)


def taken(cluster: LocalCluster, member: int, count: int) -> list[int]:
    """The waiting values, taken and acknowledged."""
    found = []
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        for _ in range(count):
            method, _, body = channel.basic_get("prices")
            assert method is not None
            found.append(int(body))
            channel.basic_ack(method.delivery_tag)
        assert channel.basic_get("prices")[0] is None
    return found


class OfGroups:
    """A client that consumes from queues with message groups, and settles nothing."""

    def __init__(self, cluster: LocalCluster, member: int) -> None:
        self.connection = pika_connection(cluster[member])
        self.got: dict[str, list[tuple[bool, bytes]]] = {queue: [] for queue in GROUPED}
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        for queue, arguments in GROUPED.items():
            self.channel.queue_declare(queue, durable=True, arguments=arguments)
            self.channel.basic_consume(queue, self._take, consumer_tag=queue)

    def _take(self, *given: object) -> None:
        _, method, _, body = given
        self.got[method.consumer_tag].append((method.redelivered, body))  # type: ignore[attr-defined, arg-type]

    def send(self, text: str) -> None:
        """Send a message of the customer that its first letter names."""
        customer = pika.BasicProperties(delivery_mode=2, headers={"customer": text[0]})
        for queue in GROUPED:
            self.channel.basic_publish("", queue, text.encode(), customer)

    def wait_for(self, *expected: tuple[bool, bytes]) -> None:
        """Wait until these have arrived from each of the queues, in this order."""

        def have() -> bool:
            self.connection.process_data_events(0.05)
            return all(got == list(expected) for got in self.got.values())

        wait_until(have, 60, f"{expected}, got {self.got}")


def test_the_newest_value_of_each_key_survives_any_death(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        lost = OfGroups(cluster, 2)
        lost.send("a1")
        lost.wait_for((False, b"a1"))
        left = OfGroups(cluster, 1)
        left.send("a2")
        lost.wait_for((False, b"a1"), (False, b"a2"))
        left.wait_for()
        publish(cluster, 0, 0, 100)
        channel = pika_connection(cluster[2]).channel()
        held = [int(channel.basic_get("prices")[2]) for _ in range(3)]
        assert held == [80, 81, 82]
        publish(cluster, 0, 100, 2)
        cluster[2].kill()
        left.wait_for((True, b"a1"), (True, b"a2"))
        left.send("a3")
        left.wait_for((True, b"a1"), (True, b"a2"), (False, b"a3"))
        publish(cluster, 1, 102, KEYS - 2)
        cluster[2].start()
        cluster.wait_active()
        assert taken(cluster, 2, KEYS) == list(range(100, 100 + KEYS))
        publish(cluster, 1, 120, 30)
        for member in cluster.members:
            member.kill()
        cluster.start()
        assert taken(cluster, 0, KEYS) == list(range(130, 150))


def test_a_browser_sees_all_current_values_and_takes_none(tmp_path: Path) -> None:
    """G29: it gets the waiting values, then each newer one, while a member dies and others
    consume."""
    with running_cluster(tmp_path) as cluster:
        publish(cluster, 0, 0, 100)
        with pika_connection(cluster[1]) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=7)
            seen: list[int] = []
            arguments = {"x-filter-no-consume": True}
            for method, _, body in channel.consume("prices", arguments=arguments):
                assert method is not None
                assert not method.redelivered
                seen.append(int(body))
                channel.basic_ack(method.delivery_tag)
                if len(seen) == KEYS:
                    cluster[0].kill()
                    publish(cluster, 2, 100, KEYS)
                if len(seen) == 2 * KEYS:
                    break
            assert seen == list(range(80, 80 + 2 * KEYS))
        host, port = cluster[2].address
        drain = [sys.executable, "-m", "tools.commands.drain", "-b", f"{host}:{port}"]
        drain += ["-q", "prices", "--browse", "--count", str(KEYS)]
        found = subprocess.run(drain, capture_output=True, timeout=60, check=True).stdout
        assert list(map(int, found.split())) == list(range(100, 100 + KEYS))
        assert taken(cluster, 2, KEYS) == list(range(100, 100 + KEYS))
