"""One peer of the transport: its connected PUSH socket, and what became of its handshakes.

libzmq connects again by itself after most failures, but not after the peer has turned us away, and
it knows one key for each socket.  So the link watches the handshakes and dials anew when that is
what it takes: with the next key that may be the peer's, or because the peer may have changed its
mind.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import zmq

from vsync.io.security import KeyRefused, Security

REDIAL_S: Final = 0.5
"""After all keys were tried, or after the peer turned us away."""
NEXT_KEY_S: Final = 0.02
_SUCCEEDED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_REFUSED: Final = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): KeyRefused.KEY,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): KeyRefused.MECHANISM,
    # The listener just hangs up when it cannot open what was sealed for another key.
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): KeyRefused.STRANGER,
}
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_WATCHED: Final = _SUCCEEDED | _DISCONNECTED | sum(_REFUSED)
_EVENT: Final = Struct("=Hi")
_NOBLOCK: Final = int(zmq.NOBLOCK)

_Context = zmq.Context[zmq.Socket[bytes]]


class Link:
    """The way to one peer.  The transport sets its own options on each new `push`."""

    __slots__ = (
        "_attempt", "_context", "_due", "_failed", "_key", "_monitor", "_security", "address",
        "breaks", "broken", "push", "refusal", "refused",
    )  # fmt: skip

    def __init__(self, context: _Context, address: str, security: Security) -> None:
        self.address = address
        self.push = context.socket(zmq.PUSH)
        self.refused = True  # the last send
        self.refusal: KeyRefused | None = None
        self.broken = False  # it was up, and is not any more
        self.breaks = 0  # how often it broke: one look may find it broken, up and broken again
        self._context, self._security = context, security
        self._monitor: zmq.Socket[bytes] | None = None
        self._key = ""
        self._attempt = self._failed = 0
        self._due = float("inf")

    def dial(self) -> None:
        """Connect the socket.  Raises ZMQError when the address is none that can be dialled."""
        self._due = float("inf")
        self._key = self._security.dial(self.push, self.address, self._attempt)
        self._monitor = self.push.get_monitor_socket(_WATCHED)
        self.push.connect(f"tcp://{self.address}")

    def fileno(self) -> int:
        """The descriptor that signals, by edges, that `tend` has something to look at."""
        assert self._monitor is not None
        return int(self._monitor.getsockopt(zmq.FD))

    def tend(self, now: float) -> bool:
        """Look at what became of the handshakes; whether it is time to `replace` the socket."""
        monitor = self._monitor
        while monitor is not None:
            try:
                event, _ = monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            code, _ = _EVENT.unpack_from(event)
            if code == _SUCCEEDED:
                self.refusal, self._failed, self.broken = None, 0, False
            elif code == _DISCONNECTED:
                if not self.broken:
                    self.breaks += 1
                self.broken = True
            elif code in _REFUSED:
                self._on_refused(_REFUSED[code], now)
        if not self._security.expects(self._key):
            return True  # whoever has that key must not hear us any longer
        return now >= self._due

    def _on_refused(self, why: KeyRefused, now: float) -> None:
        if why is KeyRefused.STRANGER and not self._security.binds:
            return  # hung up for a reason of its own; libzmq tries again
        if self._due != float("inf"):
            return  # from before this socket was given up
        self._failed += 1
        if why is not KeyRefused.STRANGER or self._failed >= self._security.attempts(self.address):
            self.refusal = why
            self._due = now + REDIAL_S
        else:
            self._due = now + NEXT_KEY_S
        if why is KeyRefused.STRANGER:
            self._attempt += 1
            self.push.disconnect(f"tcp://{self.address}")  # else it would go on with this key

    def replace(self) -> None:
        """A new socket in place of the old one; what waited in that is lost."""
        self.close(0)
        self.push = self._context.socket(zmq.PUSH)
        self.refused = True
        self.breaks = int(self.broken)

    def close(self, linger_ms: int) -> None:
        if self._monitor is not None:
            self.push.disable_monitor()
            self._monitor.close(0)  # pyzmq forgets it without closing it, and the context waits
            self._monitor = None
        self.push.close(linger_ms)
