"""The broker's own command, which dials other members through a relay.

    python -m tests.system.support.relayed_broker 127.0.0.1:1=127.0.0.1:2[,...] OPTIONS OF QPIDD

A member tells the others the address at which it listens, so a relay must be placed where the
others dial.  The sockets of this process connect to the second address of a pair instead of the
first, and so does the bare connection by which a broken link checks for a listener: nothing
bypasses the relay.  Nothing else of the broker changes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

import zmq

from tools.commands import qpidd
from vsync.io import link_monitor

if TYPE_CHECKING:
    from zmq.sugar.socket import _SocketContext

_detours: dict[str, str] = {}
_probe = link_monitor.probe


class DetouredSocket(zmq.Socket[bytes]):
    """A socket that connects through the detours.  It listens where it is told."""

    __slots__ = ()

    def connect(self, addr: str) -> _SocketContext[Self]:  # type: ignore[override]
        """Connect to the detour of the address, if it has one."""
        return super().connect(_detours.get(addr, addr))

    def disconnect(self, addr: str | bytes) -> None:
        """Give up the connection made for the address."""
        known = addr if isinstance(addr, str) else addr.decode()
        super().disconnect(_detours.get(known, addr))


async def detoured_probe(host: str, port: int) -> str:
    """Probe the detour of the address, if it has one."""
    detour = _detours.get(f"tcp://{host}:{port}", "").removeprefix("tcp://")
    if not detour:
        return await _probe(host, port)
    host, _, number = detour.rpartition(":")
    return await _probe(host, int(number))


def main() -> None:
    """Take the detours from the command line and run the broker with the rest."""
    for pair in sys.argv.pop(1).split(","):
        address, _, relay = pair.partition("=")
        _detours[f"tcp://{address}"] = f"tcp://{relay}"
    # The documented place for a default class of sockets; its declaration is too narrow.
    vars_of_context: Any = zmq.Context
    vars_of_context._socket_class = DetouredSocket
    link_monitor.probe = detoured_probe
    qpidd.main()


if __name__ == "__main__":
    main()
