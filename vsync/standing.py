"""What a member's state is worth, and what a view may do with it: pure decisions.

After every regular view the members exchange one `Standing` each.  From the same set of standings
every member computes the same `Plan`: form a new cluster, resume the old one from the best donor,
or stay inquorate and say why.  Nothing here sends, waits or remembers (see `primary`).

The rule is Raft's election rule on views instead of terms: whatever was confirmed is durable on a
majority of the voters, a plan needs a majority of the voters, so the largest (epoch, position)
among the members present contains everything that was ever confirmed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vsync.types import Member

ZERO_CHAIN = bytes(16)


class Standing(NamedTuple):
    """One member's answer in a state exchange.

    `filled` is false for an empty, joining or inconsistent store: such a member has no say.
    `live` says that the state in memory went on from an active view of this very life; `ran` that
    this life has been active at all.  `chain` hashes history with its outcomes, `order` only the
    ordered bytes, so a member that lags by undecided messages can find out whether they fit.
    `patient` asks the others to wait a moment for more members before
    a first start or a restart.  `label` is the application's,
    for people (where its clients connect, say).
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


class Verdict(Enum):
    """What a complete set of standings amounts to."""

    WAIT = "waiting for the members of the first start"
    INQUORATE = "no majority of the voters"
    FORM = "form a new cluster"
    RESUME = "resume the cluster"


class Plan(NamedTuple):
    """The decision that every member of a view reaches from the same standings."""

    verdict: Verdict
    reason: str
    epoch: int
    donor: Member | None
    cluster_id: str
    voters: tuple[str, ...]
    position: int
    chain: bytes
    order: bytes
    level: frozenset[Member]
    foreign: frozenset[Member]


def majority(voters: int) -> int:
    """Return how many of `voters` make a majority."""
    return voters // 2 + 1


def make_plan(members: tuple[Member, ...], standings: dict[Member, Standing]) -> Plan:
    """Decide what the view `members` may do; `standings` holds an answer of each of them."""
    filled = [m for m in members if standings[m].filled]
    if not filled:
        return _first_start(members, standings)
    cluster_id = _home(filled, standings)
    ours = [m for m in filled if standings[m].cluster_id == cluster_id]
    # Who holds nothing was only named by a first start that broke off, and joins like an empty one.
    foreign = frozenset(m for m in filled if m not in ours and standings[m].position)
    # Names break ties downwards, so sort by name and let max() keep the first of the best.
    donor = max(sorted(ours), key=lambda m: (standings[m].state_epoch, standings[m].position))
    best = standings[donor]
    level = frozenset(
        m
        for m in ours
        if (standings[m].position, standings[m].chain) == (best.position, best.chain)
    )
    epoch = 1 + max(standings[m].promised_epoch for m in ours)
    names = {m.name for m in ours}
    present = [v for v in best.voters if v in names]
    need = majority(len(best.voters))
    verdict, reason = Verdict.RESUME, f"{len(present)} of {len(best.voters)} voters here"
    if len(present) < need:
        missing = ", ".join(v for v in best.voters if v not in names)
        verdict = Verdict.INQUORATE
        reason = (
            f"{len(present)} of {len(best.voters)} voters here, {need} needed; missing: {missing}"
        )
        if not any(standings[m].position for m in filled):
            # A first start that was cut short: nothing was ever applied, so it may be done again.
            return _first_start(members, standings)
    elif len(present) < len(best.voters) and _may_wait(ours, standings):
        verdict = Verdict.WAIT
        reason = f"{reason}; giving the others a moment, as nobody is being served yet"
    return Plan(
        verdict, reason, epoch, donor, cluster_id, best.voters,
        best.position, best.chain, best.order, level, foreign,
    )  # fmt: skip


def _may_wait(ours: list[Member], standings: dict[Member, Standing]) -> bool:
    """Whether a restart may wait for stragglers: who is left behind needs a whole transfer."""
    return any(standings[m].patient for m in ours) and not any(standings[m].ran for m in ours)


def _first_start(members: tuple[Member, ...], standings: dict[Member, Standing]) -> Plan:
    """All stores are empty: only the complete first membership may form a cluster."""
    size = max(standings[m].size for m in members)
    lowest = min(members)
    verdict, reason = Verdict.FORM, f"first start with {size} voters"
    if len(members) < size:
        verdict = Verdict.WAIT
        reason = f"{len(members)} of {size} members for the first start are here"
    elif size == 1 and any(standings[m].patient for m in members):
        verdict, reason = Verdict.WAIT, "looking for a running cluster before forming one"
    barred = ", ".join(m.name for m in sorted(members) if standings[m].position)
    if barred:  # not empty: it came far, and may not speak of it
        verdict = Verdict.WAIT
        reason = f"waiting for a member with a usable store; the store of {barred} has no vote"
    voters = tuple(sorted(m.name for m in members)[:size])
    return Plan(
        verdict, reason, 1, lowest, standings[lowest].proposal, voters,
        0, ZERO_CHAIN, ZERO_CHAIN, frozenset(members), frozenset(),
    )  # fmt: skip


def _home(filled: list[Member], standings: dict[Member, Standing]) -> str:
    """Pick the cluster that this view belongs to when stores of several clusters meet.

    A cluster that runs beats one that only lies on disk, and that one a mere name; then the larger
    group wins, then the id, so that all members decide alike and a newcomer never harms a running
    cluster.
    """
    groups: dict[str, list[Member]] = {}
    for m in sorted(filled):
        groups.setdefault(standings[m].cluster_id, []).append(m)
    return max(
        sorted(groups),
        key=lambda c: (
            any(standings[m].ran for m in groups[c]),
            any(standings[m].position for m in groups[c]),
            len(groups[c]),
        ),
    )


def durable_mark(marks: dict[str, int], voters: tuple[str, ...], level: frozenset[str]) -> int:
    """Return the position that a majority of `voters` has made durable.

    Only members that are level count: the mark of a member that still waits for its state speaks
    of a history that may not be ours.
    """
    held = sorted((marks.get(v, 0) if v in level else 0 for v in voters), reverse=True)
    return held[majority(len(voters)) - 1] if voters else 0
