"""Bytes that no client library sends: both brokers' replies to frames out of order or shape."""

from __future__ import annotations

import struct

from broker.amqp import codec
from broker.options.addresses import Address
from tests.differential.peers import Peer, wait_for_silence
from tests.differential.program import Step
from tests.differential.rules import Difference
from tests.support.amqp_peer import method, opening, start_ok, tune_ok


def tuned(channel_max: int, frame_max: int) -> bytes:
    start = codec.PROTOCOL_HEADER + start_ok() + tune_ok(channel_max, frame_max)
    return start + method(0, "connection.open", "/")


OPEN = opening()
SMALL = tuned(2047, 4096) + method(1, "channel.open")
CHANNEL = OPEN + method(1, "channel.open")
PUBLISH = method(1, "basic.publish", "", "nobody", False, False)
TURN_S, IDLE_S = 0.1, 5.0
"""RabbitMQ closes late after a mistake before the connection is open."""


def frame(kind: int, channel: int, payload: bytes, end: int = codec.FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def header(size: int, properties: bytes = b"\0\0", class_id: int = 60, weight: int = 0) -> bytes:
    return frame(2, 1, struct.pack(">HHQ", class_id, weight, size) + properties)


def declare(arguments: bytes) -> bytes:
    """queue.declare with a table of these bytes."""
    table = struct.pack(">I", len(arguments)) + arguments
    return frame(1, 1, b"\0\x32\0\x0a\0\0\0\0" + table)


HEARTBEAT = codec.HEARTBEAT_FRAME
SIX = method(1, "channel.open") + method(6, "channel.open")
WRONG_PHASE = "a method from the wrong side, or in the wrong phase: 503"
UNKNOWN = "an unknown method: 540"
UNREADABLE = "arguments, headers and properties that cannot be read: 502"
CASES: dict[str, bytes] = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "AMQP 1.0": b"AMQP\0\1\0\0",
    "AMQP 0-9": b"AMQP\1\1\0\x09",
    "AMQP 0-8": b"AMQP\1\1\x08\0",
    "AMQP 0-9-1 with another id": b"AMQP\1\0\x09\1",
    "nothing but a header": codec.PROTOCOL_HEADER,
    "an unknown mechanism": codec.PROTOCOL_HEADER
    + method(0, "connection.start-ok", {}, "NOPE", b"", "en_US"),
    "a wrong password": codec.PROTOCOL_HEADER + start_ok("guest", "wrong"),
    "a wrong password, no capability": codec.PROTOCOL_HEADER + start_ok("guest", "wrong", {}),
    "no vhost of this name": opening("nowhere"),
    "channel-max 0": tuned(0, 131_072) + SIX,
    "channel-max 5": tuned(5, 131_072) + SIX,
    "channel-max above": tuned(4096, 131_072),
    "frame-max 0": tuned(2047, 0) + method(1, "channel.open"),
    "frame-max 4096": SMALL,
    "frame-max 4095": tuned(2047, 4095),
    "frame-max above": tuned(2047, 200_000),
    "frame-max 4096, a larger body frame": SMALL
    + PUBLISH + header(5000) + frame(3, 1, b"x" * 5000),
    "frame-max 4096, a larger header": SMALL + PUBLISH
    + header(0, b"\x80\0\xff" + b"x" * 255 + b"y" * 5000),
    "heartbeats, unasked": CHANNEL + HEARTBEAT * 3 + method(1, "basic.qos", 0, 1, False),
    "a heartbeat on a channel": CHANNEL + frame(8, 1, b"") + method(1, "basic.qos", 0, 1, False),
    "a heartbeat with a payload": CHANNEL + frame(8, 0, b"x"),
    "a frame of unknown kind": CHANNEL + frame(9, 1, b""),
    "kind 0": CHANNEL + frame(0, 1, b""),
    "no frame end": CHANNEL + frame(1, 1, b"\0\x3c\0\x0a\0\0\0\0\0\1\0", 0),
    "an oversize frame": CHANNEL + struct.pack(">BHI", 3, 1, 1 << 20) + b"x",
    "class 0": CHANNEL + frame(1, 1, b"\0\0\0\x0a"),
    "an unknown class": CHANNEL + frame(1, 1, b"\0\x1e\0\x0a"),
    "an unknown method": CHANNEL + frame(1, 1, b"\0\x3c\0\xc8"),
    "half a method": CHANNEL + frame(1, 1, b"\0\x3c"),
    "arguments cut short": CHANNEL + frame(1, 1, b"\0\x3c\0\x0a\0\0"),
    "arguments and more": CHANNEL + frame(1, 1, b"\0\x3c\0\x0a\0\0\0\0\0\1\0zzz"),
    "a channel that is not open": OPEN + method(3, "basic.qos", 0, 1, False),
    "a publish on a channel that is not open": OPEN + frame(3, 3, b"x"),
    "a channel that was closed": CHANNEL + method(1, "channel.close", 200, "", 0, 0)
    + method(1, "basic.qos", 0, 1, False),
    "a method of channels on channel 0": OPEN + method(0, "basic.qos", 0, 1, False),
    "channel.open on channel 0": OPEN + method(0, "channel.open"),
    "connection.close on a channel": CHANNEL + method(1, "connection.close", 200, "", 0, 0),
    "a body without anything": CHANNEL + frame(3, 1, b"x"),
    "a header without a method": CHANNEL + header(1),
    "a body before its header": CHANNEL + PUBLISH + frame(3, 1, b"x"),
    "a method before the header": CHANNEL + PUBLISH + method(1, "basic.qos", 0, 1, False),
    "a method before the body": CHANNEL + PUBLISH + header(1) + method(1, "basic.qos", 0, 1, False),
    "a second header": CHANNEL + PUBLISH + header(1) + header(1),
    "more body than announced": CHANNEL + PUBLISH + header(1) + frame(3, 1, b"xx"),
    "an empty body frame": CHANNEL + method(1, "confirm.select", False) + PUBLISH + header(1)
    + frame(3, 1, b"") + frame(3, 1, b"x"),
    "a header of another class": CHANNEL + PUBLISH + header(1, class_id=50),
    "a header with a weight": CHANNEL + method(1, "confirm.select", False) + PUBLISH
    + header(0, weight=7),
    "a header cut short": CHANNEL + PUBLISH + frame(2, 1, b"\0\x3c\0\0"),
    "property flags and no properties": CHANNEL + PUBLISH + header(0, b"\x80\0"),
    "unknown property flags": CHANNEL + PUBLISH + header(0, b"\0\2"),
    "properties that go on": CHANNEL + PUBLISH + header(0, b"\0\1\0\0"),
    "a table with an unknown type": CHANNEL + declare(b"\1kZx"),
    "a table cut short": CHANNEL + declare(b"\1kI\0"),
    "a name that is no UTF-8": CHANNEL + frame(1, 1, b"\0\x32\0\x0a\0\0\2\xff\xfe\1\0\0\0\0"),
    "frames in the handshake": codec.PROTOCOL_HEADER + frame(3, 0, b"x"),
    "a method in the handshake": codec.PROTOCOL_HEADER + method(1, "channel.open"),
    "a heartbeat in the handshake": codec.PROTOCOL_HEADER + HEARTBEAT + start_ok(),
    "two opens": OPEN + method(0, "connection.open", "/"),
    "close twice": OPEN + 2 * method(0, "connection.close", 200, "", 0, 0),
    "close-ok unasked": OPEN + method(0, "connection.close-ok"),
    "publish to channel 0": OPEN + method(0, "basic.publish", "", "q", False, False),
    "the last channel number": tuned(2047, 131_072) + method(65_535, "channel.open"),
    "channel 2048": OPEN + method(2048, "channel.open"),
}  # fmt: skip


