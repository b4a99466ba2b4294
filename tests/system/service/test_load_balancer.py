"""Clients behind HAProxy with our sample configuration: one address for all members."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import HOST, ROOT, LocalCluster, command, free_ports

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="there is no haproxy here"),
]
SAMPLE = ROOT / "conf" / "haproxy.cfg"
WAIT_S = 60.0


def fitted(cluster: LocalCluster, port: int) -> str:
    """The sample with these members, few clients, and more frequent checks."""
    text = SAMPLE.read_text(encoding="utf-8")
    text = (
        text.replace("bind :5672", f"bind {HOST}:{port}")
        .replace("inter 2s", "inter 200ms")
        .replace("maxconn 10000", "maxconn 100")
    )
    for name, member in zip("abc", cluster.members, strict=True):
        assert member.management is not None
        at = f"server {name} {member.address} port {member.management.port}"
        text, count = re.subn(rf"server {name} \S+", at, text)
        assert count == 1
    return text


@contextmanager
def balanced(cluster: LocalCluster, root: Path) -> Iterator[pika.ConnectionParameters]:
    """A balancer before these members, and the parameters with which a client connects through it.

    It has checked each member until its health is full: before that it takes a member down at the
    first failed check, which may fall into a view change.
    """
    (port,) = free_ports(1)
    config, door = root / "haproxy.cfg", root / "door"
    text = fitted(cluster, port).replace("global\n", f"global\n    stats socket {door}\n")
    config.write_text(text, encoding="utf-8")
    process = subprocess.Popen(["haproxy", "-db", "-f", str(config)])
    try:
        wait_until(lambda: health_of_members(door) == [3, 3, 3], WAIT_S, "checks of all members")
        yield pika.ConnectionParameters(HOST, port)
    finally:
        process.kill()
        process.wait()


def health_of_members(door: Path) -> list[int]:
    """The health of each member by the balancer's count, at most rise + fall - 1; or nothing."""
    with socket.socket(socket.AF_UNIX) as asked, suppress(OSError):
        asked.connect(str(door))
        asked.sendall(b"show servers state\n")
        _, names, *rows = asked.makefile(encoding="ascii").read().strip().splitlines()
        column = names.split().index("srv_check_health") - 1  # behind the #
        return [int(row.split()[column]) for row in rows]
    return []


def member_of(connection: pika.BlockingConnection) -> str:
    """The member that serves this client."""
    properties = connection._impl.server_properties
    assert properties is not None
    return str(properties["node"])


def connected(parameters: pika.ConnectionParameters) -> pika.BlockingConnection:
    """A client that retries, as all do: the balancer closes it where it has no member yet."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return pika.BlockingConnection(parameters)
        except (pika.exceptions.AMQPError, ConnectionError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def test_clients_reach_serving_members(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, management=True) as cluster:
        cluster.start(START_SECONDS)
        ids = [
            next(one.id for one in member.status().members if one.local)
            for member in cluster.members
        ]
        with balanced(cluster, tmp_path) as parameters:
            first = [connected(parameters) for _ in range(3)]
            assert sorted(map(member_of, first)) == sorted(ids), (
                "the member with the fewest gets the next"
            )
            channel = first[0].channel()
            channel.confirm_delivery()
            channel.queue_declare("work", durable=True)
            channel.basic_publish("", "work", b"1")

            at = ids.index(member_of(first[0]))
            cluster.members[at].kill()
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                first[0].sleep(WAIT_S)  # the balancer closes connections to that member
            for one in first[1:]:
                one.close()
            others = {one for one in ids if one != ids[at]}
            with closing(connected(parameters)) as again:
                assert member_of(again) in others
                assert again.channel().basic_get("work", auto_ack=True)[2] == b"1"

            left, drained = (cluster.members[ids.index(one)] for one in sorted(others))
            drain = [*command("qpid-cluster"), "--drain", ids[cluster.members.index(drained)]]
            subprocess.run([*drain, "-f", str(left.address)], check=True, timeout=WAIT_S, cwd=ROOT)
            for _ in range(4):
                with closing(connected(parameters)) as one:
                    assert member_of(one) == ids[cluster.members.index(left)]

            drained.signal(signal.SIGSTOP)  # the remaining members have no majority
            try:
                wait_until(lambda: refuses(parameters), WAIT_S, "all clients to be refused")
            finally:
                drained.signal(signal.SIGCONT)
            with closing(connected(parameters)) as one:
                assert member_of(one) == ids[cluster.members.index(left)]


def refuses(parameters: pika.ConnectionParameters) -> bool:
    """Whether the balancer closes a connection before any member has sent anything."""
    try:
        with closing(pika.BlockingConnection(parameters)):
            return False
    except pika.exceptions.IncompatibleProtocolError:
        return True
    except (pika.exceptions.AMQPError, ConnectionError):
        return False  # a reply of a member: it is still being chosen
