"""Fixture of the tests of clients' histories: pairs of clients, and the check over all of them.

A pair has a publisher and a consumer at their own queue, so that one history holds many cases and
all are checked at once.
"""

from __future__ import annotations

from tests.system.verify.support.make_client_histories import Clients, Message, Servers
from tools.verify.clients.check import ClientReport, check_clients
from tools.verify.clients.evidence import HistoryExtent, tables_of_moves, tables_of_operations
from tools.verify.sql.exchange import Exchange, Tables

ALL = HistoryExtent(True, True, True, confirms=True, routes=True, sole=True)


class ClientPair:
    """A publisher and a consumer at their own queue."""

    def __init__(self, name: str, servers: Servers, clients: Clients) -> None:
        self.name = name
        self.servers, self.clients = servers, clients
        self.queue = servers.queue(name)
        self.writer = clients.client(f"writer of {name}", name)
        self.reader = clients.client(f"reader of {name}", name)
        self._tag = self._number = 0

    def body(self, text: str) -> bytes:
        """Return a body that no other pair has."""
        return f"{self.name}: {text}".encode()

    def publish(self, text: str, *queues: int) -> list[Message]:
        """Record a publish and its confirm on both sides."""
        self._number += 1
        self.writer.published(self._number, self.body(text))
        held = self.servers.publish(self.body(text), self._number, *queues)
        self.writer.confirmed(self._number)
        return held

    def receive(self, text: str, *, redelivered: bool = False, acks: bool = True) -> None:
        """Record that the reader received it."""
        self._tag += 1
        self.reader.received(self._tag, self.body(text), redelivered=redelivered)
        if acks:
            self.reader.acked(self._tag)

    def send(self, text: str) -> Message:
        """Publish, deliver and settle; each side records it."""
        (message,) = self.publish(text, self.queue)
        self.servers.deliver(message)
        self.receive(text)
        self.servers.settle(message)
        return message

    def send_twice(self, text: str) -> None:
        """Publish, deliver, return, deliver again flagged, and settle; each side records it."""
        (message,) = self.publish(text, self.queue)
        self.servers.deliver(message)
        self.receive(text, acks=False)
        self.servers.give_back(message)
        self.servers.deliver(message, redelivered=True)
        self.receive(text, redelivered=True)
        self.servers.settle(message)


def check_all(
    servers: Servers, clients: Clients, extent: HistoryExtent = ALL, bins: int = 1
) -> ClientReport:
    """Run the check, without Spark."""
    import pyarrow as pa

    def run(exchange: Exchange, everywhere: bool) -> Tables:
        confirms = pa.table({"position": pa.array(servers.confirms, pa.int64())})
        given = [tables_of_moves(servers.table(None if everywhere else 1)), {"confirms": confirms}]
        if not everywhere:
            given.append(tables_of_operations(clients.table()))
        return exchange.run_here(given)

    return check_clients(run, servers.names(), extent, bins)
