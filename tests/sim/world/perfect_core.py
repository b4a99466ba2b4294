"""A core that is right only on a perfect network without failures: the simulator's own test.

The first member assigns the order, all others send to it.  With it the simulator and the checkers
can be tested, and broken on purpose, without the protocol under test.
"""

from __future__ import annotations

import random
import struct

from tests.sim.run.plan import Plan
from vsync.totem.events import Broadcast, Deliver, Marks, Output, Send, View
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member, RingId
from vsync.wire.messages import FrameKind

ASK, ORDER, MARK = 1, 2, 3
HEAD = struct.Struct(">BBBIBB")  # version, kind, what, number, origin, guarantee
RETRY_S = 0.02


class FakeCore:
    """A fixed sequencer over a fixed membership, with one retransmission timer."""

    def __init__(self, me: Member, plan: Plan, chance: random.Random) -> None:
        self.me = me
        self.members = tuple(Member(name, 1, f"{name}:1") for name in plan.names)
        self.ring = RingId(1, self.members[0].name, 1)
        self.phase = Phase.OPERATIONAL
        self.counters: dict[str, int] = {}
        self.index = self.members.index(me)
        self.order: list[bytes] = []  # at the sequencer: all ordered frames
        self.asked: list[bytes] = []  # own frames in submit order
        self.own_seen = 0
        self.seen = [0] * len(self.members)  # at the sequencer: requests taken of each
        self.delivered = 0
        self.held: dict[int, bytes] = {}
        self.due = 0.0
        self.out: list[Output] = []
        self.mark = 0
        self.marks = dict.fromkeys(plan.names, 0)

    def start(self, now: float) -> None:
        self.out.append(View(self.ring, self.members, self.members, ()))
        self.due = now + RETRY_S

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        self.asked.append(
            HEAD.pack(1, FrameKind.DATA, ASK, len(self.asked) + 1, self.index, guarantee) + payload
        )
        if self.index == 0:
            self._take_asks()
        else:
            self.out.append(Send(self.members[0], self.asked[-1]))
        return True

    def receive(self, frame: bytes, now: float) -> None:
        _, _, what, number, origin, guarantee = HEAD.unpack_from(frame)
        if what == ASK and self.index == 0:
            if number == self.seen[origin] + 1:
                self._order(origin, guarantee, frame[HEAD.size :])
        elif what == MARK:
            self._show(origin, number)
        elif what == ORDER:
            self.held[number] = frame
            self._deliver()

    def _take_asks(self) -> None:
        for frame in self.asked[self.seen[0] :]:
            self._order(0, frame[HEAD.size - 1], frame[HEAD.size :])

    def _order(self, origin: int, guarantee: int, payload: bytes) -> None:
        self.seen[origin] += 1
        number = len(self.order) + 1
        frame = HEAD.pack(1, FrameKind.DATA, ORDER, number, origin, guarantee) + payload
        self.order.append(frame)
        self.out.append(Broadcast(frame))
        self.held[number] = frame
        self._deliver()

    def _deliver(self) -> None:
        while (frame := self.held.pop(self.delivered + 1, None)) is not None:
            self.delivered += 1
            origin, guarantee = frame[HEAD.size - 2], frame[HEAD.size - 1]
            self.own_seen += origin == self.index
            self.out.append(
                Deliver(
                    self.ring,
                    self.delivered,
                    self.members[origin],
                    [frame[HEAD.size :]],
                    Guarantee(guarantee),
                    False,
                )
            )

    def drained(self, now: float) -> None:
        """Not needed here."""

    def next_timer(self) -> float | None:
        return self.due

    def wake(self, now: float) -> None:
        self.due = now + RETRY_S
        if self.index:
            for frame in self.asked[self.own_seen :][:10]:
                self.out.append(Send(self.members[0], frame))
        for frame in self.order[-20:]:
            self.out.append(Broadcast(frame))

    def set_mark(self, mark: int, now: float) -> None:
        self.mark = mark
        self.out.append(Broadcast(HEAD.pack(1, FrameKind.WAKE, MARK, mark, self.index, 0)))
        self._show(self.index, mark)

    def expect_mark(self, mark: int) -> None:
        """No token waits here."""

    def _show(self, origin: int, mark: int) -> None:
        self.marks[self.members[origin].name] = mark
        self.out.append(Marks(dict(self.marks)))

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Datagrams are not needed here."""

    def leave(self, now: float) -> None:
        """Leaving is not needed here."""

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """Link hints are not needed here."""

    def take(self) -> list[Output]:
        out, self.out = self.out, []
        return out

    def invariants(self) -> None:
        assert self.delivered <= len(self.order) or self.index
