"""Parts of large messages wait for a majority's disks, and nothing waits for ever, in whichever
order blobs are applied, become durable or are received."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob, unpack_blob
from broker.replication.submissions import LargePace, Submissions

PART = c.BodyPart(c.BODY_PART, 1, 1, b"p" * 1_000)


class World:
    """One member's own blobs, the history that applies them, and what a majority has."""

    def __init__(self) -> None:
        self.ring: list[bytes] = []
        self.own = Submissions(self._send, pack_blob, lambda: 1, lambda _: 2_000)  # one blob each
        self.own.pace = LargePace(0)
        self.own.start(1)
        self.applied = self.position = 0  # the last number, and its position
        self.durable = 0
        self.parts: set[int] = set()  # the positions of own blobs with parts
        self.resends = False

    def _send(self, payload: bytes, urgent: bool) -> bool:
        if unpack_blob(payload).commands[0][0] == c.BODY_PART:
            assert self.resends or not any(at > self.durable for at in self.parts)
        self.ring.append(payload)
        return True

    def part(self) -> None:
        self.own.submit([PART])

    def ack(self) -> None:
        self.own.submit([c.Ack(c.ACK, 2, 1, 1, False)])

    def other(self) -> None:
        """An item of another member, which takes no time from this one's parts."""
        self.position += 1

    def apply(self) -> None:
        if self.ring:
            blob = unpack_blob(self.ring.pop(0))
            self.position += len(blob.commands)
            if blob.blob_no == self.applied + 1 and blob.session == self.own.session:
                self.applied += 1
                if blob.commands[0][0] == c.BODY_PART:
                    self.parts.add(self.position)
                self.own.applied(self.applied, self.position)
                self.own.flush()

    def commit(self) -> None:
        """A majority gets what is applied here."""
        self._mark(self.position)

    def commit_half(self) -> None:
        """A majority gets half of it."""
        self._mark((self.durable + self.position) // 2)

    def _mark(self, position: int) -> None:
        self.durable = position
        self.own.durable(position)
        self.own.flush()

    def adopt(self) -> None:
        """Take another member's state, which contains this one's."""
        self.other()
        self.durable = 0
        self.parts.clear()
        self.own.state_replaced()
        self.own.flush()

    def view(self) -> None:
        """A view change: all drop what was under way, and it is sent again."""
        self.own.suspend()
        self.ring.clear()
        self.resends = True
        self.own.resume(self.applied)
        self.resends = False

    def session(self) -> None:
        self.own.start(self.own.session + 1)
        self.ring.clear()
        self.parts.clear()
        self.applied = 0


STEPS = st.lists(
    st.sampled_from(
        (
            *[World.part, World.apply] * 4,
            *[World.commit, World.commit_half] * 2,
            *(World.ack, World.other, World.view, World.session, World.adopt),
        )
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_waits_for_ever(steps: list[Callable[[World], None]]) -> None:
    it = World()
    for step in steps:
        step(it)
    for _ in range(len(steps) + 1):
        for step in (*[World.apply] * 4, World.commit):
            step(it)
    assert it.own.outstanding == 0
    assert not it.ring
