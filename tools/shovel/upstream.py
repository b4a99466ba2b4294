"""The upstream's side of a federation link: the objects that the link creates and maintains there.

For an exchange: the link's own exchange (`x-federation-upstream`) is bound there to the federated
exchange, with the keys bound to it here, and the link's own durable queue is bound to that
exchange. So a message crosses the link once, however many bindings want it here; it waits there
while the link is down; and it does not return to where it has been. A new attempt binds a second
exchange (A, B) before it deletes the one of the attempt before, so old bindings are forgotten and
nothing is missed. Bindings carry their owner in `x-bound-from`, as in RabbitMQ, so a link of the
upstream's own passes them on, for as many hops as `max-hops` allows.
Decision: docs/decisions/0076-a-federation-link-is-a-shovel-that-follows-bindings.md.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import cast

from broker.amqp.fields import Long, Value, decode_table
from broker.machine.requests.exchange_types import (
    CLUSTER_NAME,
    DOWNSTREAM_NAME,
    DOWNSTREAM_VHOST,
    FEDERATION_UPSTREAM,
    MAX_HOPS,
    VHOST,
    has_been_at,
)
from broker.shovels.definition import NAME_BYTES_MAX, Link, Shovel, Table
from tools.cli.failures import ToolError
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost

BOUND_FROM = "x-bound-from"
HOPS = "hops"
SUFFIXES = ("A", "B")
OWNER = "owner"
ACCESS_REFUSED, PRECONDITION_FAILED = 403, 406
NO_SUCH_TYPE = 503
"""COMMAND_INVALID, the brokers' answer."""
PARTS = 60
"""Number of parts in which bindings are repeated."""


class NoSuchType(Exception):
    """The upstream has no filtering exchanges and closes the connection. An exchange of another
    type will do, because the link filters, too."""


