"""Moves messages from one connection to another until it is stopped or cannot continue.

One thread, two sockets, and standard input, whose end means to stop. While the destination takes
nothing the source is not read, so whatever the peers do, little more than one message is held here.
A message is acknowledged at the source when the destination has confirmed it (`on-confirm`).
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from broker.amqp.fields import Value
from broker.machine.publishing.queue_numbers import ASKED
from broker.shovels.definition import NEVER, NO_ACK, ON_CONFIRM, QUEUE_LENGTH, ends
from broker.shovels.upstreams import EXCHANGE
from tools.client.amqp_client import (
    AmqpConnection,
    BrokerRefused,
    ConnectionLost,
    Delivery,
    PublisherConfirm,
    Returned,
)
from tools.shovel.content import Content, number_of
from tools.shovel.doubts import Doubts
from tools.shovel.received_from import Way
from tools.shovel.task import Failed, Task, doing_of, opened, poll_of, turn
from tools.shovel.upstream import NoSuchType, UpstreamExchange

UNCONFIRMED_MAX = 2000
"""Messages in progress at once: half of the numbers that a destination remembers of a producer."""
OWN_UNCONFIRMED_MAX = 4000
"""The same from a link's own queue, from which nobody else takes: nearly all of them."""
FINISH_S = 5.0
"""How long confirms of messages in progress may take at the end."""
NOTICED_HEARTBEATS = 3
"""After so many others have surely noticed that a connection is broken."""
REPORT_S = 1.0
BIND_AGAIN_S = 5.0
"""How often a part of a link's bindings is repeated, in case the upstream lost them."""
CONTROL_BYTES = 1 << 20
"""Bytes of the member's messages read at once."""
TAG = "shovel"
NACKED = "it refuses messages (basic.nack): is its queue full?"
UNROUTED = "no queue takes the messages there (basic.return): was it deleted?"
NUMBER_REFUSED = 406
ALL_MOVED = "all is moved"
UNTAKEN = "closed the connection, perhaps before it took the last acknowledgements"
_WHICH_NUMBER = re.compile(
    r"x-sequence (\d+) of producer '([^']+)' (?:is too old to be known, (\d+) are remembered up to "
    r"(\d+)|was given)"
)


class _NumberRefused(Exception):
    """The destination closed the channel over a number, which is doubtful by now."""


class _Pending(NamedTuple):
    tag: int
    queue_id: str
    place: int
    producer: str


