"""Qpid's HA scenarios around a failover, under their names.

They share one cluster in active-passive mode.  Each is a generator that prepares at the active
member; yields while a backup is stopped; continues without it; yields while the backup returns, the
active member is killed and the returned backup is promoted; and then checks the new active member.
docs/reference/qpid-scenarios.md lists all scenarios.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.system.qpid_scenarios.clients import Clients, closing_code, count_of, hold, send, take
from tests.system.qpid_scenarios.test_active_passive import (
    active_of,
    becomes,
    ha,
    ha_cluster,
    role,
)
from tests.system.support.clusters import wait_until
from tests.system.test_start_rules import run_typed
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

MANY = 300
TTL_MS = 300


Parts = Iterator[None]
AROUND_A_FAILOVER: dict[str, Callable[[Clients], Parts]] = {}


def around_a_failover(scenario: Callable[[Clients], Parts]) -> Callable[[Clients], Parts]:
    """Enter a scenario in the table."""
    AROUND_A_FAILOVER[scenario.__name__] = scenario
    return scenario


@around_a_failover
def replication(active: Clients) -> Parts:
    """Queues, exchanges, bindings, messages; removals of each; before the backup stopped, while it
    was away, and some of both."""
    channel = active.channel()
    for exchange in ("kept-x", "gone-x", "late-gone-x"):
        channel.exchange_declare(exchange, "topic", durable=True)
    for queue in ("kept-q", "gone-q", "late-gone-q", "unbound-q"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "kept-x", "a.#")
    send(channel, "kept-q", b"1", b"2", b"3")
    channel.queue_delete("gone-q")
    channel.exchange_delete("gone-x")
    yield
    assert take(channel, "kept-q", 1) == [b"1"]
    send(channel, "kept-q", b"4")
    channel.queue_unbind("unbound-q", "kept-x", "a.#")
    channel.queue_delete("late-gone-q")
    channel.exchange_delete("late-gone-x")
    yield
    now = active.channel()
    now.basic_publish("kept-x", "a.b", b"5", pika.BasicProperties(delivery_mode=2))
    assert take(now, "kept-q") == [b"2", b"3", b"4", b"5"]
    assert count_of(now, "unbound-q") == 0
    for gone in ("gone-q", "late-gone-q"):
        assert closing_code(lambda name=gone: count_of(active.channel(), name)) == 404  # type: ignore[misc]
    for gone in ("gone-x", "late-gone-x"):
        other = active.channel()
        assert closing_code(lambda: other.exchange_declare(gone, passive=True)) == 404  # noqa: B023


@around_a_failover
def missed_recreate(active: Clients) -> Parts:
    """A queue is deleted and declared again while the backup is away: its old messages do not
    return (catchup_store: the backup's own store still has them)."""
    channel = active.channel()
    channel.queue_declare("anew", durable=True)
    send(channel, "anew", b"old 1", b"old 2")
    yield
    channel.queue_delete("anew")
    channel.queue_declare("anew", durable=True)
    send(channel, "anew", b"new")
    yield
    assert take(active.channel(), "anew") == [b"new"]


@around_a_failover
def reject(active: Clients) -> Parts:
    """A rejected message is in the queue for dead letters, and nowhere else."""
    channel = active.channel()
    channel.queue_declare("graves", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel.queue_declare("mortal", durable=True, arguments=arguments)
    send(channel, "mortal", b"a", b"b", b"c")
    [tag] = hold(channel, "mortal", 1)
    channel.basic_reject(tag, requeue=False)
    yield
    [tag] = hold(channel, "mortal", 1)
    channel.basic_reject(tag, requeue=False)
    wait_until(lambda: count_of(channel, "graves") == 2, 20, "the dead letters")
    yield
    now = active.channel()
    assert take(now, "graves") == [b"a", b"b"]
    assert take(now, "mortal") == [b"c"]


@around_a_failover
def ring(active: Clients) -> Parts:
    """A ring queue continues to keep the newest."""
    channel = active.channel()
    arguments = {"qpid.max_count": 3, "qpid.policy_type": "ring"}
    channel.queue_declare("ring", durable=True, arguments=arguments)
    send(channel, "ring", b"1", b"2", b"3", b"4")
    yield
    send(channel, "ring", b"5")
    yield
    now = active.channel()
    send(now, "ring", b"6")
    assert take(now, "ring") == [b"4", b"5", b"6"]


@around_a_failover
def priority(active: Clients) -> Parts:
    """The order of priorities continues; priority_ring: at its limit a queue drops its head."""
    channel = active.channel()
    channel.queue_declare("ranks", durable=True, arguments={"x-max-priority": 9})
    limited = {"x-max-priority": 9, "x-max-length": 2}
    channel.queue_declare("ranks-ring", durable=True, arguments=limited)
    for rank in (1, 9, 5):
        send(channel, "ranks", b"%d" % rank, priority=rank)
        send(channel, "ranks-ring", b"%d" % rank, priority=rank)
    before = count_of(channel, "ranks-ring")
    yield
    send(channel, "ranks", b"7", priority=7)
    yield
    now = active.channel()
    send(now, "ranks", b"3", priority=3)
    assert take(now, "ranks") == [b"9", b"7", b"5", b"3", b"1"]
    assert (before, count_of(now, "ranks-ring")) == (2, 2)
    assert take(now, "ranks-ring") == [b"5", b"1"], "the head is dropped, as in RabbitMQ"


@around_a_failover
def backup_acquired(active: Clients) -> Parts:
    """Messages that a consumer held when the active member died return, in their place and
    flagged."""
    channel = active.channel()
    kinds: dict[str, dict[str, object]] = {
        "held": {}, "held-ranked": {"x-max-priority": 3},
        "held-ring": {"x-max-length": 9, "x-overflow": "drop-head"},
    }  # fmt: skip
    for queue, arguments in kinds.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
        send(channel, queue, b"1", b"2", b"3")
        hold(channel, queue, 1)
    yield
    for queue in kinds:
        hold(channel, queue, 1)
    yield
    now = active.channel()
    for queue in kinds:
        found = [now.basic_get(queue, auto_ack=True) for _ in range(3)]
        assert [(one[0].redelivered, one[2]) for one in found] == [
            (True, b"1"), (True, b"2"), (False, b"3")
        ], queue  # fmt: skip


@around_a_failover
def exclusive_queue(active: Clients) -> Parts:
    """auto_delete_exclusive, auto_delete_failover: queues of a connection end with it, an
    auto-delete queue ends with its last consumer; one that never had a consumer stays."""
    channel = active.channel()
    channel.queue_declare("mine", exclusive=True, durable=True)
    channel.queue_declare("for-a-while", auto_delete=True, durable=True)
    channel.queue_declare("never-used", auto_delete=True, durable=True)
    channel.basic_consume("for-a-while", lambda *_: None)
    yield
    send(channel, "never-used", b"1")
    yield
    for gone in ("mine", "for-a-while"):
        assert closing_code(lambda name=gone: count_of(active.channel(), name)) == 404  # type: ignore[misc]
    assert take(active.channel(), "never-used") == [b"1"]


@around_a_failover
def auto_delete_close(active: Clients) -> Parts:
    """The consumer ends while the backup is away: the backup knows of it when it is back."""
    channel = active.channel()
    channel.queue_declare("closed", auto_delete=True, durable=True)
    channel.basic_consume("closed", lambda *_: None)
    yield
    channel.connection.close()
    yield
    assert closing_code(lambda: count_of(active.channel(), "closed")) == 404


@around_a_failover
def alternate_exchange(active: Clients) -> Parts:
    """Messages that an exchange cannot route go to its alternate exchange."""
    channel = active.channel()
    channel.exchange_declare("spare-x", "fanout", durable=True)
    arguments = {"alternate-exchange": "spare-x"}
    channel.exchange_declare("main-x", "direct", durable=True, arguments=arguments)
    channel.queue_declare("spares", durable=True)
    channel.queue_bind("spares", "spare-x")
    yield
    channel.basic_publish("main-x", "nobody", b"1", pika.BasicProperties(delivery_mode=2))
    yield
    now = active.channel()
    now.basic_publish("main-x", "nobody", b"2", pika.BasicProperties(delivery_mode=2))
    assert take(now, "spares") == [b"1", b"2"]


@around_a_failover
def expired(active: Clients) -> Parts:
    """Messages that expired while the backup was away are gone, others are there."""
    channel = active.channel()
    channel.queue_declare("brief", durable=True)
    send(channel, "brief", b"brief", expiration=str(TTL_MS))
    send(channel, "brief", b"lasting", expiration="600000")
    yield
    wait_until(lambda: count_of(channel, "brief") == 1, 20, "the end of its time")
    yield
    assert take(active.channel(), "brief") == [b"lasting"]


@around_a_failover
def tx_simple_commit(active: Clients) -> Parts:
    """tx_simple_rollback, tx_simple_failover: committed messages are there; those rolled back, or
    open when the active member died, are not."""
    outside, inside = active.channel(), active.channel(confirms=False)
    outside.queue_declare("transacted", durable=True)
    outside.queue_declare("taken", durable=True)
    send(outside, "taken", b"1", b"2", b"3")
    inside.tx_select()
    [tag] = hold(inside, "taken", 1)
    inside.basic_ack(tag)
    send(inside, "transacted", b"committed")
    inside.tx_commit()
    yield
    send(inside, "transacted", b"rolled back")
    inside.tx_rollback()
    [tag] = hold(inside, "taken", 1)
    inside.basic_ack(tag)
    send(inside, "transacted", b"open")
    yield
    now = active.channel()
    assert take(now, "transacted") == [b"committed"]
    assert take(now, "taken") == [b"2", b"3"]


@around_a_failover
def resource_limit_bug(active: Clients) -> Parts:
    """A limit that refuses a publish at the active member is no fault of a backup; refused messages
    are nowhere."""
    channel = active.channel()
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=arguments)
    send(channel, "full", b"1", b"2")
    with pytest.raises(pika.exceptions.NackError):
        send(channel, "full", b"3")
    yield
    with pytest.raises(pika.exceptions.NackError):
        send(channel, "full", b"4")
    yield
    now = active.channel()
    with pytest.raises(pika.exceptions.NackError):
        send(now, "full", b"5")
    assert take(now, "full") == [b"1", b"2"]


@around_a_failover
def max_queues(active: Clients) -> Parts:
    """Many queues, half of them declared while the backup is away."""
    channel = active.channel()
    for number in range(MANY):
        channel.queue_declare(f"many-{number}", durable=True)
    yield
    for number in range(MANY, 2 * MANY):
        channel.queue_declare(f"many-{number}", durable=True)
    send(channel, f"many-{MANY}", b"1")
    yield
    now = active.channel()
    counts = [count_of(now, f"many-{number}") for number in range(2 * MANY)]
    assert sum(counts) == 1


def restarts_as_active(cluster: LocalCluster, away: BrokerProcess, old: BrokerProcess) -> None:
    """The backup returns, the active member dies, and the backup is promoted."""
    away.start()
    cluster.wait_active()
    becomes("ready", away)
    old.kill()
    others = [one for one in cluster.members if one is not old]
    cluster.wait_active(others)
    becomes("ready", *others)
    promoted = ha(away, "promote")
    assert promoted.returncode == 0, promoted.stderr
    becomes("active", away)


@pytest.fixture(scope="module")
def failed_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parts]]:
    """All scenarios of the table up to their last part: the backup that was away is active."""
    with ha_cluster(tmp_path_factory.mktemp("ha"), ha_promotion="manual") as cluster:
        old, away, _ = cluster.members
        becomes("ready", *cluster.members)
        assert ha(old, "promote").returncode == 0
        becomes("active", old)
        clients = Clients(cluster)
        parts = {name: scenario(clients) for name, scenario in AROUND_A_FAILOVER.items()}
        for scenario in parts.values():
            next(scenario)
        away.terminate()
        becomes("active", old)
        for scenario in parts.values():
            next(scenario)
        restarts_as_active(cluster, away, old)
        yield parts
        clients.close()


