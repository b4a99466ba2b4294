"""Tells clients which messages a queue holds, and which have left it: the source's side of a copy.

A consumer with the argument `x-queue-follow` takes nothing, and the machine knows nothing of it.
Several times a second its member compares the places of all messages in the queue, waiting or
unacknowledged, with those that the client knows, and sends the difference once it is durable:

    a message                 x-queue-id, x-queue-sequence: its place; in the order of places
    x-queue-follow: begin     x-queue-id, and in x-queue-count how many messages there are
    x-queue-follow: gone      places in x-queue-places that have left: settled, expired, dropped
    x-queue-follow: level     everything was sent that was there at one moment
    x-queue-follow: behind    it was not: in x-queue-count how many messages are still to come

A client that follows at a member that has not served for `AWAY_S` is closed (320), and finds
another member.

The value of the argument is what the client knows already: an id and places, `ID 0-99,120`, or
nothing. With another id it knows nothing: that was another queue of this name. Places that it knows
and that are gone at the begin are sent after everything else, because after a cold start of its
cluster a queue's messages have new places: a client that copies first and removes then loses
nothing.
Decision: docs/decisions/0096-a-replica-holds-what-its-source-holds.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.amqp import errors
from broker.amqp.codec import encode_properties
from broker.amqp.fields import Table, Value
from broker.frontend.channel import Following
from broker.frontend.client import Client
from broker.frontend.connections import Connections
from broker.machine.publishing.queue_numbers import FOLLOW, QUEUE_ID, with_place
from broker.machine.queueing.streams import There
from broker.machine.state import BODY, EXCHANGE, KEY, PROPERTIES, Queue, State
from broker.replication.ports import MemberState
from broker.shovels.place_ranges import (
    Ranges,
    as_text,
    count,
    parse,
    places,
    ranges_of,
    union,
    without,
)
from broker.waiting.bodies import Body
from vsync.totem.events import Direct

BEGIN, GONE, LEVEL, BEHIND = "begin", "gone", "level", "behind"
PLACES, COUNT = "x-queue-places", "x-queue-count"
MESSAGES_MAX, BYTES_MAX = 500, 1 << 20
"""Sent at once, about ten times a second."""
RANGES_PER_MESSAGE = 2_000
OUT_OF_LINE_MAX = 20_000
"""Messages that came back, have a priority or are unacknowledged: each look examines every one."""
AWAY_S = 10.0
"""Longer than a view takes to form: the cluster may continue without this member."""
AWAY = f"this member has not served for {AWAY_S:g} s ({{}}): follow the queue at another"
LOOKED_AT_PER_S = 100_000
"""Of those per second, so that a queue with many is examined less often."""


@dataclass
class _Told:
    """What one follower knows."""

    queue_id: str = ""
    places: Ranges = field(default_factory=list)
    was_level: bool = False
    seen: tuple[int, ...] = ()
    """State of the queue when the follower was level with it."""
    due: float = 0.0
    position: int = 0
    """The position at which `batch` was true."""
    batch: list[tuple[str, str, bytes, Body]] = field(default_factory=list)


class Followers:
    """The followers among one member's clients; it runs beside the member (`member.Beside`)."""

    name = "followers"

    def __init__(
        self, controller: MemberState, clients: Connections, state: Callable[[], State]
    ) -> None:
        self._controller, self._clients, self._state = controller, clients, state
        self._told: dict[int, tuple[Following, _Told]] = {}
        self._served_at: float | None = None
        self._counts = {"followers": 0, "messages": 0, "gone": 0}

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts of what was sent."""
        return self._counts

    def takes(self, _direct: Direct) -> bool:
        """It takes no datagrams."""
        return False

    def finish(self) -> bool:
        """Nothing to end."""
        return True

    def close(self) -> None:
        """Nothing to end then, either."""

    def wake(self, now: float) -> None:
        """Send what is durable, and look again."""
        gateway = self._clients.gateway
        if not gateway.following:
            self._told.clear()
            self._counts["followers"] = 0
            self._served_at = None
            return
        controller = self._controller
        if not controller.serving or gateway.fenced:
            self._wait(now)
            return
        self._served_at = now
        if controller.replica.half_way:
            return
        told: dict[int, tuple[Following, _Told]] = {}
        for client in list(gateway.following):
            found = [
                (number, tag, one)
                for number, channel in client.channels.items() if channel.pending_close is None
                for tag, one in channel.following.items()
            ]  # fmt: skip
            if not found:
                del gateway.following[client]
            for number, tag, one in found:
                follower = self._told.get(id(one))
                kept = follower[1] if follower is not None and follower[0] is one else _Told()
                told[id(one)] = one, kept
                if refusal := self._turn(client, number, tag, one, kept, now):
                    code, text = refusal
                    client.refuse_channel(number, code, text, "basic.consume")
                    break
        self._told = told
        self._counts["followers"] = len(told)

    def _wait(self, now: float) -> None:
        """The member does not serve, perhaps for long: elsewhere followers get the news. The
        member's own attempts end with its serving."""
        if self._served_at is None:
            self._served_at = now
        if now - self._served_at >= AWAY_S:
            following = self._clients.gateway.following
            serving = self._controller.serving
            away = AWAY.format("its lease is over" if serving else self._controller.reason)
            for client in [one for one in following if not one.stays]:
                del following[client]
                if any(channel.following for channel in client.channels.values()):
                    client.send_away(away)

    def _turn(
        self, client: Client, number: int, tag: str, one: Following, told: _Told, now: float
    ) -> tuple[int, str] | None:
        """Why it cannot continue; None: it can."""
        if told.batch:
            if self._clients.durable_mark < told.position or client.is_full:
                return None
            self._send(client, number, tag, one, told)
        if client.is_full or now < told.due:
            return None
        state = self._state()
        vhost = state.vhosts.get(client.vhost)
        queue = vhost.queues.get(one.queue) if vhost is not None else None
        if refusal := _refusal(client, queue, one.queue):
            return refusal
        assert queue is not None
        told.due = now + _look(state, queue, one, told) / LOOKED_AT_PER_S
        told.position = state.position
        return None

    def _send(self, client: Client, number: int, tag: str, one: Following, told: _Told) -> None:
        for exchange, key, properties, body in told.batch:
            args: tuple[Value, ...] = (tag, one.next_tag, False, exchange, key)
            one.next_tag += 1
            client.send_content(number, "basic.deliver", args, properties, body)
        self._counts["messages"] += len(told.batch)
        told.batch = []