class Mover:
    """One attempt."""

    def __init__(
        self,
        task: Task,
        tell: Callable[[dict[str, object]], None],
        control: int,
        unread: bytes = b"",
    ) -> None:
        """`control`: a descriptor, whose lines report changes, and whose end means to stop;
        `unread`: bytes already read from it."""
        self._task, self._tell, self._control = task, tell, control
        self._shovel = task.shovel
        self._unread = unread
        self._upstream: UpstreamExchange | None = None
        self._bind_at = time.monotonic() + BIND_AGAIN_S
        self._wanted = _count_of(task.here or {}, OWN_UNCONFIRMED_MAX)
        self._consumes = 0  # with this prefetch
        self._prefetch = 0  # the most that it may be
        self._consume: tuple[Value, ...] = ()
        self._ends = False  # for a link: it no longer exists
        self._pending: dict[int, _Pending] = {}  # by publish number, ascending
        self._held: deque[Delivery] = deque()  # these wait until messages in progress are confirmed
        self._doubts = Doubts(task.doubtful)
        self._left: int | None = None  # messages to forward; None: no end
        self._returned: set[int] = set()  # publish numbers; their confirms are still to come
        self._refused = False  # a nack or a return came: the oldest may not be acknowledged along
        self._runs = False  # that was told
        self._why = ""  # the reason for which it is ending
        self._deadline = math.inf
        self._moved = 0  # not reported yet
        self._reported_at = 0.0
        self._blocked = ""

    def run(self) -> dict[str, object]:
        """Move messages; return the report of the end."""
        done = False
        source = destination = None
        try:
            # The destination first: nothing is taken from the source while the destination is
            # missing.
            destination = self._open("destination")
            source = self._open("source")
            try:
                self._begin(source, destination)
            except NoSuchType:
                source.drop()
                source = self._open("source")
                self._begin(source, destination)
            self._move(source, destination)
            all_moved = self._left == 0 and not self._pending and not self._refused
            with self._of("source"):
                if self._ends and self._upstream is not None:
                    source.reopen_channel()  # unconfirmed messages go back
                    self._note(self._upstream.clean_up(source))
                if not source.close() and all_moved:
                    raise ConnectionLost(f"{source.broker}: {UNTAKEN}")
            with self._of("destination"):
                destination.close()
            done, why = all_moved, self._why
        except Failed as failed:
            why = str(failed)
            if self._ends and self._upstream is not None:
                self._note(self._upstream.left(why))
            if source and destination and why.startswith("destination:"):
                with suppress(Failed):  # confirms that came together with the error
                    self._settle(source, destination)
                source.close()  # including the acknowledgements of confirmed messages
        finally:
            for one in (source, destination):
                if one is not None:
                    one.drop()
        self._report(at_once=True)
        return {"why": why, "done": done, "doubtful": self._doubts.row()}

    # -- opening ---------------------------------------------------------------------------------

    def _open(self, which: str) -> AmqpConnection:
        with self._of(which):
            return opened(self._task, which)

    def _begin(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        shovel = self._shovel
        with self._of("destination"):
            if shovel.destination_queue and shovel.link is None:
                destination.declare_queue(
                    shovel.destination_queue, shovel.destination_queue_arguments
                )
            if shovel.ack_mode == ON_CONFIRM:
                destination.select_confirms()
        # A time in a header changes when the message is sent again, which makes it another message.
        numbers = (
            shovel.ack_mode == ON_CONFIRM and not shovel.timestamp_header
            and destination.takes_numbers and "queue_numbers" in source.capabilities
        )  # fmt: skip
        self._content = Content(
            shovel, self._task.cluster, self._doubts, numbers=numbers,
            frame_max=destination.frame_max, way=self._way(source),
        )  # fmt: skip
        with self._of("source"):
            queue, waiting = self._source_queue(source)
            if shovel.delete_after == QUEUE_LENGTH and self._left is None:
                self._left = waiting = self._length(source, destination, queue)
            elif shovel.delete_after != NEVER and self._left is None:
                self._left = shovel.delete_after
            if self._left == 0:
                self._finish("the queue was empty" if not waiting else ALL_MOVED)
                return
            most = UNCONFIRMED_MAX if self._upstream is None else OWN_UNCONFIRMED_MAX
            prefetch = min(shovel.prefetch or most, most)
            if self._left is not None:
                prefetch = min(prefetch, self._left)
            arguments: dict[str, Value] = dict(shovel.consumer_arguments)
            if numbers:
                arguments[ASKED] = True
            no_ack = shovel.ack_mode == NO_ACK
            self._consume = queue, TAG, False, no_ack, False, True, arguments
            self._prefetch, self._consumes = prefetch, min(self._wanted, prefetch)
            if self._consumes:
                source.consume(queue, self._consumes, no_ack=no_ack, tag=TAG, arguments=arguments)
        if not self._runs:
            self._runs = True
            self._tell({"event": "running"})

    def _follow_demand(self, source: AmqpConnection) -> None:
        """A link takes from a queue only while a consumer waits here."""
        wanted = min(self._wanted, self._prefetch)
        if wanted == self._consumes:
            return
        if self._consumes:
            source.send("basic.cancel", (TAG, True))
        if wanted:
            source.call("basic.qos", (0, wanted, False), "basic.qos-ok")
            source.send("basic.consume", self._consume)
        self._consumes = wanted

    def _way(self, source: AmqpConnection) -> Way | None:
        shovel, task = self._shovel, self._task
        if shovel.link is None:
            return None
        there = source.cluster
        if there.name == task.cluster and task.cluster_id and there.id not in ("", task.cluster_id):
            raise Failed(
                f"source: its cluster has the same name as this one, '{task.cluster}', so loops "
                "could not be found: give one of them another one (--cluster-name)"
            )
        own = task.source_descriptor is not None  # another virtual host of this cluster
        cluster = shovel.link.cluster if own else there.name or there.id
        uri, _ = ends(shovel, task.number)
        vhost = shovel.vhost if uri.vhost is None else uri.vhost
        here = own or (task.cluster_id != "" and there.id == task.cluster_id)
        if here and (vhost, shovel.link.resource) == (shovel.vhost, shovel.link.name):
            raise Failed(
                f"source: that is the {shovel.link.kind} itself, which would get each message "
                "again: take this upstream out of its set, or name another one of its own"
            )
        if shovel.link.kind == EXCHANGE and self._upstream is None:
            self._upstream = UpstreamExchange(
                shovel, cluster, vhost, task.here or {}, task.cluster_id
            )
        return Way(shovel, cluster, vhost)

    def _source_queue(self, source: AmqpConnection) -> tuple[str, int]:
        shovel = self._shovel
        if self._upstream is not None:
            return self._upstream.prepare(source)
        arguments = dict(shovel.source_queue_arguments)
        if shovel.source_queue:
            return shovel.source_queue, source.declare_queue(shovel.source_queue, arguments)
        made: tuple[Value, ...] = ("", False, False, True, True, False, arguments)
        queue = str(source.call("queue.declare", made, "queue.declare-ok")[0])
        bound: tuple[Value, ...] = (queue, shovel.source_exchange, shovel.source_key, False, {})
        source.call("queue.bind", bound, "queue.bind-ok")
        return queue, 0

    def _length(self, source: AmqpConnection, destination: AmqpConnection, queue: str) -> int:
        """The number of waiting messages, once no other consumer may hold some: a source elsewhere
        may not have noticed yet that a former attempt is gone, which takes two heartbeats."""
        asked: tuple[Value, ...] = (queue, True, False, False, False, False, {})
        deadline = time.monotonic() + NOTICED_HEARTBEATS * source.login.heartbeat_seconds
        while True:
            _, waiting, consumers = source.call("queue.declare", asked, "queue.declare-ok")
            is_sure = not consumers or self._task.source_descriptor is not None
            if is_sure or time.monotonic() >= deadline or source.pump(REPORT_S, self._control):
                assert isinstance(waiting, int)
                return waiting
            with self._of("destination"):
                destination.pump(0)  # in that time it closes a connection that says nothing

    # -- moving ----------------------------------------------------------------------------------

    def _move(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        """Move messages to the end; a refused number costs new channels, but no pause."""
        while True:
            try:
                return self._loop(source, destination)
            except _NumberRefused as refused:
                self._settle(source, destination)  # confirms from before
                if self._why not in ("", ALL_MOVED):
                    raise Failed(f"destination: {refused}") from None
            if self._left is not None:
                self._left += len(self._pending)
            self._why, self._deadline = "", math.inf
            self._pending.clear()
            self._held.clear()
            with self._of("source"):
                source.reopen_channel()
            with self._of("destination"):
                destination.open_channel()
            self._begin(source, destination)

    def _loop(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        poll = poll_of(self._control, source, destination)
        self._take_changes(source, b"")
        if not destination.blocked:
            self._forward(source, destination)  # messages that came together with the answers
        while not self._is_finished(source, destination):
            reading = not (destination.congested or destination.blocked or self._held)
            for _ in turn(poll, source, destination, self._of, reading=reading):
                if not self._listen(source):
                    poll.unregister(self._control)
                    self._finish("it is stopped")
            self._settle(source, destination)
            if not destination.blocked:
                self._forward(source, destination)
            self._bind_again(source)
            self._report()
            self._tell_blocked(destination.blocked)

    def _listen(self, source: AmqpConnection) -> bool:
        """Read the member's reports of changes; False: the end has come."""
        data = os.read(self._control, CONTROL_BYTES)
        self._take_changes(source, data)
        return bool(data)

    def _take_changes(self, source: AmqpConnection, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            change = json.loads(line)
            self._ends = self._ends or change.get("ends") is True
            self._wanted = _count_of(change, self._wanted)
            with self._of("source"):
                if self._upstream is not None:
                    self._upstream.change(source, change)
                if not self._why:
                    self._follow_demand(source)

    def _bind_again(self, source: AmqpConnection) -> None:
        """Repeat bindings now and then, if nothing else is to be sent."""
        now = time.monotonic()
        if self._upstream is not None and now >= self._bind_at and not (self._why or source.out):
            self._bind_at = now + BIND_AGAIN_S
            self._upstream.bind_again(source)

    def _is_finished(self, source: AmqpConnection, destination: AmqpConnection) -> bool:
        if not self._why:
            return False
        under_way = self._pending or source.out or destination.out
        return not under_way or time.monotonic() > self._deadline

    def _finish(self, why: str) -> None:
        """Forward nothing more, and end when messages in progress are confirmed, at the latest
        after a while. If everything was moved there is no hurry: a new attempt would begin to count
        again."""
        if self._why in ("", ALL_MOVED) and why != self._why:
            self._why = why
            self._deadline = math.inf if why == ALL_MOVED else time.monotonic() + FINISH_S

    def _forward(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        shovel = self._shovel
        held = self._held
        held += source.deliveries
        source.deliveries.clear()
        if self._why:
            return held.clear()  # they go back when the connection ends
        last = 0
        while held and self._left != 0:
            delivery = held[0]
            message = self._content.of(delivery)
            if message is None:
                held.popleft()
                if shovel.ack_mode != NO_ACK:
                    source.ack(delivery.tag, multiple=False)
                continue
            if self._must_wait(message.producer):
                break
            held.popleft()
            number = destination.publish(
                message.exchange, message.key, message.properties, delivery.body,
                mandatory=bool(shovel.destination_queue),
            )  # fmt: skip
            if shovel.ack_mode == ON_CONFIRM:
                self._pending[number] = _Pending(
                    delivery.tag, message.queue_id, message.place, message.producer
                )
            else:
                last = delivery.tag
                self._moved += 1
            if self._left is not None:
                self._left -= 1
        with self._of("destination"):
            destination.send_now()
        if last and shovel.ack_mode != NO_ACK:
            source.ack(last)
        if self._left == 0:
            self._finish(ALL_MOVED)

    def _must_wait(self, producer: str) -> bool:
        """Messages with and without a number are never in progress together: a refused number ends
        the channel, and then the fate of those without a number is unknown."""
        under_way = next(iter(self._pending.values()), None)
        return under_way is not None and bool(under_way.producer) != bool(producer)

    def _settle(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        """Acknowledge the confirmed messages."""
        returns, destination.returns = destination.returns, []
        confirms, destination.acks = destination.acks, []
        unknown = self._take_returns(returns) if returns else None
        self._take_confirms(source, confirms[:unknown])
        if unknown is not None:
            raise Failed(f"destination: {UNROUTED}")

    def _take_returns(self, returns: list[Returned]) -> int | None:
        """Mark the returned messages. One without a number does not say which message it is; then
        it is known how many confirms came before it, because those after it may be its own."""
        numbered = {
            (one.producer, one.place): number
            for number, one in self._pending.items() if one.producer
        }  # fmt: skip
        for returned in returns:
            found = numbered.get(number_of(returned.properties))
            if found is None:
                return returned.confirms_before
            self._returned.add(found)
            self._refused = True
            self._doubt([self._pending[found]])
            self._finish(f"destination: {UNROUTED}")
        return None

    def _take_confirms(self, source: AmqpConnection, confirms: list[PublisherConfirm]) -> None:
        for number, multiple, accepted in confirms:
            oldest = next(iter(self._pending), 0)
            settled = [number] if number in self._pending else []
            if multiple:
                settled = list(takewhile(number.__ge__, self._pending))
            if not settled:
                continue
            answered = [(one, self._pending.pop(one)) for one in settled]
            found = [one for number, one in answered if number not in self._returned]
            if not accepted:
                self._refused = True
                self._doubt(found)
                self._finish(f"destination: {NACKED}")
                continue
            self._moved += len(found)
            for one in found:
                self._doubts.settle(one.queue_id, one.place)
            if found and settled[0] == oldest and not self._refused:
                source.ack(found[-1].tag)
            else:  # an older one is not confirmed, and must not be acknowledged along
                for one in found:
                    source.ack(one.tag, multiple=False)

    def _doubt(self, messages: Iterable[_Pending]) -> None:
        """The destination has answered for good: sent again they would get the same answer."""
        for one in messages:
            if one.queue_id:
                self._doubts.add(one.queue_id, one.place)

    # -- reports ---------------------------------------------------------------------------------

    def _report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._moved and (at_once or now - self._reported_at >= REPORT_S):
            self._reported_at = now
            self._tell({"event": "moved", "count": self._moved})
            self._moved = 0

    def _note(self, text: str) -> None:
        if text:
            self._tell({"event": "note", "text": text})

    def _tell_blocked(self, why: str) -> None:
        if why != self._blocked:
            self._blocked = why
            self._tell({"event": "blocked", "why": why})

    def _of(self, which: str) -> AbstractContextManager[None]:
        """Errors raised in this block are that end's."""
        return doing_of(which, partial(self._refused_by, which))

    def _refused_by(self, which: str, refused: BrokerRefused) -> str:
        if which == "destination" and refused.code == NUMBER_REFUSED:
            self._take_refusal(str(refused))
        return self._upstream.undone(refused) if self._upstream is not None else ""

    def _take_refusal(self, text: str) -> None:
        """Doubt the refused number, and all that the destination no longer remembers.

        Raises `_NumberRefused` if it was one of ours; no number is refused twice.
        """
        found = _WHICH_NUMBER.search(text)
        if found is None:
            return
        place, producer = int(found[1]), found[2]
        for one in self._pending.values():
            if (one.producer, one.place) == (producer, place):
                if found[4] is None:
                    self._doubts.add(one.queue_id, place)
                else:
                    oldest = int(found[4]) - int(found[3])
                    self._doubts.add_all_up_to(one.queue_id, max(place, oldest))
                raise _NumberRefused(text)


def _count_of(change: Mapping[str, object], otherwise: int) -> int:
    """Return how many messages a link may hold, if a line says so."""
    count = change.get("wanted", otherwise)
    assert isinstance(count, int)
    return count
