"""The application's side of the ring: payloads it submitted, and payloads delivered to it."""

from __future__ import annotations

from vsync.totem.config import RingConfig
from vsync.totem.context import Context
from vsync.totem.events import Deliver
from vsync.totem.ordering.packing import Reassembly, SendQueue
from vsync.totem.ordering.ring import Ring
from vsync.types import Guarantee
from vsync.wire.messages import Content, Data


class Intake:
    """The application's input: queued payloads, its mark, its throttle. Kept across all rings."""

    def __init__(self, config: RingConfig) -> None:
        self.queue = SendQueue(
            config.queue_bytes_max, config.queue_messages_max, config.message_bytes_max
        )
        self.mark = 0
        self.coming = 0  # the mark once the disk has all data on its way there
        self.urgent = False  # some queued payload should not wait for the token
        self.throttle_s = 0.0  # how long each token is kept, because the application is behind
        self._throttle_max_s = config.hold_ms / 1000

    def put(self, payload: bytes, guarantee: Guarantee, *, urgent: bool) -> bool:
        """Queue a payload; False if there is no room."""
        if not self.queue.put(payload, guarantee):
            return False
        self.urgent = self.urgent or urgent
        return True

    def visited(self) -> None:
        """The token took as many queued payloads as it could."""
        self.urgent = bool(self.queue)

    def set_mark(self, mark: int) -> bool:
        """Set the mark; True if that changes it."""
        assert 0 <= mark < 1 << 64, mark
        changed = mark != self.mark
        if mark <= self.mark:
            self.coming = mark  # another disk
        self.mark = mark
        return changed

    def expect_mark(self, mark: int) -> None:
        """The mark will soon change to this one."""
        self.coming = mark

    def set_throttle(self, hold_s: float) -> None:
        """Set the delay of each token, at most an idle ring's hold so that none is missed."""
        self.throttle_s = min(max(hold_s, 0.0), self._throttle_max_s)


class Delivery:
    """The application's output: ordered frames as whole payloads."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.assembly = Reassembly(context.config.message_bytes_max)

    def emit(self, ring: Ring, frame: Data, transitional: bool) -> None:
        """Hand one ordered frame to the application."""
        sender = ring.members[frame.origin]
        payloads = frame.items
        if frame.content is Content.FRAGMENT:
            payloads, odd = self.assembly.add(sender, payloads)
            if odd:
                self._context.count(odd)
        self._context.out.append(
            Deliver(ring.id, frame.seq, sender, payloads, frame.guarantee, transitional)
        )
