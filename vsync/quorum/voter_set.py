"""Voter sets: which members together may act, and why two disjoint groups never may.

The voter set is replicated. It is sent and stored as *terms*, a tuple of texts that stores,
commands and messages carry without looking inside:

    NAME  NAME=VOTES      a member that votes and holds data
    @arbitrator=NAME[=V]  a member that votes and holds no data
    @expected_votes=N     the votes from which the quorum is computed; by default the sum of all
    @two_node             one of two may continue alone; refused unless an arbitrator decides which
    @wait_for_all         a start, or a return after the quorum was lost, waits for every voter
    @auto_tie_breaker=X   of two halves the one with this voter continues: lowest, highest, or a
                          list separated by `+`, of which the first voter that counts is meant
    @last_man_standing=MS voters away for this long stop counting, one ordered change for each
    @away=NAME            such a voter
    @pair=NAME            two members with data, and the vote of a pair: see below
    @declared             one of a pair is alone because an operator declared the other one lost
    ->                    between two sets of terms: the change from one to the other is under way

The plainest voter set is `("a", "b", "c")`. The options are those of corosync's votequorum and
CMAN, whose formula is  E = expected votes, quorum = E // 2 + 1. Where these depend on the previous
view and on time, the result here is a function of the replicated set alone.

One rule decides everything: a *formation* needs a quorate set of members, and a confirmed message
must be *durable* at a quorate set. `VoterSet.flaw` looks at every subset: a voter set under which
two disjoint subsets are quorate is refused, and the two subsets are named. While a change is under
way both sets must agree (joint consensus), so any change is safe whatever crashes in the middle.

An arbitrator holds no data, so its vote alone proves nothing about data. It keeps a *record*: the
last epoch it saw activated, and the voters that hold everything this epoch confirmed. In a
formation its vote counts only beside one of these voters, or beside a member of a later epoch. For
durability it counts only when every caught up voter of the view is durable, because the arbitrator
may later form a view with any of them.

A *pair* is two voters with one vote each, and a third vote that belongs to no machine. Together the
two need no one else. A member that lost the other forms a view alone when it *holds that vote*;
this layer does not judge that, the mode in use does (`StateReport.vote`). The first view of the
lone member marks the other one `@away`, which records in its state and on its disk that it
continued alone. From then on it needs no vote. The other member, whose set has two voters, has no
quorum alone; it counts again by an ordered change, once it has the state. Both may take the vote
when they lose each other and both live; then each marks the other `@away`. In that case the history
of the member that an operator declared is kept (`@declared`), and otherwise that of NAME.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from vsync.errors import ConfigError
from vsync.quorum.durable_position import durable_up_to
from vsync.types import record

CHANGE = "->"
Terms = tuple[str, ...]
EXACT_MAX = 18
"""The most voters of a set: all subsets are checked, and 2 ** 18 is a quarter of a million."""
JUDGED_MAX = 1024
"""The number of subsets whose verdict is cached: all subsets of ten voters."""


def majority(votes: int) -> int:
    """Return the smallest number of votes that two disjoint groups cannot both have."""
    return votes // 2 + 1


class EpochRecord(NamedTuple):
    """An arbitrator's record: the last epoch it saw activated, and which voters hold all of it."""

    epoch: int
    holders: frozenset[str]


