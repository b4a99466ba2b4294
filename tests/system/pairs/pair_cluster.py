"""Two real brokers that form a pair, and the questions that tests ask them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.system.support.clusters import role_told, wait_until
from tests.system.support.load_clients import TROUBLE, hang_up
from tests.system.test_start_rules import ring_of
from tools.demo.local_cluster import BrokerProcess, LocalCluster

T = TypeVar("T", bound=LocalCluster)
DROPPED = ("--cluster-nodes", "--cluster-size")
"""Settings that follow from the options of a pair."""


def pair(root: Path, mode: str, **more: str) -> LocalCluster:
    """A pair that is not started; the first member is the primary, or the master."""
    return paired(LocalCluster(root, 2, "pair"), mode, **more)


def paired(cluster: T, mode: str, **more: str) -> T:
    """Make two members a pair."""
    extra = [part for name, text in more.items() for part in (f"--{name.replace('_', '-')}", text)]
    first, second = cluster.members
    for one, other in ((first, second), (second, first)):
        kept = list(_without(one.arguments))
        if mode == "hac":
            seat = "primary" if one is first else "backup"
            kept += ["--hac", seat, "--hac-peer", ring_of(other)]
        elif one is first:
            kept += ["--master-slave", "master"]
        else:
            kept += ["--master-slave", "slave", "--master-connector", ring_of(first)]
        one.arguments = (*kept, *extra)
    return cluster


def _without(arguments: tuple[str, ...]) -> Iterator[str]:
    for name, text in zip(arguments[::2], arguments[1::2], strict=True):
        if name not in DROPPED:
            yield from (name, text)


@contextlib.contextmanager
def started(root: Path, mode: str, **more: str) -> Iterator[LocalCluster]:
    """A serving pair."""
    with pair(root, mode, **more) as cluster:
        cluster.start()
        stands(cluster[0], "active")
        stands(cluster[1], "passive")
        yield cluster


def standing(member: BrokerProcess) -> dict[str, object]:
    """A member's report on its pair, and its role."""
    said = role_told(member)
    if not said:
        return {}
    pair = said.get("pair")
    return {**(pair if isinstance(pair, dict) else {}), "role": said["status"]}


def stands(member: BrokerProcess, word: str, seconds: float = 30.0) -> None:
    """Wait until the member has this standing, and an active one serves."""

    def is_so() -> bool:
        said = standing(member)
        served = said.get("role") == "active" if word == "active" else True
        return said.get("standing") == word and served

    wait_until(is_so, seconds, f"{member} to be {word}: {standing(member)}\n{member.log_tail()}")


class Publisher:
    """A client that continues through all faults and remembers which messages were confirmed."""

    def __init__(self, *members: BrokerProcess) -> None:
        self.confirmed: list[str] = []
        self.longest_s = 0.0
        """The longest time between two confirms."""
        self._members, self._stops = members, threading.Event()
        self._connection: pika.BlockingConnection | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        wait_until(lambda: bool(self.confirmed), 30, "a first confirm")
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join(60)

    def goes_on(self, seconds: float = 30.0) -> None:
        """Wait until more messages are confirmed."""
        before = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) > before + 5, seconds, "more confirms")

    def gives_up(self) -> None:
        """Stop waiting for the member that it is connected to."""
        hang_up(self._connection)

    def _run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._stops.is_set():
            try:
                self._connection = connection = client(*self._members, patience_s=3.0)
                channel = confirming(connection)
                while not self._stops.is_set():
                    number += 1
                    send(channel, str(number))
                    self.confirmed.append(str(number))
                    now = time.monotonic()
                    self.longest_s, last = max(self.longest_s, now - last), now
                    self._stops.wait(0.005)
                connection.close()
            except TROUBLE:
                self._stops.wait(0.02)


def client(*members: BrokerProcess, patience_s: float = 30.0) -> pika.BlockingConnection:
    """A client with the list of both, in this order."""
    return pika.BlockingConnection(
        [
            pika.ConnectionParameters(
                *one.address,
                heartbeat=2,
                socket_timeout=patience_s,
                stack_timeout=patience_s,
                blocked_connection_timeout=patience_s,
            )
            for one in members
        ]
    )


def let_in(*members: BrokerProcess, seconds: float = 60.0) -> pika.BlockingConnection:
    """A client that tries until one of them admits it."""
    found: list[pika.BlockingConnection] = []

    def comes_in() -> bool:
        with contextlib.suppress(*TROUBLE):
            found.append(client(*members, patience_s=5.0))
        return bool(found)

    wait_until(comes_in, seconds, "a client to be admitted")
    return found[0]


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel with a durable queue."""
    channel: BlockingChannel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    return channel


def send(channel: BlockingChannel, body: str) -> None:
    """Publish a message and wait for its confirm."""
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", "q", body.encode(), properties, mandatory=True)


def taken(channel: BlockingChannel) -> list[str]:
    """Take all messages of the queue."""
    found = list[str]()
    while True:
        method, _, body = channel.basic_get("q", auto_ack=True)
        if method is None:
            return found
        found.append(body.decode())
