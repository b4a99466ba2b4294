"""What a member says of itself and its cluster to operators (see `tools/qpid_cluster`)."""

from __future__ import annotations

from importlib import metadata

from broker.core import Core
from broker.management import Json
from vsync.primary import Phase

DISTRIBUTION = "qpid-cluster-py"


def version() -> str:
    """Return the release of this broker."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source tree"


def status_of(core: Core, cluster_name: str, progress: str) -> Json:
    """Return the answer to `status`: the cluster as this member sees it."""
    primary = core.primary
    labels, marks = primary.labels(), primary.marks()
    here = {m.name: m for m in primary.members}
    here.setdefault(core.me.name, core.me)
    members: list[Json] = []
    for name in sorted({*here, *core.promise.voters}):
        state = "DOWN"
        if name in here:
            level = primary.active and name in primary.level_names
            state = "ACTIVE" if level else "JOINING"
        position = core.replica.history.position if name == core.me.name else marks.get(name, 0)
        members.append(
            {
                "id": name,
                "url": core.label if name == core.me.name else labels.get(name, ""),
                "state": state,
                "voter": name in core.promise.voters,
                "position": position,
                "local": name == core.me.name,
            }
        )
    word, reason = _status_word(core)
    return {
        "cluster": cluster_name,
        "cluster_id": core.promise.cluster_id,
        "status": word,
        "size": sum(1 for m in members if m["state"] != "DOWN"),
        "epoch": core.replica.history.epoch,
        "position": core.replica.history.position,
        "members": members,
        "voters": list(core.promise.voters),
        "reason": core.halted or progress or reason,
        "version": version(),
    }


def _status_word(core: Core) -> tuple[str, str]:
    primary = core.primary
    if core.halted:
        return "INQUORATE", core.halted
    if core.speaking and primary.level:
        return "ACTIVE", ""
    if primary.phase is Phase.INQUORATE:
        waiting = not core.promise.cluster_id
        return ("WAITING" if waiting else "INQUORATE"), primary.reason
    return "JOINING", primary.reason