@record
class VoterSet:
    """One set of voters and its rule. Built by `parse`; `terms` is the inverse."""

    votes: Mapping[str, int]  # of the members with data, by name
    arbitrator: str = ""
    arbitrator_votes: int = 1
    expected: int = 0  # 0: the sum of all votes
    two_node: bool = False
    wait_for_all: bool = False
    tie_breaker: tuple[str, ...] = ()
    last_man_standing_ms: int = 0  # last_man_standing's window; 0: off
    away: frozenset[str] = frozenset()
    pair: str = ""  # whose history is kept if both continued alone; empty: no pair
    declared: bool = False  # an operator declared that the absent one is lost
    # Computed once, because every arriving mark asks for the durable position.
    counted: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The votes of the members with data that are not away."""
    total: int = field(init=False, repr=False, compare=False)
    """The votes from which the quorum is computed."""
    breaker: str = field(init=False, repr=False, compare=False)
    """The voter that decides between two halves; empty: none."""
    judged: dict[frozenset[str], bool] = field(init=False, repr=False, compare=False)
    """Cache: whether these members, which have reached a position, have a quorum."""

    def __post_init__(self) -> None:
        counted = {name: votes for name, votes in self.votes.items() if name not in self.away}
        there = sum(counted.values()) + (self.arbitrator_votes if self.arbitrator else 0)
        derived = {
            "counted": counted, "total": self.expected or there,
            "breaker": _breaker(self.tie_breaker, sorted(counted)), "judged": {},
        }  # fmt: skip
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def terms(self) -> Terms:
        """The set as terms, always in the same order."""
        found = [n if v == 1 else f"{n}={v}" for n, v in sorted(self.votes.items())]
        if self.arbitrator:
            more = "" if self.arbitrator_votes == 1 else f"={self.arbitrator_votes}"
            found.append(f"@arbitrator={self.arbitrator}{more}")
        found += self.rule
        found += [f"@away={name}" for name in sorted(self.away)]
        return (*found, "@declared") if self.declared else tuple(found)

    @property
    def rule(self) -> list[str]:
        """The terms that are options, not members."""
        found = [f"@expected_votes={self.expected}"] if self.expected else []
        found += ["@two_node"] if self.two_node else []
        found += ["@wait_for_all"] if self.wait_for_all else []
        found += ["@auto_tie_breaker=" + "+".join(self.tie_breaker)] if self.tie_breaker else []
        found += (
            [f"@last_man_standing={self.last_man_standing_ms}"] if self.last_man_standing_ms else []
        )
        found += [f"@pair={self.pair}"] if self.pair else []
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All voters, the arbitrator last."""
        return (*sorted(self.votes), *filter(None, (self.arbitrator,)))

    @property
    def quorum(self) -> int:
        """The number of votes that is enough, ties aside."""
        if self.two_node and not self.arbitrator and len(self.counted) <= 2:
            return 1
        return majority(self.total)

    def votes_of(self, names: Collection[str]) -> int:
        """Return the sum of the votes of these members."""
        held = sum(votes for name, votes in self.counted.items() if name in names)
        voted = self.arbitrator and self.arbitrator in names
        return held + (self.arbitrator_votes if voted else 0)

    def quorate(self, names: Collection[str]) -> bool:
        """Whether these members may act: enough votes, and at least one with data."""
        return self.outvotes(names) or (
            self.breaker in names and 2 * self.votes_of(names) == self.total
        )

    def outvotes(self, names: Collection[str]) -> bool:
        """Whether these members have more votes than all others together, without a tie breaker."""
        return any(name in names for name in self.counted) and self.votes_of(names) >= self.quorum

    def durable(self, marks: Mapping[str, int], caught_up: Collection[str], epoch: int) -> int:
        """Return the position that no later formation can lose.

        `marks`: by member, the position that it made durable (for the arbitrator, the epoch of its
        record). Only members that have `caught_up` count: the mark of any other may belong to
        another history.
        """
        held = {n: marks.get(n, 0) for n in self.counted if n in caught_up}
        position = durable_up_to(held, self._have_reached)
        recorded = self.arbitrator in caught_up and marks.get(self.arbitrator, 0) >= epoch
        if recorded and self.quorate({*held, self.arbitrator}):
            position = max(position, min(held.values()))
        return position

    def _have_reached(self, names: set[str]) -> bool:
        """Whether these members are quorate; cached, because only a few such sets ever occur."""
        key = frozenset(names)
        found = self.judged.get(key)
        if found is None:
            if len(self.judged) >= JUDGED_MAX:
                self.judged.clear()
            found = self.judged[key] = self.quorate(key)
        return found

    def credible(
        self, epochs: Mapping[str, int], records: Mapping[str, EpochRecord]
    ) -> frozenset[str]:
        """Return the members whose vote counts in a formation.

        `epochs`: of the state of each present member with data; `records`: of the present
        arbitrators.
        """
        record = records.get(self.arbitrator)
        if record is not None and any(
            epochs[name] > record.epoch or name in record.holders
            for name in self.counted
            if name in epochs
        ):
            return frozenset({*epochs, self.arbitrator})
        return frozenset(epochs)

    def flaw(self) -> str:
        """Return why this set must not be used; empty if it may be used.

        Being quorate is monotone (more members never harm), so two disjoint quorate sets exist
        exactly when the complement of some quorate set is quorate: 2^n subsets decide it.
        """
        names = [*self.counted, *filter(None, (self.arbitrator,))]
        if not self.counted:
            return "nobody with data votes"
        by_name = self.tie_breaker not in (("lowest",), ("highest",))
        kept = (self.pair,) if self.pair else ()
        for name in (*self.away, *(self.tie_breaker if by_name else ()), *kept):
            if name not in self.votes:
                return f"'{name}' is named in the rule and does not vote"
        if len(names) > EXACT_MAX:
            return f"{len(names)} voters are more than the {EXACT_MAX} that can be checked"
        if self.pair and (
            len(self.votes) != 2
            or self.terms != pair_terms(self.pair, self.votes, self.away, declared=self.declared)
        ):
            return "a pair is two members with data and one vote each, and has no other rule"
        if self.declared and not (self.pair and self.away):
            return "@declared is said of one that is away, of a pair"
        if not self.quorate(names):
            return (
                f"even all voters together ({', '.join(names)}) have {self.votes_of(names)} votes, "
                f"{self.quorum} are needed"
            )
        if self.last_man_standing_ms and self.arbitrator:
            return (
                "last_man_standing and an arbitrator exclude each other: the arbitrator already "
                "lets the last member with data go on, and could not be counted down"
            )
        if self.two_node and len(self.votes) > 2:
            return f"two_node is for two members with data, here are {len(self.votes)}"
        pair = self._disjoint(names)
        if pair is None:
            return ""
        one, two = (" + ".join(part) for part in pair)
        remedy = (
            "an arbitrator or auto_tie_breaker would decide" if len(self.votes) % 2 == 0 else ""
        )
        return (
            f"two groups could act apart, each without the other: {{{one}}} and {{{two}}}; what "
            f"one confirms the other would not know{f' ({remedy})' if remedy else ''}"
        )

    def _disjoint(self, names: list[str]) -> tuple[list[str], list[str]] | None:
        """Find two quorate sets without a common member, the first of them as small as possible."""
        weights = [self.votes_of((name,)) for name in names]
        tie = self.total / 2 if self.breaker else None
        breaker = names.index(self.breaker) if self.breaker else 0
        everything, need = sum(weights), self.quorum
        data = (1 << len(self.counted)) - 1
        best: int | None = None
        sums = [0] * (1 << len(names))
        for subset in range(1, 1 << len(names)):
            lowest = subset & -subset
            held = sums[subset] = sums[subset ^ lowest] + weights[lowest.bit_length() - 1]
            rest, other = everything - held, ~subset
            if not (subset & data and other & data):
                continue
            if not (held >= need or (held == tie and subset >> breaker & 1)):
                continue
            if not (rest >= need or (rest == tie and other >> breaker & 1)):
                continue
            if best is None or subset.bit_count() < best.bit_count():
                best = subset
        if best is None:
            return None
        ours = [name for place, name in enumerate(names) if best >> place & 1]
        return ours, [name for name in names if name not in ours]


