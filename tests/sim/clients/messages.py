"""How simulated clients name their messages: in the first bytes of the body."""

from __future__ import annotations

import struct

MESSAGE = struct.Struct(">QQ")
MessageId = tuple[int, int]  # connection, number of its messages


def message_id(body: bytes) -> MessageId:
    """Who published it, and as which."""
    conn, number = MESSAGE.unpack_from(body)
    return conn, number
