"""Publishing: one message to the queues that its exchange and key reach.

Also dead-lettering: it happens at the position of the command that caused it, after the command
itself, or at the next ones when it is much, and nothing of it can fail.
"""

from broker.machine.commands import (
    BODY_PART,
    IGNORED,
    IMMEDIATE,
    IN_PARTS,
    MANDATORY,
    OK,
    PERSISTENT,
    PUBLISH,
    REPEATED,
    UNROUTABLE,
    BodyPart,
    Publish,
)
from broker.machine.digest import MASK, body_hash, item_hash, message_hash
from broker.machine.effects import Confirm, Return
from broker.machine.handlers.connections import refuse
from broker.machine.limits import (
    BODY_PER_UNIT,
    LETTERS_WORK_MAX,
    ROUTE_WORK_MAX,
    UNFINISHED_BYTES_MAX,
    WORDS_PER_UNIT,
)
from broker.machine.move_log import (
    AGAIN,
    BY_CLIENT,
    BY_DEAD_LETTER,
    BY_DELAY,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    row,
)
from broker.machine.publishing.copies import copies_of, may_name_copies, widened, without_header
from broker.machine.publishing.producers import (
    REFUSED,
    STORED,
    UNROUTED,
    Attempt,
    attempt_of,
    may_be_numbered,
    remember,
    without_number,
)
from broker.machine.publishing.unfinished import keep_part, whole_body
from broker.machine.queueing.dead_letter import Buried, bury
from broker.machine.queueing.delays import check_delay, may_be_delayed, with_turned_delay
from broker.machine.queueing.dispatch import die_refused, enqueue, take_due
from broker.machine.queueing.properties import expiration_of
from broker.machine.queueing.refusals import (
    NO_ROUTE,
    Refusal,
    gave_way,
    internal_exchange,
    invalid_expiration,
    no_exchange,
    not_implemented,
)
from broker.machine.queueing.routing import find_route
from broker.machine.queueing.streams import enter
from broker.machine.queueing.windows import enqueue_once, key_of
from broker.machine.state import (
    CONTENT_HASH,
    NO_TTL,
    Channel,
    Letter,
    Message,
    Queue,
    Route,
    State,
    Vhost,
)
from broker.machine.version import ANSWERS_AS_RABBITMQ, BODIES_IN_PARTS, NUMBERED_PUBLISHES

_TTL_MS_MAX = 1 << 53
_new = tuple.__new__  # half the cost of calling the class


def on_publish(state: State, channel: Channel, command: Publish) -> int:
    _, conn, chan, publish_no, exchange, key, flags, properties, body = command
    if flags & IN_PARTS and state.version >= BODIES_IN_PARTS:
        return on_publish(state, channel, _made_whole(state, channel, command))
    ttl_us = NO_TTL
    attempt = None
    first = properties[0] if properties else 0
    if first & 0x20 and may_be_numbered(properties) and state.version >= NUMBERED_PUBLISHES:
        numbered = attempt_of(channel, exchange, key, properties, body)
        if isinstance(numbered, Refusal):
            return refuse(state, channel, PUBLISH, numbered)
        if numbered is not None and numbered.entry:
            return _publish_again(state, channel, command, numbered)
        attempt = numbered
    if first & 1:  # the flag of the expiration property
        ttl_us = ttl_of(properties)
    route = channel.connection.vhost.routes.get((exchange, key))
    if route is None or flags & IMMEDIATE or ttl_us < NO_TTL:
        found = route_or_refusal(
            channel.connection.vhost, exchange, key, flags, properties, ttl_us, turn_of(state)
        )
        if isinstance(found, Refusal):
            return refuse(state, channel, PUBLISH, found)
        route = found
    if first & 0x20 and may_name_copies(properties) and state.version >= ANSWERS_AS_RABBITMQ:
        copied = with_copies(channel.connection.vhost, route, properties, turn_of(state))
        if isinstance(copied, Refusal):
            return refuse(state, channel, PUBLISH, copied)
        route, properties = copied
    number = state.next_message
    stored = properties if attempt is None else without_number(properties)
    accepted = publish_to(
        state, route, flags, ttl_us, stored, body, BY_CLIENT, channel.mark, publish_no
    )
    if attempt is not None:
        _remember(state, channel, attempt, route, flags, accepted, number)
    count_publish(channel, route, flags, publish_no != 0 and accepted)
    if channel.local:
        if not route.queues and flags & MANDATORY:
            return_unroutable(state, channel, exchange, key, properties, body)
        if publish_no:
            durable = is_durable(route, flags)
            state.effects.append(_new(Confirm, (conn, chan, publish_no, durable, accepted)))
    return OK if route.queues else UNROUTABLE


def on_body_part(state: State, channel: Channel, command: BodyPart) -> int:
    """A part of a large body: kept with the channel until its Publish takes it. When all clients
    together have too much under way, who has waited longest for the next part gives way."""
    if state.version < BODIES_IN_PARTS:
        return IGNORED
    keep_part(state, channel, command[3])
    outcome = OK
    while state.unfinished_bytes > UNFINISHED_BYTES_MAX:
        slowest, unfinished = next(iter(state.unfinished.values()))
        refusal = gave_way(unfinished.bytes, UNFINISHED_BYTES_MAX)
        code = refuse(state, slowest, BODY_PART, refusal)
        if slowest is channel:
            outcome = code
    return outcome


