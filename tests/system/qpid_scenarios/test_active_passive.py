"""What Qpid's HA tests tried with an active member and its backups, under their names."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.qpid_scenarios.clients import send, take
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

FAILOVER_S = 2.0
"""The longest that clients may be without an active member after the old one was killed."""


@contextlib.contextmanager
def ha_cluster(root: Path, size: int = 3, **more: str) -> Iterator[LocalCluster]:
    """A cluster in active-passive mode; options by their names with `_` for `-`."""
    extra = {"ha-cluster": "yes", **{name.replace("_", "-"): one for name, one in more.items()}}
    with LocalCluster(root, size, "ha", extra=extra) as cluster:
        cluster.start()
        yield cluster


def ha(member: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """`qpid-ha` at a member."""
    typed = [*command("qpid-ha"), "-b", str(member.address), *words]
    return subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def role(member: BrokerProcess) -> str:
    """What a member is, in a word."""
    return ha(member, "status").stdout.strip()


def active_of(cluster: LocalCluster, seconds: float = 20.0) -> BrokerProcess:
    """The active member, when there is one."""
    found: list[BrokerProcess] = []

    def is_there() -> bool:
        found[:] = [one for one in cluster.members if one.alive and role(one) == "active"]
        return bool(found)

    wait_until(is_there, seconds, "an active member")
    (active,) = found
    return active


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close all connections at the end, also those to members that are dead."""
    yield
    for connection in OPENED:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
    OPENED.clear()


OPENED: list[pika.BlockingConnection] = []


def connect(
    *members: BrokerProcess, properties: dict[str, object] | None = None
) -> pika.BlockingConnection:
    """A client with a list of hosts, as pika has it."""
    connection = pika.BlockingConnection(
        [
            pika.ConnectionParameters(
                *one.address, heartbeat=0, client_properties=properties, socket_timeout=5,
                blocked_connection_timeout=20,
            )
            for one in members
        ]
    )  # fmt: skip
    OPENED.append(connection)
    return connection


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    channel: BlockingChannel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    return channel


def refusal_of(member: BrokerProcess, **properties: object) -> str:
    """Why a client is not let in."""
    with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
        connect(member, properties=properties or None)
    return repr(refused.value)


def test_failover_python(tmp_path: Path) -> None:
    """A backup refuses clients and says where to go, admits administrators; clients find the active
    member, and the next one after it was killed (G25, G8).
    """
    with ha_cluster(tmp_path) as cluster:
        active = active_of(cluster)
        backups = [one for one in cluster.members if one is not active]
        assert [role(one) for one in backups] == ["ready"] * 2
        for backup in backups:
            text = refusal_of(backup)
            assert "320" in text
            assert f"connect to amqp:tcp:{active.address}" in text
            operator = connect(backup, properties={"qpid.ha-admin": 1})
            send(confirming(operator), "q", b"by an operator")
            operator.close()
        client = connect(*backups, active)
        send(confirming(client), "q", b"by a client")
        active.kill()
        began = time.monotonic()
        found = None
        while found is None:
            with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                found = connect(*cluster.members)
        took = time.monotonic() - began
        print(f"clients were let in again after {took:.2f} s")
        assert took < FAILOVER_S
        kept = [b"by an operator", b"by an operator", b"by a client"]
        assert take(confirming(found), "q") == kept
        new = active_of(cluster)
        assert new is not active
        active.start()
        cluster.wait_active()
        assert role(active) == "ready"
        assert active_of(cluster) is new
        assert found.is_open


class Publisher(threading.Thread):
    """Publishes numbers with confirms until it is stopped, to whoever takes it."""

    def __init__(self, members: list[BrokerProcess]) -> None:
        super().__init__(daemon=True)
        self.members, self.confirmed = members, list[int]()
        self.refusals = 0
        self._ends = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ends.is_set():
            try:
                channel = confirming(connect(*self.members))
                while not self._ends.is_set():
                    number += 1
                    send(channel, "q", b"%d" % number)
                    self.confirmed.append(number)
            except pika.exceptions.AMQPError:
                self.refusals += 1
                time.sleep(0.02)

    def end(self) -> list[int]:
        self._ends.set()
        self.join(30)
        assert not self.is_alive()
        return self.confirmed


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_failover_send_receive(tmp_path: Path, how: signal.Signals) -> None:
    """The active member is killed, or stalls, again and again while messages are confirmed: none of
    these is lost, and members are active one after the other (G8, G25).
    """
    with ha_cluster(tmp_path) as cluster:
        active_of(cluster)
        publisher = Publisher(cluster.members)
        publisher.start()
        for _ in range(3):
            before = len(publisher.confirmed)
            wait_until(lambda: len(publisher.confirmed) > before + 50, 30, "confirms")  # noqa: B023
            active = active_of(cluster)
            active.signal(how)
            if how is signal.SIGKILL:
                active.wait()
            others = [one for one in cluster.members if one is not active]
            wait_until(lambda: any(role(one) == "active" for one in others), 20, "another")  # noqa: B023
            if how is signal.SIGSTOP:
                active.signal(signal.SIGCONT)
            else:
                active.start()
            cluster.wait_active()
            assert role(active) == "ready"
        confirmed = publisher.end()
        channel = confirming(connect(active_of(cluster)))
        there = {int(body) for body in take(channel, "q")}
        lost = sorted(set(confirmed) - there)
        assert not lost, f"{len(lost)} of {len(confirmed)} were confirmed and are gone: {lost[:9]}"
