"""A cluster that must notice nothing of the events beside it."""

from __future__ import annotations

from collections.abc import Sequence

from tools.demo.local_cluster import BrokerProcess, LocalCluster


def events(members: Sequence[BrokerProcess], what: str) -> list[int]:
    """The number of lines about this in each log."""
    return [member.log_path.read_text(encoding="utf-8").count(what) for member in members]


def pauses(members: Sequence[BrokerProcess]) -> list[int]:
    """How often each reported a stall that was not a long piece of its own work."""
    late, worked = events(members, " ms late, having"), events(members, "a long piece of work: ")
    return [one - own for one, own in zip(late, worked, strict=True)]


class Undisturbed:
    """No member that runs when the block begins notices what happens in it.

    A view may change if a member reports that it stood still itself: that is the machine's doing.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._members = [one for one in cluster.members if one.alive]

    def __enter__(self) -> None:
        self._views, self._pauses = events(self._members, ") view "), pauses(self._members)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._cluster.wait_active(self._members)
            stood_still = pauses(self._members) != self._pauses
            assert events(self._members, ") view ") == self._views or stood_still
