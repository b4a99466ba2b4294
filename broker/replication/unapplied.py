"""Holds items that are ordered but not applied yet, and applies them in order, within bounds.

    output of the ring -> held_back    `on_output`, only while a view waits for the items before
                                       it, and they for the disk; all behind the view waits, too
    held_back          -> Primary      `step`; it lets items through in a primary view only
    Primary            -> work         at once (WorkQueue): what it says, items among it
    work               -> execution    `step`, at a member that has the state
                       -> CatchUp      at one that is brought to it: dropped where that grows too
                                       long, and the tail from the donor holds it, too
    CatchUp            -> execution    `step`, once the tail has met it, the oldest first
    execution          -> the state    at once; or at each `step` a part, or when a page is read:
                                       half way until then

A `step` moves the first of these that is not empty: the execution under way, then work, then the
held-back outputs, then the catch-up (`Unapplied.step`).

A member applies in slices, between its work for the ring. Items ordered faster than it applies them
wait in a `WorkQueue`. When the queue is full, each new item makes the member apply an old one
before the token is passed again. So the slowest member sets the pace, its memory stays bounded, and
no pause is longer than the new items require: applying half of a long queue at once would lose the
token.

Items ordered while a member is brought to the primary's state wait in a `CatchUp`. The transfer
leads the member along the primary's history until it *meets* the kept items: its order chain is the
one that the first kept item follows, or that of a later place among them. From then on the kept
items are applied like any others, oldest first, while new ones join at the end. Before that, kept
items beyond a bound are dropped, because the transfer leads past them.

Items are applied in order, so while one needs messages that are on disk and not read yet, the items
after it wait; ring, clients and everything else go on. The pause may fall within a command: until
it is over the state is *half way*, and nothing may use it (no checkpoint, no scrub, no report to a
view), because it is at no position.
Decision: docs/decisions/0060-applying-waits-for-the-disk.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from broker.machine.command_codec import BlobMalformed, unpack_blob
from broker.machine.commands import SHUTDOWN
from broker.replication.chain import History, item_hash, next_order
from broker.waiting.pager import Pager
from vsync.primary.events import Activated, Activation, Ordered, PrimaryEvent, Transfer
from vsync.totem.events import Output, View

T = TypeVar("T")

WORK_ITEMS_MAX = 512
"""Events that may wait: some 12 MB of blobs of small commands."""
WORK_BYTES_MAX = 16 << 20
"""Bytes of their items: items of a few large commands are eight times as large, and one of a single
command may be larger still."""
ITEM_COST = 256
"""The cost of an item in addition to its bytes."""
HELD_BYTES_MAX = 128 << 20
"""The most bytes of ordered items kept before the member meets them."""
DRAIN = 2
"""Bytes of items that a member applies while it catches up for each byte ordered meanwhile, so that
its lag shrinks under any load."""
OWED_MAX = 256 << 10
"""The most of that debt that may wait for its slices; any more is applied before the token is
passed, so the load waits."""


class Executor(Protocol):
    """Runs work that may have to wait for a page, one piece at a time. An exception of the work is
    raised by the call in which the work ended."""

    def run(self, pager: Pager | None, work: Callable[[], None]) -> bool:
        """Do it; False: it waits."""

    def resume(self) -> bool:
        """Go on with it; False: it waits again."""

    def drop(self) -> None:
        """Never go on with what waits."""

    @property
    def ready(self) -> bool:
        """Whether what waits can go on."""


class WorkQueue:
    """The events that a member still has to apply or follow, oldest first."""

    def __init__(self) -> None:
        self.bytes = 0
        self.events: deque[PrimaryEvent] = deque()

    @property
    def full(self) -> bool:
        """Whether something must be applied before more is taken."""
        return len(self.events) > WORK_ITEMS_MAX or self.bytes > WORK_BYTES_MAX

    def add(self, events: Iterable[PrimaryEvent]) -> None:
        """Append events."""
        for event in events:
            self.events.append(event)
            self.bytes += cost_of(event)

    def take(self) -> PrimaryEvent:
        """Return the oldest event, to be handled now. The queue must not be empty."""
        event = self.events.popleft()
        self.bytes -= cost_of(event)
        return event


class AtOnce:
    """An executor that blocks while it waits: nothing else has to go on."""

    ready = True

    def run(self, _pager: Pager | None, work: Callable[[], None]) -> bool:
        """Do it."""
        work()
        return True

    def resume(self) -> bool:
        """Nothing ever waits."""
        return True

    def drop(self) -> None:
        """Nothing ever waits."""


class Execution:
    """The one piece of a controller's work that is under way."""

    def __init__(self, executor: Executor) -> None:
        self.under_way = False  # something is to be ended by `step` before anything else is begun
        self.waits = False  # for a page
        self.pauses = 0  # how often it began to
        self._executor = executor
        self._steps: Iterator[None] = iter(())  # what is left of it to begin
        self._was_all = False  # nothing is
        self._then: Callable[[], None] = _nothing
        self._pager: Pager | None = None

    @property
    def ready(self) -> bool:
        """Whether `step` has something to do now."""
        return self.under_way and (not self.waits or self._executor.ready)

    def do(self, pager: Pager | None, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do this now and call `then` with the result; or finish at a later `step`, if the machine
        of this pager needs a page."""
        assert not self.under_way, "one thing after the other"
        results: list[T] = []
        if self._executor.run(pager, lambda: results.append(work())):
            then(results.pop())
            return
        self.under_way = self._was_all = self.waits = True
        self.pauses += 1
        self._then = lambda: then(results.pop())

    def do_in_steps(
        self, pager: Pager | None, steps: Iterator[None], then: Callable[[], None]
    ) -> None:
        """Do a part of this at each `step`, and call `then` at the end."""
        assert not self.under_way, "one thing after the other"
        self.under_way, self._was_all = True, False
        self._pager, self._steps, self._then = pager, steps, then

    def step(self) -> None:
        """Go on with what is under way."""
        assert self.under_way
        if self.waits:
            self.waits = not self._executor.resume()
        else:
            self.waits = not self._executor.run(self._pager, self._do_part)
        self.pauses += self.waits
        if self._was_all and not self.waits:
            then = self._then
            self.drop()
            then()

    def _do_part(self) -> None:
        self._was_all = next(self._steps, self._steps) is self._steps

    def drop(self) -> None:
        """Forget what is under way: the state that it was for is not used any more."""
        if self.waits:
            self.waits = False
            self._executor.drop()
        self.under_way, self._then, self._pager, self._steps = False, _nothing, None, iter(())


def _nothing() -> None:
    pass


class CatchUp:
    """One catch-up with the primary's state, from its order until the member is level."""

    def __init__(self, transfer: Transfer, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.donor, self.epoch, self.base = transfer.donor, transfer.epoch, transfer.base
        self.met = False
        self.on_history = False  # the donor has said that this member's state lies on its history
        self.moved = False  # the state is not the one any more that this member's clients knew
        self.recorded = False  # the member log has been told that the tail follows
        self.tail_is_here = False  # items of the donor's log are, or it has not said yet: no more
        self.counters = {"given_up": 0, "held_bytes_worst": 0}
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._owed = 0  # to be applied for what was ordered meanwhile
        self._held: deque[Ordered | Activated] = deque()
        self._orders = [transfer.order]
        """The order behind all held items, by each history that may be the true one."""
        self._shut_down = [transfer.order]
        """Places at which a state may be shut down already: it leaves out what follows there, up to
        the next activation."""
        self._places: dict[bytes, int] = {transfer.order: 0}  # how many held items lead there
        self._past: list[Activated] = []  # activations that lie before what is held

    def is_behind_all(self, history: History) -> bool:
        """Whether this point of the primary's history holds everything ever confirmed.

        The base of the plan does, and no member confirmed the donor's unstable items beyond it: a
        mark is seen only when all members of its view have delivered everything it covers.
        Decision: docs/decisions/0021-rejoin-by-the-tail.md.
        """
        return history.epoch >= self.epoch or history.position >= self.base

    def hold(self, event: Ordered | Activated) -> None:
        """Keep an event that comes after the base."""
        self._held.append(event)
        self._held_bytes += _size(event)
        self.counters["held_bytes_worst"] = max(self.counters["held_bytes_worst"], self._held_bytes)
        if self.met:
            return
        body = item_hash(body_of(event))
        orders = [next_order(order, body) for order in self._orders]
        if isinstance(event, Activated):
            self._shut_down = [next_order(order, body) for order in self._shut_down]
            orders += self._shut_down
        elif event.decided_by and _shuts_down(event.payload):
            self._shut_down += orders
        self._orders = list(dict.fromkeys(orders))
        self._places |= dict.fromkeys(self._orders, len(self._held))
        if self._held_bytes > self._held_bytes_max:
            self.counters["given_up"] += 1
            self._drop(len(self._held))
            self._places = dict.fromkeys(self._orders, 0)

    def meet(self, history: History) -> list[Activated] | None:
        """Begin to hand out the held items if `history` is a place among them.

        Returns the activations before that place, which the state holds; None: not there yet.
        """
        assert not self.met
        count = self._places.get(history.order)
        if count is None:
            return None
        self._drop(count)
        self.met = True
        self._places.clear()
        return self._past

    def _drop(self, count: int) -> None:
        for _ in range(count):
            event = self._held.popleft()
            self._held_bytes -= _size(event)
            if isinstance(event, Activated):
                self._past.append(event)

    @property
    def level(self) -> bool:
        """Whether all held items have been handed out."""
        return self.met and not self._held

    def take(self) -> Ordered | Activated:
        """Return the oldest held item, to be applied now."""
        assert self.met
        event = self._held.popleft()
        self._held_bytes -= _size(event)
        return event

    # -- the pace --------------------------------------------------------------------------------

    @property
    def has_next(self) -> bool:
        """Whether there may be an item to apply: a held one, or one of the tail."""
        return self.met or self.tail_is_here

    def owe(self, events: Iterable[PrimaryEvent]) -> None:
        """These were ordered while there was something to apply."""
        if self.has_next:
            self._owed += DRAIN * sum(map(cost_of, events))

    def pay(self, body: bytes | Activation) -> None:
        """This item is applied."""
        self._owed -= min(self._owed, cost(body))

    @property
    def owes_too_much(self) -> bool:
        """Whether the load has to wait."""
        return self._owed > OWED_MAX

    def wait_for_tail(self) -> None:
        """All received items of the tail are applied."""
        self.tail_is_here, self._owed = False, 0


class Follower(Protocol):
    """Handles the next piece of work: the controller."""

    def decide(self, output: Output) -> list[PrimaryEvent]:
        """Return the primary layer's events for an output of the ring."""

    def follow(self, event: PrimaryEvent) -> None:
        """Act on an event; an item is applied, or held until this member has the state."""

    def follow_tail(self, catch_up: CatchUp) -> None:
        """Do one piece of work of the catch-up."""

    def flush(self) -> None:
        """Hand the ring the payloads that wait for room in its queue."""


class Unapplied:
    """Everything ordered and not applied, between the ring and the state."""

    def __init__(self, executor: Executor, follower: Follower) -> None:
        self.execution, self.work = Execution(executor), WorkQueue()
        self.held_back: deque[Output] = deque()
        self.catch_up: CatchUp | None = None
        """The catch-up under way, until this member has the state."""
        self._follower = follower

    @property
    def waits_for_disk(self) -> bool:
        """Whether nothing can be applied before the disk returns a page."""
        return self.execution.under_way and not self.execution.ready

    def on_output(self, output: Output) -> None:
        """Take one output of the ring; `step` does the work.

        Two things do not wait for their slice: events beyond the bound of the work queue, and,
        before this state is reported to a new view, everything of the old one. If that waits for
        the disk, the view and everything after it wait, too.
        """
        if self.held_back or not self._is_next(output):
            self.held_back.append(output)
        else:
            self._take(output)

    def _is_next(self, output: Output) -> bool:
        """Do the work that must precede this output; False: that work waits for the disk.

        While it waits, only a view is held back. Everything else is taken, however full the queue
        is: the ring goes on, and what it ordered must be kept somewhere. The bytes count as this
        disk's lag, which slows all members down and then ends this one (`watchdogs.disk_lag`).
        """
        is_view = isinstance(output, View)
        while self.work.full or (is_view and (self.work.events or self.execution.under_way)):
            if self.waits_for_disk:
                return not is_view
            self.step()
        return True

    def _take(self, output: Output) -> None:
        events = self._follower.decide(output)
        self.work.add(events)
        if self.catch_up is not None:
            self.catch_up.owe(events)
        while self.catch_up is not None and self.catch_up.owes_too_much and self.busy:
            self.step()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do now."""
        if self.execution.under_way:
            return self.execution.ready
        if self.work.events or self.held_back:
            return True
        return self.catch_up is not None and self.catch_up.has_next

    def step(self) -> None:
        """Do one piece of work: apply one item, or follow one decision."""
        if self.execution.under_way:
            self.execution.step()
        elif self.work.events:
            self._follower.follow(self.work.take())
        elif self.held_back:
            self._take(self.held_back.popleft())
        else:
            assert self.catch_up is not None
            self._follower.follow_tail(self.catch_up)
        self._follower.flush()

    def begin_catch_up(self, transfer: Transfer, held_bytes_max: int) -> None:
        """Begin to bring this member to the primary's state."""
        self.catch_up = CatchUp(transfer, held_bytes_max)

    def end_catch_up(self) -> None:
        """This member has the state, or no longer waits for it."""
        self.catch_up = None


def _size(event: Ordered | Activated) -> int:
    return 0 if isinstance(event, Activated) else len(event.payload)


def _shuts_down(payload: bytes) -> bool:
    try:
        return any(command[0] == SHUTDOWN for command in unpack_blob(payload).commands)
    except BlobMalformed:  # refused when it is applied
        return False


def body_of(event: Ordered | Activated) -> bytes | Activation:
    """Return what an item carries."""
    return event.activation if isinstance(event, Activated) else event.payload


def cost(body: bytes | Activation) -> int:
    """Return what an item counts for."""
    return ITEM_COST + (len(body) if isinstance(body, bytes) else 0)


def cost_of(event: PrimaryEvent) -> int:
    """Return what an event counts for: nothing, unless it is an item."""
    return cost(body_of(event)) if isinstance(event, Ordered | Activated) else 0
