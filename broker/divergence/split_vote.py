"""A split digest vote, decided by which members can reproduce their own state.

Decision: docs/decisions/0007-quarantine-and-culprits.md.

When the votes about a position are split, no count can tell which is right. Each member re-executes
its own store, from its checkpoint to that position, and multicasts the result as an ordered
command. The ordered items are the same bytes everywhere. So a member whose re-execution differs
from its vote computed something wrong, or kept something wrong in memory: it has diverged and is
ejected. The others continue when they agree and have a quorum, by the rule of
`vsync.quorum.voter_set` (an arbitrator in the view votes beside them, and a tie breaker breaks the
tie: which state is right is decided already). When every member reproduces its vote the machine is
not deterministic, and none may continue: all stay fenced, and keep the evidence.

A re-execution from a checkpoint that no agreed vote covers may repeat an earlier fault: it can show
that its member diverged, not that it did not.

Pure: the same at every member that applies the same order.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.divergence.digest_vote import DigestVerdict, Value
from broker.machine.commands import REEXECUTED, Reexecuted
from vsync.quorum.voter_set import Electorate

PROVEN, UNPROVEN, FAILED, ABSENT = 1, 2, 3, 4
"""From an agreed checkpoint; from one that no agreed vote covers; the store cannot be executed; the
store begins after that position."""


class SplitOutcome(NamedTuple):
    """How a split vote ended. `value` None: the others do not agree, or are not proven."""

    position: int
    diverged: tuple[str, ...]
    unproven: tuple[str, ...]
    value: Value | None
    may_continue: bool
    reason: str

    def as_facts(self) -> dict[str, object]:
        """Return it in the form of the evidence, whose keys are a format."""
        facts = self._asdict()
        facts["culprits"], facts["goes_on"] = facts.pop("diverged"), facts.pop("may_continue")
        return facts


class SplitVote:
    """One split vote, and the members' reports about it."""

    def __init__(
        self,
        verdict: DigestVerdict,
        electorate: Electorate,
        arbitrators: frozenset[str] = frozenset(),
    ) -> None:
        """`arbitrators`: the arbitrators among the voters in the view."""
        assert verdict.split
        self.position, self.votes = verdict.position, verdict.votes
        self._electorate, self._arbitrators = electorate, arbitrators
        self._reports: dict[str, Reexecuted] = {}

    @property
    def reason(self) -> str:
        """Return why all are fenced, in a sentence for operators."""
        waiting = ", ".join(name for name in self.votes if name not in self._reports)
        return (
            f"no majority of the voters agrees about position {self.position}; finding out who "
            f"cannot reproduce its own state, waiting for {waiting}"
        )

    def report(self, member: str, report: Reexecuted) -> SplitOutcome | None:
        """Count one member's ordered report; return the outcome when it is the last one."""
        report = Reexecuted._make(report)  # in its ordered form it is a plain tuple
        if report.position != self.position or member not in self.votes or member in self._reports:
            return None
        self._reports[member] = report
        if len(self._reports) < len(self.votes):
            return None
        diverged = tuple(name for name in self.votes if not self._reproduces(name))
        rest = [name for name in self.votes if name not in diverged]
        unproven = tuple(name for name in rest if self._reports[name].verdict != PROVEN)
        values = {self.votes[name]: True for name in rest}
        value = next(iter(values)) if len(values) == 1 and (diverged or not unproven) else None
        quorate = self._electorate.quorate(self._arbitrators.union(rest))
        may_continue = value is not None and quorate
        return SplitOutcome(
            self.position, diverged, unproven, value, may_continue,
            self._reason(diverged, unproven, value),
        )  # fmt: skip

    def proves_disk(self, diverged_member: str, outcome: SplitOutcome) -> bool:
        """Whether the diverged member's store gives the agreed state: only its memory was wrong.

        If its outcomes differed, its store has recorded them in its chain.
        """
        report, value = self._reports[diverged_member], outcome.value
        recorded = self.votes[diverged_member][1]
        return (
            value is not None
            and report.verdict == PROVEN
            and (recorded, report.chain, report.root) == (value[1], *value[1:])
        )

    def _reproduces(self, name: str) -> bool:
        report = self._reports[name]
        if report.verdict in (FAILED, ABSENT):
            return report.verdict == ABSENT
        return (report.chain, report.root) == self.votes[name][1:]

    def _reason(
        self, diverged: tuple[str, ...], unproven: tuple[str, ...], value: Value | None
    ) -> str:
        where = f"at position {self.position}"
        if diverged:
            named = ", ".join(diverged)
            reason = f"{named} cannot reproduce the state that it voted for {where} and is ejected"
            return reason if value is not None else f"{reason}; the others still do not agree"
        if unproven:
            named = ", ".join(unproven)
            return (
                f"the members disagree {where}, and none is shown to have diverged: the last "
                f"checkpoint of {named} is covered by no agreed vote; restart that member, or all"
            )
        return (
            f"every member reproduces its own state {where}, and they differ: the machine is not "
            "deterministic here, so no member may continue; keep all evidence and report it"
        )


def report_of(position: int, verdict: int, chain: bytes, root: int) -> Reexecuted:
    """Return the command by which a member reports its re-execution."""
    return Reexecuted(REEXECUTED, position, verdict, chain, root)
