"""All possible outcomes of a view, by the real `make_plan`, `activate` and `VoterSet.durable`.

This file adds the ring and the disk below them:

- a message that any member delivered was received by every member of the view, and is unstable at
  those that have not delivered it when the view breaks;
- the disk has all that its member delivered, unless it loses power as the view breaks;
- as much is confirmed as the marks of the members allow, at once, where all have delivered it: a
  mark circulates on the token, and on its way every member delivers the messages it stands for
  (`test_vsync_marks` pins that; without it `exhaust` finds confirmed commands forgotten).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import NamedTuple

from tests.sim.explore.abstract_state import (
    COMMAND,
    PARTIAL,
    Census,
    Entry,
    Log,
    Model,
    Part,
    dark,
)
from vsync.primary.events import StateReport
from vsync.primary.state_exchange import Plan, PlanVerdict, activate, make_plan, refuse
from vsync.quorum.voter_set import parse
from vsync.types import Member

ENOUGH = 9
"""More messages than a view ever has: a member without unstable ones does not bound the others."""


class Outcome(NamedTuple):
    """One way in which a view ended."""

    census: Census  # its members, now
    epoch: int = 0  # of an activation that was sent
    entered: Log | None = None  # the log below the activation, if a member applied it
    confirmed: Log | None = None
    renewed: int = 0  # the arbitrators with a new record: absent members are not in it


class Ends:
    """The ends of views, remembered."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: dict[Census, tuple[Outcome, ...]] = {}

    def of(self, census: Census) -> tuple[Outcome, ...]:
        """The possible ends of a view of these members, except those that change nothing."""
        found = self._known.get(census)
        if found is None:
            ways = dict.fromkeys(View(self.model, census).ends())
            found = self._known[census] = tuple(way for way in ways if way != Outcome(census))
        return found


class Slot(NamedTuple):
    """A member of the examined view."""

    place: int  # its class
    name: str
    part: Part
    member: Member


class Ending(NamedTuple):
    """How a view ended for one member: what it delivered and received after the plan."""

    part: Part
    kept: bool = False  # it is as it was
    delivered: int = 0
    received: int = ENOUGH
    dark: bool = False  # it lost power with less on disk than it had delivered
    counted: bool = True  # its promise came before the activation
    held: bool = False  # it came later, and reported what it has on disk


