"""The ring ids that one member knows of: they only rise, and none is committed to twice."""

from __future__ import annotations

from collections import deque

from vsync.types import Member, RingId

PAST_RINGS_MAX = 32


class RingIds:
    """Highest ring seq known and committed to, and the rings that are over."""

    def __init__(self) -> None:
        self.highest_seq = 0  # known to anybody, as far as this member knows
        self.committed_seq = 0  # committed to; never goes back (pitfall 3)
        self.past: deque[RingId] = deque(maxlen=PAST_RINGS_MAX)  # installed or tried

    def learn(self, seq: int) -> None:
        """Somebody knows of a ring with this sequence number."""
        self.highest_seq = max(self.highest_seq, seq)

    def next(self, representative: Member) -> RingId:
        """The id of a new ring."""
        self.highest_seq += 1
        return RingId(self.highest_seq, representative.name, representative.incarnation)

    def commit(self, ring: RingId) -> None:
        """Take part in forming `ring`, and in no earlier one any more."""
        self.committed_seq = ring.seq
        self.learn(ring.seq)
