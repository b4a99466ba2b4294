"""Digests vote, not errors: who computed something else, decided at one point of the order.

Every `interval` positions each member that is level multicasts (epoch, position, chain, root) as
an ordered command.  All members count the same votes at the same positions, so they reach the same
verdict without another message: a value held by a majority of the configured voters wins, and a
member that voted otherwise is divergent.  It fences itself, keeps its store as evidence, and comes
back by full transfer.  Silence is never agreement.

Pure: votes in, verdicts out.
"""

from __future__ import annotations

from typing import NamedTuple

from vsync.standing import majority

Value = tuple[int, bytes, int]  # epoch, chain, root

CUTS_KEPT = 64
"""How many positions of own values and open votes are remembered; older ones can no longer be
decided and are counted as undecided."""


class Verdict(NamedTuple):
    """The decision about one position.  `split`: all voters spoke and no value has a majority."""

    position: int
    value: Value | None
    divergent: tuple[str, ...]
    split: bool


class DigestVote:
    """Collects the votes of all members; the same at every member that applies the same order."""

    def __init__(self, voters: tuple[str, ...], interval: int) -> None:
        assert interval > 0
        self.voters = voters
        self.interval = interval
        self.counters: dict[str, int] = {"agreed": 0, "undecided": 0, "divergent": 0}
        self._votes: dict[int, dict[str, Value]] = {}
        self._decided: dict[int, Value] = {}

    def is_cut(self, before: int, after: int) -> bool:
        """Whether an item that moved the position from `before` to `after` ends at a cut."""
        return before // self.interval != after // self.interval

    def vote(self, member: str, position: int, value: Value) -> Verdict | None:
        """Count one member's ordered vote; return the verdict when it decides something new."""
        if position in self._decided:
            if value == self._decided[position]:
                return None
            self.counters["divergent"] += 1
            return Verdict(position, self._decided[position], (member,), False)
        votes = self._votes.setdefault(position, {})
        votes[member] = value
        tally: dict[Value, int] = {}
        for name in self.voters:
            if name in votes:
                tally[votes[name]] = tally.get(votes[name], 0) + 1
        for candidate, count in tally.items():
            if count >= majority(len(self.voters)):
                return self._decide(position, candidate, votes)
        if len(tally) > 1 and sum(tally.values()) == len(self.voters):
            del self._votes[position]
            self.counters["divergent"] += 1
            return Verdict(position, None, (), True)
        self._forget()
        return None

    def _decide(self, position: int, value: Value, votes: dict[str, Value]) -> Verdict:
        del self._votes[position]
        self._decided[position] = value
        self._forget()
        divergent = tuple(name for name, vote in votes.items() if vote != value)
        self.counters["divergent" if divergent else "agreed"] += 1
        return Verdict(position, value, divergent, False)

    def _forget(self) -> None:
        while len(self._votes) > CUTS_KEPT:
            del self._votes[min(self._votes)]
            self.counters["undecided"] += 1
        while len(self._decided) > CUTS_KEPT:
            del self._decided[min(self._decided)]
