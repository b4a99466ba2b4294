"""All that can become of a view, by the real `make_plan`, `activate` and `VoterSet.durable`.

What this file adds to them is the ring and the disk below them:

- a message that anybody delivered was received by every member of the view, and whoever has not
  delivered it when the view breaks holds it undecided;
- the disk has all that its member delivered, unless it loses power as the view breaks;
- as much is confirmed as the marks of the members allow, at once, where all have delivered it: a
  mark goes round on the token, and on this way everybody delivers what it stands for
  (`test_vsync_marks` pins that; without it `exhaust` finds confirmed commands forgotten).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import NamedTuple

from tests.sim.explore.abstract_state import COMMAND, PARTIAL, Crowd, Entry, Log, Model, Part, dark
from vsync.primary.events import StateReport
from vsync.primary.state_exchange import Plan, PlanVerdict, activate, make_plan, refuse
from vsync.quorum.voter_set import parse
from vsync.types import Member

ENOUGH = 9
"""More messages than a view ever has: who holds nothing undecided does not bound the others."""


class Outcome(NamedTuple):
    """One way in which a view ended."""

    crowd: Crowd  # its members, now
    epoch: int = 0  # of an activation that was sent
    entered: Log | None = None  # the log below the activation, when somebody applied it
    confirmed: Log | None = None
    renewed: int = 0  # the arbitrators whose record is another now: who was not here is not in it


class Ends:
    """How views end, remembered."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: dict[Crowd, tuple[Outcome, ...]] = {}

    def of(self, crowd: Crowd) -> tuple[Outcome, ...]:
        """How a view of these members may end, but for ends that change nothing."""
        found = self._known.get(crowd)
        if found is None:
            ways = dict.fromkeys(View(self.model, crowd).ends())
            found = self._known[crowd] = tuple(way for way in ways if way != Outcome(crowd))
        return found


class Seat(NamedTuple):
    """A member of the view being looked at."""

    place: int  # its class
    name: str
    part: Part
    member: Member


class Fate(NamedTuple):
    """What became of one member in a view: what it delivered and received after the plan."""

    part: Part
    kept: bool = False  # it is as it was
    delivered: int = 0
    received: int = ENOUGH
    dark: bool = False  # it lost power with less on disk than it had delivered
    counted: bool = True  # its promise came before the activation
    held: bool = False  # it came later, and said what it has on disk


