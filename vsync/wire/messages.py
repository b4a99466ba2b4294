"""The messages of the ring protocol, as values.

The codec owns the envelope (cluster tag, version, the sender's identity with its incarnation) and
checks it before it builds any of these. A member is named by its index in the ring's sorted member
list, so a frame is meaningless without the right ring.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from vsync.types import Guarantee, Member, RingId


class FrameKind(IntEnum):
    """Frame kinds; the number is the second byte of every frame."""

    TOKEN = 1
    DATA = 2
    JOIN = 3
    COMMIT = 4
    MERGE = 5
    WAKE = 6
    DIRECT = 7
    PROBE = 8
    ALIVE = 9
    EARLY = 10  # data that was sent while the token stays: its sender waits for reports
    REPORT = 11


class Content(IntEnum):
    """What a data frame carries: whole payloads, a piece of one, or a frame of an older ring."""

    PAYLOADS = 0
    FRAGMENT = 1
    RECOVERED = 2


NOBODY = 0xFFFF
"""The `aru_by` of a token whose aru no member holds back."""


class Pace(NamedTuple):
    """The tempo of the ring as the token carries it, in milliseconds
    (`vsync.totem.ordering.tempo`)."""

    lease_ms: int  # how long a member may act without the token
    limit_ms: int  # no recent holder of the token keeps less on its disk
    timeout_ms: int  # silence after which the token is lost


NO_PACE = Pace(0, 0, 0)
"""The pace of a ring's first token: nothing is decided yet."""


class Token(NamedTuple):
    """The regular token: order, reliability, flow control, and the members' marks."""

    ring: RingId
    hop: int  # grows by one per forwarding, so a resent token is recognised
    seq: int  # last sequence number given out on this ring
    aru: int  # all received up to: every member holds everything up to here
    aru_by: int  # index of the member that lowered aru, or NOBODY
    sent: int  # frames multicast during the last rotation (Totem's fcc)
    backlog: int  # frames that wait at all members
    recovering: bool  # a member still has frames of its old ring to send (retrans_flg)
    marks: tuple[int, ...]  # one per member, in ring order
    wanted: tuple[int, ...]  # sequence numbers asked for again (rtr)
    pace: Pace = NO_PACE
    everywhere: int = 0  # every member has delivered everything up to here, by its report


class Data(NamedTuple):
    """One multicast frame as it is stored; `body`: its bytes behind the envelope.

    The body of a large received frame, and a piece of a payload in it, are views of its bytes: only
    join and send them.
    """

    ring: RingId
    seq: int
    origin: int  # index of the member that gave it its place
    content: Content
    guarantee: Guarantee
    items: list[bytes]
    body: bytes


class Join(NamedTuple):
    """One member's candidate and failed sets, and the highest ring seq that it knows."""

    proc: tuple[Member, ...]
    failed: tuple[Member, ...]
    ring_seq: int
    leaving: bool
    reception: tuple[Member, ...] = ()  # its reception report; () from one that leaves


class CommitEntry(NamedTuple):
    """The state of one member's old ring; it must not change once written."""

    old_ring: RingId
    aru: int
    high: int
    safe: int
    mark: int
    obliged: tuple[Member, ...]  # senders whose frames it must deliver (EVS obligation set)


class CommitToken(NamedTuple):
    """The commit token: first rotation collects the entries, the second distributes them."""

    ring: RingId
    members: tuple[Member, ...]
    hop: int
    entries: tuple[CommitEntry | None, ...]


class Merge(NamedTuple):
    """Announcement of an installed ring, with the sender's reception report."""

    ring: RingId
    members: tuple[Member, ...]
    reception: tuple[Member, ...]


class Wake(NamedTuple):
    """A member has work while the representative holds the token of `ring` (token hold cancel)."""

    ring: RingId


class Report(NamedTuple):
    """The frames that a member holds of those another member sends while it keeps the token."""

    ring: RingId
    hop: int  # of the token that is kept
    held: int  # this member holds everything up to here
    safe: int  # and knows that all members hold everything up to here: so it was delivered
    mark: int
    covers: int  # the mark covers nothing behind this


class Probe(NamedTuple):
    """Request for an `Alive`: the link to the receiver broke."""


class Alive(NamedTuple):
    """Answer to a probe."""


class Datagram(NamedTuple):
    """A payload for one member, outside any ring."""

    payload: bytes


Message = Token | Data | Join | CommitToken | Merge | Wake | Report | Probe | Alive | Datagram
