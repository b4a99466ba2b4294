"""The replies of a member to the queries of operators: status, groups, quorum (see
`tools/commands/qpid_cluster`, `cpgtool` and `quorumtool`)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from broker.release import version
from broker.replication.controller import Controller
from vsync.admin.protocol import Json
from vsync.admin.views import groups_reply, quorum_reply
from vsync.primary.events import PrimaryPhase
from vsync.quorum.voter_set import parse
from vsync.totem.membership.departures import LEFT

VIEWS_MAX = 50


def counters_of(**parts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of all parts of a member, prefixed by the part."""
    return {f"{part}.{k}": v for part, found in parts.items() for k, v in found.items()}


def status_of(
    controller: Controller,
    cluster_name: str,
    progress: str,
    watchdogs: Json,
    received: Callable[[str], float | None],
    url_of: Callable[[str], str],
) -> Json:
    """Return the reply to `status`: the cluster as this member sees it.

    `received`: the part of the state that each joining member has received, if it reported that.
    `url_of`: the URL of a member that is not in the view.
    """
    primary, own = controller.primary, controller.me.name
    labels = primary.labels() | {own: controller.label}
    marks = primary.marks() | {own: controller.replica.history.position}
    here = {own, *(m.name for m in primary.members)}
    members: list[Json] = []
    electorate = parse(controller.promise.voters)
    for name in sorted({*here, *electorate.names}):
        state = "DOWN"
        if name in here:
            caught_up = primary.active and name in primary.caught_up_names
            state = "ACTIVE" if caught_up else "JOINING"
        holds = name not in primary.mark.without_data  # what an arbitrator marks is an epoch
        members.append(
            {
                "id": name,
                "url": labels.get(name) or url_of(name),
                "state": state,
                "voter": name in electorate.names,
                "votes": electorate.latest.votes_of((name,)) if electorate.sets else 0,
                "arbitrator": name in primary.mark.without_data | electorate.arbitrators,
                "position": marks.get(name, 0) if holds else 0,
                "local": name == own,
                **(_received(received(name)) if state == "JOINING" and primary.active else {}),
            }
        )
    status, reason = _status(controller)
    return {
        "cluster": cluster_name,
        "cluster_id": controller.promise.cluster_id,
        "status": status,
        "size": sum(1 for m in members if m["state"] != "DOWN"),
        "epoch": controller.replica.history.epoch,
        "position": controller.replica.history.position,
        "members": members,
        "voters": list(electorate.names),
        "voter_set": list(controller.promise.voters),
        "quorum": _quorum(controller),
        "reason": controller.halted or progress or reason,
        "version": version(),
        "machine_version": controller.replica.machine.version,
        "machine_version_possible": primary.common_version(),
        **watchdogs,
    }


def _quorum(controller: Controller) -> Json:
    """Return the votes by the voter set in force, or by the coming one."""
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


def _received(share: float | None) -> Json:
    return {} if share is None else {"received_percent": round(100 * share, 1)}


def _status(controller: Controller) -> tuple[str, str]:
    primary = controller.primary
    if controller.halted:
        return "INQUORATE", controller.halted
    if controller.serving and primary.has_caught_up:
        return "ACTIVE", ""
    if primary.phase is PrimaryPhase.INQUORATE:
        waiting = not controller.promise.cluster_id
        return ("WAITING" if waiting else "INQUORATE"), primary.reason
    return "JOINING", primary.reason


def why_not_active(controller: Controller) -> str:
    """Return why a member does not serve, for an operator who asked it for something."""
    settling = controller.primary.phase in (PrimaryPhase.CATCHING_UP, PrimaryPhase.ACTIVE)
    if controller.halted or not settling:
        return controller.reason
    return f"{controller.reason}; it takes commands as soon as it has caught up with this view"


class ViewHistory:
    """The latest views that this member saw, each with the time of its own clock."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._views: deque[Json] = deque(maxlen=VIEWS_MAX)
        self._urls: dict[str, str] = {}
        self._seen: tuple[object, ...] = ()
        self._left: set[str] = set()

    def goes(self, name: str, why: str) -> None:
        """Note why a member goes, before the view without it comes."""
        if why == LEFT:
            self._left.add(name)

    def look(self) -> None:
        """Record the current view; called a few times a second, so a shorter view is missed."""
        primary = self._controller.primary
        self._urls |= {name: url for name, url in primary.labels().items() if url}
        members = sorted(member.name for member in primary.members)
        seen = (primary.ring, primary.active, primary.epoch, *members)
        if seen == self._seen:
            return
        self._seen = seen
        self._views.append(
            {
                "at_ms": time.time_ns() // 1_000_000,
                "ring": str(primary.ring),
                "epoch": primary.epoch,
                "primary": primary.active,
                "members": members,
                "left": sorted(self._left.difference(members)),
                "reason": primary.reason,
            }
        )
        self._left.intersection_update(members)

    def reply(self) -> list[Json]:
        """Return the views, oldest first."""
        return list(self._views)

    def url_of(self, name: str) -> str:
        """Return the latest URL of a member, which may have left; empty: it was never seen."""
        return self._urls.get(name, "")


def groups_of(controller: Controller, cluster: str) -> Json:
    """Return the reply to `groups`: the brokers that have the state are one group."""
    primary = controller.primary
    caught_up = [m for m in primary.members if primary.active and m.name in primary.caught_up_names]
    return groups_reply(
        cluster,
        controller.me,
        primary.ring,
        primary.members,
        {cluster or "stand-alone": caught_up} if caught_up else {},
        controller.replica.history.position,
        settled=primary.active,
    )


def quorum_of(controller: Controller, cluster: str) -> Json:
    """Return the reply to `quorum`: a broker may act in a primary view once it has caught up."""
    primary = controller.primary
    present = {m.name for m in primary.members}
    return quorum_reply(
        cluster,
        controller.me.name,
        primary.ring,
        present,
        parse(controller.promise.voters),
        acting=controller.serving and not controller.halted,
        joining=primary.joining_names,
        reason=controller.reason,
    )


def primary_fact(controller: Controller) -> dict[str, str | int | float]:
    """Return the state of the primary layer, as the trace records it."""
    primary = controller.primary
    return {
        "ring": str(primary.ring),
        "now": primary.phase.value,
        "why": primary.reason,
        "epoch": primary.epoch,
        "level": ",".join(sorted(primary.caught_up_names)),
        "speaking": int(controller.serving),
    }
