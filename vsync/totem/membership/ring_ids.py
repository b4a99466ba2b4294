"""The ring ids known to one member: they only rise, and none is committed to twice."""

from __future__ import annotations

from collections import deque

from vsync.types import Member, RingId

PAST_RINGS_MAX = 32


class RingIds:
    """The highest ring seq known and committed to, and the past rings."""

    def __init__(self) -> None:
        self.highest_seq = 0  # known to anybody, as far as this member knows
        self.committed_seq = 0  # committed to; never goes back (pitfall 3)
        self.past: deque[RingId] = deque(maxlen=PAST_RINGS_MAX)  # installed or tried

    def learn(self, seq: int) -> None:
        """A ring with this sequence number is known to some member."""
        self.highest_seq = max(self.highest_seq, seq)

    def next(self, representative: Member) -> RingId:
        """The id of a new ring."""
        self.highest_seq += 1
        return RingId(self.highest_seq, representative.name, representative.incarnation)

    def commit(self, ring: RingId) -> None:
        """Take part in forming `ring`, and no longer in any earlier one."""
        self.committed_seq = ring.seq
        self.learn(ring.seq)
