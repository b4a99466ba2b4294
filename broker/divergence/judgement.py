"""What the votes mean for this member: guilty, fenced, or free to speak.

Joins the digest votes to the disputes that split votes open.  Everything but `guilty` and `fenced`
is the same at every member that applies the same order; these two are what it means for `me`.
"""

from __future__ import annotations

from broker.divergence.digest_vote import DigestVerdict, DigestVote, Value
from broker.divergence.split_vote import Settlement, SplitVote
from broker.machine.commands import Reexecuted
from vsync.primary.events import Activation
from vsync.quorum.voter_set import Terms


class Judgement:
    """One member's view of who computed something else."""

    def __init__(self, me: str, voters: Terms, interval: int) -> None:
        self.me, self.interval = me, interval
        self.votes = DigestVote(voters, interval, ())
        self.split_vote: SplitVote | None = None
        self.fenced = ""  # why this member may say nothing, however many it is together with
        self.diverged = ""  # why this member must stop
        self.disk_is_right = False  # of a guilty member: its store, executed again, is the agreed
        self.resumes = False  # of an unfenced member: it need not wait for another view
        self.agreed = 0
        """The highest position at which a vote agreed with this member's state."""
        self._settlements: list[Settlement] = []
        self._before: dict[str, int] = {}  # counters of the votes of earlier views

    def entered(self, activation: Activation) -> None:
        """A primary view begins: its members vote anew, and a dispute of the old one is void."""
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
        """This member goes on from another's state: what was agreed of the old one is void."""
        self.agreed = 0

    @property
    def counters(self) -> dict[str, int]:
        """What was decided since this member started."""
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
                self._free(resumes=True)
        return verdicts

    def _open(self, verdict: DigestVerdict) -> None:
        if self.split_vote is None:
            self.split_vote = SplitVote(verdict, self.votes.electorate, self.votes.arbitrators)
            self.fenced, self.resumes = self.split_vote.reason, False
        elif self.split_vote.position == verdict.position:
            self.split_vote.votes.update(verdict.votes)  # somebody spoke late

    def take_settlements(self) -> list[Settlement]:
        """Return how disputes ended since the last call."""
        settlements, self._settlements = self._settlements, []
        return settlements

    def report(self, member: str, said: Reexecuted) -> None:
        """Count one ordered report about the dispute."""
        split_vote = self.split_vote
        if split_vote is None:
            return
        settlement = split_vote.report(member, said)
        if settlement is None:
            self.fenced = self.fenced and split_vote.reason
            return
        self._settlements.append(settlement)
        self.split_vote = None
        if self.me in settlement.culprits:
            self.diverged = settlement.reason
            self.disk_is_right = split_vote.proves_disk(self.me, settlement)
        elif settlement.value is not None:
            self._free(resumes=settlement.goes_on)
        else:
            self.fenced = settlement.reason

    def _free(self, *, resumes: bool) -> None:
        if self.fenced and self.split_vote is None:
            self.fenced, self.resumes = "", resumes