class UpstreamExchange:
    """An exchange that a link takes messages from."""

    def __init__(
        self,
        shovel: Shovel,
        cluster: str,
        vhost: str,
        here: Mapping[str, object],
        own_id: str = "",
    ) -> None:
        """`cluster` and `vhost`: the upstream's; `here`: the first of `change`; `own_id`: this
        cluster's, empty if unknown."""
        assert shovel.link is not None
        self._shovel, self._link = shovel, shovel.link
        self._there = cluster, vhost
        self._own_id = own_id
        self._bound: dict[tuple[str, str], None] = dict.fromkeys(_rows(here, "bind"))
        self._next = 0  # the next ones to bind again
        self._exchange = ""
        self.filters = True
        """False: the broker there has no filtering exchange."""

    def prepare(self, source: AmqpConnection) -> tuple[str, int]:
        """Create everything that is missing; return the queue, and how many messages wait in it."""
        link, queue = self._link, self._shovel.source_queue
        _make_exchange(source, link)
        old, new = SUFFIXES if _is_there(source, f"{queue} A") else reversed(SUFFIXES)
        arguments = dict(self._shovel.source_queue_arguments)
        made: tuple[Value, ...] = (queue, False, True, False, False, False, arguments)
        _, waiting, consumers = source.call("queue.declare", made, "queue.declare-ok")
        self._claim(source, in_use=bool(waiting or consumers))
        self._exchange = f"{queue} {new}"
        _delete_exchange(source, self._exchange)
        self._declare(source)
        for key, arguments_text in self._bound:
            self._bind(source, "exchange.bind", key, arguments_text)
        bound: tuple[Value, ...] = (queue, self._exchange, "", False, {})
        source.call("queue.bind", bound, "queue.bind-ok")
        _delete_exchange(source, f"{queue} {old}")
        assert isinstance(waiting, int)
        return queue, waiting

    def _claim(self, source: AmqpConnection, *, in_use: bool) -> None:
        """Make sure that the queue is this cluster's, and not another one's of the same name. An
        exchange to which nothing is published names the owner, by an argument that all brokers
        compare.

        A queue that nobody consumes from, and that is empty, is taken over: its cluster was created
        anew. Raises ToolError.
        """
        name = f"{self._shovel.source_queue} {OWNER}"
        if not self._own_id or len(name.encode()) > NAME_BYTES_MAX:
            return
        arguments: Table = {"alternate-exchange": f"federation: {self._own_id}"}
        made: tuple[Value, ...] = name, "fanout", False, True, False, True, False, arguments
        for is_last in (in_use, True):
            try:
                source.call("exchange.declare", made, "exchange.declare-ok")
            except BrokerRefused as refused:
                source.open_channel()
                if refused.code == ACCESS_REFUSED:
                    return  # users who may not write there have been served so far
                if refused.code != PRECONDITION_FAILED:
                    raise
                if is_last:
                    raise ToolError(
                        f"the queue '{self._shovel.source_queue}' there is of another cluster that "
                        f"is named '{self._link.cluster}', too, and takes from it or has messages "
                        "in it: give one of them another --cluster-name; or, if that cluster is no "
                        f"more, delete the exchange '{name}' there to go on with its queue"
                    ) from None
                _delete_exchange(source, name)
            else:
                return

    def _declare(self, source: AmqpConnection) -> None:
        link = self._link
        arguments: Table = {
            MAX_HOPS: Long(link.max_hops),  # RabbitMQ accepts no shorter type
            DOWNSTREAM_NAME: link.cluster,
            DOWNSTREAM_VHOST: self._shovel.vhost,
        }  # fmt: skip
        kind = FEDERATION_UPSTREAM if self.filters else "fanout"
        made: tuple[Value, ...] = (
            self._exchange, kind, False, True, True, True, False, arguments if self.filters else {}
        )  # fmt: skip
        try:
            source.call("exchange.declare", made, "exchange.declare-ok")
        except BrokerRefused as refused:
            if refused.code != NO_SUCH_TYPE or not self.filters:
                raise
            self.filters = False
            raise NoSuchType from None

    def change(self, source: AmqpConnection, change: Mapping[str, object]) -> None:
        """Bindings came or went here."""
        for row in _rows(change, "unbind"):
            if row in self._bound:
                del self._bound[row]
                self._bind(source, "exchange.unbind", *row)
        for row in _rows(change, "bind"):
            if row not in self._bound:
                self._bound[row] = None
                self._bind(source, "exchange.bind", *row)

    def bind_again(self, source: AmqpConnection) -> None:
        """Repeat a part of the existing bindings, so that after PARTS times all are repeated.
        Deleting and recreating the exchange there removes the bindings without notice. If the
        exchange is gone this is refused, and the next attempt creates it."""
        rows = list(self._bound)
        for place in range(min(len(rows), 1 + len(rows) // PARTS)):
            self._bind(source, "exchange.bind", *rows[(self._next + place) % len(rows)])
        self._next = (self._next + 1 + len(rows) // PARTS) % (len(rows) or 1)

    def undone(self, refused: BrokerRefused) -> str:
        """The consequence of losing the link's own exchange, which only a link deletes."""
        if refused.code != 404 or not self._exchange or f"'{self._exchange}'" not in str(refused):
            return ""
        return (
            f": another link uses the queue '{self._shovel.source_queue}' there: of another "
            "upstream here that is the same broker (list its places in one 'uri')"
        )

    def _bind(self, source: AmqpConnection, method: str, key: str, arguments_text: str) -> None:
        """No answer is awaited: a refusal ends the channel, and the attempt."""
        raw = b64decode(arguments_text)
        arguments = self._onward(decode_table(raw, 0, len(raw))[0])
        if arguments is None:
            return
        source.send(method, (self._exchange, self._link.resource, key, True, arguments))

    def _onward(self, arguments: Table) -> Table | None:
        """Return a binding's arguments one hop further; None: it goes no further."""
        link, way = self._link, arguments.get(BOUND_FROM)
        hops = link.max_hops
        if not isinstance(way, tuple):
            way = ()
        if way:
            last = way[0].get(HOPS) if isinstance(way[0], dict) else None
            hops = min(last - 1, hops) if isinstance(last, int) else 0
            if has_been_at(way, *self._there):
                hops = 0
        if hops <= 0:
            return None
        mine: Table = {
            CLUSTER_NAME: link.cluster, VHOST: self._shovel.vhost, "exchange": link.name, HOPS: hops
        }  # fmt: skip
        return {**arguments, BOUND_FROM: (mine, *way)}

    def clean_up(self, source: AmqpConnection) -> str:
        """The link no longer exists: nothing more may wait for it. Messages already waiting are
        left alone; return a message about them."""
        queue = self._shovel.source_queue
        if not self._link.cleans_up:
            return ""
        try:
            for suffix in SUFFIXES:
                _delete_exchange(source, f"{queue} {suffix}")
            _delete_exchange(source, f"{queue} {OWNER}")
            source.call("queue.delete", (queue, False, True, False), "queue.delete-ok")
        except BrokerRefused as refused:
            return f"its queue '{queue}' is left at the upstream, with its messages: {refused}"
        except (ConnectionLost, ToolError) as lost:
            return self.left(str(lost))
        return ""

    def left(self, why: str) -> str:
        """The message if nothing could be done; empty if its objects are to stay."""
        if not self._link.cleans_up:
            return ""
        queue = self._shovel.source_queue
        return f"its queue '{queue}' may be left at the upstream, delete it there: {why}"


def _rows(change: Mapping[str, object], what: str) -> list[tuple[str, str]]:
    return [(key, arguments) for key, arguments in cast("list[list[str]]", change.get(what, []))]


def _make_exchange(source: AmqpConnection, link: Link) -> None:
    """Create the federated exchange, of its type here, if it does not exist there."""
    if _is_there(source, link.resource):
        return
    made: tuple[Value, ...] = (
        link.resource, link.exchange_type, False, link.durable, link.auto_delete, False, False,
        link.arguments,
    )  # fmt: skip
    source.call("exchange.declare", made, "exchange.declare-ok")


def _is_there(source: AmqpConnection, name: str) -> bool:
    asked: tuple[Value, ...] = (name, "direct", True, False, False, False, False, {})
    try:
        source.call("exchange.declare", asked, "exchange.declare-ok")
    except BrokerRefused as refused:
        if refused.code != 404:
            raise
        source.open_channel()
        return False
    return True


def _delete_exchange(source: AmqpConnection, name: str) -> None:
    """Deleting an exchange that does not exist succeeds."""
    source.call("exchange.delete", (name, False, False), "exchange.delete-ok")
