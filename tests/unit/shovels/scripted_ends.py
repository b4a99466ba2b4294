"""Scripted brokers for both ends of a shovel, each on a thread behind a pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from broker.amqp import codec, spec
from broker.amqp.fields import Value
from tools.shovel.mover import TAG

Sent = tuple[int, bytes, bytes]
"""Publish number, properties and body of what came."""


class Broker:
    """One end: it answers methods; the test decides what happens to publishes."""

    def __init__(
        self,
        on_publish: Callable[[Broker, Sent], None] | None = None,
    ) -> None:
        self.did: list[tuple[str, tuple[Value, ...]]] = []
        self.mine, theirs = socket.socketpair()
        self.descriptor = theirs.detach()
        self.on_publish = on_publish
        self.stop_attempt: Callable[[], None] = self.close
        self.messages: dict[int, tuple[bytes, bytes]] = {}  # a queue, by places
        self.taken: dict[int, int] = {}  # place by delivery tag
        self.published, self.number, self.opened = list[Sent](), 0, 0
        self._prefetch, self._tag = 0, 0
        self.ended = False
        self.beats = threading.Event()
        """A heartbeat came."""
        self._properties = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.mine.close()

    def say(self, name: str, *args: Value, channel: int = 1) -> None:
        out = bytearray()
        codec.append_method(out, channel, name, args)
        self.mine.sendall(out)

    def returns(self, sent: Sent) -> None:
        out = bytearray()
        codec.append_method(out, 1, "basic.return", (312, "NO_ROUTE", "", "b"))
        codec.append_content(out, 1, sent[1], sent[2], codec.FRAME_MAX_BYTES)
        self.mine.sendall(out)

    def confirms(self, number: int, *, multiple: bool = False) -> None:
        self.say("basic.ack", number, multiple)

    def refuses(self, text: str) -> None:
        self.ended = True
        self.say("channel.close", 406, f"PRECONDITION_FAILED - {text}", 60, 40)

    def _serve(self) -> None:
        data = b""
        with suppress(OSError):
            while more := self.mine.recv(65_536):
                data += more
                frames, at = codec.split_frames(data)
                for kind, channel, start, end in frames:
                    self._take(kind, channel, data, start, end)
                data = data[at:]

    def _take(self, kind: int, channel: int, data: bytes, start: int, end: int) -> None:
        if kind == codec.HEADER:
            self._properties = codec.decode_content_header(data, start, end)[1]
        elif kind == codec.BODY:
            if not self.ended and self.on_publish is not None:
                self.number += 1
                self.published.append((self.number, self._properties, data[start:end]))
                self.on_publish(self, self.published[-1])
        elif kind == codec.HEARTBEAT:
            self.beats.set()
        elif kind == codec.METHOD:
            method, args = spec.decode_method(data, start, end)
            self._on_method(channel, method.name, args)

    def names(self) -> list[str]:
        """The received methods, in order."""
        return [name for name, _ in self.did]

    def _on_method(self, channel: int, name: str, args: tuple[Value, ...]) -> None:
        self.did.append((name, args))
        match name:
            case "connection.open":
                self.say("connection.open-ok", "", channel=0)
            case "connection.close":
                self.say("connection.close-ok", channel=0)
            case "channel.open":
                self.number, self.ended, self.opened = 0, False, self.opened + 1
                self.say("channel.open-ok")
            case "channel.close":
                self.taken.clear()
                self.say("channel.close-ok")
            case "queue.declare":
                self.say("queue.declare-ok", args[0], len(self.messages), 0)
            case "exchange.declare" if args[2]:  # passive
                self.say("channel.close", 404, "NOT_FOUND", 40, 10)
            case "exchange.declare" | "exchange.delete" | "queue.bind":
                self.say(f"{name}-ok")
            case "queue.delete":
                self.say("queue.delete-ok", 0)
            case "confirm.select":
                self.say("confirm.select-ok")
            case "basic.qos":
                self._prefetch = cast("int", args[1])
                self.say("basic.qos-ok")
            case "basic.consume":
                if args[3]:  # no-ack
                    self._prefetch = -1
                if not args[5]:  # nowait
                    self.say("basic.consume-ok", args[1])
                self._deliver()
            case "basic.ack":
                tag, multiple = args
                assert isinstance(tag, int)
                for one in [one for one in self.taken if one == tag or (multiple and one < tag)]:
                    del self.messages[self.taken.pop(one)]
                self._deliver()
            case _:
                pass

    def _deliver(self) -> None:
        """As many messages as are prefetched."""
        out = bytearray()
        for place in [one for one in self.messages if one not in self.taken.values()]:
            if len(self.taken) == self._prefetch:
                break
            self._tag += 1
            self.taken[self._tag] = place
            properties, body = self.messages[place]
            codec.append_method(out, 1, "basic.deliver", (TAG, self._tag, False, "", "a"))
            codec.append_content(out, 1, properties, body, codec.FRAME_MAX_BYTES)
        self.mine.sendall(out)
