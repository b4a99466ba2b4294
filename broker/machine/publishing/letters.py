"""Dead letters: messages that died in a queue are published to its dead-letter exchange.

They are published at the position of the command that caused them, after the command itself, or at
the next positions when there are many. An unroutable letter is dropped, and a letter that a queue
refuses does not enter it: this is at-most-once.

A queue with the strategy `at-least-once` instead keeps, in a separate queue, each letter that
cannot be published: its exchange does not exist, or reaches no queue, or one of the queues is full
and refuses. The first kept letter is retried every second, and the others follow it, so their order
is kept. A letter goes to all its queues at one position, so it reaches each of them once.
Decision: docs/decisions/0081-a-dead-letter-that-cannot-go-waits-in-a-queue.md.
"""

from broker.machine.clock.cluster_time import head
from broker.machine.digest import item_hash
from broker.machine.limits import (
    BODY_PER_UNIT,
    LETTERS_RETRY_US,
    LETTERS_WORK_MAX,
    ROUTE_WORK_MAX,
    WORDS_PER_UNIT,
)
from broker.machine.move_log import BY_DEAD_LETTER, BY_LETTER, SENT_ON
from broker.machine.publishing.copies import copies_of, may_name_copies, without_header
from broker.machine.publishing.entering import publish_to, turn_of
from broker.machine.publishing.routing import find_route
from broker.machine.queueing.declaration import keep_letters_of
from broker.machine.queueing.enqueue import would_refuse
from broker.machine.queueing.queue import remove_head
from broker.machine.requests.death_headers import Buried, bury, dug_up
from broker.machine.requests.refusals import Refusal
from broker.machine.state import (
    BODY,
    CONTENT_HASH,
    KEY,
    NO_TTL,
    PROPERTIES,
    Letter,
    Message,
    Queue,
    Route,
    State,
    Vhost,
    ready_count,
)

_NO_WAY = 1
"""Units of work for a letter whose exchange does not exist."""


def letter_element(letter: Letter) -> int:
    """Return the digest element of a letter that waits for a later position."""
    vhost, exchange, key, queue, message, reason = letter
    content = message[CONTENT_HASH]
    return item_hash("letter", vhost.name, exchange, key, queue, content, reason)


def publish_dead_letters(state: State) -> None:
    """Publish waiting letters, as many as one position may cost, and at least one.
    This ends: a message that returns to a queue without a client's rejection on the way is dropped.
    """
    fresh, late = state.dead_letters, state.late_letters
    work = 0
    while late and work < LETTERS_WORK_MAX:
        letter = late.popleft()
        letter.vhost.letters -= 1
        state.remove(letter_element(letter))
        work += _publish_letter(state, letter)
    place = 0
    while place < len(fresh) and work < LETTERS_WORK_MAX:  # `fresh` grows while it runs
        work += _publish_letter(state, fresh[place])
        place += 1
    for letter in fresh[place:]:
        state.add(letter_element(letter))
        letter.vhost.letters += 1
        late.append(letter)
    fresh.clear()


def _publish_letter(state: State, letter: Letter) -> int:
    """Publish a letter; return the units of work. One that is unroutable, or reaches too many
    queues, is dropped, or kept."""
    vhost, name, key, queue, message, reason = letter
    _, _, origin, _, flags, _, _, properties, body = message
    source = vhost.queues.get(queue)
    mark = source.mark if source is not None else 0
    at_least_once = source is not None and source.at_least_once
    if name not in vhost.exchanges and not at_least_once:
        return _NO_WAY
    keys = _keys(message)
    buried = bury(properties, queue, origin, keys, reason, state.time_us)
    if source is not None and at_least_once:
        return _publish_or_keep(state, source, buried, message)
    found = _way_of(state, vhost, name, key, buried, keys)
    if isinstance(found, int):
        return found
    route, written = found
    publish_to(state, route, flags, NO_TTL, written, body, BY_DEAD_LETTER, 0, mark)
    return _work(properties, route)


def _keys(message: Message) -> tuple[str, ...]:
    """Return the keys that a message was published with, except blind ones."""
    if not may_name_copies(message[PROPERTIES]):
        return (message[KEY],)
    copies = copies_of(message[PROPERTIES])
    return (message[KEY],) if isinstance(copies, Refusal) else (message[KEY], *copies.keys)


def _work(properties: bytes, route: Route) -> int:
    return 16 + len(properties) // WORDS_PER_UNIT + route.work + len(route.queues)


