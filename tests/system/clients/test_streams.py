"""G29: a stream is reread at other members with the same offsets, whichever member dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import running_cluster, wait_until
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]
COUNT = 400
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "read_stream.py"
STREAM = {"x-queue-type": "stream", "x-max-age": "1h"}
PREFETCH = 100


def publish(cluster: LocalCluster, member: int, first: int, count: int) -> None:
    """Publish these messages, all confirmed; every second one is transient, every fifth has a
    filter value."""
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        channel.queue_declare("log", durable=True, arguments=STREAM)
        channel.confirm_delivery()
        for number in range(first, first + count):
            value: dict[str, Any] = {} if number % 5 else {"x-stream-filter-value": "fifth"}
            kept = pika.BasicProperties(delivery_mode=1 + number % 2, headers=value)
            channel.basic_publish("", "log", b"%d" % number, kept, mandatory=True)


def read(
    cluster: LocalCluster, member: int, offset: object, count: int, **arguments: object
) -> list[tuple[int, bytes]]:
    """Read this many messages from an offset on: their offsets and bodies."""
    found: list[tuple[int, bytes]] = []
    with pika_connection(cluster[member]) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        begin: dict[str, Any] = {"x-stream-offset": offset, **arguments}
        for method, properties, body in channel.consume("log", arguments=begin):
            assert method is not None
            assert not method.redelivered
            found.append((properties.headers["x-stream-offset"], body))
            if len(found) == count:
                break
            channel.basic_ack(method.delivery_tag)
    return found


def drained(broker: BrokerProcess, *options: str) -> list[tuple[int, bytes]]:
    """What `drain` reads without consuming."""
    host, port = broker.address
    command = [sys.executable, "-m", "tools.commands.drain", "-b", f"{host}:{port}"]
    command += ["-q", "log", "--format", "json", "--timeout", "1", *options]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["offset"], row["body"].encode()) for row in rows]


def expected(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(first, first + count)]


def test_a_stream_is_read_at_all_members_whichever_dies(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        began = datetime.now(UTC)
        publish(cluster, 0, 0, COUNT)
        with pika_connection(cluster[1]) as connection:  # keeps reading while the others die
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            found = []
            reading = channel.consume("log", arguments={"x-stream-offset": "first"})
            for method, properties, body in reading:
                found.append((properties.headers["x-stream-offset"], body))
                channel.basic_ack(method.delivery_tag)
                if len(found) == COUNT // 2:
                    cluster[0].kill()
                    publish(cluster, 2, COUNT, COUNT)
                if len(found) == 2 * COUNT:
                    break
        assert found == expected(0, 2 * COUNT)
        cluster[0].start()
        cluster.wait_active()
        for member in range(3):
            assert read(cluster, member, "first", 2 * COUNT) == expected(0, 2 * COUNT)
            assert read(cluster, member, COUNT + 7, 5) == expected(COUNT + 7, 5)
            assert read(cluster, member, "last", 1) == expected(2 * COUNT - 1, 1)
            assert read(cluster, member, began, 3) == expected(0, 3)
            assert read(cluster, member, "1h", 3) == expected(0, 3)
            wanted: dict[str, object] = {"x-stream-filter": ["fifth", "none has it"]}
            fifths = read(cluster, member, 1, 2 * COUNT // 5 - 1, **wanted)
            tail = 2 * COUNT - 3
            assert drained(cluster[member], "--offset", str(tail)) == expected(tail, 3)
            assert fifths == [(at, b"%d" % at) for at in range(5, 2 * COUNT, 5)]


def test_a_stream_survives_the_death_of_all_members(tmp_path: Path) -> None:
    """Transient messages survive too, and offsets continue."""
    with running_cluster(tmp_path) as cluster:
        publish(cluster, 0, 0, COUNT)
        for member in cluster.members:
            member.kill()
        cluster.start()
        publish(cluster, 1, COUNT, 10)
        assert read(cluster, 2, 0, COUNT + 10) == expected(0, COUNT + 10)


def test_the_example_resumes_where_it_stopped(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        urls = [
            f"amqp://guest:guest@{host}:{port}" for host, port in map(_address, cluster.members)
        ]
        command = [sys.executable, str(EXAMPLE), "log", str(tmp_path / "offset"), *urls]
        lines: list[str] = []
        for first in (0, COUNT):
            publish(cluster, 1, first, COUNT)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdout is not None
                for line in reader.stdout:
                    lines.append(line)
                    if len(lines) == first + COUNT // 2 and not first:
                        cluster[0].kill()  # the member that it is connected to
                    if len(lines) == first + COUNT:
                        break
                wait_until(
                    lambda: (tmp_path / "offset").read_text() == str(first + COUNT),  # noqa: B023
                    10, "the example to store its offset",
                )  # fmt: skip
                reader.kill()
        assert lines == [f"{number} {number}\n" for number in range(2 * COUNT)]


def _address(member: BrokerProcess) -> tuple[str, int]:
    return member.address


def test_unsupported_operations_on_a_stream_are_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path, size=1) as cluster:
        publish(cluster, 0, 0, 1)
        refusals: tuple[tuple[Callable[[BlockingChannel], object], int], ...] = (
            (lambda channel: channel.basic_get("log"), 540),
            (lambda channel: channel.queue_purge("log"), 540),
            (lambda channel: channel.basic_consume("log", print), 406),
        )
        for refused, code in refusals:
            with pika_connection(cluster[0]) as connection:
                channel = connection.channel()
                with pytest.raises(
                    (pika.exceptions.ChannelClosed, pika.exceptions.ConnectionClosed)
                ) as closed:
                    refused(channel)
                assert closed.value.reply_code == code