@pytest.mark.parametrize("name", AROUND_A_FAILOVER)
def test_around_a_failover(failed_over: dict[str, Parts], name: str) -> None:
    """G8, G9, G10, G25: the backup that was away for a while holds what the active one held."""
    assert next(failed_over[name], "at its end") == "at its end"


def test_stalled_backup(tmp_path: Path) -> None:
    """A stalled backup delays no client for longer than a view change; empty_backup_failover:
    members without any queue choose an active one, and the next one when it is killed; broker_info:
    all report the same about the cluster."""
    with ha_cluster(tmp_path) as cluster:
        first = active_of(cluster)
        first.kill()
        active = active_of(cluster)
        assert active is not first
        first.start()
        cluster.wait_active()
        told = [one.status().raw for one in cluster.members]
        assert len({str(one["cluster_id"]) for one in told}) == 1
        clients = Clients(cluster)
        channel = clients.channel()
        channel.queue_declare("q", durable=True)
        send(channel, "q", b"before")
        backup = next(one for one in cluster.members if one is not active)
        backup.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            send(channel, "q", b"while it stands still")
            assert time.monotonic() - began < 60, "clients do not wait for it"
            assert role(active) == "active"
        finally:
            backup.signal(signal.SIGCONT)
        becomes("ready", backup)
        assert take(channel, "q") == [b"before", b"while it stands still"]
        clients.close()


def test_store_recovery(tmp_path: Path) -> None:
    """All are stopped cleanly and started again: the active member has the messages."""
    with ha_cluster(tmp_path) as cluster:
        clients = Clients(cluster)
        active_of(cluster)
        channel = clients.channel()
        channel.queue_declare("stored", durable=True)
        send(channel, "stored", b"1", b"2")
        clients.close()
        run_typed(f"qpid-cluster -k {cluster[0].address}")
        cluster.wait_stopped()
        cluster.start()
        active_of(cluster)
        clients = Clients(cluster)
        channel = clients.channel()
        assert take(channel, "stored") == [b"1", b"2"]
        clients.close()
