"""What `cpgtool` and `quorumtool` ask of a broker."""

from __future__ import annotations

from broker.replication.controller import Controller
from vsync.admin.protocol import Json
from vsync.admin.views import groups_reply, quorum_reply
from vsync.quorum.voter_set import parse


def groups_of(controller: Controller, cluster: str) -> Json:
    """Return the answer to `groups`: brokers are one group, of those that have the state."""
    primary = controller.primary
    level = [m for m in primary.members if primary.active and m.name in primary.caught_up_names]
    return groups_reply(
        cluster,
        controller.me,
        primary.ring,
        primary.members,
        {cluster or "stand-alone": level} if level else {},
        controller.replica.history.position,
        settled=primary.active,
    )


def quorum_of(controller: Controller, cluster: str) -> Json:
    """Return the answer to `quorum`: a broker may act in a primary view that it is level in."""
    primary = controller.primary
    present = {m.name for m in primary.members}
    return quorum_reply(
        cluster,
        controller.me.name,
        primary.ring,
        present,
        parse(controller.promise.voters),
        acting=controller.serving and not controller.halted,
        reason=controller.halted or primary.reason,
    )


def primary_fact(controller: Controller) -> dict[str, str | int | float]:
    """Return where the primary layer stands, as the trace writes it down."""
    primary = controller.primary
    return {
        "ring": str(primary.ring),
        "now": primary.phase.value,
        "why": primary.reason,
        "epoch": primary.epoch,
        "level": ",".join(sorted(primary.caught_up_names)),
        "speaking": int(controller.serving),
    }
