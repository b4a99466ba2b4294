"""State that the parts of one node share: constants, outputs in order, counters and timers.

Timers are plain due times by name. A timer that fires late is harmless: setting or cancelling one
only writes into this table, and the node looks up which are due.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from enum import IntEnum

from vsync.totem.config import RingConfig
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
"""Events that a trace shows in addition to the drops."""

_new = tuple.__new__  # half the cost of calling the class


class Timer(IntEnum):
    """The timers of a node, in the order in which those due at once are handled."""

    SOLO = 1  # a ring of one has work
    HOLD = 2  # sends the held token on
    TOKEN_RESEND = 3
    TOKEN_LOSS = 4
    JOIN = 5
    LONELY = 6  # nobody answered at the start
    CONSENSUS = 7
    MERGE = 8
    CHECK = 9  # of a member whose link broke


Timers = dict[Timer, Callable[[float], None]]
"""The function called, with the time, when a timer is due."""


class Context:
    """Constants, outputs, counters and timers of one node."""

    def __init__(self, me: Member, config: RingConfig, rng: random.Random, codec: Codec) -> None:
        self.me = me
        self.config = config
        self.rng = rng
        self.codec = codec
        self.out: list[Output] = []
        self.counters: Counter[str] = Counter()
        self.due: dict[Timer, float] = {}
        self.tracing = False
        self._source = ""  # sender of the frame at hand

    def trace(self, on: bool) -> None:
        """Whether facts that may occur with every frame are noted as well."""
        self.tracing = on

    def receiving(self, source: str) -> None:
        """The frame at hand is from `source`."""
        self._source = source

    def take(self) -> list[Output]:
        """The outputs since the last call, in the order in which they happened."""
        out = self.out
        self.out = []
        return out

    def count(self, name: str, more: int = 1) -> None:
        self.counters[name] += more
        if self.tracing:
            if name in DROPS:
                # A faulty envelope leaves its sender unknown.
                envelope = name.startswith("frame_") and not name.startswith("frame_in_")
                source = "" if envelope else self._source
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
        sent = _new(Send, (to, self.codec.encode(message)))
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
    """Members in the form of the trace: `{a,b,c}`."""
    return "{" + ",".join(m.name for m in members) + "}"
