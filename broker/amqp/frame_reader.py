"""Turns bytes into frames and frames into messages: the inner loop of a connection.

A publish is three frames or more. When they lie whole in the buffer they are taken at once;
otherwise the channel assembles them. Repeated content is decoded once: a method frame of
basic.publish (its exchange, key and bits) and a property list are looked up by their bytes.

A payload alone may have the agreed frame size, as in RabbitMQ: some clients do not count the bytes
around it.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import Enum
from typing import cast

from broker.amqp import codec, errors
from broker.amqp.channel import (
    PART_BYTES,
    WHOLE_BYTES_MAX,
    Address,
    ChannelIn,
    ChannelState,
)
from broker.amqp.errors import ProtocolFault
from broker.amqp.events import Event, Oversized, Published
from broker.amqp.fields import Value
from broker.amqp.handshake import Limits

_BODY_PREFIX = struct.Struct(">BBHI")  # the header's end octet, then the body's frame header
_new = tuple.__new__  # half the cost of calling the class
_CACHE_MAX = 512
_CACHED_BYTES_MAX = 256  # longer ones hardly repeat


class ReaderPhase(Enum):
    HEADER = "waits for the protocol header"
    START = "waits for connection.start-ok"
    LOGIN = "judges the client's credentials"
    TUNE = "waits for connection.tune-ok"
    OPENING = "waits for connection.open"
    OPEN = "open"
    CLOSE_RECEIVED = "has received connection.close"
    CLOSING = "waits for connection.close-ok"
    CLOSED = "closed"


_PAUSES = (ReaderPhase.CLOSED, ReaderPhase.LOGIN)


class FrameReader(ABC):
    """The input side; subclasses handle the methods."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.phase = ReaderPhase.HEADER
        self.frame_bytes_max = errors.FRAME_MIN_BYTES  # until both sides have tuned
        self.channels: dict[int, ChannelIn] = {}
        self.events: list[Event] = []
        self.need = 8  # size of the first incomplete frame
        self._addresses: dict[bytes, Address] = {}
        self._seen: dict[bytes, codec.Properties] = {}
        self._begun_bytes = 0  # of unfinished messages, or more: finished ones still count

    @abstractmethod
    def on_method(self, number: int, data: bytes, start: int, end: int) -> None:
        """A method frame on channel `number` whose payload is `data[start:end]`."""

    def remember_address(self, payload: bytes, args: tuple[Value, ...]) -> Address:
        """The address of a publish, cached under the bytes of its method frame."""
        exchange, key, mandatory, immediate = args
        bits = bool(mandatory) + 2 * bool(immediate)
        address = (cast("str", exchange), cast("str", key), bits)
        if len(self._addresses) >= _CACHE_MAX:
            self._addresses.clear()
        self._addresses[payload] = address
        return address

    def on_frames(self, data: bytes, at: int) -> int:
        """Handle all whole frames from `at`; return where the first incomplete one starts."""
        unpack, unpack_header = codec.FRAME_HEAD.unpack_from, codec.HEADER_HEAD.unpack_from
        channels, addresses, seen = self.channels, self._addresses, self._seen
        events, size = self.events, len(data)
        while size - at >= 8:
            kind, number, length = unpack(data, at)
            if length > self.frame_bytes_max:
                text = f"frame of {length} bytes on channel {number}, above frame_max"
                raise ProtocolFault(errors.FRAME_ERROR, f"{text} {self.frame_bytes_max}")
            end = at + 7 + length
            if end >= size:
                self.need = 8 + length
                return at
            if data[end] != 0xCE:
                text = f"frame of type {kind} on channel {number} does not end with octet 206"
                raise ProtocolFault(errors.FRAME_ERROR, text)
            begin, start, at = at, at + 7, end + 1
            if kind == 1:
                address = addresses.get(data[start:end])
                if address is None:
                    self.on_method(number, data, start, end)
                    if self.phase in _PAUSES:
                        return size if self.phase is ReaderPhase.CLOSED else at
                    continue
                channel = channels.get(number)
                if channel is None or not channel.is_idle:
                    self.on_method(number, data, start, end)
                    continue
                # Is this the whole message: header, then one body frame?
                if size - at > 28:
                    kind, other, length, class_id, _, announced = unpack_header(data, at)
                    end = at + 7 + length
                    last = end + 8 + announced
                    if (
                        last < size
                        and announced
                        and length >= 14
                        and kind == 2
                        and other == number
                        and class_id == 60
                        and announced <= self.frame_bytes_max
                        and length <= self.frame_bytes_max
                        and data[last] == 0xCE
                        and _BODY_PREFIX.unpack_from(data, end) == (0xCE, 3, number, announced)
                    ):
                        properties = data[at + 19 : end]
                        flags, user_id = seen.get(properties) or self._inspect(properties)
                        exchange, key, bits = address
                        body = data[end + 8 : last]
                        fields = number, exchange, key, bits | flags, properties, body, user_id
                        events.append(_new(Published, fields))
                        at = last + 1
                        if data.startswith(same := data[begin : end + 8], at):
                            at = self._on_alike(data, at, same, events[-1])
                        continue
                channel.on_publish(address)
            else:
                self._on_other_frame(kind, number, data, start, end)
        self.need = 8
        return at

    def _on_alike(self, data: bytes, at: int, same: bytes, before: Event) -> int:
        """Handle publishes whose octets up to their bodies, `same`, equal those of the previous one
        and so need no check. Return where the first other frame starts."""
        number, exchange, key, flags, properties, body, user_id = cast("Published", before)
        events, size, announced = self.events, len(data), len(body)
        while data.startswith(same, at):
            start = at + len(same)
            last = start + announced
            if last >= size or data[last] != 0xCE:
                break
            fields = number, exchange, key, flags, properties, data[start:last], user_id
            events.append(_new(Published, fields))
            at = last + 1
        return at

    def _inspect(self, properties: bytes) -> codec.Properties:
        seen = codec.inspect_properties(properties)
        if len(properties) <= _CACHED_BYTES_MAX:
            if len(self._seen) >= _CACHE_MAX:
                self._seen.clear()
            self._seen[properties] = seen
        return seen

    def _on_other_frame(self, kind: int, number: int, data: bytes, start: int, end: int) -> None:
        if kind == codec.HEARTBEAT:
            if number:
                text = f"heartbeat on channel {number}, not 0"
                raise ProtocolFault(errors.UNEXPECTED_FRAME, text)
            if end > start:
                raise ProtocolFault(errors.FRAME_ERROR, "heartbeat with a payload")
            return
        if kind not in (codec.HEADER, codec.BODY):
            text = f"frame of unknown type {kind} on channel {number}"
            raise ProtocolFault(errors.FRAME_ERROR, text)
        if self.phase in (ReaderPhase.CLOSING, ReaderPhase.CLOSE_RECEIVED):
            return
        channel = self.channels.get(number)
        if channel is None:
            text = f"content frame on channel {number}, which is not open"
            raise ProtocolFault(errors.UNEXPECTED_FRAME, text)
        if channel.state is not ChannelState.OPEN:
            return
        if kind == codec.BODY:
            channel.on_body(number, data[start:end])
            if (part := channel.part(number)) is not None:
                self.events.append(part)
        else:
            channel.expect_header(number)
            announced, properties = codec.decode_content_header(data, start, end)
            channel.on_header(announced, properties, self._inspect(properties))
            if announced > self.limits.message_bytes_max:
                channel.state = ChannelState.CLOSING
                channel.reset()
                self.events.append(Oversized(number, announced))
                return
            self._begun_bytes += self._kept_of(channel)
            if self._begun_bytes > self.limits.assembly_bytes_max:
                self._count_unfinished()
        message = channel.whole(number)
        if message is not None:
            self.events.append(message)

    def _count_unfinished(self) -> None:
        """Look at all channels, which may be thousands, only if the limit may have been passed."""
        under_way = self._begun_bytes = sum(map(self._kept_of, self.channels.values()))
        if under_way > self.limits.assembly_bytes_max:
            text = f"{under_way} bytes of unfinished messages on one connection"
            raise ProtocolFault(errors.RESOURCE_ERROR, text, 60, 40)

    def _kept_of(self, channel: ChannelIn) -> int:
        """How much of the message in progress is kept here before it is passed on."""
        whole = channel.announced
        return PART_BYTES + self.frame_bytes_max if whole > WHOLE_BYTES_MAX else whole
