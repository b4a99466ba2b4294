"""Keeps a queue here the same as one elsewhere, until it is stopped or cannot continue.

The source reports which messages are in its queue, held by consumers or not, and which have left it
(`broker/shovels/followed.py`). Each message is published here once, in that order, with headers
that identify it. Only this attempt consumes from the queue here, and acknowledges the messages that
have left the source. So a look at the queue tells what it holds: there is no other state, and the
next attempt continues from there. Nothing is removed before missing messages have arrived.
Decision: docs/decisions/0096-a-replica-holds-what-its-source-holds.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from broker.amqp import codec
from broker.amqp.fields import Value
from broker.machine.limits import CHANNEL_HELD_MAX
from broker.machine.publishing.queue_numbers import FOLLOW, QUEUE_ID, SEQUENCE
from broker.shovels.followed import BEGIN, BEHIND, COUNT, GONE, LEVEL, PLACES
from broker.shovels.place_ranges import Ranges, as_text, parse, places, ranges_of
from tools.client.amqp_client import AmqpConnection, ConnectionLost, Delivery
from tools.shovel.content import relabelled
from tools.shovel.task import Failed, Task, doing_of, opened, poll_of, turn

OF, PLACE = "x-replica-of", "x-replica-place"
"""Headers of copies here: the id of the source queue, and the place of the message in it."""
EXCHANGE, KEY = "x-replica-exchange", "x-replica-routing-key"
"""How it was published at the source."""
REPLACED = frozenset((QUEUE_ID, SEQUENCE, OF, PLACE, EXCHANGE, KEY))
TOLD_RANGES_MAX = 2_000
"""Ranges held here that the source is told about. Messages beyond are sent again, and skipped; one
that is not sent again has left."""
UNCONFIRMED_MAX = 2_000
FINISH_S = 5.0
REPORT_S = 1.0
READ_S = 60.0
"""The longest silence while it reads the messages here; a million of them take minutes."""
TAG = "replica"
CANNOT = (
    "source: this broker does not tell what is settled in a queue, so no replica of one can be kept"
    " the same: that takes a broker of this software. What another one holds can be moved here "
    "(qpid-route queue add), or shared with it (federation)"
)
FOREIGN = (
    "it has messages that are not of its source: they stay in it, and are taken by nobody until it "
    "is a queue of its own"
)
REFUSED = "destination: it refuses messages: is it full, or was it deleted?"


class Copier:
    """One attempt."""

    def __init__(self, task: Task, tell: Callable[[dict[str, object]], None], control: int) -> None:
        """`control`: a descriptor whose end means to stop; its content is for links only."""
        self._task, self._tell, self._control = task, tell, control
        self._shovel = task.shovel
        self._id = ""  # id of the source queue
        self._here: dict[str, dict[int, int]] = {}  # by id: place to tag, 0: not here yet
        self._told: dict[str, Ranges] = {}  # what the source knows to be here, by id
        self._unsure: set[int] = set()  # of the others those not sent again yet
        self._again: set[int] = set()  # of these the copies here go once there are new ones
        self._old: list[int] = []  # tags that go then, whose messages no longer exist
        self._highest = -1
        self._level = False  # everything there at one moment has arrived here
        self._level_at: int | None = None  # when all up to this number is confirmed
        self._published = 0
        self._pending: set[int] = set()  # publish numbers
        # From here, until the id is known: tags, and headers without the content.
        self._waits: list[tuple[int, Mapping[str, Value]]] = []
        self._left = 0
        self._is_behind = False  # the source had more than it sent
        self._stopper = ""  # why the cluster here takes nothing
        self._has_foreign = False
        self._ends = False
        self._deadline = 0.0
        self._moved, self._reported_at, self._blocked = 0, 0.0, ""

    def run(self) -> dict[str, object]:
        """Copy; return the report of the end."""
        ends: list[AmqpConnection] = []
        why = "it is stopped"
        try:
            with doing_of("destination"):
                destination = opened(self._task, "destination")
                ends.append(destination)
                self._read_here(destination)
            with doing_of("source"):
                source = opened(self._task, "source")
                ends.append(source)
                self._check(source)
                self._follow(source)
            self._loop(source, destination)
            for one in ends:
                one.close()
        except Failed as failed:
            why = str(failed)
            if ends and not why.startswith("destination:"):
                ends[0].close()  # including the acknowledgements of departed messages
        finally:
            for one in ends:
                one.drop()
        self._report(at_once=True)
        return {"why": why, "done": False, "doubtful": {}}

    # -- beginning -------------------------------------------------------------------------------

    def _read_here(self, destination: AmqpConnection) -> None:
        """Look at the messages here, and take all for which a channel has room."""
        shovel = self._shovel
        queue = shovel.destination_queue
        destination.declare_queue(queue, shovel.destination_queue_arguments)
        destination.select_confirms()
        destination.consume(queue, 0, no_ack=True, tag="look", arguments={FOLLOW: ""})
        deadline = time.monotonic() + READ_S
        level = False
        while not level:
            found, destination.deliveries = destination.deliveries, []
            if found:
                deadline = time.monotonic() + READ_S
            for one in found:
                headers = _headers(one)
                level = _word(headers) == LEVEL
                of, place = headers.get(OF), headers.get(PLACE)
                if isinstance(of, str) and isinstance(place, int):
                    self._here.setdefault(of, {})[place] = 0
            if not level:
                destination.pump(REPORT_S)
            if time.monotonic() > deadline:
                raise ConnectionLost("what is here could not be read in time")
        destination.call("basic.cancel", ("look", False), "basic.cancel-ok")
        destination.deliveries.clear()
        destination.call("basic.qos", (0, CHANNEL_HELD_MAX, False), "basic.qos-ok")
        taken: tuple[Value, ...] = (queue, TAG, False, False, True, False, {})
        destination.call("basic.consume", taken, "basic.consume-ok")

    def _check(self, source: AmqpConnection) -> None:
        if "followed_queues" not in source.capabilities:
            raise Failed(CANNOT)
        task, shovel = self._task, self._shovel
        same = task.cluster_id != "" and source.cluster.id == task.cluster_id
        vhost = source.login.virtual_host
        if same and (vhost, shovel.source_queue) == (shovel.vhost, shovel.destination_queue):
            raise Failed("source: that is the queue itself: name a broker outside this cluster")

    def _follow(self, source: AmqpConnection) -> None:
        """Request everything that is missing here; of several ids the last one, because its queue
        is the newest."""
        known = self._id or max(self._here, key=_age, default="")
        ranges = ranges_of(sorted(self._here.get(known, ())))[:TOLD_RANGES_MAX]
        self._told = {known: ranges}
        source.consume(
            self._shovel.source_queue, 0, no_ack=True, tag=TAG,
            arguments={FOLLOW: f"{known} {as_text(ranges)}"},
        )  # fmt: skip

    # -- copying ---------------------------------------------------------------------------------

    def _loop(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        poll = poll_of(self._control, source, destination)
        self._tell({"event": "running"})
        self._report(at_once=True)
        while not self._is_finished(destination):
            full = destination.congested or len(self._pending) > UNCONFIRMED_MAX
            reading = not (full or destination.blocked or self._ends)
            for _ in turn(poll, source, destination, doing_of, reading=reading):
                if not os.read(self._control, 1 << 20):
                    poll.unregister(self._control)
                    self._ends, self._deadline = True, time.monotonic() + FINISH_S
            with doing_of("source"):
                self._take_source(source, destination)
            with doing_of("destination"):
                self._take_confirms(destination)
                self._take_back(destination)
                destination.send_now()
            self._stopper = destination.blocked
            self._report()

    def _is_finished(self, destination: AmqpConnection) -> bool:
        if not self._ends:
            return False
        return not (self._pending or destination.out) or time.monotonic() > self._deadline

    def _take_confirms(self, destination: AmqpConnection) -> None:
        if destination.returns:
            raise Failed(REFUSED)
        confirms, destination.acks = destination.acks, []
        for number, multiple, accepted in confirms:
            if not accepted:
                raise Failed(REFUSED)
            settled = {one for one in self._pending if one == number or (multiple and one < number)}
            self._pending -= settled
            self._moved += len(settled)
        at = self._level_at
        if at is not None and min(self._pending, default=at + 1) > at:
            self._level_at, self._level = None, True
            for tag in self._old:
                destination.ack(tag, multiple=False)
            self._old.clear()
            self._report(at_once=True)

    def _take_source(self, source: AmqpConnection, destination: AmqpConnection) -> None:
        found, source.deliveries = source.deliveries, []
        for one in found:
            headers = _headers(one)
            word = _word(headers)
            if word is None:
                if not self._copy(destination, one, headers):
                    return self._copy_again_from(source, cast("int", headers[SEQUENCE]))
            elif word == BEGIN:
                self._begin(str(headers[QUEUE_ID]), cast("int", headers[COUNT]))
            elif word == GONE:
                self._leave(destination, places(parse(str(headers[PLACES]))))
            elif word == LEVEL:
                self._is_behind = False
                self._leave(destination, self._unsure)
                self._unsure = set()
                if self._level_at is None:  # a later one would wait for later confirms
                    self._level_at = self._published
            elif word == BEHIND:
                self._left, self._is_behind = cast("int", headers[COUNT]), True
        return None

    def _begin(self, queue_id: str, count: int) -> None:
        """The source queue is this one from here on."""
        cluster = queue_id.partition("/")[0]
        others = [one for one in self._here if one.partition("/")[0] != cluster]
        if others:
            raise Failed(
                f"source: its cluster is another one ({cluster}) than that of the messages that are"
                f" here ({others[0].partition('/')[0]}): make the replica a queue of its own "
                "(qpid-ha replicate QUEUE --stop), or delete the queue, and define it anew"
            )
        if queue_id != self._id:  # messages of another queue go, once all of this one are here
            for other, mine in self._here.items():
                if other != queue_id:
                    self._old += filter(None, mine.values())
            self._here = {queue_id: self._here.get(queue_id, {})}
            self._again.clear()
        self._id, self._level, self._level_at = queue_id, False, None
        self._is_behind = False
        here = self._here[queue_id]
        self._unsure = set(here).difference(places(self._told.get(queue_id, [])))
        self._highest = max(here, default=-1)
        self._left = max(0, count - len(here))

    def _copy(
        self, destination: AmqpConnection, one: Delivery, headers: Mapping[str, Value]
    ) -> bool:
        """Publish one message here, unless it exists; False: it belongs in front of others."""
        place = headers[SEQUENCE]
        assert isinstance(place, int)
        here = self._here[self._id]
        self._unsure.discard(place)
        if place in here:
            return True
        if place < self._highest:
            return False
        added: dict[str, Value] = {
            OF: self._id, PLACE: place, EXCHANGE: one.exchange, KEY: one.key
        }  # fmt: skip
        properties = relabelled(one.properties, REPLACED, added)
        queue = self._shovel.destination_queue
        self._published = destination.publish("", queue, properties, one.body, mandatory=True)
        self._pending.add(self._published)
        here[place] = 0
        self._highest = place
        self._left = max(0, self._left - 1)
        return True

    def _copy_again_from(self, source: AmqpConnection, place: int) -> None:
        """A message missing here, for example after a cold start, belongs in front of others. Those
        are copied again behind it, and their old copies go when that is done."""
        here = self._here[self._id]
        for behind in [one for one in here if one > place]:
            tag = here.pop(behind)
            if tag:
                self._old.append(tag)
            else:
                self._again.add(behind)
        source.reopen_channel()
        self._follow(source)

    def _leave(self, destination: AmqpConnection, gone: Iterable[int]) -> None:
        here = self._here[self._id]
        for place in gone:
            tag = here.pop(place, None)
            if tag:  # messages not delivered to us yet go when they are
                self._drop_when_level(destination, tag)

    # -- what is here ----------------------------------------------------------------------------

    def _take_back(self, destination: AmqpConnection) -> None:
        """The messages here are delivered to us, in order, so that they can be settled."""
        self._waits += [(one.tag, _headers(one)) for one in destination.deliveries]
        destination.deliveries.clear()
        if not self._id:
            return
        here = self._here[self._id]
        for tag, headers in self._waits:
            of, place = headers.get(OF), headers.get(PLACE)
            if not (isinstance(of, str) and isinstance(place, int)):
                self._keep_foreign()
            elif of != self._id:
                self._drop_when_level(destination, tag)
            elif place in self._again:
                self._again.discard(place)
                self._drop_when_level(destination, tag)
            elif here.get(place) == 0:
                here[place] = tag
            else:
                self._drop_when_level(destination, tag)
        self._waits.clear()

    def _drop_when_level(self, destination: AmqpConnection, tag: int) -> None:
        if self._level:
            destination.ack(tag, multiple=False)
        else:
            self._old.append(tag)

    def _keep_foreign(self) -> None:
        if not self._has_foreign:
            self._has_foreign = True
            self._tell({"event": "note", "text": FOREIGN})

    # -- reports ---------------------------------------------------------------------------------

    def _report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._reported_at < REPORT_S:
            return
        self._reported_at = now
        if self._moved:
            self._tell({"event": "moved", "count": self._moved})
            self._moved = 0
        is_level = self._level and not self._is_behind
        why = self._stopper
        if not why and not is_level:
            why = f"not level yet: {self._left} messages are to come"
        if why != self._blocked:
            self._blocked = why
            self._tell({"event": "blocked", "why": why})


def _headers(one: Delivery) -> Mapping[str, Value]:
    found = codec.decode_properties(one.properties).get("headers")
    return found if isinstance(found, dict) else {}


def _word(headers: Mapping[str, Value]) -> Value:
    """What a notice of the followed queue's member says; None: it is a message, whatever headers
    its publisher gave it. Only messages have a place."""
    return None if SEQUENCE in headers else headers.get(FOLLOW)


def _age(queue_id: str) -> int:
    """Numbers of queues ascend."""
    number = queue_id.rpartition("/")[2]
    return int(number) if number.isdecimal() else -1
