"""Exchanges and bindings: what is bound to what, and where a message goes.

Finding a route walks the graph of exchanges once, with all keys of the message; the result is
cached per exchange and keys until the topology of the virtual host changes. A route through a
headers exchange depends on more than the keys and is never cached.
"""

from collections import deque

from broker.machine.commands import Table, Value
from broker.machine.digest import canonical, item_hash
from broker.machine.limits import (
    DESTINATION_BINDINGS_MAX,
    EXCHANGE_BINDINGS_MAX,
    FANOUT_MAX,
    KEY_WORK,
    ROUTE_WORK_MAX,
    WORDS_PER_UNIT,
)
from broker.machine.move_log import BOUND, FLAG, UNBOUND, note, note_way, way_marks
from broker.machine.policies.choice import effective_definition, policies_of_exchange
from broker.machine.queueing.declaration import drop_delayed
from broker.machine.requests.delay_header import delay_ms_of
from broker.machine.requests.exchange_types import (
    CHOOSING,
    FEDERATION_UPSTREAM,
    chosen,
    goes_by_key,
    may_go_on,
)
from broker.machine.requests.properties import headers_of
from broker.machine.requests.refusals import Refusal, too_much
from broker.machine.state import (
    FAILOVER,
    Binding,
    BindingId,
    Exchange,
    Queue,
    Route,
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
_ROUTES_MAX = 16_384
_KEPT_KEYS_MAX = 1_024
"""Characters of the keys of one cached route."""
_BY_HEADERS = ("headers", FEDERATION_UPSTREAM)


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
        for binding in list(gone.inbound.values()):
            source = vhost.exchanges[binding.source]
            _take_out(state, vhost, source, binding)
            if source.auto_delete and not source.bindings:
                pending.append(source)
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
    for source in unused.values():
        if vhost.exchanges.get(source.name) is source:  # not gone with an earlier one
            remove_exchange(state, vhost, source)
    vhost.routes.clear()


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


def find_route(
    vhost: Vhost, exchange: Exchange, keys: tuple[str, ...], properties: bytes, turn: int
) -> Route | Refusal:
    """The queues that a message published there reaches by any of its keys, its own key first, each
    queue once; or that the route costs too much. A message to be delayed goes no further than an
    exchange that delays, to that exchange's queue. `turn` differs from message to message, for
    exchanges that choose at random."""
    keys = tuple(dict.fromkeys(keys))
    if (known := vhost.routes.get((exchange.name, *keys))) is not None:
        return known
    queues: dict[str, Queue] = {}
    cacheable = not exchange.internal  # clients are refused there; only dead letters arrive
    seen = {exchange.name: exchange}
    pending = [exchange]
    delayed = vhost.delays and delay_ms_of(properties) > 0
    # The sum does not depend on the order of the walk, which may differ after a restore.
    work = KEY_WORK * (len(keys) - 1)
    for source in pending:  # grows during the loop
        if source.name == "":
            queues.update((key, vhost.queues[key]) for key in keys if key in vhost.queues)
            continue
        if source.name in vhost.delays:
            cacheable = False
            if delayed:
                waiting = vhost.delays[source.name]
                queues[waiting.name] = waiting
                continue
        cacheable = cacheable and source.routes_as not in _BY_HEADERS and goes_by_key(source)
        work += _work_to_match(source, keys, properties)
        if source.routes_as == FEDERATION_UPSTREAM and not may_go_on(source, properties):
            continue
        bindings = _matching(source, keys, properties, turn) if work <= ROUTE_WORK_MAX else []
        work += len(bindings)
        if work > ROUTE_WORK_MAX:
            break
        for binding in bindings:
            if binding.to_queue:
                queues[binding.destination] = vhost.queues[binding.destination]
            elif binding.destination not in seen:
                _visit(vhost, binding.destination, seen, pending)
        if not bindings:
            alternate = source.alternate
            if alternate is None and vhost.policies[0]:
                alternate = alternate_by_policy(vhost, source)
                work += len(vhost.policies[0])
            if alternate is not None and alternate not in seen:
                _visit(vhost, alternate, seen, pending)
    if work > ROUTE_WORK_MAX or len(queues) > FANOUT_MAX:
        return _too_far(exchange.name, work, len(queues))
    reached = tuple(sorted(queues.values(), key=lambda queue: queue.number))
    durable = any(queue.durable for queue in reached)
    streams = any(queue.stream is not None for queue in reached)
    route = Route(exchange.name, keys[0], reached, durable, streams, work, exchange)
    if cacheable:
        _keep(vhost, keys, route)
    return route


def _too_far(exchange: str, work: int, queues: int) -> Refusal:
    if work > ROUTE_WORK_MAX:
        return too_much(
            f"work to route a message by exchange '{exchange}'", work, ROUTE_WORK_MAX,
            "spread its bindings over several exchanges, or use shorter or fewer keys and headers",
        )  # fmt: skip
    return too_much(
        f"queues that a message to exchange '{exchange}' reaches", queues, FANOUT_MAX,
        "spread them over several exchanges, and publish to each",
    )  # fmt: skip


def _keep(vhost: Vhost, keys: tuple[str, ...], route: Route) -> None:
    if sum(map(len, keys)) <= _KEPT_KEYS_MAX:
        if len(vhost.routes) >= _ROUTES_MAX:
            vhost.routes.clear()
        vhost.routes[route.exchange, *keys] = route


def alternate_by_policy(vhost: Vhost, exchange: Exchange) -> str | None:
    alternate = effective_definition(*policies_of_exchange(vhost, exchange)).get(
        "alternate-exchange"
    )
    return alternate if isinstance(alternate, str) else None


def _visit(vhost: Vhost, name: str, seen: dict[str, Exchange], pending: list[Exchange]) -> None:
    exchange = vhost.exchanges.get(name)
    if exchange is not None:
        seen[name] = exchange
        pending.append(exchange)


def _work_to_match(source: Exchange, keys: tuple[str, ...], properties: bytes) -> int:
    """The work beyond the matching bindings: one unit, plus comparisons to find them."""
    if source.routes_as == "headers":
        wanted = sum([1 + len(binding.arguments) for binding in source.bindings.values()])
        return 1 + wanted + len(properties) // WORDS_PER_UNIT
    if source.routes_as in CHOOSING or source.routes_as == FEDERATION_UPSTREAM:
        return 2 + len(properties) // WORDS_PER_UNIT
    if not source.patterns:
        return len(keys)
    words = sum(map(len, source.patterns.values()))
    return len(keys) + words * sum([key.count(".") + 1 for key in keys]) // WORDS_PER_UNIT


def _matching(
    source: Exchange, keys: tuple[str, ...], properties: bytes, turn: int
) -> list[Binding]:
    """The bindings that get the message, perhaps by several keys. A choice uses the first key."""
    if source.routes_as in ("fanout", FEDERATION_UPSTREAM):
        return list(source.bindings.values())
    if source.routes_as == "headers":
        headers = headers_of(properties)
        return [b for b in source.bindings.values() if headers_match(b.arguments, headers)]
    if source.routes_as in CHOOSING:
        return chosen(source, keys[0], properties, turn)
    found: list[Binding] = []
    for key in keys:
        found.extend(source.by_key.get(key, _NOTHING).values())
        if source.patterns:
            words = topic_words(key)
            for pattern, pattern_words in source.patterns.items():
                if pattern != key and topic_matches(pattern_words, words):
                    found.extend(source.by_key[pattern].values())
    return found


_NOTHING: dict[BindingId, Binding] = {}


def topic_words(key: str) -> tuple[str, ...]:
    """Return the words of a routing key or pattern; the empty one has none, as in RabbitMQ."""
    return tuple(key.split(".")) if key else ()


def topic_matches(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Match a topic: `*` is one word, `#` any number of them. Like a glob: only the last `#` is
    reconsidered, so the cost is at most the product of both lengths."""
    p = w = 0
    hash_at = -1
    hash_word = 0
    while w < len(words):
        if p < len(pattern) and pattern[p] == "#":
            hash_at, hash_word = p, w
            p += 1
        elif p < len(pattern) and (pattern[p] == "*" or pattern[p] == words[w]):
            p += 1
            w += 1
        elif hash_at >= 0:
            hash_word += 1
            p, w = hash_at + 1, hash_word
        else:
            return False
    while p < len(pattern) and pattern[p] == "#":
        p += 1
    return p == len(pattern)


def headers_match(arguments: Table, headers: Table) -> bool:
    mode = arguments.get("x-match", "all")
    with_x = mode in ("all-with-x", "any-with-x")
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    if mode in ("any", "any-with-x"):
        return any(_has_header(headers, name, value) for name, value in wanted)
    return all(_has_header(headers, name, value) for name, value in wanted)


def _has_header(headers: Table, name: str, value: Value) -> bool:
    """Numbers, and texts, are compared whatever their wire type, as in RabbitMQ."""
    if name not in headers:
        return False
    if value is None:  # a void value asks only that the header exists
        return True
    found = headers[name]
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, str):
        found = found.encode()
    return found == (value.encode() if isinstance(value, str) else value)
