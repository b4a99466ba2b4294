"""Brokers of one member each, without ring and store, connected by the attempt of a replica."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import cast

from broker.frontend.client import Client
from broker.frontend.connections import Connections
from broker.machine.queueing.streams import There
from broker.machine.state import BODY, Queue
from broker.replication.ports import MemberState
from broker.shovels.followed import Followers
from broker.shovels.place_ranges import places, ranges_of, union
from broker.shovels.replicas import parse_replica
from tests.support.gateway_loop import Loop, Peer
from tools.shovel.copier import Copier
from tools.shovel.task import Task

WAIT_S = 30.0


class Wired(Loop):
    """One broker; what it applies is durable unless `durable` is False."""

    def __init__(self) -> None:
        self.links: dict[Client, socket.socket] = {}
        super().__init__()
        self.gateway.identify(self.machine.cluster_id)
        self.ticks = 0.0
        self.replica = SimpleNamespace(half_way=False)
        self.controller = SimpleNamespace(
            serving=True, reason="1 of 3 votes", replica=self.replica
        )  # fmt: skip
        self._clients = SimpleNamespace(gateway=self.gateway, durable_mark=0)
        self.followers = Followers(
            cast("MemberState", self.controller), cast("Connections", self._clients),
            lambda: self.machine,
        )  # fmt: skip

    def attach(self) -> int:
        """Connects an admitted client of this process; returns the descriptor of its end."""
        ours, theirs = socket.socketpair()
        client = self.gateway.connect("127.0.0.1:0", True, self.now)
        client.purpose, client.stays, client.keeps_copy = "copy of queue 'q'", True, True
        client.connection.trust("")
        self.links[client] = ours
        return theirs.detach()

    def cut(self) -> None:
        """Loses all these at once, as when their member dies."""
        for client, one in list(self.links.items()):
            one.close()
            self.gateway.connection_lost(client)
        self.links.clear()
        self.turn()

    def step(self) -> None:
        """Reads what came, and reports to followers."""
        for client, one in list(self.links.items()):
            one.setblocking(False)
            try:
                data = one.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data:
                self.gateway.data_received(client, data, self.now)
            else:
                del self.links[client]
                one.close()
                self.gateway.connection_lost(client)
        self.beat()

    def beat(self) -> None:
        """What a member does a few times a second."""
        self.turn()
        self.ticks += 1.0
        if self.durable:
            self._clients.durable_mark = self.position
        self.followers.wake(self.ticks)
        self.turn()

    def write(self) -> None:
        self.confirmed += self.outbox.flush()
        for client in self.gateway.take_writable():
            link = self.links.get(client)
            if link is not None:
                link.setblocking(True)
                try:
                    link.sendall(bytes(client.take_output()))
                except OSError:
                    continue  # it is read next, and found closed
            elif client in Peer.of:
                Peer.of[client].receive()

    def queue(self, name: str = "q") -> Queue:
        """The queue of this name in the default virtual host."""
        return self.machine.vhosts["/"].queues[name]

    def holds(self, name: str = "q") -> list[bytes]:
        """The bodies of all messages of a queue, waiting or held, in order."""
        there = There(self.machine, self.queue(name))
        all_of_them = union(there.in_line, ranges_of(there.out_of_line))
        return [bytes(there.message(place)[BODY]) for place in places(all_of_them)]


def step(brokers: tuple[Wired, ...]) -> None:
    """A little of each broker's work."""
    for one in brokers:
        one.step()
    time.sleep(0.001)


class Attempt:
    """One attempt, on a thread, to keep `q` of the second broker the same as that of the first."""

    def __init__(self, source: Wired, destination: Wired, name: str = "q") -> None:
        self.told: list[dict[str, object]] = []
        self.ended: dict[str, object] = {}
        self._control, theirs = socket.socketpair()
        shovel = parse_replica("/", name, {"src-uri": "amqp://elsewhere", "src-queue": "q"})
        task = Task(shovel, 0, {}, "near", source.attach(), destination.attach())
        self._brokers = source, destination
        self._theirs = theirs  # open for as long as it runs
        copier = Copier(task, self.told.append, theirs.fileno())
        self._thread = threading.Thread(target=lambda: self.ended.update(copier.run()), daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether it is still running."""
        return self._thread.is_alive()

    @property
    def level(self) -> bool:
        """Whether it reported that the replica is complete."""
        states = [one["why"] for one in self.told if one["event"] == "blocked"]
        return bool(states) and states[-1] == ""

    def stop(self) -> None:
        """Its member stops it, and serves its ends until it is gone."""
        self._control.close()
        deadline = time.monotonic() + WAIT_S
        while self.runs or self._brokers[1].links:
            assert time.monotonic() < deadline
            step(self._brokers)

    def end(self) -> None:
        """Ends it, whatever its state."""
        self._control.close()
        for one in self._brokers:
            one.cut()
        self._thread.join(WAIT_S)
        self._theirs.close()
