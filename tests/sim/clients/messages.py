"""How simulated clients name their messages: in the first bytes of the body."""

from __future__ import annotations

import struct

from broker.waiting.bodies import Body

MESSAGE = struct.Struct(">QQ")
MessageId = tuple[int, int]  # connection, number of its messages


def message_id(body: Body) -> MessageId:
    """Its publisher, and its number there."""
    conn, number = MESSAGE.unpack_from(bytes(body))
    return conn, number
