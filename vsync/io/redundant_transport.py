"""One member on several networks: every frame goes over all of them, and the first copy counts.

A member with two ring addresses is known by both, "A:P,B:P2", and listens on both. Its peers send
over both links at once, so losing one network costs the ring nothing, not even a wait. The ring
drops the second copies as doubled frames (docs/decisions/0019-any-frame-may-be-lost.md). Each link
keeps frames in order, so on neither does a token overtake the data in front of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from vsync.io.link_monitor import LinkHint
from vsync.io.security import Security
from vsync.io.transport import (
    TransportError,
    ZmqTransport,
    not_listening,
    parse_address,
    resolve,
)

SEPARATOR = ","


class RedundantTransport(ZmqTransport):
    """The transport of a member with one or more addresses; it reaches members of either kind."""

    def __init__(
        self, binds: Sequence[str], max_frame_bytes: int, security: Security | None = None
    ) -> None:
        super().__init__(binds[0], max_frame_bytes, security=security)
        self._own = [super().address]
        self._members: dict[str, tuple[str, ...]] = {}  # by address: the address of each link
        for bind in binds[1:]:
            try:
                host, port = resolve(bind)
                literal = f"[{host}]" if ":" in host else host
                self._pull.bind(f"tcp://{literal}:{port or '*'}")
            except TransportError:
                self.close()
                raise
            except zmq.ZMQError as error:
                self.close()
                raise TransportError(not_listening(bind, error)) from None
            bound = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
            self._own.append(bound.removeprefix("tcp://"))

    @property
    def address(self) -> str:
        return SEPARATOR.join(self._own)

    @property
    def links_down(self) -> tuple[str, ...]:
        """Links that were up and are now broken, of members that have another working link."""
        down: dict[str, None] = {}
        for links in self._members.values():
            broken = [link for link in links if link in self._peers and self._peers[link].broken]
            if len(broken) < len(links):
                down.update(dict.fromkeys(broken))
        return tuple(down)

    def watch(
        self, loop: asyncio.AbstractEventLoop, maintain: Callable[[], None], on_hint: LinkHint
    ) -> None:
        def hint(link: str, refused: bool) -> None:
            # Of a member with another link this proves nothing, but then its frames come in.
            for address, links in tuple(self._members.items()):
                if link in links:
                    on_hint(address, refused)

        super().watch(loop, maintain, hint)

    def connect(self, address: str) -> None:
        if address in self._members:
            return
        links = tuple(link for link in address.split(SEPARATOR) if link not in self._own)
        for link in links:
            parse_address(link)
        for link in links:
            super().connect(link)
        if links:
            self._members[address] = links

    def forget(self, address: str) -> None:
        links = self._members.pop(address, ())
        kept = {link for others in self._members.values() for link in others}
        for link in links:
            if link not in kept:
                super().forget(link)

    def send(self, address: str, frame: bytes) -> bool:
        links = self._members.get(address)
        if links is None:
            links = tuple(address.split(SEPARATOR))
        if len(links) == 1:
            return super().send(links[0], frame)
        sent = [super(RedundantTransport, self).send(link, frame) for link in links]
        return any(sent)

    def hail(self, address: str, frame: bytes) -> None:
        for link in address.split(SEPARATOR):
            super().hail(link, frame)
