"""The receiving side of one channel: its state, and the message being assembled from frames."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from broker.amqp.codec import Properties
from broker.amqp.errors import FRAME_ERROR, UNEXPECTED_FRAME, ProtocolFault
from broker.amqp.events import BodyPart, Published

WHOLE_BYTES_MAX = 1 << 20
"""The largest body that is kept here until it is whole; a larger one goes on in parts."""
PART_BYTES = 128_000
"""A part consists of the frames that together reach this size."""
SMALL_BYTES = 256
"""Smaller pieces of a body are merged: each piece costs some 60 bytes more than its content."""
IN_PARTS = 8
"""The bit of `Published.flags`."""

Address: TypeAlias = tuple[str, str, int]  # exchange, key, the bits of basic.publish


_NOTHING_SEEN = Properties(0, None)


class ChannelState(Enum):
    """Every state but OPEN discards what the client still sends on the channel."""

    OPEN = "open"
    CLOSE_REQUESTED = "the client asked for its end and has no reply yet"
    CLOSING = "the server will close it, or has closed it and waits for close-ok"


@dataclass(slots=True, eq=False)
class ChannelIn:
    """A publish is a method frame, a header frame, and body frames up to the announced size."""

    state: ChannelState = ChannelState.OPEN
    sent_close: bool = False  # the server's channel.close is out, close-ok is due
    sent_close_ok: bool = False  # the client asked for the end too, and has its reply
    address: Address | None = None  # of the publish in progress
    properties: bytes | None = None  # known once the header arrived
    seen: Properties = _NOTHING_SEEN
    announced: int = 0
    missing: int = 0
    parts: list[bytes | bytearray] = field(default_factory=list)
    kept: int = 0  # bytes of these
    in_parts: bool = False  # some of the body was passed on already

    @property
    def is_idle(self) -> bool:
        """Open, and not in the middle of a message."""
        return self.address is None and self.state is ChannelState.OPEN

    def on_publish(self, address: Address) -> None:
        self.address = address
        self.properties = None

    def expect_header(self, number: int) -> None:
        """Raise ProtocolFault unless a publish waits for its header."""
        if self.address is None or self.properties is not None:
            text = f"content header on channel {number} where none is expected"
            raise ProtocolFault(UNEXPECTED_FRAME, text)

    def on_header(self, announced: int, properties: bytes, seen: Properties) -> None:
        self.properties = properties
        self.seen = seen
        self.announced = self.missing = announced

    def on_body(self, number: int, part: bytes) -> None:
        if self.properties is None:
            text = f"content body on channel {number} where none is expected"
            raise ProtocolFault(UNEXPECTED_FRAME, text)
        if len(part) > self.missing:
            text = f"content body on channel {number} is longer than its header announced"
            raise ProtocolFault(FRAME_ERROR, text, 60, 40)
        self.missing -= len(part)
        if part:
            self._keep(part)
            self.kept += len(part)

    def _keep(self, part: bytes) -> None:
        if not self.parts or len(part) >= SMALL_BYTES:
            self.parts.append(part)
        elif isinstance(last := self.parts[-1], bytearray):
            last += part
        else:
            self.parts.append(bytearray(part))

    def part(self, number: int) -> BodyPart | None:
        """The content of a large body so far, once it is enough to pass on ahead of the rest."""
        if self.announced <= WHOLE_BYTES_MAX or self.kept < PART_BYTES or not self.missing:
            return None
        data = b"".join(self.parts)
        self.parts, self.kept, self.in_parts = [], 0, True
        return BodyPart(number, data)

    def whole(self, number: int) -> Published | None:
        """The message, once it is complete; the channel is then ready for the next one."""
        if self.missing or self.properties is None or self.address is None:
            return None
        exchange, key, bits = self.address
        flags, user_id = self.seen
        if self.in_parts:
            flags |= IN_PARTS
        body = b"".join(self.parts)
        message = Published(number, exchange, key, bits | flags, self.properties, body, user_id)
        self.reset()
        return message

    def reset(self) -> None:
        self.address = self.properties = None
        self.announced = self.missing = self.kept = 0
        self.parts = []
        self.in_parts = False