class View:
    """One view of some members, from the states that they bring."""

    def __init__(self, model: Model, crowd: Crowd) -> None:
        self.model, self.rules, self.crowd = model, model.rules, crowd
        self.seats: list[Seat] = []
        for place, numbers in enumerate(crowd):
            for number, name in zip(numbers, self.rules.classes[place], strict=False):
                part = model.parts[number]
                self.seats.append(Seat(place, name, part, Member(name, 1, name)))
        self.plan: Plan | None = None
        self._activates: dict[tuple[bool, ...], bool] = {}

    def ends(self) -> Iterator[Outcome]:
        """All ways in which it may end."""
        if not self.seats:
            return
        state_reports = {
            seat.member: model_standing(self.model, seat, self.seats) for seat in self.seats
        }
        members = tuple(sorted(state_reports))
        self.plan = plan = make_plan(members, state_reports)
        for member, state_report in state_reports.items():
            assert not (why := refuse(member, state_report, plan)), (
                f"{member.name} is refused: {why}"
            )
        if plan.verdict in (PlanVerdict.WAIT, PlanVerdict.INQUORATE):
            if self.rules.waits and plan.verdict is PlanVerdict.INQUORATE:
                yield self._outcome([Fate(s.part._replace(waits=True)) for s in self.seats])
            return
        if plan.verdict is PlanVerdict.FORM and plan.voters != self.rules.stages[0]:
            return  # a first start by others than those of the case
        self.state_reports, self.members = state_reports, members
        self.stage = self.rules.stages.index(plan.voters)
        self.donor = next(seat for seat in self.seats if seat.member == plan.donor)
        self.again = () if self.donor.place in self._arbiters() else self.donor.part.unstable
        base = (*self.donor.part.log, *self.again)
        self.act: Entry = (plan.epoch, 0, base[-1][2] if self.again else self.stage)
        self.base: Log = base
        for seconds in self._seconds():
            yield from self._end_with(seconds)

    def _arbiters(self) -> set[int]:
        return {place for place in range(len(self.crowd)) if self.rules.is_arbitrator(place)}

    def _seconds(self) -> Iterator[Log]:
        """What may be ordered: nothing that is delivered, an activation, something after it."""
        yield ()
        yield (self.act,)
        if self.model.closeness < COMMAND:
            return
        epoch, _, stage = self.act
        yield self.act, (epoch, 1, stage)
        if stage == 1 or (stage == 0 and self.rules.case.change):
            yield self.act, (epoch, 1, stage + 1)

    # -- each member's fate ----------------------------------------------------------------------

    def _end_with(self, ordered: Log) -> Iterator[Outcome]:
        groups: dict[tuple[int, tuple[Fate, ...]], list[Seat]] = {}
        for seat in self.seats:
            fates = tuple(dict.fromkeys(self._fates(seat, ordered)))
            groups.setdefault((seat.place, fates), []).append(seat)
        # Who came in different states and goes on alike is interchangeable from here.
        self.seats = [seat for group in groups.values() for seat in group]
        self._activates = {}
        choices = [
            list(combinations_with_replacement(fates, len(group)))
            for (_, fates), group in groups.items()
        ]
        for chosen in product(*choices):
            ends = [fate for group in chosen for fate in group]
            if not ordered or self._possible(ends, ordered):
                yield from self._judge(ends, ordered)

    def _fates(self, seat: Seat, ordered: Log) -> Iterator[Fate]:
        plan, part = self.plan, seat.part
        assert plan is not None
        promised = part._replace(promised=max(part.promised, plan.epoch), filled=True)
        if self.rules.is_arbitrator(seat.place):
            promised = promised._replace(stage=self.stage)
            if not ordered:
                yield Fate(part, kept=True)
                yield Fate(promised)
                return
            yield Fate(promised)
            record: Log = ((plan.epoch, 0, self.stage),)
            recorded = promised._replace(log=record, ran=True, waits=False)
            yield Fate(recorded, delivered=1)
            yield Fate(self._dark(promised), dark=True)
            return
        left = self._left(seat)
        behind = left is None
        if behind or not ordered:
            yield Fate(part, kept=True)
        log = self.donor.part.log
        level = promised._replace(
            log=log, unstable=left or (), complete=part.complete and not behind
        )
        if not ordered:
            yield Fate(level)
            return
        for delivered, received in self._progress(len(ordered)):
            here = level
            if received:
                coming = (*self.again, *ordered)[: len(self.again) + received]
                done = len(self.again) + delivered if delivered else 0
                here = level._replace(
                    log=(*log, *coming[:done]), unstable=coming[done:], complete=True
                )
            if delivered:
                here = here._replace(ran=True, waits=False)
            yield Fate(here, delivered=delivered, received=received)
            if behind and delivered and self.rules.arbitrators:
                for held in (False, True):
                    yield Fate(
                        here, delivered=delivered, received=received, counted=False, held=held
                    )

        coming = (*self.again, *ordered)
        for written in range(len(coming)):
            here = level._replace(log=(*log, *coming[:written]))
            yield Fate(self._dark(here), delivered=max(0, written - len(self.again)), dark=True)

    def _dark(self, part: Part) -> Part:
        return dark(part, waits=self.rules.waits)

    def _left(self, seat: Seat) -> Log | None:
        """What a member that is level at once keeps undecided; None: it must fetch the state."""
        plan, unstable = self.plan, seat.part.unstable
        assert plan is not None
        if seat.member in plan.caught_up:
            return unstable
        target = self.donor.part.log
        for count in range(1, len(unstable) + 1):
            if (*seat.part.log, *unstable[:count]) == target:
                return unstable[count:]
        return None

    def _progress(self, count: int) -> list[tuple[int, int]]:
        """(delivered, received) of a member that is level, of so many messages."""
        partial = self.model.closeness >= PARTIAL
        if count == 1:
            return [(0, 0), (0, 1), (1, 1)] if partial else [(0, 1), (1, 1)]
        last = [(0, 2), (1, 2), (2, 2)]
        return [(0, 1), (1, 1), *last] if partial else last

    def _possible(self, fates: list[Fate], ordered: Log) -> bool:
        """What anybody delivered, all have received; what is ordered, somebody has received."""
        everybody, most, first, gone = ENOUGH, 0, 0, False
        for fate in fates:
            if fate.received < everybody:
                everybody = fate.received
            if fate.received > most and fate.received != ENOUGH:
                most = fate.received
            if fate.delivered > first:
                first = fate.delivered
            gone = gone or fate.dark
        if first > everybody:
            return False
        # somebody is there who could have said it
        return gone or (most == len(ordered) and (most == 1 or first > 0))

    # -- what came of it -------------------------------------------------------------------------

    def _judge(self, fates: list[Fate], ordered: Log) -> Iterator[Outcome]:
        if not ordered:
            yield self._outcome(fates)
            return
        plan = self.plan
        assert plan is not None
        promised = tuple([not fate.kept and fate.counted for fate in fates])
        if not self._may_activate(plan, promised):
            return
        level = {s.name for s, yes in zip(self.seats, promised, strict=True) if yes}
        confirmed = self._confirmed(fates, level, ordered)
        stage = ordered[-1][2]
        if len(ordered) > 1 and stage != self.act[2]:
            here = {s.name for s, f in zip(self.seats, fates, strict=True) if not f.kept}
            if stage == 1:
                joint = parse(self.rules.stages[1])
                if not (joint.quorate(here) and self.rules.newcomers <= here):
                    return
            elif not confirmed:
                return  # the step before is not durable yet
        entered = self.base if any(fate.delivered for fate in fates) else None
        log = (*self.base, *ordered)
        spoken = log[: len(self.base) + confirmed] if confirmed else None
        if self.rules.arbitrators:
            fates = self._recorded(fates, level)
        yield self._outcome(fates, plan.epoch, entered, spoken)

    def _may_activate(self, plan: Plan, promised: tuple[bool, ...]) -> bool:
        found = self._activates.get(promised)
        if found is None:
            answers = {s.member: yes for s, yes in zip(self.seats, promised, strict=True)}
            fresh = dict.fromkeys(answers, False)
            activation = activate(plan, self.members, self.state_reports, answers, fresh)
            found = self._activates[promised] = activation is not None
        return found

    def _confirmed(self, fates: list[Fate], level: set[str], ordered: Log) -> int:
        """How much of what was ordered any member here may speak of."""
        everywhere = len(ordered)
        marks: list[tuple[str, int]] = []
        late: dict[str, Fate] = {}
        speakers = set[tuple[int, int]]()
        for seat, fate in zip(self.seats, fates, strict=True):
            if fate.kept:
                continue
            arbitrator = self.rules.is_arbitrator(seat.place)
            if not fate.dark and not (arbitrator and fate.delivered):
                everywhere = min(everywhere, fate.delivered)
            if not everywhere:
                return 0
            done = len(fate.part.log) - len(self.base)
            marks.append((seat.name, bool(fate.delivered) if arbitrator else done))
            if not fate.counted:
                late[seat.name] = fate
            if fate.delivered and not arbitrator:
                speakers.add((done, fate.part.log[-1][2]))
        levels = [frozenset(level)]
        if late:
            told = {name for name, f in late.items() if f.delivered == len(ordered) or f.held}
            levels += [frozenset(level | late.keys()), frozenset(level | told)]
        best = 0
        for done, stage in speakers:
            for names in levels:
                position = self.model.durable(stage, tuple(marks), names)
                best = max(best, min(position, done, everywhere))
        return best

    def _recorded(self, fates: list[Fate], level: set[str]) -> list[Fate]:
        """Write down, with the arbitrators that saw the activation, who holds all of it."""
        drop = keep = 0
        for seat, fate in zip(self.seats, fates, strict=True):
            if self.rules.is_arbitrator(seat.place) and fate.delivered:
                drop |= self.rules.bit(seat.place)
        found = []
        for seat, fate in zip(self.seats, fates, strict=True):
            keep = drop if seat.name in level or fate.held else 0
            if drop and not self.rules.is_arbitrator(seat.place):
                part = fate.part
                fate = fate._replace(part=part._replace(held=part.held & ~drop | keep))
            found.append(fate)
        return found

    def _outcome(
        self, fates: list[Fate], epoch: int = 0, entered: Log | None = None,
        confirmed: Log | None = None,
    ) -> Outcome:  # fmt: skip
        crowd: list[list[int]] = [[] for _ in self.crowd]
        renewed = 0
        for seat, fate in zip(self.seats, fates, strict=True):
            crowd[seat.place].append(self.model.number(fate.part))
            if epoch and fate.delivered and self.rules.is_arbitrator(seat.place):
                renewed |= self.rules.bit(seat.place)
        return Outcome(
            tuple(tuple(sorted(numbers)) for numbers in crowd), epoch, entered, confirmed, renewed
        )


def model_standing(model: Model, seat: Seat, seats: list[Seat]) -> StateReport:
    """An answer; an arbitrator's with the names of those in its record, as far as they are here."""
    state_report = model.state_report(seat.part, seat.name)
    if not state_report.arbitrator or not seat.part.log:
        return state_report
    bit = model.rules.bit(seat.place)
    holders = tuple(sorted(s.name for s in seats if s.part.held & bit))
    return state_report._replace(holders=holders or ("somebody else",))
