"""Sequence numbers come from somewhere: what one member alone cannot know of its ring.

A token that says more frames exist than anybody made leaves a hole that nobody can fill: the ring
stands until it is given up, and forms again as if nothing had been.  No log shows that.
"""

from __future__ import annotations

from vsync.totem.node import Node
from vsync.types import RingId


class Numbers:
    """The highest number that was seen to be given out, for each ring of a run."""

    def __init__(self) -> None:
        self._given: dict[RingId, int] = {}

    def look(self, node: Node) -> None:
        """One input of a member is done; nothing of what it says has left it yet."""
        forming = node.membership.recovery.ring if node.membership.recovery is not None else None
        for ring in (node.membership.current, forming):
            if ring is not None:
                given, high = self._given.get(ring.id, 0), ring.window.high
                if high > given:
                    self._given[ring.id] = given = high
                assert ring.forwarded <= given, f"{given} were given out: {ring.describe()}"
