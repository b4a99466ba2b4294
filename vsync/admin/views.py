"""Replies to `cpgtool` and `quorumtool`; brokers and library programs give the same ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vsync.admin.protocol import Json
from vsync.quorum.voter_set import Electorate, majority
from vsync.types import Member, RingId


def groups_reply(
    cluster: str,
    me: Member,
    ring: RingId,
    members: Sequence[Member],
    groups: Mapping[str, Sequence[Member]],
    position: int,
    *,
    settled: bool,
) -> Json:
    """Return the reply to `groups`: the ring, and each group's members in order of seniority.

    `settled`: all members of the ring know each other's groups.
    """
    return {
        "cluster": cluster,
        "member": me.name,
        "ring": str(ring),
        "position": position,
        "settled": settled,
        "members": [_member(m, me) for m in members],
        "groups": [
            {"name": name, "members": [_member(m, me) for m in found]}
            for name, found in groups.items()
        ],
    }


def _member(member: Member, me: Member) -> Json:
    return {
        "name": member.name,
        "address": member.address,
        "incarnation": member.incarnation,
        "local": member == me,
    }


_FLAGS = {
    "@two_node": "2Node",
    "@wait_for_all": "WaitForAll",
    "@auto_tie_breaker": "AutoTieBreaker",
    "@last_man_standing": "LastManStanding",
}


def quorum_reply(
    cluster: str,
    me: str,
    ring: RingId,
    present: Collection[str],
    voters: Electorate,
    *,
    acting: bool,
    joining: Collection[str] = (),
    reason: str = "",
) -> Json:
    """Return the reply to `quorum`.

    `joining`: those of `present` whose votes do not count because they lack the state.

    `acting`: whether this member may act now. A broker needs more than the votes for that, and
    gives the `reason`. Without voters every member of the view has one vote, and any view may act.
    """
    one = voters.latest if voters.sets else None
    votes = dict(one.votes) if one is not None else dict.fromkeys(present, 1)
    arbitrator = one.arbitrator if one is not None else ""
    if one is not None and arbitrator:
        votes[arbitrator] = one.arbitrator_votes
    away: Collection[str] = one.away if one is not None else ()
    flags = ["Quorate"] if acting else []
    flags += [_FLAGS[rule] for term in (one.rule if one is not None else ())
              if (rule := term.partition("=")[0]) in _FLAGS]  # fmt: skip
    flags += ["Arbitrator"] if arbitrator else []
    flags += ["Changing"] if voters.changing else []
    flags += [] if one is not None else ["NoVoters"]
    return {
        "cluster": cluster,
        "member": me,
        "ring": str(ring),
        "quorate": acting,
        "reason": "" if acting else reason,
        "expected": one.total if one is not None else len(votes),
        "highest_expected": max((s.total for s in voters.sets), default=len(votes)),
        "total": one.votes_of({*present} - {*joining}) if one is not None else len(votes),
        "quorum": one.quorum if one is not None else min(1, majority(len(votes))),
        "flags": flags,
        "nodes": [
            {
                "name": name,
                "votes": votes.get(name, 0),
                "present": name in present,
                "joining": name in joining,
                "role": _role(name, votes, arbitrator, away),
                "local": name == me,
            }
            for name in sorted({*votes, *present})
        ],
    }


def _role(name: str, votes: Mapping[str, int], arbitrator: str, away: Collection[str]) -> str:
    if name == arbitrator:
        return "arbitrator"
    if name in away:
        return "away"
    return "voter" if name in votes else "guest"
