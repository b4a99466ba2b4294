"""What a member's state is worth, and what a view may do with it: pure decisions.

After every regular view the members exchange one `StateReport` each.  From the same set of
standings every member computes the same `Plan`: form a new cluster, resume the old one from the
best donor, or stay inquorate and say why.  Nothing here sends, waits or remembers (see `primary`).

The rule is Raft's election rule on views instead of terms: whatever was confirmed is durable on a
majority of the voters, a plan needs a majority of the voters, so the largest (epoch, position)
among the members present contains everything that was ever confirmed.  Before positions comes what
a member *holds*: one that lived through the end of its last primary view has in its state and its
undecided messages all that anybody applied there, as applied means safe and safe means that all
received it; a store that comes back from a crash may be short of what others had spoken about.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vsync.quorum.counting import Voter, contradiction
from vsync.quorum.counting import first as first_ballot
from vsync.quorum.counting import hold as hold_ballot
from vsync.quorum.voter_set import Terms, parse
from vsync.types import Member

ZERO_CHAIN = bytes(16)


class StateReport(NamedTuple):
    """One member's answer in a state exchange.

    `filled` is false for an empty, joining or inconsistent store: such a member has no say.
    `live` says that the state in memory went on from an active view of this very life; `ran` that
    this life has been active at all.  `chain` hashes history with its outcomes, `order` only the
    ordered bytes, so a member that lags by undecided messages can find out whether they fit.
    `patient` asks the others to wait a moment for more members before
    a first start or a restart.  `label` is the application's,
    for people (where its clients connect, say).

    The last three are the primary layer's own: how many messages this member holds `undecided`, the
    highest epoch that its state or one of these belongs to (`reach`), and whether state and
    undecided messages together are `complete`: all that anybody applied in that epoch's view.

    `wish` is what the operator asked of the voter set.  An `arbitrator` has no state: its epoch is
    that of its record, whose `holders` it names.  `waits`: not in a quorum yet, or not any more.
    """

    filled: bool
    live: bool
    ran: bool
    patient: bool
    cluster_id: str
    proposal: str
    voters: tuple[str, ...]
    size: int
    promised_epoch: int
    state_epoch: int
    position: int
    chain: bytes
    order: bytes
    label: str
    reach: int = 0
    complete: bool = False
    unstable: int = 0
    wish: Terms = ()
    arbitrator: bool = False
    holders: tuple[str, ...] = ()
    waits: bool = False

    def voter(self) -> Voter:
        """Return what this member brings to a ballot."""
        return Voter(
            self.arbitrator, self.state_epoch, self.position, self.voters, self.holders,
            self.wish, self.waits,
        )  # fmt: skip


class PlanVerdict(Enum):
    """What a complete set of standings amounts to."""

    WAIT = "waiting for the members of the first start"
    INQUORATE = "no majority of the voters"
    FORM = "form a new cluster"
    RESUME = "resume the cluster"


class Plan(NamedTuple):
    """The decision that every member of a view reaches from the same standings."""

    verdict: PlanVerdict
    reason: str
    epoch: int
    donor: Member | None
    cluster_id: str
    voters: tuple[str, ...]
    position: int
    chain: bytes
    order: bytes
    unstable: int
    level: frozenset[Member]
    foreign: frozenset[Member]
    counted: frozenset[str]  # the names that count for the quorum


def make_plan(members: tuple[Member, ...], state_reports: dict[Member, StateReport]) -> Plan:
    """Decide what the view `members` may do; `standings` holds an answer of each of them."""
    filled = [m for m in members if state_reports[m].filled]
    if not filled:
        return _first_start(members, state_reports)
    cluster_id = _home(filled, state_reports)
    ours = [m for m in filled if state_reports[m].cluster_id == cluster_id]
    # Who holds nothing was only named by a first start that broke off, and joins like an empty one.
    foreign = frozenset(
        m
        for m in filled
        if m not in ours and (state_reports[m].position or state_reports[m].arbitrator)
    )
    # Names break ties downwards, so sort by name and let max() keep the first of the best.
    states = [m for m in sorted(ours) if not state_reports[m].arbitrator] or sorted(ours)
    donor = max(states, key=lambda m: _worth(m, ours, state_reports))
    best = state_reports[donor]
    level = frozenset(
        m
        for m in members
        if state_reports[m].arbitrator
        or (
            m in ours
            and (state_reports[m].position, state_reports[m].chain) == (best.position, best.chain)
        )
    )
    epoch = 1 + max(state_reports[m].promised_epoch for m in ours)
    ballot = hold_ballot({m: state_reports[m].voter() for m in ours})
    verdict, reason = PlanVerdict.RESUME, ballot.text
    if not ballot.quorate:
        verdict = PlanVerdict.INQUORATE
        if not any(state_reports[m].position or state_reports[m].holders for m in filled):
            # A first start that was cut short: nothing was applied here, so it may be done again,
            # but not without any of those who may have applied it.
            named = {name for m in filled for name in parse(state_reports[m].voters).names}
            missing = ", ".join(sorted(named - {m.name for m in members}))
            if not missing:
                return _first_start(members, state_reports)
            verdict, reason = PlanVerdict.WAIT, f"a first start was begun with {missing}: waiting"
    elif ballot.waits:
        verdict = PlanVerdict.WAIT
        reason = f"{reason}; waiting for all voters, as the voter set says"
    elif not ballot.complete and _may_wait(ours, state_reports):
        verdict = PlanVerdict.WAIT
        reason = f"{reason}; giving the others a moment, as nobody is being served yet"
    return Plan(
        verdict, reason, epoch, donor, cluster_id, ballot.voters,
        best.position, best.chain, best.order, best.unstable, level, foreign, ballot.counted,
    )  # fmt: skip


def refuse(me: Member, state_report: StateReport, plan: Plan) -> str:
    """Return why a member can never join what it sees; empty when it can."""
    if me in plan.foreign:
        mine = state_report.cluster_id
        return f"this store belongs to cluster {mine}, the members here to {plan.cluster_id}"
    return contradiction(me.name, state_report.voter(), plan.voters)


def _worth(
    member: Member, ours: list[Member], state_reports: dict[Member, StateReport]
) -> tuple[int, bool, int, int, int, int]:
    """Rank a state as the one to go on from; of equal positions the chain that more hold wins."""
    s = state_reports[member]
    alike = sum(
        (state_reports[m].position, state_reports[m].chain) == (s.position, s.chain) for m in ours
    )
    return s.reach, s.complete, s.state_epoch, s.position, alike, s.unstable


def _may_wait(ours: list[Member], state_reports: dict[Member, StateReport]) -> bool:
    """Whether a restart may wait for stragglers: who is left behind needs a whole transfer."""
    return any(state_reports[m].patient for m in ours) and not any(
        state_reports[m].ran for m in ours
    )


def _first_start(members: tuple[Member, ...], state_reports: dict[Member, StateReport]) -> Plan:
    """All stores are empty: only the complete first membership may form a cluster."""
    size = max(state_reports[m].size for m in members)
    lowest = min([m for m in members if not state_reports[m].arbitrator] or members)
    voters, reason = first_ballot({m: state_reports[m].voter() for m in members}, size)
    verdict = PlanVerdict.FORM if voters else PlanVerdict.WAIT
    if voters and size == 1 and any(state_reports[m].patient for m in members):
        verdict, reason = PlanVerdict.WAIT, "looking for a running cluster before forming one"
    barred = ", ".join(m.name for m in sorted(members) if state_reports[m].position)
    if barred:  # not empty: it came far, and may not speak of it
        verdict = PlanVerdict.WAIT
        reason = f"waiting for a member with a usable store; the store of {barred} has no vote"
    return Plan(
        verdict, reason, 1, lowest, state_reports[lowest].proposal, voters,
        0, ZERO_CHAIN, ZERO_CHAIN, 0, frozenset(members), frozenset(),
        frozenset(m.name for m in members),
    )  # fmt: skip


def _home(filled: list[Member], state_reports: dict[Member, StateReport]) -> str:
    """Pick the cluster that this view belongs to when stores of several clusters meet.

    A cluster that runs beats one that only lies on disk, and that one a mere name; then the larger
    group wins, then the id, so that all members decide alike and a newcomer never harms a running
    cluster.
    """
    groups: dict[str, list[Member]] = {}
    for m in sorted(filled):
        groups.setdefault(state_reports[m].cluster_id, []).append(m)
    return max(
        sorted(groups),
        key=lambda c: (
            any(state_reports[m].ran for m in groups[c]),
            any(state_reports[m].position for m in groups[c]),
            len(groups[c]),
        ),
    )
