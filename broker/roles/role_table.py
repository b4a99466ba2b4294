"""The roles of a member in an active-passive cluster, in the words of Qpid's manual, as a table.

`MOVES` has the moves of the original, in which a broker that stops being one of these has to be
restarted, and those by which a member here comes back by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum


class Role(Enum):
    """What a member is.  The values are an interface: scripts of resource managers test them."""

    STANDALONE = "standalone"  # in no active-passive cluster
    JOINING = "joining"  # in no primary view
    CATCHUP = "catchup"  # a backup that gets the state
    READY = "ready"  # a backup that has it, and may be promoted
    RECOVERING = "recovering"  # promoted; clients may connect, and wait until the view stands
    ACTIVE = "active"  # serves clients


MOVES: Mapping[Role, tuple[Role, ...]] = {
    Role.STANDALONE: (Role.JOINING,),
    Role.JOINING: (Role.CATCHUP, Role.RECOVERING),
    # Out of the primary view: the original's broker stayed what it was, with nobody to follow.
    Role.CATCHUP: (Role.READY, Role.JOINING),
    Role.READY: (Role.RECOVERING, Role.CATCHUP, Role.JOINING),
    # Given up for a member that is drained, or lost with the view: the original had no way back.
    Role.RECOVERING: (Role.ACTIVE, Role.JOINING, Role.READY),
    # A view that changes stalls its clients, until it stands again.
    Role.ACTIVE: (Role.RECOVERING,),
}
"""From each role the next ones."""


class IllegalMove(Exception):
    """There is no way from one role to the other: our bug."""


def way(old: Role, new: Role) -> list[Role]:
    """The shortest way from one role to another, each move a legal one.  Raises IllegalMove."""
    ways = deque([[old]])
    while ways:
        path = ways.popleft()
        if path[-1] is new:
            return path[1:]
        ways += [[*path, role] for role in MOVES[path[-1]] if role not in path]
    raise IllegalMove(f"Illegal state transition: {old.value} -> {new.value}")
