"""Security mechanisms of the ring's connections: which members may connect, and under which name.

- `Anonymous`: any process that reaches the port may connect. For one machine, or for a network that
  only the members use.
- `Plain`: any process that knows a name and a password, sent in clear text. For compatibility.
- `Curve`: connections are encrypted. Each side must prove a key of the allow list, and a frame
  counts only under the name for which its connection's key is allowed.

libzmq asks an `Authenticator` in the same context about each new connection (ZAP, RFC 27), over a
socket that is read on the loop's thread. The reply carries the peer's public key as user id, which
libzmq attaches to every message of that connection. So when a key leaves the allow list its frames
are dropped at once, not only from its next connection on.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, Self

import zmq
from zmq.utils import z85

from vsync.io.keys import Allowed, KeyPair, Tell, read_secret
from vsync.wire.codec import claimed_name

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"vsync"
REPLIES_MAX: Final = 64
"""Connections authenticated in one call, so that many of them do not delay the token."""
_NOBLOCK: Final = int(zmq.NOBLOCK)
_log = logging.getLogger("vsync")


def _warn(sentence: str) -> None:
    _log.warning("%s", sentence)


def _note(sentence: str) -> None:
    _log.info("%s", sentence)


class KeyRefused(Enum):
    """Why a connection to a peer failed."""

    KEY = "key"  # the peer does not allow this member's key, or name and password
    THEIR_KEY = "their key"  # the peer does not own the key that is allowed for it here
    MECHANISM = "mechanism"  # the peer uses another mechanism


class Security(Protocol):
    """A security mechanism, as seen by the transport."""

    mechanism: str

    def describe(self) -> str:
        """Return who may take part, as a phrase for the log."""

    authenticates: bool
    """Whether new connections go through the `Authenticator`."""
    binds: bool
    """Whether the sender of each frame is checked against the key of its connection (`check`)."""

    def listen(self, pull: zmq.Socket[bytes]) -> None:
        """Set the options of a socket about to be bound."""

    def dial(self, push: zmq.Socket[bytes], address: str, attempt: int) -> str:
        """Set the options of a socket about to be connected; return the expected key."""

    def attempts(self, address: str) -> int:
        """Return how many keys can be tried on `address`."""

    def admit(self, mechanism: bytes, credentials: Sequence[bytes]) -> str:
        """Return the user id of a new connection; empty if it is refused."""

    def expects(self, key: str) -> bool:
        """Whether a connection to the owner of `key` is still allowed."""

    def check(self, user: str, frame: bytes) -> str:
        """Return the counter for what is wrong with a frame of that connection, or ""."""

    def refresh(self, now: float) -> bool:
        """Reload changed keys; return whether there are any."""


class _Open:
    """Base of the mechanisms without keys."""

    binds = False

    def attempts(self, address: str) -> int:
        return 1

    def expects(self, key: str) -> bool:
        return True

    def check(self, user: str, frame: bytes) -> str:
        return ""

    def refresh(self, now: float) -> bool:
        return False


class Anonymous(_Open):
    """No authentication."""

    mechanism = "ANONYMOUS"
    authenticates = False

    def describe(self) -> str:
        return "open to any process that reaches it (ANONYMOUS)"

    def listen(self, pull: zmq.Socket[bytes]) -> None:
        """No options to set."""

    def dial(self, push: zmq.Socket[bytes], address: str, attempt: int) -> str:
        return ""

    def admit(self, mechanism: bytes, credentials: Sequence[bytes]) -> str:
        return "anonymous"


class Plain(_Open):
    """One name and password for all members; it does not tell them apart."""

    mechanism = "PLAIN"
    authenticates = True

    def __init__(self, username: str, password: str) -> None:
        self._username, self._password = username.encode(), password.encode()
        if not 0 < len(self._username) < 256 or len(self._password) > 255:
            raise ValueError("user name and password must have at most 255 bytes")

    def describe(self) -> str:
        return "open to any process that knows the password, sent in clear (PLAIN)"

    def listen(self, pull: zmq.Socket[bytes]) -> None:
        pull.setsockopt(zmq.PLAIN_SERVER, 1)

    def dial(self, push: zmq.Socket[bytes], address: str, attempt: int) -> str:
        push.setsockopt(zmq.PLAIN_USERNAME, self._username)
        push.setsockopt(zmq.PLAIN_PASSWORD, self._password)
        return ""

    def admit(self, mechanism: bytes, credentials: Sequence[bytes]) -> str:
        if mechanism != b"PLAIN" or len(credentials) != 2:
            return ""
        username, password = credentials
        good = hmac.compare_digest(username, self._username)
        return "member" if hmac.compare_digest(password, self._password) and good else ""


class Curve:
    """A key pair for each member, and an allow list that may change at any time."""

    mechanism = "CURVE"
    authenticates = binds = True

    def __init__(self, own: KeyPair, allowed: Allowed) -> None:
        self.own, self.allowed = own, allowed
        self._good: set[tuple[str, bytes]] = set()

    @classmethod
    def from_files(
        cls, secret: str | Path, public: str | Path, warn: Tell = _warn, note: Tell = _note
    ) -> Self:
        """Read a member's secret file, and the directory of all public files.

        `warn` is told when a change of the directory cannot be read, `note` of each that was read;
        by default they go to the logger `vsync`.  Raises `KeyFileError`, which says what to do.
        """
        return cls(read_secret(Path(secret)), Allowed(Path(public), warn, note))

    def describe(self) -> str:
        members = len(set(self.allowed.names.values()))
        return f"for the {members} members of {self.allowed.directory}, with key {self.own.public}"

    def listen(self, pull: zmq.Socket[bytes]) -> None:
        pull.setsockopt(zmq.CURVE_SERVER, 1)
        pull.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret.encode())

    def dial(self, push: zmq.Socket[bytes], address: str, attempt: int) -> str:
        keys = self._keys(address)
        key = keys[attempt % len(keys)]
        push.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        push.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public.encode())
        push.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret.encode())
        return key

    def attempts(self, address: str) -> int:
        return len(self._keys(address))

    def _keys(self, address: str) -> list[str]:
        """The keys allowed for that name; for an address that is no member's name, all keys."""
        return self.allowed.keys_of(address) or list(self.allowed.names)

    def admit(self, mechanism: bytes, credentials: Sequence[bytes]) -> str:
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return ""
        key = z85.encode(credentials[0]).decode()
        return key if key in self.allowed.names else ""

    def expects(self, key: str) -> bool:
        return key in self.allowed.names

    def check(self, user: str, frame: bytes) -> str:
        claimed = claimed_name(frame)
        if (user, claimed) in self._good:
            return ""
        name = self.allowed.names.get(user)
        if name is None:
            return "frames_of_removed_keys"
        if name.encode() != claimed:
            return "frames_under_false_names"
        self._good.add((user, claimed))  # bounded by the allow list
        return ""

    def refresh(self, now: float) -> bool:
        changed = self.allowed.refresh(now)
        if changed:
            self._good.clear()
        return changed


class Authenticator:
    """The ZAP handler of one context. Create it before the socket that it guards."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], security: Security) -> None:
        self._security = security
        self.counters = {"newcomers_admitted": 0, "newcomers_refused": 0}
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)

    def guard(self, pull: zmq.Socket[bytes]) -> None:
        """Authenticate connections to a socket; without a reply they are refused."""
        pull.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        pull.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def fileno(self) -> int:
        return int(self._socket.getsockopt(zmq.FD))

    def reply(self) -> None:
        """Reply to waiting requests.  The descriptor signals edges: also call it regularly."""
        for _ in range(REPLIES_MAX):
            try:
                parts = self._socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            # sender, empty, version, request id, domain, address, identity, mechanism, credentials
            sender, _, version, request, domain, _, _, mechanism, *credentials = parts
            user = self._security.admit(mechanism, credentials) if domain == DOMAIN else ""
            self.counters["newcomers_admitted" if user else "newcomers_refused"] += 1
            status = (b"200", b"OK") if user else (b"400", b"not on the list")
            self._socket.send_multipart(
                [sender, b"", version, request, *status, user.encode(), b""], _NOBLOCK
            )

    def close(self) -> None:
        self._socket.close(0)
