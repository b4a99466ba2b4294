"""Which federation links exist by the replicated state, and what each has to know of it.

There is one link for each exchange or queue with a policy in force that sets `federation-upstream`
or `federation-upstream-set`, and for each upstream that this names. The process that runs a link is
told the bindings of a federated exchange, and whether a federated queue has a waiting consumer, as
lines of JSON: everything at its begin, then the changes.

    {"bind": [["orders.#", "AAAAAA=="]], "unbind": []}      keys, and arguments as AMQP tables
    {"wanted": 1000}                                        how many of the upstream's queue at once
    {"ends": true}                                          the link no longer exists
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from broker.amqp.fields import encode_table
from broker.machine.commands import Table, Value
from broker.machine.limits import CHANNEL_HELD_MAX
from broker.machine.policies.choice import policies_of_exchange
from broker.machine.policies.settings import FEDERATION_KEYS
from broker.machine.queueing.bindings import follow_bindings
from broker.machine.queueing.dispatch import has_room
from broker.machine.state import (
    Binding,
    Consumer,
    Exchange,
    Policy,
    Queue,
    State,
    Vhost,
    ready_count,
)
from broker.shovels.definition import BadShovel, Link, Shovel
from broker.shovels.status import Key
from broker.shovels.upstreams import (
    EXCHANGE,
    INTERNAL,
    PURPOSE,
    QUEUE,
    QUEUE_PREFETCH,
    UPSTREAM,
    UPSTREAM_SET,
    Upstream,
    chosen_upstreams,
    link_of,
)

ALONE_LOOKS = 5
"""Beats, of a second each, for which a link requests as many messages as consumers hold before it
requests more."""
LINKS_MAX = 200
"""Per cluster: each is a process of some 25 MB."""
LOOK_S = 0.5
LOOKED_AT_PER_S = 20_000
"""Names looked at per second to find federated objects, so less often where there are many;
bindings are looked at with each beat."""
Found = Mapping[Key, Shovel | BadShovel]
Federated = tuple[Vhost, Exchange | Queue, Policy]
Change = dict[str, object]


class LocalSide(Protocol):
    """The facts about this side that the process of a link needs."""

    def change(self) -> Change | None:
        """The changes since the last call, at first everything; None: nothing changed."""


class Federation:
    """The links of the cluster."""

    def __init__(self, cluster: Callable[[], str], machine: Callable[[], State]) -> None:
        """`cluster`: its name, by which other brokers know it in the headers of messages."""
        self._cluster, self._machine = cluster, machine
        self._next_look = 0.0
        self._seen: object = None
        self._found: Found = {}

    def links(self, now: float, *, afresh: bool = False) -> Found:
        """Return the links as of a moment ago, or (`afresh`) as they are; the same object while
        they are unchanged."""
        if afresh or now >= self._next_look:
            self._next_look = now + LOOK_S + self._look() / LOOKED_AT_PER_S
        return self._found

    def _look(self) -> int:
        """Find the links; return the number of names looked at."""
        machine = self._machine()
        if not machine.definitions["parameter"]:
            self._seen, self._found = None, {}
            return 0
        seen: list[object] = [id(machine), machine.defined]
        federated: list[Federated] = []
        looked_at = 0
        for vhost in machine.vhosts.values():
            applies_to = {one.apply_to for one in vhost.policies[0] if _federates(one)}
            if applies_to & {"all", "exchanges"}:
                looked_at += len(vhost.exchanges)
                federated += _federated_exchanges(vhost)
            if applies_to - {"exchanges"}:
                looked_at += len(vhost.queues)
                federated += _federated_queues(vhost)
        for vhost, resource, _policy in federated:
            number = resource.number if isinstance(resource, Queue) else _shape(resource)
            seen.append((vhost.name, resource.name, number))
        if seen != self._seen:
            self._seen = seen
            before = self._found
            self._found = {
                key: before[key] if before.get(key) == found else found
                for key, found in self._links(machine, federated)
            }
        return looked_at

    def _links(
        self, machine: State, federated: list[Federated]
    ) -> Iterator[tuple[Key, Shovel | BadShovel]]:
        defined: dict[str, dict[str, dict[str, Value]]] = {UPSTREAM: {}, UPSTREAM_SET: {}}
        for (vhost_name, parameter), body in machine.definitions["parameter"].items():
            component, _, name = parameter.partition("/")
            if component in defined:
                defined[component].setdefault(vhost_name, {})[name] = body["value"]
        count = 0
        # In the same order at all members, which must agree on which ones are too many.
        for vhost, resource, policy in sorted(federated, key=_place):
            upstreams = chosen_upstreams(
                defined[UPSTREAM].get(vhost.name, {}), defined[UPSTREAM_SET].get(vhost.name, {}),
                policy.definition,
            )  # fmt: skip
            kind = QUEUE if isinstance(resource, Queue) else EXCHANGE
            for name, upstream in sorted(upstreams.items()):
                key = vhost.name, kind, resource.name, name
                count += 1
                yield key, self._link(vhost.name, resource, upstream, count)

    def _link(
        self, vhost: str, resource: Exchange | Queue, upstream: Upstream | BadShovel, count: int
    ) -> Shovel | BadShovel:
        if isinstance(upstream, BadShovel):
            return upstream
        if count > LINKS_MAX:
            return BadShovel(
                f"there are more than {LINKS_MAX} links, each of which is a process: let the "
                "patterns of policies match fewer names"
            )
        common = (
            self._cluster(), upstream.max_hops, upstream.trusts_user_ids, upstream.cleans_up
        )  # fmt: skip
        name = resource.name
        if isinstance(resource, Queue):
            link = Link(QUEUE, name, upstream.name, upstream.queue or name, *common)
        else:
            link = Link(
                EXCHANGE, name, upstream.name, upstream.exchange or name, *common,
                resource.type, resource.durable, resource.auto_delete, resource.arguments,
            )  # fmt: skip
        try:
            return link_of(upstream, vhost, link)
        except BadShovel as bad:
            return bad

    def local_side(self, shovel: Shovel) -> LocalSide | None:
        """Return the facts about this side for a new attempt; None if it is not a link."""
        if shovel.link is None:
            return None
        where = shovel.vhost, shovel.link.name
        if shovel.link.kind == EXCHANGE:
            return _Bindings(self._machine, *where)
        return _Demand(self._machine, *where, shovel.prefetch or QUEUE_PREFETCH)


def _place(federated: Federated) -> tuple[str, bool, str]:
    vhost, resource, _ = federated
    return vhost.name, isinstance(resource, Queue), resource.name


def _federates(policy: Policy) -> bool:
    return any(key in policy.definition for key in FEDERATION_KEYS)


def _shape(exchange: Exchange) -> object:
    return exchange.type, exchange.durable, exchange.auto_delete, exchange.arguments


def _federated_exchanges(vhost: Vhost) -> Iterator[Federated]:
    """All but the default one, to which nothing can be bound, and those of links."""
    for exchange in vhost.exchanges.values():
        if exchange.name and not exchange.internal:
            policy = policies_of_exchange(vhost, exchange)[0]
            if policy is not None and _federates(policy):
                yield vhost, exchange, policy


def _federated_queues(vhost: Vhost) -> Iterator[Federated]:
    """All but exclusive queues, which no other connection may use, streams, from which nothing is
    taken, and those of links."""
    for queue in vhost.queues.values():
        policy = queue.policy
        if policy is None or not _federates(policy):
            continue
        taken = queue.owner is None and queue.stream is None
        if taken and queue.arguments.get(INTERNAL) != PURPOSE:
            yield vhost, queue, policy


Told = tuple[str, bytes]
"""A binding at an upstream: a key and packed arguments, however many bindings here have them."""


class _Bindings:
    """The bindings of a federated exchange."""

    def __init__(self, machine: Callable[[], State], vhost: str, name: str) -> None:
        self._machine, self._vhost, self._name = machine, vhost, name
        self._seen: tuple[Exchange | None, int] = (None, -1)
        self._rows: dict[Told, list[str]] = {}
        self._counts: Counter[Told] = Counter()

    def change(self) -> Change | None:
        vhost = self._machine().vhosts.get(self._vhost)
        exchange = vhost.exchanges.get(self._name) if vhost is not None else None
        if exchange is None or (exchange, exchange.changes) == self._seen:
            return None
        before, self._seen = self._seen, (exchange, exchange.changes)
        count, latest = exchange.changes - before[1], exchange.latest
        if exchange is before[0] and latest is not None and count <= len(latest):
            found = self._since(islice(latest, len(latest) - count, None))
        else:
            follow_bindings(exchange)
            found = self._all(exchange.bindings.values())
        return found if before[0] is None or found["bind"] or found["unbind"] else None

    def _since(self, changes: Iterable[tuple[Binding, bool]]) -> Change:
        """Uses the last changes: an exchange may have 20,000 bindings, and change each beat."""
        touched: dict[Told, Binding] = {}
        for one, came in changes:
            self._counts[one.key, one.packed] += 1 if came else -1
            touched[one.key, one.packed] = one
        there = {told: one for told, one in touched.items() if self._counts[told]}
        return self._told(there, [told for told in touched if told not in there])

    def _all(self, bindings: Collection[Binding]) -> Change:
        there = {(one.key, one.packed): one for one in bindings}
        self._counts = Counter((one.key, one.packed) for one in bindings)
        return self._told(there, [told for told in self._rows if told not in there])

    def _told(self, there: Mapping[Told, Binding], gone: Sequence[Told]) -> Change:
        bind = {
            told: _row(one.key, one.arguments)
            for told, one in there.items() if told not in self._rows
        }  # fmt: skip
        unbind = [self._rows.pop(told) for told in gone if told in self._rows]
        self._rows.update(bind)
        for told in gone:
            self._counts.pop(told, None)
        return {"bind": list(bind.values()), "unbind": unbind}


def _row(key: str, arguments: Table) -> list[str]:
    return [key, b64encode(encode_table(arguments)).decode()]


class _Demand:
    """How many messages of the upstream a link may hold at once. None, unless a consumer waits that
    is no link's, so that the queue is empty; from then on some, until no such consumer is left, or
    a quarter of a prefetch waits here.

    If a link of another cluster takes from the queue, only while a consumer waits, and no more than
    the consumers hold: if two clusters both kept some messages, each would fetch what the other has
    just fetched. Such a link may come a moment later, so the same holds until none was seen for
    some time.
    """

    def __init__(self, machine: Callable[[], State], vhost: str, name: str, prefetch: int) -> None:
        self._machine, self._vhost, self._name = machine, vhost, name
        self._prefetch, self._enough = prefetch, max(1, prefetch // 4)
        self._wanted: int | None = None
        self._alone = 0  # looks since another link was seen that wanted messages

    def change(self) -> Change | None:
        vhost = self._machine().vhosts.get(self._vhost)
        queue = vhost.queues.get(self._name) if vhost is not None else None
        wanted = self._count(queue) if queue is not None else 0
        if wanted == self._wanted:
            return None
        self._wanted = wanted
        return {"wanted": wanted}

    def _count(self, queue: Queue) -> int:
        if any(one.priority < 0 for one in queue.consumers.values()):
            self._alone = 0
        alone = self._alone >= ALONE_LOOKS
        if self._wanted and alone:
            wants = bool(queue.consumers) and ready_count(queue) < self._enough
        else:
            wants = any(one.priority >= 0 and has_room(one.channel, one) for one in queue.service)
        self._alone += wants
        if alone or not wants:
            return self._prefetch * wants
        held = sum(_most_held(one) for one in queue.consumers.values() if one.priority >= 0)
        return min(held, self._prefetch)


def _most_held(consumer: Consumer) -> int:
    """How many messages it may hold."""
    if consumer.no_ack:
        return CHANNEL_HELD_MAX
    return min(consumer.limit, consumer.channel.limit)
