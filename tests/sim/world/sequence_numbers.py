"""Checks that the sequence numbers on a token were assigned, which no member can know alone.

A token that counts more frames than there are leaves a hole that cannot be filled: the ring stalls
until it is given up, and forms again as if nothing had happened.  No log shows that.
"""

from __future__ import annotations

from vsync.totem.node import Node
from vsync.types import RingId


class Numbers:
    """The highest assigned number seen, for each ring of a run."""

    def __init__(self) -> None:
        self._given: dict[RingId, int] = {}

    def look(self, node: Node) -> None:
        """Check a member after one input, before any of its outputs has left it."""
        forming = node.membership.recovery.ring if node.membership.recovery is not None else None
        for ring in (node.membership.current, forming):
            if ring is not None:
                given, high = self._given.get(ring.id, 0), ring.window.high
                if high > given:
                    self._given[ring.id] = given = high
                assert ring.forwarded <= given, f"{given} were given out: {ring.describe()}"
