"""Digest votes: which members computed another state, decided at one position of the order.

At each activation, and every `interval` positions, each member that has caught up multicasts
(epoch, position, chain, root) as an ordered command. All members count the same votes at the same
positions, so they reach the same verdict without another message:

- a value held by a majority of the voters wins, and a member that voted otherwise is divergent: it
  fences itself, keeps its store as evidence, and comes back by full transfer;
- a voter that got its state from another is on *probation*: it is judged, but it outvotes nobody,
  because its opinion is its donor's, until a majority of voters other than itself agreed with its
  vote;
- votes that differ when all have voted, without a winner, are *split* (see `split_vote`).

A majority has more than half of the votes by the rule of `vsync.quorum.voter_set`, during a change
of the voters under both sets. Rules that only decide who may continue do not show who is right: a
tie is a split whatever the tie breaker. An arbitrator has no opinion; it adds its votes to a value
to which no present member objects, and never decides between two values.

A missing vote is never agreement, and it delays nothing: a member that votes at later positions, or
not at all for `SILENT_CUTS`, is not waited for.

Pure: votes in, verdicts out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from vsync.quorum.voter_set import Terms, parse

Value = tuple[int, bytes, int]  # epoch, chain, root

CUTS_KEPT = 64
"""How many positions of own values and open votes are remembered; older ones can no longer be
decided and count as undecided."""
SILENT_CUTS = 3
"""A member is not waited for once the others have voted at this many later positions."""


class DigestVerdict(NamedTuple):
    """The decision about one position. `split`: all voted, votes differ, and none has won."""

    position: int
    value: Value | None
    divergent: tuple[str, ...]
    split: bool
    votes: dict[str, Value]


class _Decision(NamedTuple):
    """How the vote about a position ended; `value` None: split, and only a further vote can change
    that."""

    value: Value | None
    firm: bool  # a majority of voters off probation was for it


class DigestVote:
    """Collects the votes of all members; the same at every member that applies the same order.

    `terms` say who votes (`vsync.quorum.voter_set`); `present` are the members of the view; `fresh`
    are those of them whose state was transferred.
    """

    def __init__(
        self,
        terms: Terms,
        interval: int,
        present: tuple[str, ...],
        fresh: tuple[str, ...] = (),
    ) -> None:
        assert interval > 0
        self.electorate = parse(terms)
        self.voters = self.electorate.data_names
        self.arbitrators = self.electorate.arbitrators.intersection(present)
        self.interval = interval
        self.counters: dict[str, int] = {"agreed": 0, "undecided": 0, "divergent": 0, "split": 0}
        self.probation = {name: True for name in fresh if name in self.voters}
        self._present = tuple(name for name in present if name in self.voters)
        self._votes: dict[int, dict[str, Value]] = {}
        self._decided: dict[int, _Decision] = {}
        self._latest: dict[str, int] = {}

    def is_cut(self, before: int, after: int) -> bool:
        """Whether an item that moved the position from `before` to `after` ends at a cut."""
        return before // self.interval != after // self.interval

    def vote(self, member: str, position: int, value: Value) -> list[DigestVerdict]:
        """Count one member's ordered vote; return the decisions that it newly causes."""
        self._latest[member] = max(position, self._latest.get(member, 0))
        self._votes.setdefault(position, {})[member] = value
        end = self._decided.get(position)
        if end is not None:
            if end.value == value:
                self._end_probation(position)
                self._decided[position] = _Decision(
                    value, end.firm or self._is_firm(position, value)
                )
                return []
            if end.value is None and member not in self.voters:
                return []
            if end.firm or member not in self.voters:
                self.counters["divergent"] += 1
                return [DigestVerdict(position, end.value, (member,), False, {member: value})]
            # Too few voters off probation were for it, but no vote was against it; now one is.
            del self._decided[position]
        found = [self._judge(at) for at in sorted(self._votes) if at not in self._decided]
        self._forget()
        return [verdict for verdict in found if verdict is not None]

    def _judge(self, position: int) -> DigestVerdict | None:
        votes = self._votes[position]
        held = self._held(position)
        awaited = any(self._awaits(name, position, votes) for name in self._present)
        for value, names in held.items():
            firm = self._is_firm(position, value)
            if firm or (len(held) == 1 and self._unopposed(names, awaited=awaited)):
                self._decided[position] = _Decision(value, firm)
                divergent = tuple(name for name, vote in votes.items() if vote != value)
                self.counters["divergent" if divergent else "agreed"] += 1
                self._end_probation(position)
                return DigestVerdict(position, value, divergent, False, dict(votes))
        if len(held) < 2 or awaited:
            return None
        self._decided[position] = _Decision(None, False)
        self.counters["split"] += 1
        return DigestVerdict(position, None, (), True, dict(votes))

    def _held(self, position: int) -> dict[Value, set[str]]:
        """The voters for each value, in the order of their names."""
        votes = self._votes[position]
        held: dict[Value, set[str]] = {}
        for name in self.voters:
            if name in votes:
                held.setdefault(votes[name], set()).add(name)
        return held

    def _is_firm(self, position: int, value: Value) -> bool:
        """Whether a majority off probation holds it."""
        sure = self._held(position).get(value, set()) - self.probation.keys()
        return self.electorate.outvotes(sure)

    def _unopposed(self, names: Collection[str], *, awaited: bool) -> bool:
        """Whether the only value voted for is agreed."""
        if self.electorate.outvotes(names):
            return True
        return not awaited and self.electorate.outvotes(self.arbitrators.union(names))

    def _awaits(self, name: str, position: int, votes: dict[str, Value]) -> bool:
        if name in votes or name in self.probation or self._latest.get(name, 0) > position:
            return False
        newest = max(self._latest.values(), default=0)
        return newest < position + SILENT_CUTS * self.interval

    def _end_probation(self, position: int) -> None:
        """End the probation of each voter that a majority of the other voters confirms."""
        votes, held = self._votes[position], self._held(position)
        for name in list(self.probation):
            if name in votes and self.electorate.outvotes(held[votes[name]] - {name}):
                del self.probation[name]

    def _forget(self) -> None:
        while len(self._votes) > CUTS_KEPT:
            oldest = min(self._votes)
            del self._votes[oldest]
            self.counters["undecided"] += self._decided.pop(oldest, None) is None
