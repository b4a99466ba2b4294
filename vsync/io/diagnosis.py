"""Says why a member that reaches others forms no ring with them, naming both sides.

Only a newcomer has a reason to give up: a member that is alone and, where two members could both be
meant, started later than the other. Running members always continue.

libzmq reports only that the mechanisms of two members differ. The greeting of ZMTP 3 names a
listener's mechanism in clear text, so it is read once, to tell the operator both mechanisms.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Final, NamedTuple

from vsync.io.security import Curve, KeyRefused, Security
from vsync.io.transport import TransportError, ZmqTransport, parse_address
from vsync.totem.membership.compatibility import Handshake
from vsync.totem.node import Node
from vsync.types import Member

FOREIGN_FRAMES_MAX = 20
"""This many frames of another wire version, some seconds' worth, are no line noise: by then none of
their members has answered a hello as one that fits."""

GREETING_BYTES: Final = 64
GREETING_TIMEOUT_S: Final = 0.5
_MECHANISM: Final = slice(12, 32)
_MY_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03"
"""Signature and version only: a listener that also read this side's mechanism might hang up at
once."""
_MECHANISM_NAMES: Final = {"NULL": "ANONYMOUS"}


class Lack(Enum):
    """What differs between the two sides."""

    MECHANISM = "mechanism"
    PASSWORD = "password"
    KEY = "key"
    THEIR_KEY = "their key"


class Diagnosis(NamedTuple):
    """The reason that keeps two members apart, and a sentence for the operator."""

    lack: Lack
    sentence: str


def misfit(me: Member, handshake: Handshake) -> str:
    """Return the cluster, version or configuration that differs from an older member's, or ""."""
    for _, (other, reason) in sorted(handshake.refused.items()):
        if other.incarnation < me.incarnation:
            return reason
    if handshake.foreign_frames >= FOREIGN_FRAMES_MAX:
        return (
            "the members at this cluster's ring addresses use another version of the ring "
            f"protocol ({handshake.foreign_version}) than this one "
            f"(version {handshake.mine.versions}); "
            "run the same release on all members"
        )
    return ""


async def why_alone(node: Node, transport: ZmqTransport) -> str:
    """Return the first known reason as a sentence; "" if there is none."""
    security = transport.security
    for address, why in sorted(transport.refusals.items()):
        return (await asyncio.to_thread(refusal, node.me, security, address, why)).sentence
    return misfit(node.me, node.handshake)


def refusal(me: Member, security: Security, address: str, why: KeyRefused) -> Diagnosis:
    """Explain why there is no connection to a peer.  Blocks: it may read the peer's greeting."""
    who = f"the member at {address}"
    # A listener of another mechanism may hang up before libzmq learns why: so ask for its greeting.
    theirs = mechanism_of(address) or ("another one" if why is KeyRefused.MECHANISM else "")
    if theirs not in ("", security.mechanism):
        sentence = f"{who} wants mechanism {theirs}, and this one uses {security.mechanism}"
        return Diagnosis(Lack.MECHANISM, sentence)
    if not isinstance(security, Curve):
        sentence = f"{who} does not accept the user name and password of this one"
        return Diagnosis(Lack.PASSWORD, sentence)
    if why is KeyRefused.KEY:
        sentence = (
            f"{who} does not allow this one, {me.name}, with the public key {security.own.public}"
        )
        return Diagnosis(Lack.KEY, sentence)
    expected = security.allowed.keys_of(address) or ["any of its keys"]
    sentence = (
        f"{who} does not own the key that {security.allowed.directory} holds for it "
        f"({', '.join(expected)}); its public file there is old, or somebody else has its address"
    )
    return Diagnosis(Lack.THEIR_KEY, sentence)


def read_mechanism(greeting: bytes) -> str:
    """Return the mechanism that a ZMTP greeting names, or "" if it is not a greeting."""
    if len(greeting) != GREETING_BYTES or greeting[0] != 0xFF or greeting[9] != 0x7F:
        return ""
    name = greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
    return _MECHANISM_NAMES.get(name, name if name.isalnum() else "")


def mechanism_of(address: str) -> str:
    """Read a ring socket's greeting, `GREETING_TIMEOUT_S` a step at most; "" for none."""
    got = b""
    try:
        with socket.create_connection(parse_address(address), GREETING_TIMEOUT_S) as asked:
            asked.sendall(_MY_GREETING)
            while len(got) < GREETING_BYTES and (part := asked.recv(GREETING_BYTES - len(got))):
                got += part
    except (OSError, TransportError):
        pass
    return read_mechanism(got)
