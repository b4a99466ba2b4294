"""Votes: does this view hold a majority?

Pure functions over one record.  The formula is the one that CMAN and votequorum share: the quorum
follows from the larger of what is expected and what is present, so that members that come in
addition raise it, and a member that goes does not lower it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vsync.errors import ConfigError
from vsync.types import record


@record
class Vote:
    """What one member of the view brings."""

    name: str
    votes: int
    expected: int  # the votes that this member expects in the whole cluster

    def __post_init__(self) -> None:
        if self.votes < 0 or self.expected < 1:
            raise ConfigError(f"{self.name}: votes {self.votes}, expected {self.expected}")


@record
class Quorum:
    """The judgement over one view."""

    expected: int
    total: int
    quorum: int
    nodes: int
    two_node: bool

    @property
    def quorate(self) -> bool:
        return self.total >= self.quorum

    def describe(self) -> str:
        """As an operator reads it."""
        word = "quorate" if self.quorate else "inquorate"
        special = ", two nodes" if self.two_node else ""
        return (
            f"{word}: {self.total} of {self.expected} votes from {self.nodes} members, "
            f"quorum {self.quorum}{special}"
        )


def majority(votes: int) -> int:
    """The smallest number of votes that two disjoint groups cannot both have."""
    return (votes + 2) // 2


def decide(
    view: Iterable[Vote],
    *,
    device_votes: int = 0,
    two_node: bool = False,
    before: Quorum | None = None,
    allow_decrease: bool = True,
) -> Quorum:
    """Judge a view.

    `device_votes`: of a voting device that is present.  `two_node`: of two members, one may go on
    alone; only with fencing, or both do.  `before` with `allow_decrease` False keeps the quorum
    from falling; expected votes that rose by themselves stay in either case.
    """
    members = list(view)
    total = sum(member.votes for member in members) + device_votes
    nodes = len(members) + (1 if device_votes else 0)
    expected = max([total, *(member.expected for member in members)])
    if before is not None:
        expected = max(expected, before.expected)
    quorum = max(majority(expected), majority(total))
    if before is not None and not allow_decrease:
        quorum = max(quorum, before.quorum)
    special = two_node and nodes <= 2
    return Quorum(expected, total, 1 if special else quorum, nodes, special)


def with_expected(current: Quorum, expected: int) -> Quorum:
    """An operator sets the expected votes down (or up).

    Refused when more votes than that are present, or when a quorate cluster would lose its quorum.
    """
    if expected < current.total:
        raise ConfigError(f"{expected} expected votes, but {current.total} are present")
    quorum = 1 if current.two_node else majority(expected)
    changed = Quorum(expected, current.total, quorum, current.nodes, current.two_node)
    if current.quorate and not changed.quorate:
        raise ConfigError(f"{expected} expected votes would end the quorum: {changed.describe()}")
    return changed
