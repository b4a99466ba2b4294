"""A cluster whose users and permissions come from the example HTTP server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.system.management.http import Api
from tests.system.support.clusters import START_SECONDS, admitted, wait_until
from tools.client.management import ManagementError, Target
from tools.demo.local_cluster import HOST, ROOT, LocalCluster, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]
SERVER = ROOT / "docs" / "examples" / "auth_server.py"
WAIT_S = 60.0
PASSWORDS = {"ada": "lovelace", "bob": "builder", "guest": "guest"}


def options(port: int) -> dict[str, str]:
    paths = {
        f"auth-http-{about}-path": f"http://{HOST}:{port}/auth/{about}"
        for about in ("user", "vhost", "resource", "topic")
    }
    return {
        **paths, "auth-backends": "http,internal", "auth-http-method": "post",
        "auth-cache-seconds": "1",
    }  # fmt: skip


@contextmanager
def server(port: int) -> Iterator[None]:
    running = subprocess.Popen([sys.executable, str(SERVER), str(port)])
    try:
        yield
    finally:
        running.kill()
        running.wait()


class Users:
    """The clients of a cluster, by user name."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def connect(self, user: str, at: int, password: str = "") -> pika.BlockingConnection:
        host, port = self.cluster[at].address
        credentials = pika.PlainCredentials(user, password or PASSWORDS[user])
        parameters = pika.ConnectionParameters(host, port, credentials=credentials)
        return admitted(lambda: pika.BlockingConnection(parameters))

    def is_let_in(self, user: str, password: str = "") -> bool:
        try:
            self.connect(user, 0, password).close()
        except (
            pika.exceptions.ProbableAuthenticationError,
            pika.exceptions.AuthenticationError,
        ):
            return False
        return True


def patiently(work: Callable[[], object]) -> None:
    """Repeat until it succeeds: on a stalling machine an answer may take longer than the five
    seconds after which it counts as a refusal."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            work()
        except (pika.exceptions.AMQPError, ManagementError, AssertionError):
            if time.monotonic() > deadline:
                raise
        else:
            return


def publishes(users: Users) -> None:
    """bob uses his own resources at two members, and no others."""
    with closing(users.connect("bob", 0)) as here, closing(users.connect("bob", 1)) as there:
        channel = here.channel()
        channel.confirm_delivery()
        channel.queue_declare("bob.q", durable=True)
        channel.queue_purge("bob.q")
        for number in range(20):
            channel.basic_publish("", "bob.q", str(number).encode())
        bodies = []
        for _, _, body in there.channel().consume("bob.q", auto_ack=True):
            bodies.append(body)
            if len(bodies) == 20:
                break
        assert bodies == [str(number).encode() for number in range(20)]
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="access to queue 'theirs'"):
            here.channel().queue_declare("theirs")


def operates(cluster: LocalCluster) -> None:
    """ada is an administrator, bob is not."""
    address = cluster[0].management
    assert address is not None
    assert Target(cluster[0].address, "ada", "lovelace").ask(op="status")["ok"]
    with pytest.raises(ManagementError, match="may not do this"):
        Target(cluster[0].address, "bob", "builder").ask(op="status")
    api = Api(address, "ada", "lovelace")
    assert api.get("whoami") == {"name": "ada", "tags": ["administrator"]}
    assert api.ask("PUT", "queues/%2F/ada.q", {"durable": True}).status in (201, 204)
    assert api.ask("DELETE", "queues/%2F/ada.q").status == 204
    assert Api(address, "bob", "builder").ask("GET", "queues").status == 401


def purge_for_ever(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    while True:
        channel.queue_purge("bob.q")


def test_users_and_rights_of_a_server(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with LocalCluster(tmp_path, 2, "asked", management=True, extra=options(port)) as cluster:
        users = Users(cluster)
        with server(port):
            cluster.start(START_SECONDS)
            patiently(lambda: publishes(users))
            patiently(lambda: operates(cluster))
            assert not users.is_let_in("bob", "wrong")
            assert users.is_let_in("guest"), "a user of the cluster whom the server does not know"
            wait_until(lambda: users.is_let_in("bob"), WAIT_S, "bob to be admitted")
        wait_until(lambda: not users.is_let_in("bob"), WAIT_S, "bob to be refused")
        assert users.is_let_in("guest")
        with server(port):
            wait_until(lambda: users.is_let_in("bob"), WAIT_S, "bob to be admitted again")
            patiently(lambda: publishes(users))
            stays: list[pika.BlockingConnection] = []
            patiently(lambda: stays.append(users.connect("bob", 0)))
        with (
            closing(stays[0]),
            pytest.raises(pika.exceptions.ChannelClosedByBroker, match="refused for user 'bob'"),
        ):
            purge_for_ever(stays[0].channel())
        text = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
        assert "so it is refused" in text
        assert not any(word in text for word in ("lovelace", "builder"))
