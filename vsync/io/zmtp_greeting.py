"""What a listener says before anything else: which mechanism of security it wants.

libzmq only tells that the mechanisms differ.  The greeting of ZMTP 3 names them in clear, so a
member that is about to give up asks once, to tell its operator both.
"""

from __future__ import annotations

import socket
from typing import Final

from vsync.io.transport import TransportError, parse_address

GREETING_BYTES: Final = 64
TIMEOUT_S: Final = 0.5
_MECHANISM: Final = slice(12, 32)
_MINE: Final = b"\xff" + bytes(8) + b"\x7f\x03"
"""Signature and version only: a listener that also read my mechanism might hang up at once."""
_NAMES: Final = {"NULL": "ANONYMOUS"}


def read_mechanism(greeting: bytes) -> str:
    """The mechanism that a greeting names, or "" when it is none."""
    if len(greeting) != GREETING_BYTES or greeting[0] != 0xFF or greeting[9] != 0x7F:
        return ""
    name = greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
    return _NAMES.get(name, name if name.isalnum() else "")


def mechanism_of(address: str) -> str:
    """Ask a ring socket.  Blocks for `TIMEOUT_S` a step at most; "" when it does not say."""
    got = b""
    try:
        with socket.create_connection(parse_address(address), TIMEOUT_S) as asked:
            asked.sendall(_MINE)
            while len(got) < GREETING_BYTES and (part := asked.recv(GREETING_BYTES - len(got))):
                got += part
    except (OSError, TransportError):
        pass
    return read_mechanism(got)
