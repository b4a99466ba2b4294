"""Exchanges and bindings: what is bound to what (where a message goes: publishing/routing.py)."""

from collections import deque

from broker.machine.digest import canonical, item_hash
from broker.machine.limits import (
    DESTINATION_BINDINGS_MAX,
    EXCHANGE_BINDINGS_MAX,
)
from broker.machine.move_log import BOUND, FLAG, UNBOUND, note, note_way, way_marks
from broker.machine.queueing.declaration import drop_delayed
from broker.machine.requests.refusals import Refusal, too_much
from broker.machine.state import (
    FAILOVER,
    Binding,
    BindingId,
    Exchange,
    State,
    Vhost,
)

CHANGES_KEPT = 1000
"""Changes of bindings kept for a follower that looks ten times a second; after more of them it
looks at all bindings."""

_PREDECLARED = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


def add_vhost(state: State, name: str) -> None:
    """Add a virtual host with the exchanges that AMQP demands, and the one for failover."""
    vhost = state.vhosts[name] = Vhost(name)
    for exchange, kind in _PREDECLARED:
        add_exchange(state, vhost, Exchange(exchange, kind, True, False, False, {}))
    add_exchange(state, vhost, Exchange(FAILOVER, "fanout", True, False, True, {}))


def exchange_element(vhost: Vhost, exchange: Exchange) -> int:
    return item_hash(
        "exchange",
        vhost.name,
        exchange.name,
        exchange.type,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        canonical(exchange.arguments),
    )


def binding_element(vhost: Vhost, binding: Binding) -> int:
    return item_hash("binding", vhost.name, *binding.identity())


def add_exchange(state: State, vhost: Vhost, exchange: Exchange) -> None:
    vhost.exchanges[exchange.name] = exchange
    vhost.routes.clear()
    state.add(exchange_element(vhost, exchange))


def remove_exchange(state: State, vhost: Vhost, exchange: Exchange) -> None:
    """Remove it with its bindings both ways, its delayed messages, and the auto-delete exchanges
    that become unused."""
    pending = [exchange]
    for gone in pending:  # grows during the loop
        if gone.bindings:
            mark, _ = way_marks(vhost.name, gone.name, "")
            note(state, UNBOUND | FLAG, 0, 0, mark, 0)
        state.remove(sum([binding.element for binding in gone.bindings.values()]))
        for identity, binding in gone.bindings.items():
            _forget_at_destination(vhost, identity, binding)
        gone.bindings, gone.by_key, gone.patterns = {}, {}, {}
        gone.shares = gone.onward = None
        unused: dict[str, Exchange] = {}
        for binding in list(gone.inbound.values()):
            source = vhost.exchanges[binding.source]
            _take_out(state, vhost, source, binding)
            if source.auto_delete and not source.bindings:
                unused[source.name] = source
        pending += _in_order(unused)
        del vhost.exchanges[gone.name]
        drop_delayed(state, vhost, gone)
        state.remove(exchange_element(vhost, gone))
    vhost.routes.clear()


def add_binding(state: State, vhost: Vhost, binding: Binding) -> Refusal | None:
    """Both ends exist. Binding twice equals binding once."""
    source = vhost.exchanges[binding.source]
    identity = binding.identity()
    if identity in source.bindings:
        return None
    name = binding.destination
    inbound = vhost.queues[name].bindings if binding.to_queue else vhost.exchanges[name].inbound
    if len(source.bindings) >= EXCHANGE_BINDINGS_MAX:
        return too_much(
            f"bindings of exchange '{source.name}'", len(source.bindings) + 1,
            EXCHANGE_BINDINGS_MAX, "spread them over several exchanges",
        )  # fmt: skip
    if len(inbound) >= DESTINATION_BINDINGS_MAX:
        return too_much(
            f"bindings to '{name}'", len(inbound) + 1, DESTINATION_BINDINGS_MAX,
            "bind with patterns, or to several queues",
        )  # fmt: skip
    binding = binding._replace(element=binding_element(vhost, binding))
    source.bindings[identity] = inbound[identity] = binding
    index_binding(source, identity, binding)
    state.add(binding.element)
    if binding.to_queue:
        mark = vhost.queues[name].mark
        note_way(state, BOUND, mark, vhost.name, source, binding.key)
    vhost.routes.clear()
    return None


def follow_bindings(source: Exchange) -> None:
    """From here on keep the last changes of its bindings, which are not part of the state."""
    if source.latest is None:
        source.latest = deque(maxlen=CHANGES_KEPT)


def _count_change(source: Exchange, binding: Binding, *, came: bool) -> None:
    source.changes += 1
    if source.latest is not None:
        source.latest.append((binding, came))


def index_binding(source: Exchange, identity: BindingId, binding: Binding) -> None:
    key = binding.key
    source.shares = source.onward = None
    _count_change(source, binding, came=True)
    source.by_key.setdefault(key, {})[identity] = binding
    if source.routes_as == "topic":
        words = topic_words(key)
        if "*" in words or "#" in words:
            source.patterns[key] = words


def leads_to(source: Exchange) -> tuple[str, ...]:
    """The exchanges bound to it; cached until a binding comes or goes."""
    if source.onward is None:
        names = [one.destination for one in source.bindings.values() if not one.to_queue]
        source.onward = tuple(dict.fromkeys(names))
    return source.onward


def remove_bindings(state: State, vhost: Vhost, bindings: list[Binding]) -> None:
    """Remove the existing ones, then the auto-delete exchanges that lost their last one."""
    unused: dict[str, Exchange] = {}
    for binding in bindings:
        source = vhost.exchanges[binding.source]
        taken = _take_out(state, vhost, source, binding)
        if taken and source.auto_delete and not source.bindings:
            unused[source.name] = source
    for source in _in_order(unused):
        if vhost.exchanges.get(source.name) is source:  # not gone with an earlier one
            remove_exchange(state, vhost, source)
    vhost.routes.clear()


def _in_order(exchanges: dict[str, Exchange]) -> list[Exchange]:
    """By name: a snapshot does not say in which order the bindings of a destination came."""
    return [exchanges[name] for name in sorted(exchanges)]


def _take_out(state: State, vhost: Vhost, source: Exchange, binding: Binding) -> bool:
    """Remove a binding; return whether it existed. Both ends are still in the directory, or the
    queue was removed by its own deletion."""
    identity = binding.identity()
    taken = source.bindings.pop(identity, None)
    if taken is None:
        return False
    source.shares = source.onward = None
    _count_change(source, taken, came=False)
    same_key = source.by_key[binding.key]
    del same_key[identity]
    if not same_key:
        del source.by_key[binding.key]
        source.patterns.pop(binding.key, None)
    if taken.to_queue and taken.destination in vhost.queues:
        mark = vhost.queues[taken.destination].mark
        note_way(state, UNBOUND, mark, vhost.name, source, taken.key)
    _forget_at_destination(vhost, identity, taken)
    state.remove(taken.element)
    return True


def _forget_at_destination(vhost: Vhost, identity: BindingId, binding: Binding) -> None:
    name = binding.destination
    if not binding.to_queue:
        del vhost.exchanges[name].inbound[identity]
    elif name in vhost.queues:
        del vhost.queues[name].bindings[identity]


def topic_words(key: str) -> tuple[str, ...]:
    """Return the words of a routing key or pattern; the empty one has none, as in RabbitMQ."""
    return tuple(key.split(".")) if key else ()
