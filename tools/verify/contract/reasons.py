"""G13, G17, G20, G32, G34: a message moves for the reason that its move states.

It expires by its deadline, is due by its time, goes over a limit only where there are more messages
than that, and comes back too often only if it came back that often. A dead letter is the message
that died, a group has one holder, and a bound message is not called unroutable. Uses the rows NOTED
of docs/MEMBERLOG.md.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from xxhash import xxh3_64_intdigest

from tools.verify.contract.queue_model import Message, Model, ModelMismatch
from tools.verify.contract.rules import Rule
from tools.verify.format.commands import Command
from tools.verify.format.moves import Op

RULES = {
    "other letter": Rule(
        "G20", "was published as a dead letter, or when due, and is not what died"
    ),
    "before its time": Rule("G17", "expired, or was due, before its time, or without one"),
    "after its time": Rule("G17", "was delivered though it had expired"),
    "time went back": Rule("G17", "expired by a time before that of an earlier one"),
    "within the limit": Rule("G20", "was dropped, or given up, for a limit that was not reached"),
    "other tag": Rule("G20", "was settled by the tag of another delivery of its channel"),
    "left out": Rule("G20", "was acknowledged behind a later one that took all up to it along"),
    "closed channel": Rule("G13", "was sent to a channel that was closed"),
    "same name": Rule("G20", "the queue was declared while another one had its name"),
    "bound": Rule("G20", "was called unroutable, though a queue was bound"),
    "two holders": Rule("G32", "was delivered while another one held its group"),
    "group order": Rule("G32", "was delivered before an older one of its group"),
    "group moved": Rule("G34", "went to another one than its group was kept for"),
}
# Plain numbers, which compare faster than members of an enumeration.
_PUBLISHED, _DELIVERED, _SETTLED = int(Op.PUBLISHED), int(Op.DELIVERED), int(Op.SETTLED)
_RETURNED, _DROPPED, _PURGED = int(Op.RETURNED), int(Op.DROPPED), int(Op.PURGED)
_DECLARED, _RECOVERED, _NOTED = int(Op.DECLARED), int(Op.RECOVERED), int(Op.NOTED)
_GIVEN = (_DELIVERED, int(Op.READ))  # what a channel is sent
_GROUP, _DEADLINE, _TIME, _REFUSED, _BOUND, _UNBOUND, _NOWHERE, _CLOSED = range(8)
_EXPIRED, _LIMIT, _DUE, _SENT_ON = range(4)
_ACKED, _SENT = 0, 1
_REJECTED, _GIVEN_UP = _DEADLY = (2, 5)
_LETTER, _DELAYED, _LATE_LETTER = 2, 4, 5
_DELETED = 1
_BYTES = 1 << 31  # as the limit of a queue: bytes count
_LOST = (2, 3)  # causes of what returns: its channel or member is gone
_RECOVER = 1
_DUE_SHIFT = 22
_RESERVED = ("amq.delayed.", "amq.dead-letters.")  # no exchange reaches these queues
_QUIET = 64  # positions without a letter, after which none of an earlier segment is late
_DEAD_MAX = 1 << 16
_CHANGING_MAX = 1024  # positions over which a change may go on, of very many queues
_CHANGES = bytes((Command.DEFINE, Command.UPGRADE))  # of limits and times to live, by policies
_LOUD = _CHANGES + bytes((Command.CHANNEL_OPEN,))
_ENDS = bytes((Command.CONNECTION_CLOSE, Command.CHANNEL_CLOSE, Command.CANCEL, Command.ACTIVATE))


def way_of(vhost: str, exchange: str, key: str) -> int:
    """Return the hash by which a log names an exchange with a key."""
    return xxh3_64_intdigest(f"{vhost}\0{exchange}\0{key}".encode(errors="surrogatepass"))


@dataclass(slots=True)
class _Noted:
    """The notes about a queue."""

    deadlines: dict[int, int] = field(default_factory=dict)  # by place
    limit: int = 0
    kept: bool = False  # groups stay
    ready: dict[int, int] = field(default_factory=dict)  # groups, by place
    held: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=dict)  # heaps of places, by group
    # By group: the channel, how many messages it holds, and whether the group stays when they are
    # let go.
    holders: dict[int, tuple[int, int, bool]] = field(default_factory=dict)

    def wait(self, seq: int, group: int) -> None:
        self.ready[seq] = group
        heappush(self.waiting.setdefault(group, []), seq)

    def deliver(self, seq: int, channel: int, *, got: bool) -> None:
        group = self.ready.pop(seq, None)
        if group is None:
            return
        holder, count, stays = self.holders.get(group, (channel, 0, False))
        if holder != channel:
            what = "two holders" if count else "group moved"
            raise ModelMismatch(what, f"channel {holder:08x} had group {group:016x}")
        places = self.waiting[group]
        while places[0] != seq and places[0] not in self.ready:  # it was dropped
            heappop(places)
        if heappop(places) != seq:
            raise ModelMismatch("group order", f"others of group {group:016x} wait before it")
        if not places:
            del self.waiting[group]
        self.held[seq] = group
        self.holders[group] = channel, count + 1, stays or (self.kept and not got)

    def let_go(self, seq: int, *, returns: bool) -> None:
        group = self.held.pop(seq, None)
        if group is None:
            return
        holder, count, stays = self.holders[group]
        if count > 1 or stays:
            self.holders[group] = holder, count - 1, stays
        else:
            del self.holders[group]
        if returns:
            self.wait(seq, group)

    def keep_no_more(self) -> None:
        """Keep groups no longer: the consumers for which they are kept may be gone."""
        self.holders = {
            group: (holder, count, False)
            for group, (holder, count, _) in self.holders.items()
            if count
        }


class Reasons:
    """Takes the moves of one segment, each after the model has executed it."""

    def __init__(self) -> None:
        self._names: dict[int, int] = {}  # queues, by their ways from the default exchange
        self._before: dict[int, int] = {}  # the queue that had a queue's name before it
        self.begin(0)

    def begin(self, position: int) -> None:
        """Forget everything: anything before this position is unknown."""
        self.queues: dict[int, _Noted] = {}  # those with notes
        self._ways: dict[int, Counter[int]] = {}  # queues, by ways that lead there
        self._from: dict[int, set[int]] = {}  # ways, by exchanges
        self._dead: deque[tuple[int | None, bool | None]] = deque(maxlen=_DEAD_MAX)
        self._published: tuple[int, bool] = 0, False
        self._due: tuple[int | None, bool | None] = None, None
        self._position, self._gone_on = position, False
        # Since here no letter was late, but for positions at which one went.
        self._quiet_from = position or -_QUIET
        self._clock, self._clock_at = 0, -1
        self.given: dict[int, int] = {}  # how many deliveries, by channel
        self.nth: dict[tuple[int, int], int] = {}  # which of these, by queue and place
        self.ahead: dict[int, int] = {}  # of that a tag is, by channel
        # Up to which of these all were settled, by channel and whether without acks.
        self.done: dict[tuple[int, bool], int] = {}
        self._acked: tuple[int, int] = -1, -1  # position and channel of the last ack
        self.closed: set[int] = set()  # channels
        self._keeps = self._opens = False
        self._changed = self._changing = False  # limits and times to live; lately
        self._changed_at = 0

    def name(self, number: int, vhost: str, name: str) -> None:
        """Note the name of a queue."""
        if not name.startswith(_RESERVED):
            before = self._names.get(way := way_of(vhost, "", name), number)
            self._names[way] = number
            if before != number:
                self._before[number] = before

    def commands(self, position: int, kinds: bytes, outcomes: bytes) -> None:
        """Apply what the commands of a batch end or change, with or without moves; called before
        and after them."""
        self._opens = Command.CHANNEL_OPEN in kinds
        if self._opens:  # tags begin anew
            self.ahead.clear()
            self.closed.clear()
        if kinds.translate(None, _CHANGES) != kinds:
            self._changed, self._changed_at = True, position
            for one in self.queues.values():
                one.deadlines, one.limit = {}, 0
        self._changing = self._changed and position - self._changed_at < _CHANGING_MAX
        if self._keeps and (
            kinds.translate(None, _ENDS) != kinds or any(outcomes[1::2]) or self._changing
        ):
            self._keep_no_more()

    def is_quiet(self, kinds: bytes) -> bool:
        """Return whether plain moves among these commands are affected by nothing noted here."""
        return not (
            self._dead or self._gone_on or self._keeps or kinds.translate(None, _LOUD) != kinds
        )

    def pass_over(self, position: int, body: int, *, persistent: bool) -> None:
        """Go on to this position, with the message that was published last."""
        self._position, self._published = position, (body, persistent)

    def _keep_no_more(self) -> None:
        for one in self.queues.values():
            one.keep_no_more()

    def take(
        self, position: int, op: int, flag: bool, cause: int, number: int, seq: int, of: int,
        detail: int, model: Model,
    ) -> None:  # fmt: skip
        """Take a move; `ModelMismatch` if its reason does not hold."""
        moved = model.moved
        if position != self._position:
            if self._dead or self._gone_on:
                self._go_on(position)
            self._position = position
        if op == _PUBLISHED:
            return self._publish(cause, number, detail, flag)
        if op in _GIVEN:
            if of in self.closed and not self._opens:
                raise ModelMismatch("closed channel", f"channel {of:08x}")
            self.given[of] = nth = self.given.get(of, 0) + 1
            if op == _DELIVERED:
                self.nth[number, seq] = nth
        elif op == _SETTLED and moved is not None:
            self._settle(cause, number, seq, of, detail, counts=not flag)
            if cause in _DEADLY:
                self._dead.append((moved.body, moved.persistent))
            if cause == _GIVEN_UP and flag and moved.body is not None and moved.returns < detail:
                more = f"it came back {moved.returns} times, of {detail}"
                raise ModelMismatch("within the limit", more)
        elif op == _DROPPED and moved is not None:
            self._drop(cause, number, seq, of, moved, model)
        elif op == _NOTED:
            self._note(flag, cause, number, seq, of, detail, model)
        elif op == _RETURNED:
            self.nth.pop((number, seq), None)
            if cause in (_RECOVER, *_LOST):  # everything that the channel held came back
                self.done[of, False] = self.given.get(of, 0)
        elif op == _DECLARED and self._before.pop(number, number) in model.queues.keys() - {number}:
            raise ModelMismatch("same name", "it is there still")
        if number in self.queues:
            self._move_noted(self.queues[number], op, cause, number, seq, of)

    def _settle(
        self, cause: int, number: int, seq: int, channel: int, tag: int, *, counts: bool
    ) -> None:
        nth = self.nth.pop((number, seq), None)
        if nth is None:
            return
        if cause in (_ACKED, _SENT):
            self._take_all(cause, channel, nth)
        if not counts or self._opens:
            return
        ahead = self.ahead.setdefault(channel, tag - nth)
        if tag - nth != ahead:
            raise ModelMismatch("other tag", f"it was delivered with tag {nth + ahead}, not {tag}")

    def _take_all(self, cause: int, channel: int, nth: int) -> None:
        """Check that no delivery was left out by a settlement of all up to a later one: an ack of
        several, or what was written without acks."""
        key = channel, cause == _SENT
        if nth <= self.done.get(key, 0):
            more = f"delivery {nth}, and all up to {self.done[key]} were settled"
            raise ModelMismatch("left out", more)
        at = self._position, channel
        if cause == _SENT or at == self._acked:
            self.done[key] = nth
        self._acked = at

    def _move_noted(
        self, noted: _Noted, op: int, cause: int, number: int, seq: int, of: int
    ) -> None:
        if op == _DELIVERED:
            deadline = noted.deadlines.pop(seq, None)
            if deadline and deadline <= self._clock and not self._changing:
                more = f"at {deadline} us; it is {self._clock} us or later"
                raise ModelMismatch("after its time", more)
            noted.deliver(seq, of, got=cause > 0)
        elif op in (_SETTLED, _RETURNED):
            noted.let_go(seq, returns=op == _RETURNED)
            if op == _RETURNED and cause in _LOST and self._keeps:  # the consumer is gone
                self._keep_no_more()
        elif op == _DROPPED:
            noted.ready.pop(seq, None)
        elif op in (_PURGED, _RECOVERED):
            if op == _PURGED and cause == _DELETED:
                del self.queues[number]
            elif op == _RECOVERED or cause:
                self.queues[number] = _Noted(limit=noted.limit, kept=noted.kept)
            else:
                noted.deadlines, noted.ready, noted.waiting = {}, {}, {}

    def _go_on(self, position: int) -> None:
        """Check that at each position at least one of the due letters goes, the oldest first."""
        passed = position - self._position - self._gone_on
        for _ in range(min(passed, len(self._dead))):
            self._dead.popleft()
        self._quiet_from += self._gone_on
        self._gone_on = False

    def _publish(self, cause: int, source: int, body: int, flag: bool) -> None:
        self._published = body, flag
        if cause == _LETTER and source:
            self._gone_on = True
            while self._dead:
                if self._dead.popleft() in ((body, flag), (None, None), (None, flag)):
                    return
            if self._position - self._quiet_from >= _QUIET:
                raise ModelMismatch("other letter", f"none of queue {source} with its body died")
            self._quiet_from = self._position
        elif cause in (_DELAYED, _LATE_LETTER) and self._due not in ((body, flag), (None, None)):
            raise ModelMismatch("other letter", "it was another one that was due")

    def _drop(
        self, cause: int, number: int, seq: int, of: int, moved: Message, model: Model
    ) -> None:
        noted, queue = self.queues.get(number), model.queues[number]
        if cause in (_EXPIRED, _LIMIT):
            self._dead.append((moved.body, moved.persistent))
        if cause in (_DUE, _SENT_ON):
            self._due = moved.body, moved.persistent
        if cause == _LIMIT:
            self._exceed(number, queue.count() + 1, of)
        if queue.stream:
            return
        here = self._clock if self._clock_at == self._position else -1
        if cause == _DUE and here < (seq >> _DUE_SHIFT) * 1000:
            raise ModelMismatch("before its time", f"it is {here} us")
        if cause == _EXPIRED:
            known = moved.body is not None and not moved.redelivered and not self._changed
            deadline = noted.deadlines.pop(seq, None) if noted is not None else None
            early = deadline and here < deadline and not self._changing
            if early or (deadline is None and known):
                more = "it had no time to live" if deadline is None else f"at {deadline} us"
                raise ModelMismatch("before its time", f"{more}; it is {here} us")

    def _exceed(self, number: int, count: int, of: int) -> None:
        """Check a drop over a limit: `count` messages waited; `of`: the allowed number plus one."""
        noted = self._of(number)
        other = noted.limit not in (0, of) and not self._changing
        if not 0 < of <= _BYTES or count < of < _BYTES or other:
            more = f"{count} waited, of {of - 1}; before: {noted.limit - 1}"
            raise ModelMismatch("within the limit", more)
        noted.limit = 0 if self._changing else of

    def _of(self, number: int) -> _Noted:
        return self.queues.setdefault(number, _Noted())

    def _note(
        self, flag: bool, cause: int, number: int, seq: int, of: int, detail: int, model: Model
    ) -> None:
        if cause == _GROUP:
            noted = self._of(number)
            noted.kept = flag
            self._keeps |= flag
            noted.wait(seq, detail)
        elif cause == _DEADLINE:
            if not self._changing:
                self._of(number).deadlines[seq] = detail
        elif cause == _TIME:
            if detail < self._clock:
                raise ModelMismatch("time went back", f"{detail} us, after {self._clock} us")
            self._clock, self._clock_at = detail, self._position
        elif cause == _REFUSED:
            self._dead.append(self._published)
        elif cause == _BOUND:
            self._ways.setdefault(detail, Counter())[number] += 1
            self._from.setdefault(of, set()).add(detail)
        elif cause == _UNBOUND and flag:
            for way in self._from.pop(of, ()):
                self._ways.pop(way, None)
        elif cause == _UNBOUND:
            if detail in self._ways:
                self._ways[detail][number] -= 1
        elif cause == _CLOSED:
            self.closed.add(of)
            self.done[of, False] = self.given.get(of, 0)  # all that it held comes back
        elif cause == _NOWHERE:
            ways = self._ways.get(detail, Counter())
            known = *(one for one, count in ways.items() if count > 0), self._names.get(detail, 0)
            bound = [one for one in known if one in model.queues]
            if bound:
                raise ModelMismatch("bound", f"queue {bound[0]} was bound by this key")
