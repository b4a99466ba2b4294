"""One peer of the transport: its connected PUSH socket, and the results of its handshakes.

libzmq reconnects by itself after most failures, but not after the peer has refused this member, and
a socket has only one server key. So the link watches the handshakes and opens a new socket when
needed: with the next key that the peer may have, or because the peer's allow list may have changed.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import zmq

from vsync.io.security import KeyRefused, Security

REDIAL_S: Final = 0.5
"""After all keys were tried, or after the peer refused this member."""
NEXT_KEY_S: Final = 0.02
_SUCCEEDED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_REFUSED: Final = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): KeyRefused.KEY,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): KeyRefused.MECHANISM,
    # The listener just closes the connection when the handshake is encrypted for another key.
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): KeyRefused.THEIR_KEY,
}
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_WATCHED: Final = _SUCCEEDED | _DISCONNECTED | sum(_REFUSED)
_EVENT: Final = Struct("=Hi")
_NOBLOCK: Final = int(zmq.NOBLOCK)

_Context = zmq.Context[zmq.Socket[bytes]]


class Link:
    """The connection to one peer. The transport sets its own options on each new `push`."""

    def __init__(self, context: _Context, address: str, security: Security) -> None:
        self.address = address
        self.push = context.socket(zmq.PUSH)
        self.refused = True  # the last send
        self.refusal: KeyRefused | None = None
        self.up = False  # both sides have agreed to talk
        self.broken = False  # it was up, and is down
        self.breaks = 0  # how often it broke: it may break, come up and break again unnoticed
        self._context, self._security = context, security
        self._monitor: zmq.Socket[bytes] | None = None
        self._key = ""
        self._attempt = self._failed = 0
        self._due = float("inf")

    def dial(self) -> None:
        """Connect the socket.  Raises ZMQError when the address cannot be dialled."""
        self._due = float("inf")
        self._key = self._security.dial(self.push, self.address, self._attempt)
        self._monitor = self.push.get_monitor_socket(_WATCHED)
        self.push.connect(f"tcp://{self.address}")

    def fileno(self) -> int:
        """Return the descriptor that signals, by edges, that `maintain` has events to read."""
        assert self._monitor is not None
        return int(self._monitor.getsockopt(zmq.FD))

    def maintain(self, now: float) -> bool:
        """Read the events of the handshakes; return whether to `replace` the socket now."""
        monitor = self._monitor
        while monitor is not None:
            try:
                event, _ = monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            code, _ = _EVENT.unpack_from(event)
            if code == _SUCCEEDED:
                self.refusal, self._failed, self.broken, self.up = None, 0, False, True
            elif code == _DISCONNECTED:
                if not self.broken:
                    self.breaks += 1
                self.broken, self.up = True, False
            elif code in _REFUSED:
                self._on_refused(_REFUSED[code], now)
        if not self._security.expects(self._key):
            return True  # the owner of that key must receive nothing any more
        return now >= self._due

    def _on_refused(self, why: KeyRefused, now: float) -> None:
        if why is KeyRefused.THEIR_KEY and not self._security.binds:
            return  # closed for another reason; libzmq tries again
        if self._due != float("inf"):
            return  # an event from before the socket was disconnected
        self._failed = self._failed + 1 if why is KeyRefused.THEIR_KEY else 0
        if why is not KeyRefused.THEIR_KEY or self._failed >= self._security.attempts(self.address):
            self.refusal = why
            self._due = now + REDIAL_S
        else:
            self._due = now + NEXT_KEY_S
        if why is KeyRefused.THEIR_KEY:
            self._attempt += 1
            self.push.disconnect(f"tcp://{self.address}")  # else it keeps this key

    def replace(self) -> None:
        """Open a new socket in place of the old one; frames that waited there are lost."""
        self.close(0)
        self.push = self._context.socket(zmq.PUSH)
        self.refused, self.up = True, False
        self.breaks = int(self.broken)

    def close(self, linger_ms: int) -> None:
        if self._monitor is not None:
            self.push.disable_monitor()
            self._monitor.close(0)  # pyzmq forgets it without closing it, and the context waits
            self._monitor = None
        self.push.close(linger_ms)
