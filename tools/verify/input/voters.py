"""Votes, counted from the voters that a log names: which members together were a majority.

Written from docs/MEMBERLOG.md ("Voters") and from nothing else: the check must not count with the
arithmetic of the broker that it checks, as a fault in it would then hide itself.  In one sentence:
of two groups of members without a common one, at most one has a majority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tools.verify.findings import BadInput

_CHANGE = "->"


class VoterSet(NamedTuple):
    """One set of voters, and how its votes count."""

    votes: dict[str, int]  # of members with data, by name; without those that are away
    away: tuple[str, ...] = ()  # voters that do not count at present
    arbitrator: str = ""  # votes, and has no data
    arbitrator_votes: int = 0
    expected: int = 0  # the votes to count from; 0: all that there are
    two_node: bool = False  # one of two goes on alone
    tie_breaker: str = ""  # "lowest", "highest", or names separated by "+"

    @property
    def all_votes(self) -> int:
        """Return the votes of which more than half are needed."""
        return self.expected or sum(self.votes.values()) + self.arbitrator_votes

    def votes_of(self, present: Collection[str]) -> int:
        """Return the votes of these members."""
        with_data = sum(votes for name, votes in self.votes.items() if name in present)
        return with_data + (self.arbitrator_votes if self.arbitrator in present else 0)

    def is_majority(self, present: Collection[str]) -> bool:
        """Whether these have more than half of all votes, and one of them has data."""
        if not any(name in present for name in self.votes):
            return False
        if self.two_node and not self.arbitrator and len(self.votes) <= 2:
            return True
        twice = 2 * self.votes_of(present)
        return twice > self.all_votes or (
            twice == self.all_votes and self._decides_ties() in present
        )

    def _decides_ties(self) -> str | None:
        """Return the voter with which one half is enough; None: there is none."""
        counted = sorted(self.votes)
        if not self.tie_breaker or not counted:
            return None
        if self.tie_breaker in ("lowest", "highest"):
            return counted[0 if self.tie_breaker == "lowest" else -1]
        listed = self.tie_breaker.split("+")
        return next((name for name in listed if name in self.votes), None)


class Voters(NamedTuple):
    """The voters in force: one set, or two while one is being replaced by another."""

    sets: tuple[VoterSet, ...]

    @property
    def names(self) -> frozenset[str]:
        """Return all voters, also those that are away, and arbitrators."""
        return self.data_names | self.arbitrators

    @property
    def data_names(self) -> frozenset[str]:
        return frozenset(name for one in self.sets for name in (*one.votes, *one.away))

    @property
    def arbitrators(self) -> frozenset[str]:
        return frozenset(one.arbitrator for one in self.sets if one.arbitrator)

    def is_majority(self, present: Collection[str]) -> bool:
        """Whether these are a majority; while the set is being replaced, of both."""
        return bool(self.sets) and all(one.is_majority(present) for one in self.sets)

    def describe(self, present: Collection[str]) -> str:
        """Return whose votes are there and whose are not, for people."""
        words = [
            f"{one.votes_of(present)} of {one.all_votes} votes"
            + (f", without {', '.join(missing)}" if missing else "")
            for one in self.sets
            for missing in [sorted({*one.votes, one.arbitrator} - {""} - set(present))]
        ]
        return "; and of the voters to come ".join(words)


def read_voters(terms: Iterable[str]) -> Voters:
    """Return the voters that terms of an ACTIVE record name; `BadInput` for an unknown term."""
    sets: list[VoterSet] = []
    part: list[str] = []
    for term in (*terms, _CHANGE):
        if term != _CHANGE:
            part.append(term)
        elif part:
            sets.append(_read_set(part))
            part = []
    return Voters(tuple(sets))


def _read_set(terms: list[str]) -> VoterSet:
    votes = dict(_name_and_votes(term) for term in terms if not term.startswith("@"))
    found = VoterSet(votes)
    away: list[str] = []
    for term in terms:
        option, _, value = term.partition("=")
        match option:
            case "@arbitrator":
                name, number = _name_and_votes(value)
                found = found._replace(arbitrator=name, arbitrator_votes=number)
            case "@expected_votes":
                found = found._replace(expected=_number(term, value))
            case "@two_node":
                found = found._replace(two_node=True)
            case "@auto_tie_breaker":
                found = found._replace(tie_breaker=value)
            case "@away":
                away.append(value)
            case "@wait_for_all" | "@last_man_standing" | "@pair" | "@declared":
                pass  # when a set may start, who is to be away, and why: no matter of counting
            case _ if option.startswith("@"):
                raise BadInput(
                    f"a primary's voters include '{term}', which this release cannot count; check "
                    "with the release that wrote these logs, or a later one"
                )
            case _:
                pass  # a name
    for name in away:
        votes.pop(name, None)
    return found._replace(away=tuple(away))


def _name_and_votes(term: str) -> tuple[str, int]:
    name, equals, number = term.partition("=")
    return name, _number(term, number) if equals else 1


def _number(term: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadInput(f"a primary's voters include '{term}', which has no number of votes")
    return int(text)
