"""A queue that is a replica of a queue of a broker outside the cluster (G35)."""

from __future__ import annotations

import subprocess
from typing import cast

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.system.links.support import answered, api, channel, publish, rows, take, uri
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]


def qpid_ha(member: BrokerProcess, *arguments: str) -> str:
    """Run the command, which must succeed."""
    host, port = member.address
    whole = [*command("qpid-ha"), "-b", f"{host}:{port}", *arguments]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    return done.stdout


def replica(member: BrokerProcess) -> dict[str, object]:
    """The only replica."""
    found = answered(member, "GET", "queue-replicas").body
    assert isinstance(found, list)
    return cast("dict[str, object]", found[0])


def held(member: BrokerProcess, queue: str) -> int:
    """All messages of a queue."""
    return cast("int", rows(member, "queues").get(queue, {}).get("messages", 0))


def wait_for_level(member: BrokerProcess, count: int) -> None:
    """Wait until this many messages are here, the same as at the source."""

    def is_level() -> bool:
        return replica(member)["level"] is True and held(member, "orders") == count

    wait_until(is_level, 60, f"a replica of {count} messages")


def test_a_replica_equals_its_source_whichever_member_dies(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """G35: messages unacknowledged there are here, settled ones are not, in the source's order,
    across the death of the copying member and of the source."""
    near, far = clusters
    publish(far[0], "orders", range(300))
    with channel(far[0]) as consumer:
        consumer.basic_qos(prefetch_count=10)
        got: list[int] = []
        consumer.basic_consume("orders", lambda _c, d, _p, _b: got.append(d.delivery_tag))
        while len(got) < 10:
            consumer.connection.process_data_events(1)
        qpid_ha(near[0], "replicate", "orders", uri(far[0]))
        wait_for_level(near[0], 300)
        with channel(near[1]) as one, pytest.raises(ChannelClosedByBroker, match="405"):
            one.basic_get("orders")
        consumer.basic_ack(got[3])  # the fourth; the tenth and one more arrive
        wait_for_level(near[1], 299)
        node = replica(near[0])["node"]
        runner = next(one for one in near.members if api(one).row("overview")["node"] == node)
        other = next(one for one in near.members if one is not runner)
        runner.kill()
        publish(far[0], "orders", range(300, 400))
        consumer.basic_ack(got[5])
        wait_for_level(other, 398)
        runner.start()
        near.wait_active(timeout_seconds=START_SECONDS)
    far[0].kill()
    far[0].start()
    far.wait_active(timeout_seconds=START_SECONDS)
    with channel(far[0]) as one:
        assert [one.basic_get("orders", auto_ack=True)[2] for _ in range(2)] == [b"0", b"1"]
    publish(far[0], "orders", [400])
    wait_for_level(other, 397)
    far[0].kill()
    qpid_ha(other, "replicate", "orders", "--stop")
    left = [one for one in range(401) if one not in (0, 1, 3, 5)]
    assert take(near[0], "orders", len(left)) == left
    assert held(near[0], "orders") == 0
