"""Which member runs a shovel or a link, its status there, and what members tell one another.

The running member follows from what all members know. For each shovel a hash ranks the members that
have a session and the state, and the first one runs it. A member that leaves gives its shovels to
several others; one that comes gets its share when it has the state, and no other shovel moves. A
session ends with the activation of a view without its member, before anything else of that view is
applied.

The states are RabbitMQ's. Members report in datagrams beside the order, as figures do: a lost
datagram is followed by the next, and a status that was not repeated for a while is no longer shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgpack

Key = tuple[str, ...]
"""Virtual host and name; for a federation link virtual host, kind, name and upstream."""
STATES_ARE, RESTART = b"Sh", b"Sr"
"""The first bytes of datagrams."""
TELL_S, HEARD_S = 2.0, 10.0
ROWS = 20
"""Rows in one datagram."""
REASON_MAX = 400
STARTING, RUNNING, TERMINATED = STATES = "starting", "running", "terminated"


@dataclass(slots=True)
class Status:
    """The present status of a shovel."""

    state: str = STARTING
    since_ms: int = 0
    """When it entered this state, by its member's clock."""
    reason: str = ""
    """Why it ended; its member tries again unless the definition forbids it."""
    blocked: str = ""
    """Why the destination accepts nothing now."""
    moved: int = 0
    """Messages that the destination has taken, since this member runs it."""
    attempts: int = 0
    """How often it was started there."""

    def row(self) -> dict[str, object]:
        """Return its row in a list, by RabbitMQ's names."""
        row: dict[str, object] = {"state": self.state, "forwarded": self.moved}
        if self.reason:
            row["reason"] = self.reason
        if self.state == RUNNING:
            row["blocked_status"] = "blocked" if self.blocked else "running"
        return row


def printable(text: str) -> str:
    """A text from another broker as one line that is harmless to log and terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)


def datagrams(statuses: Iterable[tuple[Key, Status]]) -> Iterator[bytes]:
    """The datagrams for the others."""
    rows = [
        (*key, one.state, one.since_ms, one.reason[:REASON_MAX], one.blocked[:REASON_MAX],
         one.moved, one.attempts)
        for key, one in statuses
    ]  # fmt: skip
    for place in range(0, len(rows), ROWS):
        yield STATES_ARE + bytes(msgpack.packb(rows[place : place + ROWS]))


def read_datagram(content: bytes) -> dict[Key, Status]:
    """Decode a member's report. Raises ValueError."""
    try:
        rows = msgpack.unpackb(content)
        found = {
            tuple(map(str, key)): Status(
                str(state), int(since_ms), str(reason), str(blocked), int(moved), int(attempts)
            )
            for *key, state, since_ms, reason, blocked, moved, attempts in rows
        }
    except (TypeError, ValueError, msgpack.UnpackException) as bad:
        raise ValueError("no states of shovels") from bad
    if any(one.state not in STATES for one in found.values()):
        raise ValueError("no state of a shovel")
    return found


def runner(members: Iterable[str], *key: str) -> str:
    """The member that runs this one; empty if there is none."""
    return max(members, key=lambda member: _rank(member, key), default="")


def _rank(member: str, key: Key) -> tuple[bytes, str]:
    text = "\0".join((member, *key)).encode()
    return blake2b(text, digest_size=8).digest(), member
