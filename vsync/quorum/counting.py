"""Who counts in a view: the votes of its members, by the voter set that the latest of them knows.

Pure, from standings; a part of `standing.make_plan`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from vsync.errors import ConfigError
from vsync.quorum.reconfiguration import first_voters, mismatch
from vsync.quorum.voter_set import EpochRecord, Terms, parse, voter_set
from vsync.types import Member


class Voter(NamedTuple):
    """What one member of the view brings to a ballot."""

    arbitrator: bool
    epoch: int  # of its state; of an arbitrator's record
    position: int
    voters: Terms
    holders: tuple[str, ...]  # of an arbitrator's record
    wish: Terms
    waits: bool  # it has not been in a quorum, or has lost it since


class Ballot(NamedTuple):
    """The outcome."""

    voters: Terms
    counted: frozenset[str]
    quorate: bool
    complete: bool  # all voters are here
    waits: bool  # wait_for_all: nobody here has a quorum, and somebody is missing
    text: str


def hold(voters: Mapping[Member, Voter]) -> Ballot:
    """Count the members that have a state or a record of one cluster.

    The voter set is that of the largest (epoch, position): a change that took effect anywhere was
    durable at a quorum of the set before, so whoever is quorate now has somebody who knows it.
    """
    data = {m: v for m, v in voters.items() if not v.arbitrator}
    latest = max((data or voters).values(), key=lambda v: (v.epoch, v.position))
    electorate = parse(latest.voters)
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
    return Ballot(latest.voters, counted, electorate.quorate(counted), not missing, waits, text)


def first(voters: Mapping[Member, Voter], size: int) -> tuple[Terms, str]:
    """Return the voters of a new cluster, or why there is none yet: nobody here holds anything."""
    wishes = {v.wish: m.name for m, v in sorted(voters.items(), reverse=True)}
    if len(wishes) > 1:
        said = " and ".join(f"{name} asks for {_said(wish)}" for wish, name in wishes.items())
        return (), f"the members of the first start disagree: {said}; give all the same options"
    wish = next(iter(wishes))
    arbitrator = voter_set(wish).arbitrator
    names = sorted(m.name for m, v in voters.items() if not v.arbitrator)
    if len(names) < size:
        return (), f"{len(names)} of {size} members for the first start are here"
    if arbitrator and not any(m.name == arbitrator and v.arbitrator for m, v in voters.items()):
        return (), f"the arbitrator {arbitrator} is missing for the first start"
    try:
        return first_voters(names[:size], wish), f"first start with {size} voters"
    except ConfigError as refused:
        return (), str(refused)


def _said(wish: Terms) -> str:
    return " ".join(wish) or "a plain majority"


def contradiction(name: str, voter: Voter, terms: Terms) -> str:
    """Return how a member's options contradict the voter set that it meets; empty when not."""
    electorate = parse(terms)
    role: Collection[str] = electorate.data_names if voter.arbitrator else electorate.arbitrators
    if name in role:
        words = ("an arbitrator", "a member with data")
        mine, theirs = words if voter.arbitrator else words[::-1]
        return f"this member was started as {mine}, for the cluster it is {theirs}"
    return mismatch(voter.wish, terms) if electorate.sets else ""
