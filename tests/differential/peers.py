"""The two brokers' sides of a program: raw connections, and the data received on them."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.amqp import codec
from broker.amqp.fields import Value
from broker.amqp.spec import METHODS, decode_method
from broker.options.addresses import Address
from tests.support.amqp_peer import method, opening

REPLY_S, END_S = 20.0, 2.0
KNOWN_EXCHANGE, ANSWER = ("amq.direct", "direct"), "exchange.declare-ok"
MADE_BY_THE_SERVER = re.compile(r"amq\.(gen|ctag)-[\w-]+")
_FIXED = {tag.encode()[0]: struct.Struct(f">{code}") for tag, code in
          zip("tbBsuIilLfdT", "?bBhHiIqqfdQ", strict=True)}  # fmt: skip


class Got(NamedTuple):
    """A method of the server, with its content."""

    channel: int
    name: str
    args: tuple[Value, ...]
    properties: bytes = b""
    body: bytes | None = None


def typed(data: bytes, at: int, end: int) -> list[str]:
    """The fields of a table, each with its type, sorted by name.  Times are left out, and
    `x-last-death-*`, which RabbitMQ 3.10 does not write.  It reverses the order of several deaths
    each time, except for the first."""
    fields = []
    while at < end:
        stop = at + 1 + data[at]
        name = data[at + 1 : stop].decode()
        shown, at = _typed_value(data, stop)
        if name == "x-death":
            first, *others = _items(data, stop + 5, at)
            shown = f"{first} {sorted(others)}"
        if not name.startswith("x-last-death-"):
            fields.append(f"{name}={shown}")
    return sorted(fields)


def _items(data: bytes, at: int, end: int) -> list[str]:
    items = []
    while at < end:
        shown, at = _typed_value(data, at)
        items.append(shown)
    return items


def _typed_value(data: bytes, at: int) -> tuple[str, int]:
    tag, at = data[at], at + 1
    if tag in b"SxAF":
        start, stop = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
        if tag == ord("F"):
            return f"F{typed(data, start, stop)}", stop
        if tag in b"Sx":
            return f"{chr(tag)}{data[start:stop].decode('ascii', 'backslashreplace')}", stop
        return f"A{_items(data, start, stop)}", stop
    if tag == ord("V"):
        return "V", at
    if tag == ord("D"):
        return f"D{data[at : at + 5].hex()}", at + 5
    form = _FIXED[tag]
    value = "" if tag == ord("T") else form.unpack_from(data, at)[0]
    return f"{chr(tag)}{value}", at + form.size


def shown_properties(properties: bytes) -> str:
    """The properties in words; headers with their types."""
    known = codec.decode_properties(properties)
    if "headers" in known:
        flags, at = int.from_bytes(properties[:2], "big"), 2
        for bit in (0x8000, 0x4000):  # content type and content encoding, which come first
            at += properties[at] + 1 if flags & bit else 0
        size = int.from_bytes(properties[at : at + 4], "big")
        known["headers"] = str(typed(properties, at + 4, at + 4 + size))
    return " ".join(f"{name}={value!r}" for name, value in known.items())


class Peer:
    """One connection, opened or not."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, END_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ended = False
        self.got: list[Got] = []
        self._data = bytearray()

    @property
    def rest(self) -> bytes:
        """Received bytes that are no frame."""
        return bytes(self._data)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.ended = True

    def receive(self) -> None:
        """Read what is there; a readable socket is read once."""
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        self.ended = not data
        self._data += data
        whole = bytes(self._data)
        if whole.startswith(b"AMQP"):  # the version that is spoken here
            return
        frames, end = codec.split_frames(whole)
        for kind, channel, start, stop in frames:
            if kind == codec.METHOD:
                known, args = decode_method(whole, start, stop)
                if METHODS[known.name].has_content:
                    self._partial = Got(channel, known.name, args), 0
                else:
                    self.got.append(Got(channel, known.name, args))
                    if known.name in ("channel.close", "connection.close"):
                        self.send(method(channel, f"{known.name}-ok"))
            elif kind == codec.HEADER:
                size, properties = codec.decode_content_header(whole, start, stop)
                self._more(self._partial[0]._replace(properties=properties, body=b""), size)
            elif kind == codec.BODY:
                one, missing = self._partial
                body = (one.body or b"") + whole[start:stop]
                self._more(one._replace(body=body), missing - (stop - start))
        del self._data[:end]

    def _more(self, one: Got, missing: int) -> None:
        self._partial = one, missing
        if missing == 0:
            self.got.append(one)


