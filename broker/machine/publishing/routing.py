"""Routes a message: one walk through the exchanges of its virtual host, by all its keys.

The result is cached per exchange and keys until the topology of the virtual host changes. A route
through an exchange that matches headers depends on more than the keys and is never cached.
"""

from broker.machine.commands import Table, Value
from broker.machine.limits import FANOUT_MAX, KEY_WORK, ROUTE_WORK_MAX, WORDS_PER_UNIT
from broker.machine.policies.choice import effective_definition, policies_of_exchange
from broker.machine.queueing.bindings import topic_words
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
from broker.machine.state import Binding, BindingId, Exchange, Queue, Route, Vhost

_ROUTES_MAX = 16_384
_KEPT_KEYS_MAX = 1_024
"""The most characters of keys in one cached route."""
_BY_HEADERS = ("headers", FEDERATION_UPSTREAM)
_NOTHING: dict[BindingId, Binding] = {}


def find_route(
    vhost: Vhost, exchange: Exchange, keys: tuple[str, ...], properties: bytes, turn: int
) -> Route | Refusal:
    """Return the queues that a message reaches by any of its keys, its own key first, each queue
    once; or a refusal if the route costs too much. A message to be delayed goes no further than to
    the queue of a delaying exchange. `turn` differs from message to message, for exchanges that
    choose at random."""
    if len(keys) > 1:
        keys = tuple(dict.fromkeys(keys))
    if (known := vhost.routes.get((exchange.name, *keys))) is not None:
        return known
    return _Walk(vhost, exchange, keys, properties, turn).route()


class _Walk:
    """One message on its way through the exchanges of a virtual host."""

    __slots__ = ("keys", "properties", "seen", "start", "turn", "vhost", "visited")

    def __init__(
        self, vhost: Vhost, start: Exchange, keys: tuple[str, ...], properties: bytes, turn: int
    ) -> None:
        self.vhost, self.start, self.keys = vhost, start, keys
        self.properties, self.turn = properties, turn
        self.visited = [start]  # grows during the walk
        self.seen = {start.name}

    def route(self) -> Route | Refusal:
        """Walk, and return the queues reached."""
        vhost, keys, properties, start = self.vhost, self.keys, self.properties, self.start
        queues: dict[str, Queue] = {}
        delayed = vhost.delays and delay_ms_of(properties) > 0
        cacheable = not start.internal  # clients are refused there; only dead letters arrive
        # The sum does not depend on the order of the walk, which may differ after a restore.
        work = KEY_WORK * (len(keys) - 1)
        for source in self.visited:
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
            work += self._work_to_match(source)
            if source.routes_as == FEDERATION_UPSTREAM and not may_go_on(source, properties):
                continue
            bindings = self._matching(source) if work <= ROUTE_WORK_MAX else []
            work += len(bindings)
            if work > ROUTE_WORK_MAX:
                break
            for binding in bindings:
                if binding.to_queue:
                    queues[binding.destination] = vhost.queues[binding.destination]
                else:
                    self._visit(binding.destination)
            if not bindings:
                alternate = source.alternate
                if alternate is None and vhost.policies[0]:
                    alternate = _alternate_by_policy(vhost, source)
                    work += len(vhost.policies[0])
                if alternate is not None:
                    self._visit(alternate)
        if work > ROUTE_WORK_MAX or len(queues) > FANOUT_MAX:
            return _too_far(start.name, work, len(queues))
        reached = tuple(queues.values())
        if len(reached) > 1:
            reached = tuple(sorted(reached, key=lambda queue: queue.number))
        durable = any(queue.durable for queue in reached)
        streams = any(queue.stream is not None for queue in reached)
        lasts = cacheable and sum(map(len, keys)) <= _KEPT_KEYS_MAX
        route = Route(start.name, keys[0], reached, durable, streams, work, start, lasts)
        if lasts:
            _keep(vhost, keys, route)
        return route

    def _visit(self, name: str) -> None:
        exchange = self.vhost.exchanges.get(name)
        if exchange is not None and name not in self.seen:
            self.seen.add(name)
            self.visited.append(exchange)

    def _work_to_match(self, source: Exchange) -> int:
        """The work beyond the matching bindings: one unit, plus comparisons to find them."""
        keys, properties = self.keys, self.properties
        if source.routes_as == "headers":
            wanted = sum([1 + len(binding.arguments) for binding in source.bindings.values()])
            return 1 + wanted + len(properties) // WORDS_PER_UNIT
        if source.routes_as in CHOOSING or source.routes_as == FEDERATION_UPSTREAM:
            return 2 + len(properties) // WORDS_PER_UNIT
        if not source.patterns:
            return len(keys)
        words = sum(map(len, source.patterns.values()))
        return len(keys) + words * sum([key.count(".") + 1 for key in keys]) // WORDS_PER_UNIT

    def _matching(self, source: Exchange) -> list[Binding]:
        """The bindings that match the message; one may match by several keys. An exchange that
        chooses among bindings uses the first key."""
        if source.routes_as in ("fanout", FEDERATION_UPSTREAM):
            return list(source.bindings.values())
        if source.routes_as == "headers":
            headers = headers_of(self.properties)
            return [b for b in source.bindings.values() if headers_match(b.arguments, headers)]
        if source.routes_as in CHOOSING:
            return chosen(source, self.keys[0], self.properties, self.turn)
        found: list[Binding] = []
        for key in self.keys:
            found.extend(source.by_key.get(key, _NOTHING).values())
            if source.patterns:
                words = topic_words(key)
                for pattern, pattern_words in source.patterns.items():
                    if pattern != key and topic_matches(pattern_words, words):
                        found.extend(source.by_key[pattern].values())
        return found


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
    if len(vhost.routes) >= _ROUTES_MAX:
        vhost.routes.clear()
    vhost.routes[route.exchange, *keys] = route


def _alternate_by_policy(vhost: Vhost, exchange: Exchange) -> str | None:
    alternate = effective_definition(*policies_of_exchange(vhost, exchange)).get(
        "alternate-exchange"
    )
    return alternate if isinstance(alternate, str) else None


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
    """Whether a header has this value: numbers and texts compare across their types, as in
    RabbitMQ."""
    if name not in headers:
        return False
    if value is None:  # a void value asks only that the header is there
        return True
    found = headers[name]
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, str):
        found = found.encode()
    return found == (value.encode() if isinstance(value, str) else value)
