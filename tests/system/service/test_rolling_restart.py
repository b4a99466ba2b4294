"""A rolling restart: how many positions a member executes again when it is back."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pika
import pytest

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster
from tests.system.test_cluster_faults import channel_of
from tools.demo.local_cluster import BrokerProcess, command

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

QUEUE = "latest"
MESSAGES = 150
BODY = bytes(40_960)
"""The log is then longer than what a stop leaves to the next start (`SHORT_LOG_BYTES`)."""
FEW = MESSAGES // 10
AGAIN = re.compile(r"store is at position (\d+); (\d+) positions after its checkpoint")


def publish(member: BrokerProcess) -> None:
    """Publish this many messages, of which the queue keeps a few: the log grows, the state does
    not."""
    channel = admitted(lambda: channel_of(member))
    channel.queue_declare(QUEUE, durable=True, arguments={"x-max-length": 5})
    channel.confirm_delivery()
    for _ in range(MESSAGES):
        channel.basic_publish("", QUEUE, BODY, pika.BasicProperties(delivery_mode=2))
    channel.connection.close()


def executed_again(member: BrokerProcess) -> list[int]:
    """The number of positions that each start of this member executed again."""
    return [int(again) for _, again in AGAIN.findall(member.log_path.read_text())]


def test_a_cleanly_stopped_member_executes_little_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster[0])
        killed, *others = cluster.members
        killed.kill()
        killed.start()
        cluster.wait_active()
        assert executed_again(killed)[-1] >= MESSAGES, "else this test shows nothing"

        for member in cluster.members:
            assert member.terminate() == Exit.OK
            member.start()
            cluster.wait_active()
            assert executed_again(member)[-1] < FEW
        assert [len(executed_again(member)) for member in others] == [2, 2]

        for member in cluster.members:  # nothing is lost on the way
            channel = admitted(lambda to=member: channel_of(to))  # type: ignore[misc]
            count = channel.queue_declare(QUEUE, passive=True).method.message_count
            assert count == 5
            channel.connection.close()


def test_a_second_signal_stops_a_member_at_once_and_cleanly(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster[0])
        member = cluster[1]
        member.signal(signal.SIGTERM)
        member.signal(signal.SIGTERM)
        assert member.wait(60) == Exit.OK
        member.start()
        cluster.wait_active()


def test_a_clean_stop_of_all_leaves_a_checkpoint_that_is_made_while_the_loop_lives(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(cluster[0])
        address = str(cluster[0].address)
        asked = [*command("qpid-cluster"), "-k", "-f", address]
        subprocess.run(asked, check=True, timeout=100)
        assert cluster.wait_stopped() == [Exit.OK] * 3
        for member in cluster.members:
            assert "the checkpoint before the stop is written" in member.log_path.read_text()
        cluster.start()
        assert [executed_again(member)[-1] for member in cluster.members] == [0] * 3
