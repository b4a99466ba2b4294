"""Process groups on the rings of a run, and a judge of their promises.

Each process is in the group `all`, and joins and leaves two others.  The judge sees every event of
every process and compares them by ring and position:

- V-list: members that were at the barrier of one ring have the same lists at the same positions,
  and each list is the previous one with the reported changes.
- V-order: they have the same message at the same position.
- V-known: a message comes from a member of the last reported list, and no member's message had to
  be dropped.
- V-same: members that moved together to the next ring saw the same messages of their groups.
- V-once, V-answer: a message is delivered once; an accepted one is answered once, in order, with
  the position at which its sender got it, and at the end none is unanswered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.sim.checkers.history import Who
from tests.sim.checkers.violation import Violation
from tests.sim.world.member import SimMember
from tests.sim.world.tap import Tap, who
from vsync.cpg.events import (
    Cause,
    Failed,
    GroupEvent,
    GroupMessage,
    GroupSent,
    GroupView,
    Level,
    Synced,
)
from vsync.cpg.groups import Groups
from vsync.totem.events import Output, Transitional, View
from vsync.types import NO_RING, Guarantee, Member, RingId

EVERYBODY = "all"
SOMEBODY = ("x", "y")


class Place(NamedTuple):
    """The content of one position of one ring, as a process saw it."""

    group: str
    sender: Who
    number: bytes
    level: Level
    members: tuple[Member, ...]


class Conf(NamedTuple):
    """The place of a delivery: a ring, and its transitional members while it closes."""

    ring: RingId
    together: tuple[Member, ...] = ()


class Passed(NamedTuple):
    """A process's way from one ring to the next."""

    ring: RingId
    next: RingId
    together: tuple[Member, ...]


