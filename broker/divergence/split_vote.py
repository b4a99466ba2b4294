"""No majority on a digest: who cannot reproduce itself is wrong.

Decision: docs/decisions/0007-quarantine-and-culprits.md.

The votes about a position are split, so no count can tell who is right. Each member re-executes its
own store, from its checkpoint to that position, and says as an ordered command what it got. The
ordered items are the same bytes everywhere, so whoever's re-execution differs from what it had
voted computed, or kept in memory, something wrong: it is named and ejected. The others go on when
they agree and may, by the rule of `vsync.quorum.voter_set` (an arbitrator that is here votes beside
them, and a tie breaker breaks the tie: who is right is decided already). When everybody reproduces
itself the machine is not deterministic, and nobody may go on: all stay silent, and keep the
evidence.

A re-execution from a checkpoint that no agreed vote covers may repeat what was wrong already: it
can convict but not acquit.

Pure: the same at every member that applies the same order.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.divergence.digest_vote import DigestVerdict, Value
from broker.machine.commands import REEXECUTED, Reexecuted
from vsync.quorum.voter_set import Electorate

PROVEN, UNPROVEN, FAILED, ABSENT = 1, 2, 3, 4
"""From an agreed checkpoint; from one that no agreed vote covers; the store cannot be executed; the
store begins behind that position."""


class Settlement(NamedTuple):
    """How a dispute ended.  `value` None: those that remain do not agree, or are not proven."""

    position: int
    culprits: tuple[str, ...]
    unproven: tuple[str, ...]
    value: Value | None
    goes_on: bool
    reason: str


class SplitVote:
    """One split vote, and what the members say of it."""

    def __init__(
        self,
        verdict: DigestVerdict,
        electorate: Electorate,
        arbitrators: frozenset[str] = frozenset(),
    ) -> None:
        """`arbitrators`: those of the voters that are in the view."""
        assert verdict.split
        self.position, self.votes = verdict.position, verdict.votes
        self._electorate, self._arbitrators = electorate, arbitrators
        self._reports: dict[str, Reexecuted] = {}

    @property
    def reason(self) -> str:
        """Return why nobody speaks, for people."""
        waiting = ", ".join(name for name in self.votes if name not in self._reports)
        return (
            f"no majority of the voters agrees about position {self.position}; finding out who "
            f"cannot reproduce its own state, waiting for {waiting}"
        )

    def report(self, member: str, said: Reexecuted) -> Settlement | None:
        """Count one member's ordered report; return the settlement when it is the last one."""
        if said[1] != self.position or member not in self.votes or member in self._reports:
            return None
        self._reports[member] = said
        if len(self._reports) < len(self.votes):
            return None
        culprits = tuple(name for name in self.votes if not self._reproduces(name))
        rest = [name for name in self.votes if name not in culprits]
        unproven = tuple(name for name in rest if self._reports[name][2] != PROVEN)
        values = {self.votes[name]: True for name in rest}
        value = next(iter(values)) if len(values) == 1 and (culprits or not unproven) else None
        may = self._electorate.quorate(self._arbitrators.union(rest))
        goes_on = value is not None and may
        return Settlement(
            self.position, culprits, unproven, value, goes_on,
            self._reason(culprits, unproven, value),
        )  # fmt: skip

    def proves_disk(self, diverged_member: str, settlement: Settlement) -> bool:
        """Whether the culprit's store gives the agreed state: only its memory was wrong.

        Where its outcomes differed, its store has recorded them in its chain.
        """
        said, value = self._reports[diverged_member], settlement.value
        recorded = self.votes[diverged_member][1]
        return (
            value is not None
            and said[2] == PROVEN
            and (recorded, said[3], said[4]) == (value[1], *value[1:])
        )

    def _reproduces(self, name: str) -> bool:
        said = self._reports[name]
        if said[2] in (FAILED, ABSENT):
            return said[2] == ABSENT
        return (said[3], said[4]) == self.votes[name][1:]

    def _reason(
        self, culprits: tuple[str, ...], unproven: tuple[str, ...], value: Value | None
    ) -> str:
        where = f"at position {self.position}"
        if culprits:
            named = ", ".join(culprits)
            said = f"{named} cannot reproduce the state that it voted for {where} and is ejected"
            return said if value is not None else f"{said}; the others still do not agree"
        if unproven:
            named = ", ".join(unproven)
            return (
                f"the members disagree {where}, and nobody is convicted: the last checkpoint of "
                f"{named} is covered by no agreed vote; restart that member, or all"
            )
        return (
            f"every member reproduces its own state {where}, and they differ: the machine is not "
            "deterministic here, nobody may go on; keep the evidence of all members and report it"
        )


def report_of(position: int, verdict: int, chain: bytes, root: int) -> Reexecuted:
    """Return what a member says."""
    return Reexecuted(REEXECUTED, position, verdict, chain, root)
