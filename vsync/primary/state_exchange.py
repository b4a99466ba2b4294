"""Decides what a view may do, from the state reports of its members. Pure.

After every regular view each member multicasts one `StateReport`. From the same set of reports
every member computes the same `Plan`: form a new cluster, resume the old one from the best donor,
or stay inquorate and give the reason. `activate` says when the donor of a plan may declare the view
primary. Nothing here sends, waits or remembers (see `component`).

The rule is Raft's election rule with views in place of terms: everything confirmed is durable at a
majority of the voters, and a plan needs a majority of the voters, so the member with the largest
(epoch, position) present holds everything that was ever confirmed. `reach` and `complete` are
compared before positions. A member that ran to the end of its last primary view has in its state
and its unstable messages everything that any member applied in that view, because applied means
safe and safe means received by all; a store that comes back from a crash may lack messages to which
others had replied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from vsync.primary.events import Activation, StateReport
from vsync.primary.settings import disagreement
from vsync.quorum.counting import contradiction, count_votes, voters_of_first_start
from vsync.quorum.voter_set import Terms, parse, voter_set
from vsync.types import Member

ZERO_CHAIN = bytes(16)
MIXING = "Mixing transient and persistent brokers in a cluster"


class PlanVerdict(Enum):
    """The outcome of a complete set of state reports."""

    WAIT = "waiting for the members of the first start"
    INQUORATE = "no majority of the voters"
    FORM = "form a new cluster"
    RESUME = "resume the cluster"


class Plan(NamedTuple):
    """Decision that every member of a view reaches from the same state reports."""

    verdict: PlanVerdict
    reason: str
    epoch: int
    donor: Member | None
    cluster_id: str
    voters: Terms
    position: int
    chain: bytes
    order: bytes
    unstable: int
    caught_up: frozenset[Member]
    foreign: frozenset[Member]  # with the state of another cluster
    counted: frozenset[str]  # the names that count towards the quorum
    version: int  # of the payloads in force
    mixed: frozenset[Member] = frozenset()  # on disk where the cluster is not, or the reverse
    alone: bool = False  # one of a pair continues alone, with the voters of the plan
    apart: str = ""  # both of a pair continued alone: what becomes of it
    aside: Member | None = None  # whose history is not kept then


def make_plan(members: tuple[Member, ...], reports: dict[Member, StateReport]) -> Plan:
    """Decide what the view `members` may do; `reports` has one report from each of them."""
    filled = [m for m in members if reports[m].filled]
    if not filled:
        return _first_start(members, reports)
    cluster_id = _cluster_of(filled, reports)
    ours = [m for m in filled if reports[m].cluster_id == cluster_id]
    # A member without data was only named by a first start that broke off; it joins like an empty
    # one.
    foreign = frozenset(
        m for m in filled if m not in ours and (reports[m].position or reports[m].arbitrator)
    )
    apart, aside = _went_apart(ours, reports)
    ours = [m for m in ours if m != aside]
    # Ties go to the lowest name: sort by name, and max() keeps the first of the best.
    states = [m for m in sorted(ours) if not reports[m].arbitrator] or sorted(ours)
    donor = max(states, key=lambda m: _worth(m, ours, reports))
    best = reports[donor]
    caught_up = frozenset(
        m
        for m in members
        if reports[m].arbitrator
        or (m in ours and (reports[m].position, reports[m].chain) == (best.position, best.chain))
    )
    # A state may be of an epoch that its member never promised: it fetched the state, and lost the
    # rest.
    known = [reports[m] for m in filled if m not in foreign]
    epoch = 1 + max(max(report.promised_epoch, report.state_epoch) for report in known)
    count = count_votes({m: reports[m].voter() for m in ours})
    verdict, reason = PlanVerdict.RESUME, count.text
    if not count.quorate:
        verdict = PlanVerdict.INQUORATE
        reason += _without_state(members, filled, count.voters)
        if not any(reports[m].position or reports[m].holders for m in filled):
            # A first start that was cut short: nothing was applied here, so it may be repeated,
            # but only with all members that may have applied it.
            named = {name for m in filled for name in parse(reports[m].voters).names}
            missing = ", ".join(sorted(named - {m.name for m in members}))
            if not missing:
                return _first_start(members, reports)
            verdict, reason = PlanVerdict.WAIT, f"a first start was begun with {missing}: waiting"
    elif claims := _sole_claims(ours, reports):
        verdict, reason = PlanVerdict.INQUORATE, claims
    elif count.waits:
        verdict = PlanVerdict.WAIT
        reason = f"{reason}; waiting for all voters, as the voter set says"
    elif not count.complete and _may_wait(ours, reports):
        verdict = PlanVerdict.WAIT
        reason = f"{reason}; giving the others a moment, as nobody is being served yet"
    elif differs := disagreement({m: reports[m] for m in ours}):
        verdict, reason = PlanVerdict.WAIT, differs
    return Plan(
        verdict, reason, epoch, donor, cluster_id, count.voters,
        best.position, best.chain, best.order, best.unstable, caught_up, foreign, count.counted,
        best.version or common_version(reports.values()),
        frozenset(m for m in _with_data(members, reports)
                  if reports[m].transient != best.transient and not best.arbitrator),
        count.alone, apart, aside,
    )  # fmt: skip


def refuse(me: Member, report: StateReport, plan: Plan) -> str:
    """Return why a member can never join the members it sees; empty if it can."""
    if me in plan.foreign:
        mine = report.cluster_id
        return (
            "Cluster-ID mismatch. Stores belong to different clusters: this store belongs to "
            f"cluster {mine}, the members here to {plan.cluster_id}"
        )
    if report.version_max and not report.version_min <= plan.version <= report.version_max:
        return (
            f"version {plan.version} is in force among the members here, and this release executes "
            f"versions {report.version_min} to {report.version_max}; start a release that "
            f"executes version {plan.version}"
        )
    if me in plan.mixed:
        return mixing(transient=report.transient)
    # The options of a member that has run date from its start; changes ordered since then take
    # precedence. Below a quorum the voters may have changed since, and the options may be the right
    # ones.
    if report.ran or plan.verdict is PlanVerdict.INQUORATE:
        return ""
    return contradiction(me.name, report.voter(), plan.voters)


def mixing(*, transient: bool) -> str:
    """Return why a member cannot join a cluster of the other kind."""
    kinds = ("keeps its state on disk", "has no data directory")
    theirs, mine = kinds if transient else kinds[::-1]
    return f"{MIXING}: this member {mine}, the cluster here {theirs}"


def common_version(reports: Iterable[StateReport]) -> int:
    """Return the newest version of the payloads that all members execute; 0 if none has one."""
    return min((r.version_max for r in reports if r.version_max), default=0)


def _worth(
    member: Member, ours: list[Member], reports: dict[Member, StateReport]
) -> tuple[int, bool, int, int, int, int]:
    """Rank a state as donor; among equal positions the chain that more members have wins."""
    s = reports[member]
    alike = sum((reports[m].position, reports[m].chain) == (s.position, s.chain) for m in ours)
    return s.reach, s.complete, s.state_epoch, s.position, alike, s.unstable


def _may_wait(ours: list[Member], reports: dict[Member, StateReport]) -> bool:
    """Whether a restart may wait for late members: a member left out needs a whole transfer."""
    return any(reports[m].patient for m in ours) and not any(reports[m].ran for m in ours)


def _first_start(members: tuple[Member, ...], reports: dict[Member, StateReport]) -> Plan:
    """Plan for empty stores: only the complete first membership may form a cluster."""
    size = max(reports[m].size for m in members)
    lowest = min([m for m in members if not reports[m].arbitrator] or members)
    voters, reason = voters_of_first_start({m: reports[m].voter() for m in members}, size)
    verdict = PlanVerdict.FORM if voters else PlanVerdict.WAIT
    if voters and size == 1 and any(reports[m].patient for m in members):
        verdict, reason = PlanVerdict.WAIT, "looking for a running cluster before forming one"
    if differs := disagreement(reports):
        verdict, reason = PlanVerdict.WAIT, differs
    barred = ", ".join(m.name for m in sorted(members) if reports[m].position)
    if barred:  # not empty: it has a history, and is not allowed to vote
        verdict = PlanVerdict.WAIT
        reason = (
            "Cannot recover, no clean store: waiting for a member with a usable store; "
            f"the store of {barred} has no vote"
        )
    data = _with_data(members, reports)
    transient = ", ".join(m.name for m in data if reports[m].transient)
    if transient and not all(reports[m].transient for m in data):
        verdict = PlanVerdict.WAIT
        reason = f"{MIXING}: {transient} without a data directory, the others with one"
    # A first start repeated after it was cut short comes after everything promised for it.
    epoch = 1 + max(reports[m].promised_epoch for m in members)
    return Plan(
        verdict, reason, epoch, lowest, reports[lowest].proposal, voters,
        0, ZERO_CHAIN, ZERO_CHAIN, 0, frozenset(members), frozenset(),
        frozenset(m.name for m in members), common_version(reports.values()),
    )  # fmt: skip


def _with_data(members: tuple[Member, ...], reports: dict[Member, StateReport]) -> list[Member]:
    return [m for m in sorted(members) if not reports[m].arbitrator]


def _sole_claims(ours: list[Member], reports: dict[Member, StateReport]) -> str:
    """Return why a restart must not choose between stores that each claim to be the last.

    Stores of one shutdown share its id, and stores of an earlier shutdown have an older position:
    the newest wins. But two stores that an operator each declared the sole voter have diverged.
    Their positions prove nothing, and choosing either loses what the other confirmed.
    """
    if any(reports[m].ran for m in ours):
        return ""
    claims = [m for m in sorted(ours) if reports[m].shutdown_id and reports[m].voters == (m.name,)]
    if len({reports[m].shutdown_id for m in claims}) < 2:
        return ""
    names = " and ".join(m.name for m in claims)
    return (
        f"Shutdown-ID mismatch. Stores were not shut down together: each of {names} is its own "
        "sole voter; compare them (qpid-cluster-store --compare), stop both, start the one to keep "
        "and then the other"
    )


def _without_state(members: Iterable[Member], filled: list[Member], voters: Terms) -> str:
    """Return, for people, which voters are present but do not count, because they have no state.

    Their operator expects that they count.
    """
    names = parse(voters).names
    empty = ", ".join(m.name for m in members if m.name in names and m not in filled)
    return f"; here without a state, so without a vote: {empty}" * bool(empty)


def _went_apart(
    ours: list[Member], reports: dict[Member, StateReport]
) -> tuple[str, Member | None]:
    """Return the message for a pair of which both continued alone, and the member to set aside.

    Each of the two has recorded that the other one is away. One history is kept: where an operator
    declared the other member lost, that of the member declared for; otherwise, if only one of the
    two took anything from clients, that one's; otherwise the one that the pair's rule names. The
    other member is treated as one without a state and receives the kept one. Where nothing is given
    up there is no message.
    """
    sets = {m: voter_set(reports[m].voters) for m in ours}
    sides = [m for m in sorted(ours) if sets[m].pair and sets[m].away and m.name in sets[m].votes]
    if len(sides) != 2 or any(m.name in sets[m].away for m in sides):
        return "", None
    kept = min(
        sides,
        key=lambda m: (not sets[m].declared, reports[m].took_nothing, m.name != sets[m].pair),
    )
    (other,) = (m for m in sides if m != kept)
    if reports[other].took_nothing:
        return "", other
    text = (
        f"both members of the pair went on alone: the history of {kept.name} is kept "
        f"(position {reports[kept].position} of epoch {reports[kept].state_epoch}), that of "
        f"{other.name} is set aside (position {reports[other].position} of epoch "
        f"{reports[other].state_epoch})"
    )
    return text, other


def _cluster_of(filled: list[Member], reports: dict[Member, StateReport]) -> str:
    """Pick the cluster of this view when it has stores of several clusters.

    A running cluster beats one that is only on disk, which beats a mere name; then the larger group
    wins, then the id. So all members decide alike, and a newcomer never harms a running cluster.
    """
    groups: dict[str, list[Member]] = {}
    for m in sorted(filled):
        groups.setdefault(reports[m].cluster_id, []).append(m)
    return max(
        sorted(groups),
        key=lambda c: (
            any(reports[m].ran for m in groups[c]),
            any(reports[m].position for m in groups[c]),
            len(groups[c]),
        ),
    )


def activate(
    plan: Plan,
    members: tuple[Member, ...],
    reports: Mapping[Member, StateReport],
    replies: Mapping[Member, bool],
    fresh: Mapping[Member, bool],
) -> Activation | None:
    """Return the activation of a plan, or None while promises or replies are missing.

    `replies`: promised (True) or behind (False). An arbitrator without a record, or one whose
    record does not let it vote in this view, promises like the others but does not count.
    """
    promised = {
        m.name
        for m, yes in replies.items()
        if yes and (m.name in plan.counted or not reports[m].arbitrator)
    }
    if not parse(plan.voters).quorate(promised):
        return None
    # Every member that may need no transfer is waited for, so that a slow disk does not cost it
    # its clients; it replies within one fsync or leaves the view.
    awaited = [m for m, report in reports.items() if report.ran or m in plan.caught_up]
    if any(m not in replies and m not in plan.foreign for m in awaited):
        return None
    carried = any(reports[m].live and not fresh[m] for m, yes in replies.items() if yes)
    listed = tuple((m.name, m.incarnation, fresh.get(m, True)) for m in members)
    return Activation(
        plan.epoch, listed, not carried, plan.voters, plan.cluster_id,
        plan.unstable > 0 and not plan.alone, plan.version,
    )  # fmt: skip