class View:
    """One view of some members, from the states that they bring."""

    def __init__(self, model: Model, census: Census) -> None:
        self.model, self.rules, self.census = model, model.rules, census
        self.slots: list[Slot] = []
        for place, numbers in enumerate(census):
            for number, name in zip(numbers, self.rules.classes[place], strict=False):
                part = model.parts[number]
                self.slots.append(Slot(place, name, part, Member(name, 1, name)))
        self.plan: Plan | None = None
        self._activates: dict[tuple[bool, ...], bool] = {}

    def ends(self) -> Iterator[Outcome]:
        """All ways in which it may end."""
        if not self.slots:
            return
        state_reports = {
            slot.member: model_state_report(self.model, slot, self.slots) for slot in self.slots
        }
        members = tuple(sorted(state_reports))
        self.plan = plan = make_plan(members, state_reports)
        for member, state_report in state_reports.items():
            assert not (why := refuse(member, state_report, plan)), (
                f"{member.name} is refused: {why}"
            )
        if plan.verdict in (PlanVerdict.WAIT, PlanVerdict.INQUORATE):
            if self.rules.waits and plan.verdict is PlanVerdict.INQUORATE:
                yield self._outcome([Ending(s.part._replace(waits=True)) for s in self.slots])
            return
        if plan.verdict is PlanVerdict.FORM and plan.voters != self.rules.stages[0]:
            return  # a first start by others than those of the case
        self.state_reports, self.members = state_reports, members
        self.stage = self.rules.stages.index(plan.voters)
        self.donor = next(slot for slot in self.slots if slot.member == plan.donor)
        self.again = () if self.donor.place in self._arbiters() else self.donor.part.unstable
        base = (*self.donor.part.log, *self.again)
        self.act: Entry = (plan.epoch, 0, base[-1][2] if self.again else self.stage)
        self.base: Log = base
        for seconds in self._seconds():
            yield from self._end_with(seconds)

    def _arbiters(self) -> set[int]:
        return {place for place in range(len(self.census)) if self.rules.is_arbitrator(place)}

    def _seconds(self) -> Iterator[Log]:
        """The possible orders: nothing delivered, an activation, a message after it."""
        yield ()
        yield (self.act,)
        if self.model.closeness < COMMAND:
            return
        epoch, _, stage = self.act
        yield self.act, (epoch, 1, stage)
        if stage == 1 or (stage == 0 and self.rules.case.change):
            yield self.act, (epoch, 1, stage + 1)

    # -- how it ends for each member ---------------------------------------------------------------

    def _end_with(self, ordered: Log) -> Iterator[Outcome]:
        groups: dict[tuple[int, tuple[Ending, ...]], list[Slot]] = {}
        for slot in self.slots:
            endings = tuple(dict.fromkeys(self._endings(slot, ordered)))
            groups.setdefault((slot.place, endings), []).append(slot)
        # Members that came in different states and continue alike are interchangeable from here.
        self.slots = [slot for group in groups.values() for slot in group]
        self._activates = {}
        choices = [
            list(combinations_with_replacement(endings, len(group)))
            for (_, endings), group in groups.items()
        ]
        for chosen in product(*choices):
            ends = [ending for group in chosen for ending in group]
            if not ordered or self._possible(ends, ordered):
                yield from self._judge(ends, ordered)

    def _endings(self, slot: Slot, ordered: Log) -> Iterator[Ending]:
        plan, part = self.plan, slot.part
        assert plan is not None
        promised = part._replace(promised=max(part.promised, plan.epoch), filled=True)
        if self.rules.is_arbitrator(slot.place):
            promised = promised._replace(stage=self.stage)
            if not ordered:
                yield Ending(part, kept=True)
                yield Ending(promised)
                return
            yield Ending(promised)
            record: Log = ((plan.epoch, 0, self.stage),)
            recorded = promised._replace(log=record, ran=True, waits=False)
            yield Ending(recorded, delivered=1)
            yield Ending(self._dark(promised), dark=True)
            return
        left = self._left(slot)
        behind = left is None
        if behind or not ordered:
            yield Ending(part, kept=True)
        log = self.donor.part.log
        caught_up = promised._replace(
            log=log, unstable=left or (), complete=part.complete and not behind
        )
        if not ordered:
            yield Ending(caught_up)
            return
        for delivered, received in self._progress(len(ordered)):
            here = caught_up
            if received:
                coming = (*self.again, *ordered)[: len(self.again) + received]
                done = len(self.again) + delivered if delivered else 0
                here = caught_up._replace(
                    log=(*log, *coming[:done]), unstable=coming[done:], complete=True
                )
            if delivered:
                here = here._replace(ran=True, waits=False)
            yield Ending(here, delivered=delivered, received=received)
            if behind and delivered and self.rules.arbitrators:
                for held in (False, True):
                    yield Ending(
                        here, delivered=delivered, received=received, counted=False, held=held
                    )

        coming = (*self.again, *ordered)
        for written in range(len(coming)):
            here = caught_up._replace(log=(*log, *coming[:written]))
            yield Ending(self._dark(here), delivered=max(0, written - len(self.again)), dark=True)

    def _dark(self, part: Part) -> Part:
        return dark(part, waits=self.rules.waits)

    def _left(self, slot: Slot) -> Log | None:
        """What a member that has caught up keeps unstable; None: it must fetch the state."""
        plan, unstable = self.plan, slot.part.unstable
        assert plan is not None
        if slot.member in plan.caught_up:
            return unstable
        target = self.donor.part.log
        for count in range(1, len(unstable) + 1):
            if (*slot.part.log, *unstable[:count]) == target:
                return unstable[count:]
        return None

    def _progress(self, count: int) -> list[tuple[int, int]]:
        """(delivered, received) of a member that has caught up, of this many messages."""
        partial = self.model.closeness >= PARTIAL
        if count == 1:
            return [(0, 0), (0, 1), (1, 1)] if partial else [(0, 1), (1, 1)]
        last = [(0, 2), (1, 2), (2, 2)]
        return [(0, 1), (1, 1), *last] if partial else last

    def _possible(self, endings: list[Ending], ordered: Log) -> bool:
        """A message delivered by any member was received by all; an ordered one was received by
        some."""
        everybody, most, first, gone = ENOUGH, 0, 0, False
        for ending in endings:
            if ending.received < everybody:
                everybody = ending.received
            if ending.received > most and ending.received != ENOUGH:
                most = ending.received
            if ending.delivered > first:
                first = ending.delivered
            gone = gone or ending.dark
        if first > everybody:
            return False
        # somebody is there who could have sent it
        return gone or (most == len(ordered) and (most == 1 or first > 0))

    # -- what came of it ---------------------------------------------------------------------------

    def _judge(self, endings: list[Ending], ordered: Log) -> Iterator[Outcome]:
        if not ordered:
            yield self._outcome(endings)
            return
        plan = self.plan
        assert plan is not None
        promised = tuple([not ending.kept and ending.counted for ending in endings])
        if not self._may_activate(plan, promised):
            return
        caught_up = {s.name for s, yes in zip(self.slots, promised, strict=True) if yes}
        confirmed = self._confirmed(endings, caught_up, ordered)
        stage = ordered[-1][2]
        if len(ordered) > 1 and stage != self.act[2]:
            here = {s.name for s, f in zip(self.slots, endings, strict=True) if not f.kept}
            if stage == 1:
                joint = parse(self.rules.stages[1])
                if not (joint.quorate(here) and self.rules.newcomers <= here):
                    return
            elif not confirmed:
                return  # the step before is not durable yet
        entered = self.base if any(ending.delivered for ending in endings) else None
        log = (*self.base, *ordered)
        confirmed_log = log[: len(self.base) + confirmed] if confirmed else None
        if self.rules.arbitrators:
            endings = self._recorded(endings, caught_up)
        yield self._outcome(endings, plan.epoch, entered, confirmed_log)

    def _may_activate(self, plan: Plan, promised: tuple[bool, ...]) -> bool:
        found = self._activates.get(promised)
        if found is None:
            answers = {s.member: yes for s, yes in zip(self.slots, promised, strict=True)}
            fresh = dict.fromkeys(answers, False)
            activation = activate(plan, self.members, self.state_reports, answers, fresh)
            found = self._activates[promised] = activation is not None
        return found

    def _confirmed(self, endings: list[Ending], caught_up: set[str], ordered: Log) -> int:
        """How much of the ordered messages any member here may confirm."""
        everywhere = len(ordered)
        marks: list[tuple[str, int]] = []
        late: dict[str, Ending] = {}
        confirmers = set[tuple[int, int]]()
        for slot, ending in zip(self.slots, endings, strict=True):
            if ending.kept:
                continue
            arbitrator = self.rules.is_arbitrator(slot.place)
            if not ending.dark and not (arbitrator and ending.delivered):
                everywhere = min(everywhere, ending.delivered)
            if not everywhere:
                return 0
            done = len(ending.part.log) - len(self.base)
            marks.append((slot.name, bool(ending.delivered) if arbitrator else done))
            if not ending.counted:
                late[slot.name] = ending
            if ending.delivered and not arbitrator:
                confirmers.add((done, ending.part.log[-1][2]))
        sets = [frozenset(caught_up)]
        if late:
            recorded = {name for name, f in late.items() if f.delivered == len(ordered) or f.held}
            sets += [frozenset(caught_up | late.keys()), frozenset(caught_up | recorded)]
        best = 0
        for done, stage in confirmers:
            for names in sets:
                position = self.model.durable(stage, tuple(marks), names)
                best = max(best, min(position, done, everywhere))
        return best

    def _recorded(self, endings: list[Ending], caught_up: set[str]) -> list[Ending]:
        """Record, with the arbitrators that saw the activation, who holds all of it."""
        drop = keep = 0
        for slot, ending in zip(self.slots, endings, strict=True):
            if self.rules.is_arbitrator(slot.place) and ending.delivered:
                drop |= self.rules.bit(slot.place)
        found = []
        for slot, ending in zip(self.slots, endings, strict=True):
            keep = drop if slot.name in caught_up or ending.held else 0
            if drop and not self.rules.is_arbitrator(slot.place):
                part = ending.part
                ending = ending._replace(part=part._replace(held=part.held & ~drop | keep))
            found.append(ending)
        return found

    def _outcome(
        self, endings: list[Ending], epoch: int = 0, entered: Log | None = None,
        confirmed: Log | None = None,
    ) -> Outcome:  # fmt: skip
        census: list[list[int]] = [[] for _ in self.census]
        renewed = 0
        for slot, ending in zip(self.slots, endings, strict=True):
            census[slot.place].append(self.model.number(ending.part))
            if epoch and ending.delivered and self.rules.is_arbitrator(slot.place):
                renewed |= self.rules.bit(slot.place)
        return Outcome(
            tuple(tuple(sorted(numbers)) for numbers in census),
            epoch,
            entered,
            confirmed,
            renewed,
        )


def model_state_report(model: Model, slot: Slot, slots: list[Slot]) -> StateReport:
    """A report; an arbitrator's with the names in its record, as far as those members are here."""
    state_report = model.state_report(slot.part, slot.name)
    if not state_report.arbitrator or not slot.part.log:
        return state_report
    bit = model.rules.bit(slot.place)
    holders = tuple(sorted(s.name for s in slots if s.part.held & bit))
    return state_report._replace(holders=holders or ("somebody else",))
