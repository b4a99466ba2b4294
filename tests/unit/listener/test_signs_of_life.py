"""Whether a client showed signs of life lately, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from broker.frontend import connections
from broker.frontend.connections import HEARTBEAT, heard_within
from tests.system.support.clusters import wait_until


class Wire:
    """The part of a transport that is used here."""

    def __init__(self, sock: socket.socket | None) -> None:
        self.sock = sock

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self.sock


def wire(sock: socket.socket | None) -> asyncio.BaseTransport:
    return cast("asyncio.BaseTransport", Wire(sock))


def test_input_and_acks_of_the_kernel_are_signs_of_life() -> None:
    """The client itself does nothing at all, like one that only consumes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with client, ours:
            found = wire(ours)
            wait_until(lambda: not heard_within(found, 0.1), 10, "a time in which nothing came")
            ours.sendall(HEARTBEAT)
            wait_until(lambda: heard_within(found, 5.0), 10, "the answer of its kernel")
            assert not heard_within(found, 0.1, by_data=True)
            wait_until(lambda: not heard_within(found, 0.1), 10, "a time in which nothing came")
            client.sendall(b"x")
            wait_until(lambda: heard_within(found, 5.0, by_data=True), 10, "what it sent")
        assert not heard_within(found, 5.0), "it is closed"


def test_where_the_system_cannot_tell_an_open_connection_counts() -> None:
    assert heard_within(wire(None), 0.1)
    real, connections._TCP_INFO = connections._TCP_INFO, None
    try:
        with socket.socket() as sock:
            assert heard_within(wire(sock), 0.1)
    finally:
        connections._TCP_INFO = real