@record
class Electorate:
    """The voter sets in force: one, or two while a change is under way."""

    sets: tuple[VoterSet, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All voters of any of the sets."""
        return tuple(dict.fromkeys(name for one in self.sets for name in one.names))

    @property
    def data_names(self) -> tuple[str, ...]:
        """All voters with data."""
        return tuple(sorted({name for one in self.sets for name in one.votes}))

    @property
    def arbitrators(self) -> frozenset[str]:
        """The voters without data."""
        return frozenset(one.arbitrator for one in self.sets if one.arbitrator)

    @property
    def latest(self) -> VoterSet:
        """The set in force, or the one that follows it."""
        return self.sets[-1]

    @property
    def changing(self) -> bool:
        """Whether a change is under way."""
        return len(self.sets) > 1

    def quorate(self, names: Collection[str]) -> bool:
        """Whether these members may act; during a change under both sets."""
        return bool(self.sets) and all(one.quorate(names) for one in self.sets)

    def outvotes(self, names: Collection[str]) -> bool:
        """Whether these members outvote all others; during a change under both sets."""
        return bool(self.sets) and all(one.outvotes(names) for one in self.sets)

    def credible(
        self, epochs: Mapping[str, int], records: Mapping[str, EpochRecord]
    ) -> frozenset[str]:
        """Return the members whose vote counts in a formation, under every set they vote in.

        When all voters with data are present an arbitrator always votes: everything confirmed is on
        a disk that is here. Otherwise a change could wait for ever, because the last holder may be
        the one being removed.
        """
        found = frozenset(epochs) | records.keys()
        if all(name in epochs for name in self.data_names):
            return found
        for one in self.sets:
            if one.arbitrator:
                found &= one.credible(epochs, records) | (records.keys() - {one.arbitrator})
        return found

    def wants_all(self) -> bool:
        """Whether a start waits for every voter."""
        return any(one.wait_for_all for one in self.sets)

    def durable(self, marks: Mapping[str, int], caught_up: Collection[str], epoch: int) -> int:
        """Return the position that no later formation can lose; during a change under both sets.

        A change itself must be known to every caught up voter, so that a voter just added or
        removed never forms with an arbitrator on the strength of the previous set.
        """
        if not self.sets:
            return 0
        position = self.sets[0].durable(marks, caught_up, epoch)
        for one in self.sets[1:]:
            names = (n for n in self.data_names if n in caught_up)
            position = min(
                [position, one.durable(marks, caught_up, epoch), *(marks.get(n, 0) for n in names)]
            )
        return position

    def describe(self, present: Collection[str]) -> str:
        """Return which voters are present and how many are needed, for people."""
        words = []
        for one in self.sets:
            here = [name for name in one.names if name in present]
            missing = ", ".join(name for name in one.names if name not in present)
            weighted = one.total != len(one.names)
            text = f"{len(here)} of {len(one.names)} voters here"
            if weighted:
                text += f" with {one.votes_of(present)} of {one.total} votes"
            if not one.quorate(present):
                text += f", {one.quorum} {'votes ' if weighted else ''}needed"
                text += f"; missing: {missing}" if missing else ""
            words.append(text)
        return "; and for the voters that are to come: ".join(words)


@lru_cache(maxsize=64)
def parse(terms: Terms) -> Electorate:
    """Parse terms; ConfigError names the term that cannot be parsed."""
    sets, part = [], list[str]()
    for term in (*terms, CHANGE):
        if term != CHANGE:
            part.append(term)
            continue
        if part:
            sets.append(_parse_set(part))
        part = []
    if len(sets) > 2:
        raise ConfigError(f"voter terms {terms} hold more than one change")
    return Electorate(tuple(sets))


def voter_set(terms: Terms) -> VoterSet:
    """Return the set in force, or the one that follows it; an empty one for no terms."""
    sets = parse(terms).sets
    return sets[-1] if sets else VoterSet({})


def pair_terms(
    kept: str, names: Collection[str], away: Collection[str] = (), *, declared: bool = False
) -> Terms:
    """Return the terms of a pair of which these members are away."""
    terms = (*sorted(names), f"@pair={kept}", *(f"@away={name}" for name in sorted(away)))
    return (*terms, "@declared") if declared else terms


def _breaker(tie_breaker: tuple[str, ...], counted: list[str]) -> str:
    """The voter that a tie-breaker rule selects among those that count."""
    match tie_breaker:
        case () | _ if not counted:
            return ""
        case ("lowest",):
            return counted[0]
        case ("highest",):
            return counted[-1]
        case listed:
            return next((name for name in listed if name in counted), "")


def _number(term: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1_000_000:
        raise ConfigError(f"'{text}' in the voter term '{term}' is not a number from 1 to 1000000")
    return int(text)


def _name_and_votes(term: str, text: str) -> tuple[str, int]:
    name, equals, votes = text.partition("=")
    bad = name.startswith("@") or "+" in name or any(c.isspace() for c in name)
    if not name or bad or not name.isprintable():
        raise ConfigError(f"{name!r} in the voter term {term!r} cannot be a member's name")
    return name, _number(term, votes) if equals else 1


def _parse_set(terms: list[str]) -> VoterSet:
    votes: dict[str, int] = {}
    fields: dict[str, object] = {}
    away: set[str] = set()
    for term in terms:
        if not term.startswith("@"):
            name, number = _name_and_votes(term, term)
            votes[name] = number
            continue
        option, _, value = term[1:].partition("=")
        match option:
            case "arbitrator":
                fields["arbitrator"], fields["arbitrator_votes"] = _name_and_votes(term, value)
            case "expected_votes":
                fields["expected"] = _number(term, value)
            case "two_node" | "wait_for_all" | "declared" if not value:
                fields[option] = True
            case "auto_tie_breaker" if value:
                fields["tie_breaker"] = tuple(value.split("+"))
            case "last_man_standing":
                fields["last_man_standing_ms"] = _number(term, value)
            case "away":
                away.add(value)
            case "pair" if value:
                fields["pair"] = value
            case _:
                raise ConfigError(f"'{term}' is no voter term that this release knows")
    return VoterSet(votes, away=frozenset(away), **fields)  # type: ignore[arg-type]
