"""Counts the votes of a view's members by the latest voter set that any of them knows.

Pure; the part of `primary.state_exchange.make_plan` that decides about quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from vsync.errors import ConfigError
from vsync.quorum.reconfiguration import alone, first_voters, mismatch
from vsync.quorum.voter_set import EpochRecord, Terms, parse, voter_set
from vsync.types import Member


class Voter(NamedTuple):
    """The facts about one member that counting votes needs."""

    arbitrator: bool
    epoch: int  # of its state, or of an arbitrator's record
    position: int
    voters: Terms
    holders: tuple[str, ...]  # of an arbitrator's record
    requested: Terms  # requested by its operator's options
    waits: bool  # wait_for_all applies: not in a quorum yet, or not any more
    vote: bool = False  # it holds the third vote of a pair


class VoteCount(NamedTuple):
    """The result of counting the votes of a view."""

    voters: Terms
    counted: frozenset[str]
    quorate: bool
    complete: bool  # all voters are present
    waits: bool  # wait_for_all: no member was in a quorum, and a voter is missing
    text: str
    alone: bool = False  # one of a pair continues alone, with these voters


def count_votes(voters: Mapping[Member, Voter]) -> VoteCount:
    """Count the members that have a state or a record of one cluster.

    The voter set of the member with the largest (epoch, position) applies: a change that took
    effect anywhere was durable at a quorum of the set before it, so every quorate set has a member
    that knows it.
    """
    data = {m: v for m, v in voters.items() if not v.arbitrator}
    latest = max((data or voters).values(), key=lambda v: (v.epoch, v.position))
    electorate = parse(latest.voters)
    if lone := _goes_on_alone(latest.voters, data):
        name, voters_alone = lone
        text = f"{name} goes on without the other one of the pair"
        counted = frozenset((name,))
        return VoteCount(voters_alone, counted, True, True, False, text, alone=True)
    epochs = {m.name: v.epoch for m, v in data.items()}
    records = {
        m.name: EpochRecord(v.epoch, frozenset(v.holders))
        for m, v in voters.items()
        if v.arbitrator
    }
    counted = electorate.credible(epochs, records)
    missing = [name for name in electorate.names if name not in counted]
    text = electorate.describe(counted)
    for name in sorted(electorate.arbitrators & records.keys() - counted):
        holders = ", ".join(sorted(records[name].holders))
        text += f"; the arbitrator {name} votes only beside {holders} or a later state"
    waits = electorate.wants_all() and bool(missing) and all(v.waits for v in voters.values())
    return VoteCount(latest.voters, counted, electorate.quorate(counted), not missing, waits, text)


def _goes_on_alone(latest: Terms, data: Mapping[Member, Voter]) -> tuple[str, Terms] | None:
    """Return which member of a pair continues alone, and its voters; None if neither does.

    A member that already continued alone needs no vote. Nothing that was undecided then changes the
    voters, because the other member has acted on no such change (`reconfiguration.alone`).
    """
    electorate = parse(latest)
    here = [(m.name, v) for m, v in data.items() if m.name in electorate.data_names]
    if len(here) != 1:
        return None
    name, voter = here[0]
    terms = alone(latest, name)
    return (name, terms) if terms and (voter.vote or electorate.quorate((name,))) else None


def voters_of_first_start(voters: Mapping[Member, Voter], size: int) -> tuple[Terms, str]:
    """Return the voters of a new cluster, or why none can be formed; no member has data yet."""
    requests = {v.requested: m.name for m, v in sorted(voters.items(), reverse=True)}
    if len(requests) > 1:
        asked = " and ".join(
            f"{name} asks for {' '.join(terms) or 'a plain majority'}"
            for terms, name in requests.items()
        )
        return (), f"the members of the first start disagree: {asked}; give all the same options"
    requested = next(iter(requests))
    arbitrator = voter_set(requested).arbitrator
    names = sorted(m.name for m, v in voters.items() if not v.arbitrator)
    if voter_set(requested).pair and len(names) > 2:
        return (), f"a pair has two members, and here are {', '.join(names)}: stop one of them"
    if len(names) < size:
        return (), f"{len(names)} of {size} members for the first start are here"
    if arbitrator and not any(m.name == arbitrator and v.arbitrator for m, v in voters.items()):
        return (), f"the arbitrator {arbitrator} is missing for the first start"
    try:
        return first_voters(names[:size], requested), f"first start with {size} voters"
    except ConfigError as refused:
        return (), str(refused)


def contradiction(name: str, voter: Voter, terms: Terms) -> str:
    """Return how a member's options contradict the cluster's voter set; empty if they do not."""
    electorate = parse(terms)
    role: Collection[str] = electorate.data_names if voter.arbitrator else electorate.arbitrators
    if name in role:
        words = ("an arbitrator", "a member with data")
        mine, theirs = words if voter.arbitrator else words[::-1]
        return f"this member was started as {mine}, for the cluster it is {theirs}"
    if electorate.sets and electorate.latest.pair and name not in electorate.data_names:
        return (
            f"the members of this pair are {' and '.join(electorate.data_names)}, and {name} is "
            "none of them: a new machine takes the address of the one that it replaces "
            "(--cluster-bind)"
        )
    return mismatch(voter.requested, terms) if electorate.sets else ""
