"""The receive window: the frames of one ring that a member holds, and the gaps among them.

Sequence numbers start at 1. Everything up to `aru` was received. Everything up to `released` is
held by all members and was dropped here. The window never holds more than its limit, so an absurd
number in a frame costs nothing.
"""

from __future__ import annotations

from vsync.wire.messages import Data


class Window:
    """Received frames above `released`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.aru = 0
        self.high = 0
        self.released = 0
        self._frames: dict[int, Data] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Data, slack: int = 0) -> str:
        """Keep `frame`. Returns "", or the name of the counter for why it was not kept.

        `slack`: recovery may hold more than one limit, because others may have released less.
        """
        seq = frame.seq
        frames = self._frames
        if seq <= self.aru or seq in frames:
            return "data_again"
        if seq > self.released + self.limit + slack:
            return "data_beyond_store"
        frames[seq] = frame
        if seq > self.high:
            self.high = seq
        if seq == self.aru + 1:
            aru = seq + 1
            while aru in frames:
                aru += 1
            self.aru = aru - 1
        return ""

    def get(self, seq: int) -> Data | None:
        return self._frames.get(seq)

    def missing(self, upto: int, limit: int) -> list[int]:
        """The first `limit` sequence numbers in (aru, upto] that are not here."""
        if upto <= self.aru:
            return []
        frames = self._frames
        found = []
        for seq in range(self.aru + 1, min(upto, self.aru + self.limit) + 1):
            if seq not in frames:
                found.append(seq)
                if len(found) == limit:
                    break
        return found

    def release(self, upto: int) -> None:
        """Drop frames that all members hold; the caller has delivered them."""
        assert upto <= self.aru, (upto, self.aru)
        frames = self._frames
        for seq in range(self.released + 1, upto + 1):
            del frames[seq]
        if upto > self.released:
            self.released = upto

    def describe(self) -> str:
        return f"released {self.released}, aru {self.aru}, high {self.high}, held {len(self)}"

    def invariants(self) -> None:
        assert self.released <= self.aru <= self.high or not self.high, self.describe()
        assert len(self._frames) <= 2 * self.limit, self.describe()
        assert self.aru + 1 not in self._frames, self.describe()
