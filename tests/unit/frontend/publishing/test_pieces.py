"""Large output goes to a transport in pieces, at the pace at which the client reads."""

import asyncio
from typing import cast

from broker.frontend.connections import PIECE_BYTES_MAX, ClientLink, Connections
from tests.support.gateway_loop import Loop


class Transport:
    """Accepts one piece, then reports that it is full."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.link: ClientLink | None = None

    def write(self, data: bytes) -> None:
        self.pieces.append(bytes(data))
        assert self.link is not None
        self.link.pause_writing()

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None: ...

    def pause_reading(self) -> None: ...


class Owner:
    may_reply = True
    bytes_out = 0

    def __init__(self, loop: Loop) -> None:
        self.gateway = loop.gateway

    def on_work(self) -> None: ...


def test_output_waits_while_the_client_does_not_read() -> None:
    loop = Loop()
    client = loop.connect().open(1).client
    transport, owner = Transport(), Owner(loop)
    link = ClientLink(cast("Connections", owner), client, cast("asyncio.Transport", transport))
    transport.link = link
    large = bytes(range(256)) * (PIECE_BYTES_MAX // 100)
    client.connection.out += large
    turns = 0
    while not transport.pieces or len(transport.pieces[-1]) == PIECE_BYTES_MAX:
        link.write()
        turns += 1
        assert len(transport.pieces) == turns
        link.write()  # full: no further piece
        assert len(transport.pieces) == turns
        link.full = False
    assert b"".join(transport.pieces) == large
    assert owner.bytes_out == link.sent == len(large)
    client.connection.out += b"next"
    link.write()
    assert transport.pieces[-1] == b"next"
