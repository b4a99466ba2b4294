"""A cluster that is to notice nothing of what happens beside it."""

from __future__ import annotations

from tools.demo.local_cluster import BrokerProcess, LocalCluster


def events(member: BrokerProcess, what: str) -> int:
    """How many lines of its log tell of this."""
    return member.log_path.read_text().count(what)


class Undisturbed:
    """Nobody who runs when the block begins notices what happens in it.

    A view may change while a member says that it stood still itself: that is the machine's doing.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._members = [one for one in cluster.members if one.alive]

    def _count(self, what: str) -> list[int]:
        return [events(member, what) for member in self._members]

    def __enter__(self) -> None:
        self._views, self._pauses = self._count(") view "), self._count(" ms late, having")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._cluster.wait_active(self._members)
            stood_still = self._count(" ms late, having") != self._pauses
            assert self._count(") view ") == self._views or stood_still
