"""What matters of a member for votes: the states of `exhaustive`, and the real rules for them.

A member is its log, its promise and its unstable messages; a log is a tuple of entries, and an
entry its epoch, its number in that (0: the activation) and the voters after it.  Members are
numbers of parts; those that vote alike are interchangeable (`Rules.classes`).  `abstract_view` says
how views of them end.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.explore.world import Case
from vsync.primary.events import StateReport
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.quorum.reconfiguration import change_to
from vsync.quorum.voter_set import Terms, parse, voter_set

Entry = tuple[int, int, int]  # epoch, number in it, voters after it (index in `Rules.stages`)
Log = tuple[Entry, ...]
Census = tuple[tuple[int, ...], ...]  # by class, the numbers of the members' parts, ascending

ABOVE = 1_000
"""The length of every base, where positions must not be negative."""
ACTIVATION, COMMAND, PARTIAL = range(3)
"""How closely a view is examined: activations only; with a command after it, or a change of the
voters; with messages that only some have received."""


class Part(NamedTuple):
    """One member.  An arbitrator's `log` is one entry, that of its record, or empty."""

    filled: bool = False
    log: Log = ()
    promised: int = 0
    unstable: Log = ()
    complete: bool = False
    ran: bool = False
    waits: bool = False
    held: int = 0  # a bit for each arbitrator whose record names this member
    stage: int = 0  # of an arbitrator: the voters that it got last


class Rules:
    """A voter set, and how members with equal roles are counted as one kind."""

    def __init__(self, case: Case) -> None:
        old = voter_set(case.terms)
        self.case = case
        self.stages: tuple[Terms, ...] = (case.terms,)
        if case.change:
            self.stages += (change_to(case.terms, case.change), case.change)
        sets = [voter_set(terms) for terms in self.stages[::2]]
        kinds: dict[tuple[object, ...], list[str]] = {}
        for name in (*old.names, *case.spare):
            kind = tuple(
                (
                    one.votes.get(name), name == one.arbitrator, name == one.breaker,
                    name in one.tie_breaker, name in one.away,
                )
                for one in sets
            )  # fmt: skip
            kinds.setdefault((*kind, name in case.spare), []).append(name)
        self.classes = tuple(tuple(names) for names in kinds.values())
        self.size = len(old.votes)
        self.requested = tuple(term for term in old.terms if term.startswith("@") or "=" in term)
        self.arbitrators = sorted({one.arbitrator for one in sets if one.arbitrator})
        self._votes_only = [names[0] in self.arbitrators for names in self.classes]
        self.waits = any(one.wait_for_all for one in sets)
        self.newcomers = frozenset(sets[-1].names) - frozenset(old.names)

    def is_arbitrator(self, place: int) -> bool:
        """Whether a class is that of an arbitrator."""
        return self._votes_only[place]

    def bit(self, place: int) -> int:
        """The bit of that arbitrator in `Part.held`."""
        return 1 << self.arbitrators.index(self.classes[place][0])


class Model:
    """All possible outcomes of a view, remembered."""

    def __init__(self, case: Case, closeness: int) -> None:
        self.rules, self.closeness = Rules(case), closeness
        self.parts: list[Part] = []
        self._numbers: dict[Part, int] = {}
        self._chains: dict[Log, bytes] = {(): ZERO_CHAIN}
        self._durable: dict[tuple[object, ...], int] = {}

    def number(self, part: Part) -> int:
        """The number of a part."""
        found = self._numbers.get(part)
        if found is None:
            found = self._numbers[part] = len(self.parts)
            self.parts.append(part)
        return found

    def first(self) -> Census:
        """All members, with nothing on disk."""
        empty = self.number(Part(waits=self.rules.waits))
        return tuple((empty,) * len(names) for names in self.rules.classes)

    def durable(
        self, stage: int, marks: tuple[tuple[str, int], ...], caught_up: frozenset[str]
    ) -> int:
        """How much above the base of a view is durable; an arbitrator's mark is 1 with its record,
        else 0."""
        key = stage, marks, caught_up
        found = self._durable.get(key)
        if found is None:
            shifted = {
                name: mark if name in self.rules.arbitrators else mark + ABOVE
                for name, mark in marks
            }
            position = parse(self.rules.stages[stage]).durable(shifted, caught_up, 1)
            found = self._durable[key] = max(0, position - ABOVE)
        return found

    # -- what the members report -------------------------------------------------------------------

    def state_report(self, part: Part, name: str) -> StateReport:
        """Its state report."""
        log = part.log
        epoch = log[-1][0] if log else 0
        arbitrator = name in self.rules.arbitrators
        stage = part.stage if arbitrator or not log else log[-1][2]
        reach = max([epoch, *(one[0] for one in part.unstable if not one[1])])
        return StateReport(
            filled=part.filled and (bool(log) or not arbitrator),
            live=part.ran and not arbitrator, ran=part.ran,
            patient=not part.filled and name in self.rules.case.spare,
            cluster_id="one" if part.filled else "", proposal="one",
            voters=self.rules.stages[stage] if part.filled else (),
            size=self.rules.size, promised_epoch=part.promised, state_epoch=epoch,
            position=0 if arbitrator else len(log),
            chain=ZERO_CHAIN if arbitrator else self._chain(log),
            order=ZERO_CHAIN if arbitrator else self._chain(log), label="",
            reach=reach, complete=part.complete, unstable=len(part.unstable),
            requested=self.rules.requested, arbitrator=arbitrator, waits=part.waits,
        )  # fmt: skip

    def _chain(self, log: Log) -> bytes:
        found = self._chains.get(log)
        if found is None:
            found = self._chains[log] = len(self._chains).to_bytes(16, "big")
        return found


def dark(part: Part, *, waits: bool) -> Part:
    """A member after a loss of power."""
    return part._replace(unstable=(), complete=False, ran=False, waits=waits)