def wait_for_silence(peers: Iterable[Peer], idle_s: float) -> None:
    """Read until no connection had any data for this long."""
    while True:
        reading = {peer.socket: peer for peer in peers if not peer.ended}
        ready = select.select(reading, [], [], idle_s)[0] if reading else []
        if not ready:
            return
        for one in ready:
            reading[one].receive()


@dataclass
class Channel:
    """One side's knowledge of an open channel."""

    publishes: int | None = None
    """Publishes since confirm.select."""
    unconfirmed: set[int] = field(default_factory=set)
    held: dict[int, str] = field(default_factory=dict)
    """Delivery tags that may be settled: the deliveries, in words common to both sides."""
    in_tx: dict[int, str] | None = None
    """The part of `held` that the transaction has settled."""
    no_ack: set[str] = field(default_factory=set)
    """Tags of consumers."""
    asked_no_ack: bool = False
    """Of the last basic.consume or basic.get."""
    empty: bool = False
    """Whether the last basic.get found nothing."""


class Side:
    """One broker, and the connections of one program to it."""

    def __init__(self, address: Address, prefix: str, api: Address | None = None) -> None:
        self.address, self.prefix = address, prefix
        self._api = api
        self.policies: set[str] = set()
        self._answers: list[str] = []
        self.peers: dict[int, Peer] = {}
        self.channels: dict[tuple[int, int], Channel] = {}
        self.made: set[str] = set()
        """Queues that the server has named."""
        self._numbers: dict[tuple[int, int, str], int] = {}

    def close(self) -> None:
        for peer in self.peers.values():
            peer.socket.close()

    def named(self, value: Value) -> Value:
        """The text with the prefix of this run in place of each `~`."""
        match value:
            case str():
                return value.replace("~", self.prefix)
            case dict():
                return {name: self.named(item) for name, item in value.items()}
            case tuple():
                return tuple(self.named(item) for item in value)
            case _:
                pass
        return value

    def shown(self, value: object) -> str:
        return MADE_BY_THE_SERVER.sub(r"amq.\1-", str(value).replace(self.prefix, "~"))

    def ready(self, conn: int, channel: int) -> None:
        """Open the connection and the channel, if they are not."""
        if conn not in self.peers:
            self.peers[conn] = peer = Peer(self.address)
            peer.send(opening())
            self.expect(conn, 0, "connection.open-ok")
        if channel and (conn, channel) not in self.channels:
            self.channels[conn, channel] = Channel()
            self.peers[conn].send(method(channel, "channel.open"))
            self.expect(conn, channel, "channel.open-ok")

    def set_policy(self, name: Value, policy: Value) -> None:
        """Set a policy over the management API, which must be there; None: remove it."""
        assert self._api is not None
        known = str(name).replace("~", self.prefix)
        api = http.client.HTTPConnection(*self._api, timeout=REPLY_S)
        body = json.dumps(self.named(policy)) if policy else None
        login = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        api.request("PUT" if body else "DELETE", f"/api/policies/%2F/{known}", body, login)
        self._answers.append(str(api.getresponse().status))
        api.close()
        (self.policies.add if body else self.policies.discard)(str(name))

    def expect(self, conn: int, channel: int, name: str) -> None:
        """Wait for this method, and drop all that came on its channel so far."""
        peer = self.peers[conn]
        self.wait_for(conn, channel, name)
        peer.got = [one for one in peer.got if one.channel != channel]

    def wait_for(self, conn: int, channel: int, *names: str) -> None:
        """Wait for one of these methods, or the end of the channel or the connection."""
        peer = self.peers[conn]
        deadline = time.monotonic() + REPLY_S
        while not peer.ended and time.monotonic() < deadline:
            if any(
                (one.channel == channel and (one.name in names or one.name == "channel.close"))
                or one.name == "connection.close"
                for one in peer.got
            ):
                return
            if select.select([peer.socket], [], [], 0.1)[0]:
                peer.receive()

    def ask_channel(self, conn: int, channel: int) -> None:
        """Send a request that changes nothing and is answered after all before it on the
        channel."""
        asked = method(channel, "exchange.declare", *KNOWN_EXCHANGE, True, *(False,) * 4, {})
        self.peers[conn].send(asked)

    def wait_for_channel(self, conn: int, channel: int) -> None:
        """Wait for that reply, which is not shown."""
        self.wait_for(conn, channel, ANSWER)
        peer = self.peers[conn]
        peer.got = [one for one in peer.got if (one.channel, one.name) != (channel, ANSWER)]

    def trace(self) -> dict[str, list[str]]:
        """Return what arrived since the last call, by channel and kind, and react as a client
        must."""
        lines: dict[str, list[str]] = {}
        if self._answers:
            lines["policy"], self._answers = self._answers, []
        for conn, peer in list(self.peers.items()):
            got, peer.got = peer.got, []
            for one in got:
                kind, line = self._line(conn, one)
                lines.setdefault(f"{conn}.{one.channel} {kind}", []).append(line)
                self._react(conn, one)
            if peer.ended:
                lines.setdefault(f"{conn} end", []).append("end")
                self.forget(conn)
        for kind, found in lines.items():
            if kind.endswith("confirms"):
                lines[kind] = sorted(" ".join(found).split(), key=lambda word: (len(word), word))
        return lines

    def forget(self, conn: int) -> None:
        self.peers.pop(conn).socket.close()
        self.channels = {at: one for at, one in self.channels.items() if at[0] != conn}

    def _line(self, conn: int, one: Got) -> tuple[str, str]:
        channel = self.channels.get((conn, one.channel), Channel())
        args = one.args
        kind = "replies"
        if one.name in ("basic.ack", "basic.nack"):
            return "confirms", self._confirmed(channel, one)
        if one.name == "queue.declare-ok":
            self.made.add(str(args[0]))
        if one.name == "basic.deliver":
            tag = str(args[0])
            kind = f"consumer {self.shown(tag)}"
            content = self.shown(
                f"{args[3]!s}/{args[4]!s} {one.body!r} {shown_properties(one.properties)}"
            )
            if tag not in channel.no_ack:
                self._hold(channel, conn, one.channel, int(str(args[1])), f"{kind} {content}")
            return kind, f"deliver {'again ' if args[2] else ''}{content}"
        if one.name == "basic.get-ok":
            content = self.shown(
                f"{args[2]!s}/{args[3]!s} {one.body!r} {shown_properties(one.properties)}"
            )
            if not channel.asked_no_ack:
                self._hold(channel, conn, one.channel, int(str(args[0])), f"get {content}")
            again = "again " if args[1] else ""
            return kind, f"get-ok tag {args[0]!s} {again}{content}, {args[4]!s} left"
        if one.name == "basic.cancel":
            kind = f"consumer {self.shown(args[0])}"
        text = f"{one.name} {self.shown(args)}"
        if one.body is not None:
            text += self.shown(f" {one.body!r} {shown_properties(one.properties)}")
        return kind, text

    def _hold(self, channel: Channel, conn: int, number: int, tag: int, what: str) -> None:
        key = conn, number, what
        self._numbers[key] = self._numbers.get(key, 0) + 1
        channel.held[tag] = f"{what} #{self._numbers[key]}"

    def _confirmed(self, channel: Channel, one: Got) -> str:
        number, multiple = int(str(one.args[0])), one.args[1]
        these = {n for n in channel.unconfirmed if n == number or (multiple and n < number)}
        channel.unconfirmed -= these
        sign = "+" if one.name == "basic.ack" else "-"
        return " ".join(f"{sign}{n}" for n in these) or f"{sign}{number}?"

    def _react(self, conn: int, one: Got) -> None:
        if one.name in ("channel.close", "channel.close-ok"):
            self.channels.pop((conn, one.channel), None)
        if one.name in ("connection.close", "connection.close-ok"):
            self.peers[conn].ended = True
        channel = self.channels.get((conn, one.channel))
        if channel is None:
            return
        if one.name == "confirm.select-ok" and channel.publishes is None:
            channel.publishes = 0
        elif one.name == "tx.commit-ok" or (one.name == "tx.select-ok" and channel.in_tx is None):
            channel.in_tx = {}
        elif one.name == "basic.consume-ok":
            (channel.no_ack.add if channel.asked_no_ack else channel.no_ack.discard)(
                str(one.args[0])
            )
        elif one.name == "tx.rollback-ok":
            channel.held |= channel.in_tx or {}
            channel.in_tx = {}
        elif one.name == "basic.recover-ok":
            channel.held.clear()
        channel.empty = one.name == "basic.get-empty"
