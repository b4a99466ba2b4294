"""What a core hands out: its outputs in order, its counters, and its timers.

One `Desk` is shared by the parts of one node; it is the only thing that they all write to.  Timers
are plain due times by name: a timer that fires late is harmless, because whoever sets or cancels it
only writes into this table, and the node asks it what is due.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

from vsync.codec import Codec
from vsync.events import Broadcast, Note, Output, Send
from vsync.messages import Message
from vsync.types import Member


class Timer(IntEnum):
    """The timers of a node, in the order in which those due at once are handled."""

    SOLO = 1  # a ring of one has work
    HOLD = 2  # the held token goes on
    TOKEN_RESEND = 3
    TOKEN_LOSS = 4
    JOIN = 5
    LONELY = 6  # nobody answered at the start
    CONSENSUS = 7
    MERGE = 8
    CHECK = 9  # of a member whose link broke


class Desk:
    """Outputs, counters and timers of one node."""

    __slots__ = ("codec", "counters", "due", "out")

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.out: list[Output] = []
        self.counters: Counter[str] = Counter()
        self.due: dict[Timer, float] = {}

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def note(self, code: str, **fields: str | int | float) -> None:
        self.out.append(Note(code, fields))

    def send(self, to: Member, message: Message) -> bytes:
        frame = self.codec.encode(message)
        self.out.append(Send(to, frame))
        return frame

    def broadcast(self, message: Message) -> None:
        self.out.append(Broadcast(self.codec.encode(message)))

    def arm(self, timer: Timer, at: float) -> None:
        self.due[timer] = at

    def cancel(self, *timers: Timer) -> None:
        for timer in timers:
            self.due.pop(timer, None)


def names(members: tuple[Member, ...] | list[Member]) -> str:
    """Members as the trace prints them: `{a,b,c}`."""
    return "{" + ",".join(m.name for m in members) + "}"