class GroupJudge:
    """Compares the processes of a run."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.messages = self.lists = self.barriers = 0
        self._places: dict[tuple[Conf, int], Place] = {}
        self._lists: dict[tuple[Conf, int, str], tuple[Member, ...]] = {}
        self.seen: dict[Who, dict[RingId, dict[int, Place]]] = {}
        self.passed: dict[Who, list[Passed]] = {}

    def blame(self, rule: str, text: str) -> None:
        promise = "G19" if rule in ("V-once", "V-answer") else "G18"
        self.violations.append(Violation(promise, rule, text))

    def message(self, me: Who, conf: Conf, position: int, place: Place) -> None:
        self.messages += 1
        first = self._places.setdefault((conf, position), place)
        if first != place:
            self.blame("V-order", f"{me}: {conf} at {position}: {place}, elsewhere {first}")
        mine = self.seen.setdefault(me, {}).setdefault(conf.ring, {})
        if position in mine:
            self.blame("V-once", f"{me}: {conf} at {position} again: {place}")
        mine[position] = place

    def listed(self, me: Who, conf: Conf, view: GroupView) -> None:
        self.lists += 1
        first = self._lists.setdefault((conf, view.position, view.group), view.members)
        if first != view.members:
            text = f"{me}: {conf} at {view.position}: {view.group} {view.members}, {first}"
            self.blame("V-list", text)

    def finish(self) -> list[Violation]:
        """V-same, over all processes that moved together."""
        for me, ways in self.passed.items():
            for way in ways:
                for member in way.together:
                    other = who(member)
                    if any(w[:2] == way[:2] for w in self.passed.get(other, ())):
                        self._same(me, other, way)
        return self.violations

    def _same(self, me: Who, other: Who, way: Passed) -> None:
        theirs = self.seen.get(other, {}).get(way.ring, {})
        for position, place in self.seen.get(me, {}).get(way.ring, {}).items():
            if other in map(who, place.members) and position not in theirs:
                text = f"{other} lacks {way.ring} at {position}: {place}, which {me} has"
                self.blame("V-same", text)


class GroupUpper:
    """One process's groups."""

    def __init__(self, member: SimMember, tap: Tap, judge: GroupJudge) -> None:
        self.member, self.tap, self.judge = member, tap, judge
        self.me = who(tap.me)
        self.tape = member.world.tape.fork(f"groups {member.name} {member.incarnation}")
        self.groups = Groups(tap.me, self, pending_bytes_max=member.world.plan.queue_bytes_max)
        self.lists: dict[str, tuple[Member, ...]] = {}
        self.wanted: dict[str, bool] = {}
        self.open: dict[int, bytes] = {}
        self.delivered: dict[bytes, int] = {}
        self.answered = 0
        self.position = 0
        self._conf = Conf(NO_RING)  # of the present deliveries
        self._now = 0.0

    # -- what the layer sees as its driver -------------------------------------------------------

    def submit(self, payload: bytes, guarantee_or_now: object, _: object = None) -> bool:
        """Called by the layer (payload, guarantee) and by the load (payload, now, guarantee)."""
        if isinstance(guarantee_or_now, Guarantee):
            return self.tap.submit(payload, self._now, guarantee_or_now)
        return self._load(payload, _ is Guarantee.SAFE)

    def set_mark(self, mark: int) -> None:
        self.tap.set_mark(mark, self._now)

    # -- what the world sees as the upper half ---------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.groups.synced and not self.groups.pending and not self.open

    def started(self, now: float) -> None:
        self._now = now
        self._turn(EVERYBODY)

    def crashed(self) -> None:
        """Keep nothing."""

    def on_output(self, output: Output, now: float) -> None:
        self._now = now
        if isinstance(output, Transitional):
            self._conf = Conf(output.ring, output.members)
        elif isinstance(output, View):
            ways = self.judge.passed.setdefault(self.me, [])
            ways.append(Passed(self._conf.ring, output.ring, self._conf.together))
            self._conf = Conf(output.ring)
        events = self.groups.on_output(output)
        for event in events:
            self._check(event)
        self.groups.invariants()

    def pump(self, now: float) -> None:
        self._now = now
        if self.groups.synced and self.position:
            self.groups.set_durable(self.groups.position)
        self.groups.pump()

    # -- load ------------------------------------------------------------------------------------

    def _load(self, payload: bytes, safe: bool) -> bool:
        if self.tape.chance(0.1):
            self._turn(self.tape.pick(SOMEBODY))
        group = self.tape.pick([EVERYBODY, *(g for g, stays in self.wanted.items() if stays)])
        number = b"%s %d %d" % (self.me[0].encode(), self.me[1], self.groups._tickets + 1)
        durable = safe and self.tape.chance(0.2)
        level = Level.DURABLE if durable else Level.SAFE if safe else Level.AGREED
        ticket = self.groups.mcast(group, number + b" " + payload, level)
        if ticket is None:
            return False
        self.open[ticket] = number
        return True

    def _turn(self, group: str) -> None:
        """Join a group, or leave it."""
        if group not in self.groups._joined:
            ticket = self.groups.join(group)
            if ticket is not None:
                self.open[ticket] = b""
                self.wanted[group] = True
        elif self.wanted.get(group):
            ticket = self.groups.leave(group)
            if ticket is not None:
                self.open[ticket] = b""
                self.wanted[group] = False

    # -- checks ----------------------------------------------------------------------------------

    def _check(self, event: GroupEvent) -> None:
        judge, me = self.judge, self.me
        if not isinstance(event, GroupSent | Failed) and event.position < self.position:
            judge.blame("V-order", f"{me} at {self.position} got {event}")
        if isinstance(event, GroupMessage):
            members = self.lists.get(event.group, ())
            number = b" ".join(event.payload.split(b" ", 3)[:3])
            if event.sender not in members:
                judge.blame("V-known", f"{me} has {members} and got {event}")
            if number in self.delivered or event.position == self.position:
                judge.blame("V-once", f"{me} got {event} again")
            self.delivered[number] = event.position
            place = Place(event.group, who(event.sender), number, event.level, members)
            judge.message(me, self._conf, event.position, place)
            self.position = event.position
        elif isinstance(event, GroupView):
            left = {m for m, _ in event.left}
            reported = {m for m in self.lists.get(event.group, ()) if m not in left}
            reported |= {m for m, _ in event.joined}
            if event.group in self.lists and reported != set(event.members):
                judge.blame("V-list", f"{me} had {self.lists.get(event.group)}: {event}")
            self.lists[event.group] = event.members
            judge.listed(me, self._conf, event)
            self.position = event.position
            if any(m == self.tap.me and c is Cause.LEAVE for m, c in event.left):
                del self.lists[event.group]
        elif isinstance(event, Synced):
            judge.barriers += 1
            self.position = event.position
        else:
            self._answer(event)

    def _answer(self, event: GroupSent | Failed) -> None:
        number = self.open.pop(event.ticket, None)
        if number is None:
            self.judge.blame("V-answer", f"{self.me} was answered for nothing: {event}")
        elif number and self.delivered.get(number) != event.position:
            text = f"{self.me}: {event}, delivered at {self.delivered.get(number)}"
            self.judge.blame("V-answer", text)
        self.answered += 1


class GroupStack:
    """Rings with groups."""

    def __init__(self) -> None:
        self.judge = GroupJudge()

    def make(self, member: SimMember, tap: Tap) -> GroupUpper:
        return GroupUpper(member, tap, self.judge)

    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool:
        return True

    def catch_up_s(self, live: Sequence[SimMember]) -> float:
        return 0

    def finish(self, live: Sequence[SimMember]) -> list[Violation]:
        uppers = [m.upper for m in live if isinstance(m.upper, GroupUpper)]
        seen = {(u.groups.position, tuple(u.groups.views().items())) for u in uppers}
        if len(seen) > 1:
            texts = "; ".join(u.groups.describe() for u in uppers)
            self.judge.blame("V-list", f"lists or positions differ at the end: {texts}")
        for upper in uppers:
            odd = {k: v for k, v in upper.groups.counters.items() if k.startswith("group_")}
            if odd:
                self.judge.blame("V-known", f"{upper.me} dropped what a member sent: {odd}")
            if upper.open:
                self.judge.blame("V-answer", f"{upper.me} waits for {sorted(upper.open)[:5]}")
        return self.judge.finish()

    def describe(self) -> str:
        judge = self.judge
        return f" barriers {judge.barriers:<4} lists {judge.lists:<5} told {judge.messages:<6}"
