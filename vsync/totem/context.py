"""What a core hands out: its outputs in order, its counters, and its timers.

One `Context` is shared by the parts of one node; it is the only thing that they all write to.
Timers are plain due times by name: a timer that fires late is harmless, because whoever sets or
cancels it only writes into this table, and the node asks it what is due.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

from vsync.totem.counters import DROPS
from vsync.totem.events import Broadcast, Note, Output, Send
from vsync.types import Member
from vsync.wire.codec import Codec
from vsync.wire.messages import Join, Message

TRACED = frozenset(
    (
        "token_lost", "token_resent", "token_slowed", "retransmitted", "asked", "recovered_sent",
        "fragments_sent_again", "fragment_restarted",
    )
)  # fmt: skip
"""Events that a trace shows beside the drops."""


ONLY_TRACED = TRACED | {"drop", "join_sent", "join_heard"}
"""Notes that nobody gets unless a trace is on."""


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


class Context:
    """Outputs, counters and timers of one node."""

    __slots__ = ("codec", "counters", "due", "out", "source", "tracing")

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.out: list[Output] = []
        self.counters: Counter[str] = Counter()
        self.due: dict[Timer, float] = {}
        self.tracing = False  # say also what may happen with every frame
        self.source = ""  # who the frame at hand is from, while tracing

    def count(self, name: str, more: int = 1) -> None:
        self.counters[name] += more
        if self.tracing:
            if name in DROPS:
                # What is wrong with an envelope leaves open who sent it.
                envelope = name.startswith("frame_") and not name.startswith("frame_in_")
                source = "" if envelope else self.source
                self.note("drop", why=name, times=more, **{"from": source})
            elif name in TRACED:
                self.note(name, times=more)

    def note(self, code: str, **fields: str | int | float) -> None:
        self.out.append(Note(code, fields))

    def note_join(self, code: str, join: Join, sender: Member | None = None) -> None:
        if self.tracing:
            self.note(
                code, ring_seq=join.ring_seq, proc=names(join.proc), failed=names(join.failed),
                **({"from": sender.name} if sender is not None else {}),
                **({"leaving": 1} if join.leaving else {}),
            )  # fmt: skip

    def send(self, to: Member, message: Message) -> Send:
        sent = Send(to, self.codec.encode(message))
        self.out.append(sent)
        return sent

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
