"""Ports of this member: bound before the store is touched, opened when the member serves."""

from __future__ import annotations

import asyncio
import errno
import os
import socket


class PortTaken(Exception):
    """A port is unavailable; the text says what to do."""


async def open_port(server: asyncio.Server, backlog: int) -> None:
    """Let clients in at a bound port. Raises PortTaken.

    Two brokers that start at one time, or two options of one broker, can bind the same port, and
    only the first of them can listen there. uvloop hides that error, so it is provoked here.
    """
    for bound in server.sockets:
        with socket.socket(fileno=os.dup(bound.fileno())) as same:
            try:
                same.listen(backlog)
            except OSError as error:
                host, port = same.getsockname()[:2]
                raise PortTaken(bind_sentence(host, port, "port", error)) from error
    await server.start_serving()


def bind_sentence(host: str, port: int, option: str, error: OSError) -> str:
    """Why a port is unavailable, and what to do."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    what = f"cannot listen on {where}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{what}: another program listens there; stop it, or give another {option}"
        case errno.EADDRNOTAVAIL | None:  # asyncio's own errors, which have no number
            return f"{what}: this machine has no such address; set --interface to one of its own"
        case errno.EACCES:
            return f"{what}: not permitted to this user; give a {option} from 1024 on"
        case _:
            pass
    if isinstance(error, socket.gaierror):
        return f"{what}: the name cannot be resolved; give an address to --interface"
    return f"{what}: {error.strerror or error}"
