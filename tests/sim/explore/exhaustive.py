"""All ways in which views, losses of power and lost disks may follow each other, up to a depth.

`explore` drives the real `Primary` and can examine all steps of a few hundred states.  Here members
are reduced to what matters for votes (`abstract`), and states that differ only in the names of
members that vote alike, or in a history that all share, are one state.  So each layer is complete:
from every state within this many steps, every next step is taken.  A step is a view of any members,
however it ends (with losses of power in it); a loss of power at any members; or one lost disk.
There are two first states: all disks are empty; and all members serve together.

What must hold: an epoch is sent by one view only (G7), and a member that enters an epoch has below
it everything that was ever confirmed (G8).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from tests.sim.explore.abstract_state import Census, Log, Model, Part
from tests.sim.explore.abstract_state import dark as without_power
from tests.sim.explore.abstract_view import Ends
from tests.sim.explore.world import Case
from vsync.quorum.voter_set import parse


class Broken(Exception):
    """A property does not hold; the text has the way there."""


class State(NamedTuple):
    """All members, and what is known from outside: the history confirmed and the epochs sent."""

    census: Census
    confirmed: Log = ()
    sent: int = 0


class Depth(NamedTuple):
    """The numbers of the enumeration."""

    depth: int  # from every state within fewer steps, every step was taken
    states: int
    steps: int
    seconds: float
    ended: bool  # there are no other states at all

    def __str__(self) -> str:
        whole = "all there is" if self.ended else f"complete to depth {self.depth}"
        return f"{self.states} states, {self.steps} steps, {whole}, {self.seconds:.1f} s"


class Search:
    """One case, layer by layer."""

    def __init__(self, case: Case, closeness: int, *, lost_disks: bool = True) -> None:
        self.model = Model(case, closeness)
        self.rules = self.model.rules
        self._ends = Ends(self.model)
        self.lost_disks = lost_disks
        self.came: dict[State, State | None] = {}
        self._alike: dict[State, State] = {}
        self._shifted: dict[tuple[int, int, int], int] = {}
        self._dark: dict[int, int] = {}
        self.steps = 0

    def run(self, depth: int, states_max: int = 10**9) -> Depth:
        """Take all steps from all states up to `depth` steps from the first one, or until
        `states_max` are known.  Raises `Broken`."""
        started = time.process_time()
        layer, done = self.starts(), 0
        self.came.update(dict.fromkeys(layer))
        while layer and done < depth:
            coming: list[State] = []
            for state in layer:
                for after in self._after(state):
                    if after not in self.came:
                        self.came[after] = state
                        coming.append(after)
                if len(self.came) >= states_max:
                    return self._depth(done, started, ended=False)
            layer, done = coming, done + 1
        return self._depth(done, started, ended=not layer)

    def starts(self) -> list[State]:
        """All disks are empty; or all voters serve together, with any members that may become
        voters."""
        entry = (1, 0, 0)
        serving = Part(filled=True, log=(entry,), promised=1, complete=True, ran=True)
        bits = sum(
            self.rules.bit(place)
            for place, names in enumerate(self.rules.classes)
            if self.rules.is_arbitrator(place) and names[0] not in self.rules.case.spare
        )
        census = []
        for place, names in enumerate(self.rules.classes):
            part = serving._replace(held=bits)
            if self.rules.is_arbitrator(place):
                part = serving._replace(complete=False)
            census.append((self.model.number(part),) * len(names))
        return [State(self.model.first()), State(tuple(census), (entry,), 1)]

    def _depth(self, done: int, started: float, *, ended: bool) -> Depth:
        return Depth(done, len(self.came), self.steps, time.process_time() - started, ended)

    # -- one step --------------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[State]:
        for census in self._darkened(state.census):
            yield self._canonical(State(census, state.confirmed, state.sent))
        if self.lost_disks:
            for census in self._robbed(state.census):
                yield self._canonical(State(census, state.confirmed, state.sent))
        for chosen, rest in parts(state.census):
            for way in self._ends.of(chosen):
                self.steps += 1
                confirmed, sent = state.confirmed, state.sent
                if way.epoch:
                    if way.epoch <= sent:
                        self._broken(state, f"G7: epoch {way.epoch} is sent by another view")
                    sent = way.epoch
                if way.entered is not None and way.entered[: len(confirmed)] != confirmed:
                    self._broken(state, f"G8: epoch {sent} is entered without what was confirmed")
                if way.confirmed is not None:
                    confirmed = way.confirmed
                others = rest
                if way.renewed:
                    others = tuple(
                        tuple(self._forgotten(number, way.renewed) for number in numbers)
                        for numbers in rest
                    )
                census = tuple(
                    tuple(sorted(one + two)) for one, two in zip(way.census, others, strict=True)
                )
                yield self._canonical(State(census, confirmed, sent))

    def _forgotten(self, number: int, renewed: int) -> int:
        part = self.model.parts[number]
        return self.model.number(part._replace(held=part.held & ~renewed))

    def _darkened(self, census: Census) -> Iterator[Census]:
        """Let some members lose power."""
        choices: list[list[tuple[int, ...]]] = []
        for numbers in census:
            found: list[list[tuple[int, ...]]] = []
            for number, count in Counter(numbers).items():
                dark = self._dark.get(number)
                if dark is None:
                    part = self.model.parts[number]
                    dark = self.model.number(without_power(part, waits=self.rules.waits))
                    self._dark[number] = dark
                most = count if dark != number else 0
                found.append([(number,) * (count - n) + (dark,) * n for n in range(most + 1)])
            choices.append([sum(way, ()) for way in product(*found)])
        for way in product(*choices):
            yield tuple(tuple(sorted(numbers)) for numbers in way)

    def _robbed(self, census: Census) -> Iterator[Census]:
        """The failure model: a disk is lost while all others are there, and are quorate."""
        everybody = [
            (place, name, self.model.parts[number])
            for place, numbers in enumerate(census)
            for number, name in zip(numbers, self.rules.classes[place], strict=True)
        ]
        for place, numbers in enumerate(census):
            for number in set(numbers):
                name = self.rules.classes[place][numbers.index(number)]
                others = [one for one in everybody if one[1] != name]
                logs = [p.log for place_, _, p in others if not self.rules.is_arbitrator(place_)]
                latest = max(logs, key=lambda log: (log[-1][0] if log else 0, len(log)), default=())
                if not latest:
                    continue
                electorate = parse(self.rules.stages[latest[-1][2]])
                voting = [n for n in electorate.names if n != name]
                whole = all(p.log for _, n, p in others if n in voting)
                if whole and not electorate.changing and electorate.quorate(voting):
                    held = self.model.parts[number].held
                    lost = self.model.number(Part(waits=self.rules.waits, held=held))
                    rest = list(numbers)
                    rest[rest.index(number)] = lost
                    yield (*census[:place], tuple(sorted(rest)), *census[place + 1 :])

    # -- states that are one ---------------------------------------------------------------------

    def _canonical(self, state: State) -> State:
        """The state without the history that all members and the confirmed one share, and its
        epochs."""
        if not state.confirmed:
            return state
        found = self._alike.get(state)
        if found is not None:
            return found
        parts_here = [self.model.parts[n] for n in {n for ns in state.census for n in ns}]
        arbiters = {
            n
            for place, ns in enumerate(state.census)
            if self.rules.is_arbitrator(place)
            for n in ns
        }
        logs = [state.confirmed]
        logs += [
            self.model.parts[n].log
            for place, ns in enumerate(state.census)
            if not self.rules.is_arbitrator(place)
            for n in set(ns)
            if self.model.parts[n].filled
        ]
        lowest, highest = min(logs), max(logs)
        shared = 0
        for one, two in zip(lowest, highest, strict=False):
            if one != two:
                break
            shared += 1
        if not shared:
            return state
        epochs = [state.sent, lowest[shared - 1][0]]
        for part in parts_here:
            epochs += [one[0] for one in part.log[shared - 1 :]] if part.log else []
            epochs += [one[0] for one in part.unstable]
            epochs += [part.promised] if part.promised else []
        epochs += [self.model.parts[n].log[0][0] for n in arbiters if self.model.parts[n].log]
        down = min(epochs) - 1
        if shared == 1 and not down and not lowest[0][1]:
            self._alike[state] = state
            return state
        census = tuple(
            tuple(
                sorted(
                    self._shift(n, 1 if self.rules.is_arbitrator(place) else shared, down)
                    for n in ns
                )
            )
            for place, ns in enumerate(state.census)
        )
        found = State(census, shifted(state.confirmed, shared, down), state.sent - down)
        self._alike[state] = found
        return found

    def _shift(self, number: int, shared: int, down: int) -> int:
        key = number, shared, down
        found = self._shifted.get(key)
        if found is None:
            part = self.model.parts[number]
            found = self._shifted[key] = self.model.number(
                part._replace(
                    log=shifted(part.log, shared, down),
                    promised=part.promised - down if part.promised else 0,
                    unstable=tuple((e - down, n, s) for e, n, s in part.unstable),
                )
            )
        return found

    # -- the way there ---------------------------------------------------------------------------

    def _broken(self, state: State, what: str) -> None:
        way: list[str] = []
        at: State | None = state
        while at is not None:
            way.append(self.describe(at))
            at = self.came[at]
        raise Broken("\n".join([what, *reversed(way)]))

    def describe(self, state: State) -> str:
        """One state, for people."""
        words = []
        for place, numbers in enumerate(state.census):
            for name, number in zip(self.rules.classes[place], numbers, strict=True):
                part = self.model.parts[number]
                log = "".join(f" {e}.{n}" + "'" * s for e, n, s in part.log)
                unstable = "".join(f" {e}.{n}" for e, n, _ in part.unstable)
                flags = "".join(
                    letter
                    for letter, yes in (("r", part.ran), ("c", part.complete), ("h", part.held))
                    if yes
                )
                words.append(f"{name}[{log} | {unstable} ] p{part.promised} {flags}")
        confirmed = "".join(f" {e}.{n}" for e, n, _ in state.confirmed)
        return f"  {'; '.join(words)}; confirmed{confirmed}, sent {state.sent}"


def shifted(log: Log, shared: int, down: int) -> Log:
    """A log with only the last of its first `shared` entries, and lower epochs."""
    if not log:
        return log
    (epoch, _, stage), *rest = log[shared - 1 :]
    return ((epoch - down, 0, stage), *((e - down, n, s) for e, n, s in rest))


def parts(census: Census) -> Iterator[tuple[Census, Census]]:
    """Each choice of members, and the others; members in the same state stand for each other."""
    choices: list[list[tuple[tuple[int, ...], tuple[int, ...]]]] = []
    for numbers in census:
        groups = Counter(numbers)
        ways = product(*(range(count + 1) for count in groups.values()))
        choices.append(
            [
                (
                    sum(((n,) * c for n, c in zip(groups, way, strict=True)), ()),
                    sum(((n,) * (groups[n] - c) for n, c in zip(groups, way, strict=True)), ()),
                )
                for way in ways
            ]
        )
    for picked in product(*choices):
        yield tuple(one for one, _ in picked), tuple(two for _, two in picked)