def _refusal(client: Client, queue: Queue | None, name: str) -> tuple[int, str] | None:
    where = f"queue '{name}' in vhost '{client.vhost}'"
    if queue is None:
        return errors.NOT_FOUND, f"no {where}"
    if queue.owner is not None:
        return errors.RESOURCE_LOCKED, f"{where} is exclusive: it goes with its connection"
    if queue.stream is not None:
        return errors.PRECONDITION_FAILED, f"{where} is a stream, which is read by offsets"
    if (many := _out_of_line(queue)) > OUT_OF_LINE_MAX:
        return errors.RESOURCE_ERROR, (
            f"{where} has {many} messages that are unacknowledged, came back or have priorities: "
            f"it is followed while there are {OUT_OF_LINE_MAX} at most"
        )
    return None


def _out_of_line(queue: Queue) -> int:
    return len(queue.returned) + queue.unacked


def _look(state: State, queue: Queue, one: Following, told: _Told) -> int:
    """Put the differences from what was sent into the batch; return how many were examined."""
    queue_id = f"{state.cluster_id}/{queue.number}"
    seen = (
        queue.next_seq, len(queue.ready), len(queue.returned), queue.ready_sum, queue.unacked,
        queue.unacked_bytes,
    )  # fmt: skip
    begins = told.queue_id != queue_id
    if begins:
        told.queue_id, told.was_level = queue_id, False
        told.places = _known(one.known).get(queue_id, [])
    elif seen == told.seen:
        return 0
    there = There(state, queue)
    present = union(there.in_line, ranges_of(there.out_of_line))
    new, gone = without(present, told.places), without(told.places, present)
    batch = told.batch
    if begins:
        batch.append(_word(queue_id, BEGIN, {COUNT: count(present)}))
    if gone and told.was_level:
        _leave(queue_id, gone, told)
    sent: list[int] = []
    size = 0
    for place in places(new):
        if len(sent) == MESSAGES_MAX or size > BYTES_MAX:
            break
        message = there.message(place)
        properties = with_place(message[PROPERTIES], queue_id, place)
        batch.append((message[EXCHANGE], message[KEY], properties, message[BODY]))
        sent.append(place)
        size += len(message[BODY])
    told.places = union(told.places, ranges_of(sent))
    told.seen = ()
    if len(sent) == count(new):
        if gone and not told.was_level:
            _leave(queue_id, gone, told)
        batch.append(_word(queue_id, LEVEL, {COUNT: count(present)}))
        told.was_level, told.seen = True, seen
    else:
        batch.append(_word(queue_id, BEHIND, {COUNT: count(new) - len(sent)}))
    return there.looked_at


def _known(text: str) -> dict[str, Ranges]:
    """Parse a client's claim of what it knows; an unreadable claim counts as nothing."""
    queue_id, _, given = text.partition(" ")
    try:
        return {queue_id: parse(given)}
    except ValueError:
        return {}


def _leave(queue_id: str, gone: Ranges, told: _Told) -> None:
    told.places = without(told.places, gone)
    for at in range(0, len(gone), RANGES_PER_MESSAGE):
        some = as_text(gone[at : at + RANGES_PER_MESSAGE])
        told.batch.append(_word(queue_id, GONE, {PLACES: some}))


def _word(queue_id: str, what: str, more: Table) -> tuple[str, str, bytes, bytes]:
    headers: Table = {QUEUE_ID: queue_id, FOLLOW: what, **more}
    return "", "", encode_properties({"headers": headers}), b""