def answers(address: Address) -> dict[str, list[str]]:
    """The replies to these bytes, and whether the connection is closed."""
    peers = {name: Peer(address) for name in CASES}
    for name, data in CASES.items():
        peer = peers[name]
        begin = next((one for one in (CHANNEL, SMALL, OPEN) if data.startswith(one)), b"")
        if begin:
            peer.send(begin)
            wait_for_silence([peer], TURN_S)
        peer.send(data[len(begin) :])
    wait_for_silence(peers.values(), IDLE_S)
    for peer in peers.values():
        peer.socket.close()
    return {name: said(peer) for name, peer in peers.items()}


def said(peer: Peer) -> list[str]:
    lines = []
    for one in peer.got:
        args = "" if one.name == "connection.start" else f" {one.args}"
        lines.append(f"{one.channel} {one.name}{args}")
    return [
        *lines,
        *([f"bytes {peer.rest!r}"] if peer.rest else []),
        *(["end"] if peer.ended else []),
    ]


MEANT = {
    "AMQP 0-8": "any other version gets the header of this version, and the socket is closed",
    "channel-max 0": "0 stands for ours (RabbitMQ closes)",
    "frame-max 0": "0 stands for ours (RabbitMQ closes)",
    "a header with a weight": "The weight in a content header is ignored",
    "more body than announced": "so is a body longer than its header said (RabbitMQ takes it)",
    "close twice": "data that still arrives is read and dropped",
    "two opens": WRONG_PHASE, "close-ok unasked": WRONG_PHASE,
    **dict.fromkeys(("class 0", "an unknown class", "an unknown method"), UNKNOWN),
    **dict.fromkeys(
        ("arguments cut short", "arguments and more", "a header cut short",
         "property flags and no properties", "unknown property flags", "properties that go on",
         "a table with an unknown type", "a table cut short", "a name that is no UTF-8"),
        UNREADABLE,
    ),
    **dict.fromkeys(
        ("an unknown mechanism", "channel-max above", "frame-max 4095", "frame-max above",
         "frames in the handshake", "a method in the handshake"),
        "they are also sent before a connection is open",
    ),
}  # fmt: skip
"""Cases with intended differences, and the words of docs/COMPATIBILITY.md on them."""


def codes(lines: list[str]) -> list[str]:
    """The replies without the words of a close: those about frames are our own."""
    return [line.partition(", ")[0] if ".close (" in line else line for line in lines]


def differences(ours: Address, theirs: Address) -> list[Difference]:
    """The cases whose codes differ without intention, and intended differences that are gone."""
    one, other = answers(ours), answers(theirs)
    return [
        Difference(Step(0, 0, f"wire: {name}"), one[name], other[name])
        for name in CASES
        if (codes(one[name]) != codes(other[name])) is not (name in MEANT)
    ]
