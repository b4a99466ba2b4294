"""The meaning of the digest votes for this member: diverged, fenced, or free to reply to clients.

Joins the digest votes to the split votes that they open. All fields but `diverged` and `fenced` are
the same at every member that applies the same order; these two are the consequences for `me`.
"""

from __future__ import annotations

from broker.divergence.digest_vote import DigestVerdict, DigestVote, Value
from broker.divergence.split_vote import SplitOutcome, SplitVote
from broker.machine.commands import Reexecuted
from vsync.primary.events import Activation
from vsync.quorum.voter_set import Terms


class Judgement:
    """One member's view of the digest votes and of an open split vote."""

    def __init__(self, me: str, voters: Terms, interval: int) -> None:
        self.me, self.interval = me, interval
        self.votes = DigestVote(voters, interval, ())
        self.split_vote: SplitVote | None = None
        self.fenced = ""  # why this member may not reply, even with a quorum
        self.diverged = ""  # why this member must stop
        self.disk_is_right = False  # of a diverged member: its re-executed store agrees
        self.resumes = False  # of an unfenced member: it need not wait for another view
        self.agreed = 0
        """The highest position at which a vote agreed with this member's state."""
        self._outcomes: list[SplitOutcome] = []
        self._before: dict[str, int] = {}  # counters of the votes of earlier views

    def entered(self, activation: Activation) -> None:
        """A primary view begins: its members vote anew, and a split vote of the old one is void."""
        self._before = self.counters
        members = activation.members
        self.votes = DigestVote(
            activation.voters, self.interval,
            tuple(name for name, *_ in members), tuple(name for name, _, fresh in members if fresh),
        )  # fmt: skip
        if self.split_vote is not None:
            self.fenced = (
                f"no majority of the voters agreed about position {self.split_vote.position}, and "
                "the view changed; the members vote again"
            )
        self.split_vote = None

    def replaced(self) -> None:
        """This member continues from another's state: agreements about the old one are void."""
        self.agreed = 0

    @property
    def counters(self) -> dict[str, int]:
        """Counts of decisions since this member started."""
        return {k: n + self._before.get(k, 0) for k, n in self.votes.counters.items()}

    def vote(self, member: str, position: int, value: Value) -> list[DigestVerdict]:
        """Count one ordered vote."""
        verdicts = self.votes.vote(member, position, value)
        for verdict in verdicts:
            if verdict.split:
                self._open(verdict)
            elif self.me in verdict.divergent:
                self.diverged = (
                    f"this member computed something else at position {verdict.position} than "
                    "the majority"
                )
            elif verdict.votes.get(self.me) == verdict.value:
                self.agreed = max(self.agreed, verdict.position)
                self._unfence(resumes=True)
        return verdicts

    def _open(self, verdict: DigestVerdict) -> None:
        if self.split_vote is None:
            self.split_vote = SplitVote(verdict, self.votes.electorate, self.votes.arbitrators)
            self.fenced, self.resumes = self.split_vote.reason, False
        elif self.split_vote.position == verdict.position:
            self.split_vote.votes.update(verdict.votes)  # a late vote

    def take_outcomes(self) -> list[SplitOutcome]:
        """Return how split votes ended since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def report(self, member: str, report: Reexecuted) -> None:
        """Count one ordered report about the split vote."""
        split_vote = self.split_vote
        if split_vote is None:
            return
        outcome = split_vote.report(member, report)
        if outcome is None:
            self.fenced = self.fenced and split_vote.reason
            return
        self._outcomes.append(outcome)
        self.split_vote = None
        if self.me in outcome.diverged:
            self.diverged = outcome.reason
            self.disk_is_right = split_vote.proves_disk(self.me, outcome)
        elif outcome.value is not None:
            self._unfence(resumes=outcome.may_continue)
        else:
            self.fenced = outcome.reason

    def _unfence(self, *, resumes: bool) -> None:
        if self.fenced and self.split_vote is None:
            self.fenced, self.resumes = "", resumes
