"""The legal phase moves, as a table: `(phase, reason) -> phase`.

A move that is not in the table is a bug and stops the member. A message that a phase does not
expect is no bug: its handler counts and drops it.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from vsync.errors import ProtocolBug


class Phase(Enum):
    """The phase of a member in the membership protocol: Totem's four, one before and one after."""

    IDLE = "idle"
    GATHER = "gather"
    COMMIT = "commit"
    RECOVERY = "recovery"
    OPERATIONAL = "operational"
    LEFT = "left"


class Reason(Enum):
    """Why a phase was left; the value appears in the trace."""

    START = "start"
    TOKEN_LOST = "token lost"
    FOREIGN_RING = "foreign ring heard"
    JOIN = "join"
    MEMBER_STUCK = "member does not receive"
    MEMBER_GONE = "member is gone"
    TOO_MANY = "more candidates than a ring may have"
    CONSENSUS_LATE = "consensus timeout"
    CONSENSUS = "consensus"
    COMMIT_TOKEN = "commit token"
    COMMIT_FULL = "commit token complete"
    RECOVERED = "old ring recovered"
    LEAVE = "leave"


MOVES: MappingProxyType[tuple[Phase, Reason], Phase] = MappingProxyType(
    {
        (Phase.IDLE, Reason.START): Phase.GATHER,
        (Phase.GATHER, Reason.JOIN): Phase.GATHER,
        (Phase.GATHER, Reason.FOREIGN_RING): Phase.GATHER,
        (Phase.GATHER, Reason.MEMBER_GONE): Phase.GATHER,
        (Phase.GATHER, Reason.TOO_MANY): Phase.GATHER,
        (Phase.GATHER, Reason.CONSENSUS_LATE): Phase.GATHER,
        (Phase.GATHER, Reason.CONSENSUS): Phase.COMMIT,
        (Phase.GATHER, Reason.COMMIT_TOKEN): Phase.COMMIT,
        (Phase.COMMIT, Reason.COMMIT_FULL): Phase.RECOVERY,
        (Phase.COMMIT, Reason.JOIN): Phase.GATHER,
        (Phase.COMMIT, Reason.TOKEN_LOST): Phase.GATHER,
        (Phase.COMMIT, Reason.MEMBER_GONE): Phase.GATHER,
        (Phase.RECOVERY, Reason.JOIN): Phase.GATHER,
        (Phase.RECOVERY, Reason.TOKEN_LOST): Phase.GATHER,
        (Phase.RECOVERY, Reason.MEMBER_STUCK): Phase.GATHER,
        (Phase.RECOVERY, Reason.MEMBER_GONE): Phase.GATHER,
        (Phase.RECOVERY, Reason.RECOVERED): Phase.OPERATIONAL,
        (Phase.OPERATIONAL, Reason.TOKEN_LOST): Phase.GATHER,
        (Phase.OPERATIONAL, Reason.FOREIGN_RING): Phase.GATHER,
        (Phase.OPERATIONAL, Reason.JOIN): Phase.GATHER,
        (Phase.OPERATIONAL, Reason.MEMBER_STUCK): Phase.GATHER,
        (Phase.OPERATIONAL, Reason.MEMBER_GONE): Phase.GATHER,
        (Phase.IDLE, Reason.LEAVE): Phase.LEFT,
        (Phase.GATHER, Reason.LEAVE): Phase.LEFT,
        (Phase.COMMIT, Reason.LEAVE): Phase.LEFT,
        (Phase.RECOVERY, Reason.LEAVE): Phase.LEFT,
        (Phase.OPERATIONAL, Reason.LEAVE): Phase.LEFT,
    }
)


def after(phase: Phase, reason: Reason) -> Phase:
    """The phase that follows. Raises `ProtocolBug` for a move that is not in the table."""
    found = MOVES.get((phase, reason))
    if found is None:
        raise ProtocolBug(f"no move from {phase.name} because of {reason.name}")
    return found
