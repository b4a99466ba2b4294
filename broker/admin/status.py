"""What a member says of itself and its cluster to operators (see `tools/commands/qpid_cluster`)."""

from __future__ import annotations

from collections.abc import Mapping

from broker.release import version
from broker.replication.controller import Controller
from vsync.admin.protocol import Json
from vsync.primary.events import PrimaryPhase
from vsync.quorum.voter_set import parse


def counters_of(**parts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of all parts of a member, prefixed by the part."""
    return {f"{part}.{k}": v for part, found in parts.items() for k, v in found.items()}


def status_of(controller: Controller, cluster_name: str, progress: str, watchdogs: Json) -> Json:
    """Return the answer to `status`: the cluster as this member sees it."""
    primary = controller.primary
    labels, marks = primary.labels(), primary.marks()
    here = {m.name: m for m in primary.members}
    here.setdefault(controller.me.name, controller.me)
    members: list[Json] = []
    electorate = parse(controller.promise.voters)
    for name in sorted({*here, *electorate.names}):
        state = "DOWN"
        if name in here:
            level = primary.active and name in primary.caught_up_names
            state = "ACTIVE" if level else "JOINING"
        position = (
            controller.replica.history.position
            if name == controller.me.name
            else marks.get(name, 0)
        )
        if name in primary.mark.without_data:
            position = 0  # what it marks is an epoch
        members.append(
            {
                "id": name,
                "url": controller.label if name == controller.me.name else labels.get(name, ""),
                "state": state,
                "voter": name in electorate.names,
                "votes": electorate.latest.votes_of((name,)) if electorate.sets else 0,
                "arbitrator": name in primary.mark.without_data | electorate.arbitrators,
                "position": position,
                "local": name == controller.me.name,
            }
        )
    word, reason = _status_word(controller)
    return {
        "cluster": cluster_name,
        "cluster_id": controller.promise.cluster_id,
        "status": word,
        "size": sum(1 for m in members if m["state"] != "DOWN"),
        "epoch": controller.replica.history.epoch,
        "position": controller.replica.history.position,
        "members": members,
        "voters": list(electorate.names),
        "voter_set": list(controller.promise.voters),
        "quorum": _quorum(controller),
        "reason": controller.halted or progress or reason,
        "version": version(),
        **watchdogs,
    }


def _quorum(controller: Controller) -> Json:
    """The votes by the set in force, or the one that is coming."""
    electorate = parse(controller.promise.voters)
    if not electorate.sets:
        return {"expected_votes": 0, "total_votes": 0, "quorum": 0, "quorate": False}
    latest = electorate.latest
    present = latest.votes_of(controller.primary.caught_up_names)
    return {
        "expected_votes": latest.total,
        "total_votes": present,
        "quorum": latest.quorum,
        "quorate": controller.primary.active,
    }


def _status_word(controller: Controller) -> tuple[str, str]:
    primary = controller.primary
    if controller.halted:
        return "INQUORATE", controller.halted
    if controller.serving and primary.has_caught_up:
        return "ACTIVE", ""
    if primary.phase is PrimaryPhase.INQUORATE:
        waiting = not controller.promise.cluster_id
        return ("WAITING" if waiting else "INQUORATE"), primary.reason
    return "JOINING", primary.reason
