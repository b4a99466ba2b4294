"""Publishing: routes one message to the queues that its exchange and key reach.

Also publishes messages that an exchange delayed, when they are due.
"""

from broker.machine.commands import (
    BODY_PART,
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
from broker.machine.digest import body_hash
from broker.machine.effects import Confirm, Return
from broker.machine.handlers.connections import refuse
from broker.machine.limits import (
    BODY_PER_UNIT,
    ROUTE_WORK_MAX,
    UNFINISHED_BYTES_MAX,
    WORDS_PER_UNIT,
)
from broker.machine.move_log import (
    AGAIN,
    BY_CLIENT,
    BY_DELAY,
    FLAG,
    INDEX_MASK,
    MARK_MASK,
    NOWHERE,
    note_clock,
    note_way,
    row,
)
from broker.machine.publishing.copies import may_name_copies
from broker.machine.publishing.entering import Envelope, find_way, publish_to, turn_of
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
from broker.machine.queueing.queue_limits import take_due
from broker.machine.requests.delay_header import check_delay, may_be_delayed, with_turned_delay
from broker.machine.requests.properties import expiration_of
from broker.machine.requests.refusals import (
    NO_ROUTE,
    Refusal,
    gave_way,
    internal_exchange,
    invalid_expiration,
    no_exchange,
    not_implemented,
)
from broker.machine.state import FAILOVER, NO_TTL, Channel, Message, Queue, Route, State, Vhost
from broker.waiting.bodies import Body

_TTL_MS_MAX = 1 << 53
_new = tuple.__new__  # half the cost of calling the class


def on_publish(state: State, channel: Channel, command: Publish) -> int:
    _, conn, chan, publish_no, exchange, key, flags, properties, rest = command
    body: Body = rest
    if flags & IN_PARTS:
        body, flags = whole_body(state, channel, rest), flags & ~IN_PARTS
    ttl_us = NO_TTL
    attempt = None
    first = properties[0] if properties else 0
    if first & 0x20 and may_be_numbered(properties):
        numbered = attempt_of(channel, exchange, key, properties, body)
        if isinstance(numbered, Refusal):
            return refuse(state, channel, PUBLISH, numbered)
        if numbered is not None and numbered.entry:
            return _publish_again(state, channel, command, body, numbered)
        attempt = numbered
    if first & 1:  # the flag of the expiration property
        ttl_us = ttl_of(properties)
    named = first & 0x20 != 0 and may_name_copies(properties)
    route = None if named else channel.connection.vhost.routes.get((exchange, key))
    if route is None or flags & IMMEDIATE or ttl_us < NO_TTL:
        turn = turn_of(state)
        envelope = _new(Envelope, (exchange, key, flags, properties, ttl_us, named, turn))
        found = way_or_refusal(channel.connection.vhost, envelope)
        if isinstance(found, Refusal):
            return refuse(state, channel, PUBLISH, found)
        route, properties = found
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
    if route.queues:
        return OK
    note_way(state, NOWHERE, 0, channel.connection.vhost.name, route.source, key)
    return UNROUTABLE


def on_body_part(state: State, channel: Channel, command: BodyPart) -> int:
    """Keep a part of a large body with the channel until its Publish takes it. When all clients
    together have too many bytes in progress, the channel that has waited longest for its next part
    is closed."""
    keep_part(state, channel, command[3])
    outcome = OK
    while state.unfinished_bytes > UNFINISHED_BYTES_MAX:
        slowest, unfinished = next(iter(state.unfinished.values()))
        refusal = gave_way(unfinished.body.size, UNFINISHED_BYTES_MAX)
        code = refuse(state, slowest, BODY_PART, refusal)
        if slowest is channel:
            outcome = code
    return outcome


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


def _publish_again(
    state: State, channel: Channel, command: Publish, body: Body, attempt: Attempt
) -> int:
    """The number was used before: nothing is done, and the answer is the same."""
    _, conn, chan, publish_no, exchange, key, flags, properties, _ = command
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
    """Whether a cold start keeps a message of this route."""
    return route.streams or (route.durable and flags & PERSISTENT != 0)


def ttl_of(properties: bytes) -> int:
    """The message's own time to live; NO_TTL if it has none, less if it is not a number."""
    text = expiration_of(properties)
    if text is None:
        return NO_TTL
    text = text.removeprefix(b"+")  # as RabbitMQ reads it
    if not text.isdigit() or len(text) > 16 or int(text) > _TTL_MS_MAX:
        return NO_TTL - 1
    return int(text) * 1000


def way_or_refusal(vhost: Vhost, envelope: Envelope) -> tuple[Route, bytes] | Refusal:
    name, _, flags, properties, ttl_us, *_ = envelope
    exchange = vhost.exchanges.get(name)
    if flags & IMMEDIATE:
        return not_implemented("immediate=true")
    if exchange is None:
        return no_exchange(name, vhost.name)
    if exchange.internal and name != FAILOVER:  # where a member refuses all clients
        return internal_exchange(name, vhost.name)
    if ttl_us < NO_TTL:
        return invalid_expiration(expiration_of(properties) or b"")
    if name in vhost.delays and may_be_delayed(properties):
        refusal = check_delay(properties)
        if refusal is not None:
            return refusal
    return find_way(vhost, exchange, envelope)


def publish_due(state: State, queue: Queue, work_max: int) -> int:
    """Publish due messages that an exchange delayed, in the order of due times, until they cost
    this much; return the units of work."""
    work = 0
    note_clock(state)
    while work < work_max:
        message = take_due(state, queue)
        if message is None:
            break
        work += _publish_delayed(state, queue, message)
    return work


def _publish_delayed(state: State, queue: Queue, message: Message) -> int:
    """Publish a due message; return the units of work. A message without a route, or with too many
    queues, reaches none; it is then treated like any other message whose publisher was promised
    nothing."""
    assert queue.delays is not None
    vhost, exchange = queue.vhost, queue.vhost.exchanges[queue.delays]
    _, number, origin, key, flags, _, _, properties, body = message
    properties = with_turned_delay(properties)
    named, turn = may_name_copies(properties), turn_of(state)
    envelope = Envelope(exchange.name, key, flags, properties, NO_TTL, named, turn)
    found = find_way(vhost, exchange, envelope)
    if isinstance(found, Refusal):
        found = Route(origin, key, (), False, False, ROUTE_WORK_MAX, exchange), properties
    route, properties = found[0]._replace(exchange=origin), found[1]
    if exchange.name == origin:  # it was counted when it came
        exchange.tally.publish -= 1
        exchange.tally.routed -= len(route.queues) > 0
    ttl_us = ttl_of(properties)
    publish_to(state, route, flags, ttl_us, properties, body, BY_DELAY, 0, number)
    work = 16 + len(properties) // WORDS_PER_UNIT + len(body) // BODY_PER_UNIT
    return work + route.work + len(route.queues)


def return_unroutable(
    state: State, channel: Channel, exchange: str, key: str, properties: bytes, body: Body
) -> None:
    _, conn, chan = channel.key
    state.effects.append(Return(conn, chan, NO_ROUTE, "NO_ROUTE", exchange, key, properties, body))
