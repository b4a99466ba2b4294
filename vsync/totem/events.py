"""The outputs of the node: everything that the shell, or a layer above, sees of the ring.

Outputs come in the order in which things happened. Within one turn (one `drained` or `wake`) every
Send and Broadcast of a token visit precedes the first Deliver, so a shell that works through the
list passes the token on before it applies anything.
"""

from __future__ import annotations

from typing import NamedTuple

from vsync.types import Guarantee, Member, RingId


class Send(NamedTuple):
    """Send one frame to one member; it may be lost."""

    to: Member
    frame: bytes


class Broadcast(NamedTuple):
    """Send one frame to every known peer, ring member or not, but not to this member."""

    frame: bytes


class Hail(NamedTuple):
    """Send one frame to an address that may not be a member's, and keep no connection to it."""

    address: str
    frame: bytes


class Deliver(NamedTuple):
    """One ordered frame: the payloads that it completes, in order.

    Every application frame of a ring yields exactly one Deliver, so `seq` grows by one within a
    ring (the first one follows the frames that recovery used; all members agree on it). A frame
    with an inner piece of a large payload has no payloads of its own: the whole payload comes with
    its last piece.
    """

    ring: RingId
    seq: int
    sender: Member
    payloads: list[bytes]
    guarantee: Guarantee
    transitional: bool


class Transitional(NamedTuple):
    """Transitional configuration: the members that move along from the old ring `ring`.

    Everything delivered from here to the next view is delivered to these members only.
    """

    ring: RingId
    members: tuple[Member, ...]


class View(NamedTuple):
    """A new regular configuration.

    `joined`: members that did not move along from the previous view. `left`: members of the
    previous view that did not move along. A member that was away and is back is in both.
    """

    ring: RingId
    members: tuple[Member, ...]
    joined: tuple[Member, ...]
    left: tuple[Member, ...]


class Marks(NamedTuple):
    """The mark of each ring member, by name; sent whenever the token shows a change."""

    marks: dict[str, int]


class Direct(NamedTuple):
    """A datagram from one member, outside any order."""

    sender: Member
    payload: bytes


class Note(NamedTuple):
    """One fact of the trace: a phase move with its reason, a view, a rare branch."""

    code: str
    fields: dict[str, str | int | float]


Output = Send | Broadcast | Hail | Deliver | Transitional | View | Marks | Direct | Note
