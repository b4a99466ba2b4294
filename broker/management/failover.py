"""Tells clients where the members are, by the exchange `amq.failover` and as they connect.

As in Qpid, binding a queue to `amq.failover` brings one message at once, and another whenever a
member comes or goes: an empty body, and a header `amq.failover` with the addresses of all members
that take clients, as an array of URLs. One member publishes for all: the first by name of those
that have the state. If it fails before publishing, the next one publishes again. Clients that stay
on their connection need not listen: this is for clients that keep a list of hosts to fail over to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from broker.access.access import SYSTEM
from broker.amqp.fields import Value
from broker.frontend.connections import Connections
from broker.machine.state import FAILOVER, Exchange
from broker.management.amqp_client import AmqpRefused, InternalClient
from broker.replication.ports import MemberState
from vsync.totem.events import Direct

log = logging.getLogger("qpidd")

AGAIN_S = 5.0
"""A failure is retried after this time."""
PEER = "127.0.0.1:0"
PURPOSE = "the members' addresses for amq.failover"


class Told(NamedTuple):
    """What the queues bound in a virtual host have been sent."""

    urls: tuple[str, ...]
    changes: int
    """The count of binding changes at that time."""
    bound: frozenset[str]
    """The queues."""


class FailoverExchange:
    """One member's work for `amq.failover`; it runs beside the member (`member.Beside`)."""

    name = "failover"

    def __init__(
        self, controller: MemberState, clients: Connections, drained: Callable[[], Collection[str]]
    ) -> None:
        self._controller, self._clients, self._drained = controller, clients, drained
        self._told: dict[str, Told] = {}  # by virtual host, while this member publishes
        self._task: asyncio.Task[None] | None = None
        self._ends = False
        self._now = self._not_before = 0.0
        self.counters: Mapping[str, int] = (counts := {"updates": 0, "failed": 0})
        self._counts = counts

    def wake(self, now: float) -> None:
        """Publish changes, unless that is in progress, or failed a moment ago."""
        self._now = now
        if not self._controller.serving or self._ends:
            return
        hosts = self._hosts()
        urls = tuple(hosts.values())
        if self._controller.me.name != min(self._with_state(), default=""):
            self._told.clear()
        elif self._task is None and now >= self._not_before and (due := self._due(urls)):
            self._task = asyncio.get_running_loop().create_task(self._publish(due))
            self._task.add_done_callback(self._done)

    def takes(self, _direct: Direct) -> bool:
        """It takes no datagrams."""
        return False

    def finish(self) -> bool:
        """Begin nothing more: the next member by name informs everybody anew."""
        self.close()
        return True

    def close(self) -> None:
        """Abandon work in progress."""
        self._ends = True
        if self._task is not None:
            self._task.cancel()

    # -- what is to be told ----------------------------------------------------------------------

    def _with_state(self) -> frozenset[str]:
        primary = self._controller.primary
        return primary.caught_up_names - primary.mark.without_data

    def _hosts(self) -> dict[str, str]:
        """The addresses of the members that take clients, by the members' names."""
        controller = self._controller
        labels = {**controller.primary.labels(), controller.me.name: controller.label}
        open_ones = sorted(self._with_state() - set(self._drained()))
        return {name: url for name in open_ones if (url := labels.get(name))}

    def _due(self, urls: tuple[str, ...]) -> dict[str, Told]:
        vhosts = self._controller.replica.machine.vhosts
        for gone in self._told.keys() - vhosts.keys():
            del self._told[gone]
        due: dict[str, Told] = {}
        for vhost in vhosts.values():
            exchange = vhost.exchanges.get(FAILOVER)
            told = self._told.get(vhost.name)
            if exchange is None or vhost.leaving:
                continue
            if told is None and not exchange.bindings:
                continue
            if told is None or (told.urls, told.changes) != (urls, exchange.changes):
                due[vhost.name] = Told(urls, exchange.changes, _bound(exchange))
        return due

    # -- telling it ------------------------------------------------------------------------------

    async def _publish(self, due: dict[str, Told]) -> None:
        for vhost, now in due.items():
            try:
                await self._publish_in(vhost, self._told.get(vhost), now)
            except AmqpRefused as refused:  # the vhost is deleted
                log.debug("amq.failover of vhost %s: %s", vhost, refused)
                self._failed()
            else:
                self._told[vhost] = now

    async def _publish_in(self, vhost: str, before: Told | None, now: Told) -> None:
        fresh = before is None or before.urls != now.urls
        queues = sorted(now.bound - before.bound) if before is not None and not fresh else []
        if not fresh and not queues:
            return
        properties: dict[str, Value] = {"headers": {FAILOVER: now.urls}}
        async with InternalClient(
            self._clients, PEER, SYSTEM, vhost, PURPOSE, stays=True
        ) as client:
            if fresh:
                await client.publish(FAILOVER, "", properties, b"")
            for queue in queues:
                await client.publish("", queue, properties, b"")
        self._counts["updates"] += fresh + len(queues)

    def _failed(self) -> None:
        self._counts["failed"] += 1
        self._not_before = self._now + AGAIN_S

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed()
            log.error("the exchange %s could not be told of the members", FAILOVER, exc_info=error)


def _bound(exchange: Exchange) -> frozenset[str]:
    return frozenset([one.destination for one in exchange.bindings.values() if one.to_queue])