def _made_whole(state: State, channel: Channel, command: Publish) -> Publish:
    kind, conn, chan, publish_no, exchange, key, flags, properties, body = command
    body, flags = whole_body(state, channel, body), flags & ~IN_PARTS
    return Publish(kind, conn, chan, publish_no, exchange, key, flags, properties, body)


def _remember(
    state: State,
    channel: Channel,
    attempt: Attempt,
    route: Route,
    flags: int,
    accepted: bool,
    number: int,
) -> None:
    outcome = (STORED if accepted else REFUSED) if route.queues else UNROUTED
    durable = is_durable(route, flags)
    remember(state, channel, attempt, outcome, durable, number if route.queues else 0)


def _publish_again(state: State, channel: Channel, command: Publish, attempt: Attempt) -> int:
    """The number was taken before: nothing is done, and the answer is the same."""
    _, conn, chan, publish_no, exchange, key, flags, properties, body = command
    accepted, returned = attempt.outcome != REFUSED, attempt.outcome == UNROUTED
    what = AGAIN | FLAG if flags & PERSISTENT else AGAIN
    at, low = state.position & INDEX_MASK, publish_no & MARK_MASK
    state.moves.append(row(what, at, low, attempt.message, channel.mark, body_hash(body)))
    for tally in (channel.tally, channel.total):
        tally.publish += 1
        tally.confirm += publish_no != 0 and accepted
        tally.return_unroutable += returned and flags & MANDATORY != 0
    if channel.local:
        if returned and flags & MANDATORY:
            return_unroutable(state, channel, exchange, key, properties, body)
        if publish_no:
            confirm = Confirm(conn, chan, publish_no, attempt.durable, accepted)
            state.effects.append(confirm)
    return REPEATED


def count_publish(channel: Channel, route: Route, flags: int, confirmed: bool) -> None:
    tally, total, queues = channel.tally, channel.total, len(route.queues)
    tally.publish += 1
    total.publish += 1
    total.routed += queues
    if confirmed:
        tally.confirm += 1
        total.confirm += 1
    if not queues:
        if flags & MANDATORY:
            tally.return_unroutable += 1
            total.return_unroutable += 1
        else:
            tally.drop_unroutable += 1
            total.drop_unroutable += 1


def is_durable(route: Route, flags: int) -> bool:
    """Whether a cold start finds a message of this route."""
    return route.streams or (route.durable and flags & PERSISTENT != 0)


def ttl_of(properties: bytes) -> int:
    """The message's own time to live, NO_TTL, or less if it is not a number."""
    text = expiration_of(properties)
    if text is None:
        return NO_TTL
    if not text.isdigit() or len(text) > 16 or int(text) > _TTL_MS_MAX:
        return NO_TTL - 1
    return int(text) * 1000


def turn_of(state: State, index: int = 0) -> int:
    """Differs from message to message, for exchanges that choose at random; `index` is that in a
    transaction."""
    return (state.position * 1_000_003 + state.next_message * 8191 + index) & MASK


def route_or_refusal(
    vhost: Vhost, name: str, key: str, flags: int, properties: bytes, ttl_us: int, turn: int
) -> Route | Refusal:
    exchange = vhost.exchanges.get(name)
    if flags & IMMEDIATE:
        return not_implemented("immediate=true")
    if exchange is None:
        return no_exchange(name, vhost.name)
    if exchange.internal:
        return internal_exchange(name, vhost.name)
    if ttl_us < NO_TTL:
        return invalid_expiration(expiration_of(properties) or b"")
    if name in vhost.delays and may_be_delayed(properties):
        refusal = check_delay(properties)
        if refusal is not None:
            return refusal
    return find_route(vhost, exchange, key, properties, turn)


def with_copies(
    vhost: Vhost, route: Route, properties: bytes, turn: int
) -> tuple[Route, bytes] | Refusal:
    """The route with the queues that CC and BCC add, and the properties as others may see them."""
    copies = copies_of(properties)
    if isinstance(copies, Refusal):
        return copies
    found = widened(vhost, route, copies.keys + copies.blind, properties, turn)
    if isinstance(found, Refusal):
        return found
    # What only waits names all its keys still: it is routed by them when it is due.
    waits = all(queue.delays is not None for queue in found.queues) and found.queues
    return found, properties if waits else copies.properties


