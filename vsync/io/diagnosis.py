"""Why a member that reached others is not together with them, in words that name both sides.

Only a newcomer has a reason to give up: one that is alone and, where two could both be meant, began
later than the other.  Members that run go on whatever comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from vsync.io.security import Curve, KeyRefused, Security
from vsync.io.transport import ZmqTransport
from vsync.io.zmtp_greeting import mechanism_of
from vsync.totem.membership.compatibility import Handshake
from vsync.totem.node import Node
from vsync.types import Member
from vsync.wire.codec import WIRE_VERSION

FOREIGN_FRAMES_MAX = 20
"""So many frames of another wire version are no line noise."""


class Lack(Enum):
    """What would have to be another."""

    MECHANISM = "mechanism"
    PASSWORD = "password"
    KEY = "key"
    THEIR_KEY = "their key"


class Diagnosis(NamedTuple):
    """Why members do not talk to each other: what is wrong, and in one sentence with whom."""

    lack: Lack
    sentence: str


def misfit(me: Member, handshake: Handshake, counters: Mapping[str, int]) -> str:
    """Another cluster, version or configuration than of those that were here before; "" if none."""
    for _, (other, reason) in sorted(handshake.refused.items()):
        if other.incarnation < me.incarnation:
            return reason
    if counters.get("frame_version", 0) >= FOREIGN_FRAMES_MAX:
        return (
            "the members at this cluster's ring addresses speak another version of the ring "
            f"protocol ({handshake.foreign_version}) than this one (version {WIRE_VERSION}); "
            "run the same release on all members"
        )
    return ""


async def why_alone(node: Node, transport: ZmqTransport) -> str:
    """The first reason that is known, in one sentence; "" for none."""
    security = transport.security
    for address, why in sorted(transport.refusals.items()):
        return (await asyncio.to_thread(refusal, node.me, security, address, why)).sentence
    return misfit(node.me, node.handshake, node.counters)


def refusal(me: Member, security: Security, address: str, why: KeyRefused) -> Diagnosis:
    """Put into words what the transport knows of a peer.  May ask it, and wait for the answer."""
    who = f"the member at {address}"
    # A listener of another mechanism may hang up before libzmq could tell why: so ask it.
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