def _way_of(
    state: State, vhost: Vhost, name: str, key: str, buried: Buried, keys: tuple[str, ...]
) -> tuple[Route, bytes] | int:
    """Return a letter's route and properties; without a route, the units of the search. `keys`: the
    message's; `key`, if it differs, replaces all of them."""
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        return _NO_WAY
    written = buried.properties
    if key != keys[0]:
        keys = (key,)
        if may_name_copies(written):
            written = without_header(written, "CC")
    route = find_route(vhost, exchange, keys, buried.properties, turn_of(state))
    if isinstance(route, Refusal):
        return ROUTE_WORK_MAX
    return route._replace(queues=buried.without_cycles(route.queues)), written


# -- at least once -------------------------------------------------------------------------------


def _publish_or_keep(state: State, source: Queue, buried: Buried, message: Message) -> int:
    """Publish or keep a letter; return the units of work."""
    _, _, origin, old_key, flags, _, _, properties, body = message
    kept = source.letters
    work = 16 + len(properties) // WORDS_PER_UNIT + len(body) // BODY_PER_UNIT
    if kept is None or not ready_count(kept):  # else it goes behind those that wait
        found = _open_way(state, source, buried, message, is_kept=False)
        if not isinstance(found, int):
            route, written = found
            publish_to(state, route, flags, NO_TTL, written, body, BY_DEAD_LETTER, 0, source.mark)
            return _work(properties, route)
        work += found
    kept = kept or keep_letters_of(state, source)
    nowhere = source.vhost.exchanges[""]
    route = Route(origin, old_key, (kept,), kept.durable, False, 0, nowhere)
    publish_to(state, route, flags, NO_TTL, buried.properties, body, BY_DEAD_LETTER, 0, source.mark)
    nowhere.tally.publish -= 1  # no exchange has published it yet
    nowhere.tally.routed -= 1
    state.keeping[kept.number] = kept
    state.letter_times.note(kept.number, state.now_us + LETTERS_RETRY_US)
    return work


def _open_way(
    state: State, source: Queue, buried: Buried, message: Message, *, is_kept: bool
) -> tuple[Route, bytes] | int:
    """Return a letter's route by its queue's current settings, if it reaches a queue and none of
    them refuses it; else the units of the search."""
    name, key = source.dead_letter_exchange, source.dead_letter_key
    if name is None:  # it was taken away
        return _NO_WAY
    keys = _keys(message)
    found = _way_of(state, source.vhost, name, keys[0] if key is None else key, buried, keys)
    if isinstance(found, int):
        return found
    queues = found[0].queues
    size, count = len(message[BODY]), len(queues)
    if source.at_least_once and (
        not queues
        or any(
            would_refuse(state, one, size, count, leaves=is_kept and one is source)
            for one in queues
        )
    ):
        return _work(b"", found[0])
    return found


def send_kept_letters(state: State) -> None:
    """At a tick, send kept letters of the queues that are due, as many as one position may cost."""
    work = 0
    while work < LETTERS_WORK_MAX:
        number = state.letter_times.take(state.now_us)
        if number is None:
            return
        kept = state.keeping.get(number)
        work += 1
        if kept is not None:
            work += _send_kept(state, kept, LETTERS_WORK_MAX - work)


def _send_kept(state: State, kept: Queue, work_max: int) -> int:
    """Publish kept letters in order until one cannot be published; return the units of work. If the
    queue's strategy has changed, none waits any longer."""
    assert kept.letters_of is not None
    source = kept.vhost.queues[kept.letters_of]
    work = 0
    while ready_count(kept) and work < work_max:
        message = head(kept)
        _, number, origin, old_key, flags, _, _, properties, body = message
        found = _open_way(state, source, dug_up(properties), message, is_kept=True)
        work += 16 + len(properties) // WORDS_PER_UNIT + len(body) // BODY_PER_UNIT
        if isinstance(found, int):
            work += found
            if source.at_least_once:
                state.letter_times.note(kept.number, state.now_us + LETTERS_RETRY_US)
                return work
            found = (
                Route(origin, old_key, (), False, False, 0, kept.vhost.exchanges[""]),
                properties,
            )
            found[0].source.tally.publish -= 1  # it is dropped
        route, written = found
        work += route.work + len(route.queues)
        remove_head(state, kept, SENT_ON)
        publish_to(state, route, flags, NO_TTL, written, body, BY_LETTER, 0, number)
    if ready_count(kept):
        state.letter_times.note(kept.number, state.now_us)
    else:
        state.keeping.pop(kept.number, None)
    return work