def publish_to(
    state: State,
    route: Route,
    flags: int,
    ttl_us: int,
    properties: bytes,
    body: bytes,
    what: int,
    mark: int,
    publish_no: int,
) -> bool:
    """Put one message tuple, shared by all, into the queues of the route; False if one refused it.

    `what`, `mark` and `publish_no` go into the recorded move: how it was published, by which
    channel, and its number there.
    """
    exchange, key, queues, _, _, _, source = route
    source.tally.publish += 1
    source.tally.routed += len(queues)
    persistent = flags & PERSISTENT
    if persistent:
        what |= FLAG
    hashed = body_hash(body)
    number = state.next_message if queues else 0
    state.moves.append(
        row(what, state.position & INDEX_MASK, publish_no & MARK_MASK, number, mark, hashed)
    )
    if not queues:
        return True
    state.next_message = number + 1
    created_us = state.horizon_us
    content = message_hash(
        number, exchange, key, persistent, created_us, ttl_us, properties, body, hashed
    )
    message = (content, number, exchange, key, persistent, created_us, ttl_us, properties, body)
    accepted = True
    known_by: bytes | None = None
    for queue in queues:
        if queue.takes_all:
            entered = enqueue(state, queue, message)
        elif queue.window is None:
            assert queue.stream is not None
            enter(state, queue, queue.stream, message)
            entered = True
        else:
            known_by = key_of(properties) if known_by is None else known_by
            entered = enqueue_once(state, queue, queue.window, known_by, message)
        if not entered:
            accepted = False
            if what & ~FLAG == BY_DELAY:
                die_refused(state, queue, message)
    return accepted


def publish_due(state: State, queue: Queue, work_max: int) -> int:
    """Publish what an exchange delayed and is due, in the order of due times, until it costs so
    much; return the units of work."""
    work = 0
    while work < work_max:
        message = take_due(state, queue)
        if message is None:
            break
        work += _publish_delayed(state, queue, message)
    return work


def _publish_delayed(state: State, queue: Queue, message: Message) -> int:
    """Return the units of work. What nobody can route, or reaches too many queues, reaches none;
    then it goes as any other message does of which its publisher was told nothing."""
    assert queue.delays is not None
    vhost, exchange = queue.vhost, queue.vhost.exchanges[queue.delays]
    _, number, origin, key, flags, _, _, properties, body = message
    properties = with_turned_delay(properties)
    found = find_route(vhost, exchange, key, properties, turn_of(state))
    if not isinstance(found, Refusal) and may_name_copies(properties):
        copied = with_copies(vhost, found, properties, turn_of(state))
        if not isinstance(copied, Refusal):
            found, properties = copied
    if isinstance(found, Refusal):
        found = Route(origin, key, (), False, False, ROUTE_WORK_MAX, exchange)
    route = found._replace(exchange=origin)
    if exchange.name == origin:  # it was counted when it came
        exchange.tally.publish -= 1
        exchange.tally.routed -= len(route.queues) > 0
    ttl_us = ttl_of(properties)
    publish_to(state, route, flags, ttl_us, properties, body, BY_DELAY, 0, number)
    work = 16 + len(properties) // WORDS_PER_UNIT + len(body) // BODY_PER_UNIT
    return work + route.work + len(route.queues)


def return_unroutable(
    state: State, channel: Channel, exchange: str, key: str, properties: bytes, body: bytes
) -> None:
    _, conn, chan = channel.key
    state.effects.append(Return(conn, chan, NO_ROUTE, "NO_ROUTE", exchange, key, properties, body))


def letter_element(letter: Letter) -> int:
    """Of a letter that waits for a later position."""
    vhost, exchange, key, queue, message, reason = letter
    content = message[CONTENT_HASH]
    return item_hash("letter", vhost.name, exchange, key, queue, content, reason)


def publish_dead_letters(state: State) -> None:
    """Publish to the dead-letter exchanges, as many as one position may cost, and at least one.
    Ends: a message that comes to a queue again without a client's rejection on the way is dropped.
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
    """Return the units of work. A letter that nobody can route, or that reaches too many queues,
    is dropped."""
    vhost, name, key, queue, message, reason = letter
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        return 1
    _, _, source, old_key, flags, _, _, properties, body = message
    buried = bury(properties, queue, source, old_key, reason, state.time_us)
    route = vhost.routes.get((name, key))
    if route is None:
        found = find_route(vhost, exchange, key, buried.properties, turn_of(state))
        if isinstance(found, Refusal):
            return ROUTE_WORK_MAX
        route = found
    if may_name_copies(properties) and state.version >= ANSWERS_AS_RABBITMQ:
        route, buried = _letter_with_copies(vhost, route, buried, key != old_key, turn_of(state))
    route = route._replace(queues=buried.without_cycles(route.queues))
    publish_to(state, route, flags, NO_TTL, buried.properties, body, BY_DEAD_LETTER, 0, 0)
    return 16 + len(properties) // WORDS_PER_UNIT + route.work + len(route.queues)


def _letter_with_copies(
    vhost: Vhost, route: Route, buried: Buried, has_new_key: bool, turn: int
) -> tuple[Route, Buried]:
    """A key that the queue gives stands for all keys of the message."""
    if has_new_key:
        return route, buried._replace(properties=without_header(buried.properties, "CC"))
    copies = copies_of(buried.properties)
    if isinstance(copies, Refusal):
        return route, buried
    wider = widened(vhost, route, copies.keys, buried.properties, turn)
    return (route if isinstance(wider, Refusal) else wider), buried
