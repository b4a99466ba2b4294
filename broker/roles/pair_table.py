"""The standing of a pair's member (pending, active or passive) and its transitions, as a table.

`ROWS` are the transitions of OpenAMQ's HAC (its manual, 3.4.3 and 3.4.4) and of ActiveMQ's pure
master/slave.  Pure: a member looks at its peer and at its clients, and gets the row that applies.
`broker.roles.by_pair` carries out the row. To be active is to have the ordered role (one member at
a time in a primary view), and, if the peer is gone, to hold the vote of the pair, which a member
can take only if its state is surely the newest.

Rows that are not in the manuals are marked *ours*: the peer of a starting member may be active
already; a member that went on alone and was restarted knows this from its own record.
Decision: docs/decisions/0077-a-pair-has-a-vote-that-is-no-machines.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from broker.options.modes.pair import BACKUP, MASTER, PRIMARY, SLAVE


class Standing(Enum):
    """The standing of a pair's member. The values are those of the manual, and an interface."""

    PENDING = "pending"  # started, and waits for its peer
    ACTIVE = "active"  # takes clients
    PASSIVE = "passive"  # does not, and is ready to


class Peer(Enum):
    """The state of the peer, as a member sees it."""

    GONE = "gone"
    PENDING = "pending"
    PASSIVE = "passive"
    ACTIVE = "active"


class Seen(NamedTuple):
    """The observations of a member, on which its standing depends.

    `clients`: something was heard from a client since the peer was gone. `connected`: a client is
    connected. `may_lead`: with the peer gone, whether this member could go on alone. `gone_long`:
    the peer has been gone for the longest allowed time.
    """

    peer: Peer
    clients: bool = False
    connected: bool = False
    may_lead: bool = True
    gone_long: bool = False


class Row(NamedTuple):
    """A transition from a standing, with such a peer, to the next; `needs`: a further condition."""

    seat: str
    standing: Standing
    peers: frozenset[Peer]
    needs: str
    after: Standing
    reason: str


_HERE = frozenset({Peer.PENDING, Peer.PASSIVE})
_ACTIVE = frozenset({Peer.ACTIVE})
_GONE = frozenset({Peer.GONE})
CLIENT, NO_CLIENT, GONE_LONG, NOTHING = "a client", "no client", "gone for long", ""
S = Standing
ROWS: tuple[Row, ...] = (
    Row(PRIMARY, S.PENDING, _HERE, NOTHING, S.ACTIVE, "both members are here"),
    Row(PRIMARY, S.PENDING, _ACTIVE, NOTHING, S.PASSIVE, "the backup is active"),  # ours
    Row(PRIMARY, S.PENDING, _GONE, CLIENT, S.ACTIVE, "it had gone on alone, and sees a client"),
    Row(PRIMARY, S.ACTIVE, _ACTIVE, NOTHING, S.PASSIVE, "the backup is active as well"),
    Row(PRIMARY, S.PASSIVE, _GONE, CLIENT, S.ACTIVE, "the backup is gone, and it sees a client"),
    Row(PRIMARY, S.PASSIVE, _HERE, NOTHING, S.ACTIVE, "the backup is passive"),
    Row(BACKUP, S.PENDING, _HERE | _ACTIVE, NOTHING, S.PASSIVE, "the primary is here"),
    Row(BACKUP, S.PENDING, _GONE, CLIENT, S.ACTIVE, "it had gone on alone, and sees a client"),
    Row(BACKUP, S.PASSIVE, _GONE, CLIENT, S.ACTIVE, "the primary is gone, and it sees a client"),
    Row(BACKUP, S.PASSIVE, _HERE, NOTHING, S.ACTIVE, "the primary is passive"),
    Row(BACKUP, S.ACTIVE, _GONE, NO_CLIENT, S.PASSIVE, "the primary is gone, and so are clients"),
    Row(BACKUP, S.ACTIVE, _ACTIVE, NOTHING, S.PASSIVE, "the order names the primary"),  # ours
    Row(MASTER, S.PENDING, _HERE, NOTHING, S.ACTIVE, "both members are here"),
    Row(MASTER, S.PENDING, _ACTIVE, NOTHING, S.PASSIVE, "the slave has taken over"),
    Row(MASTER, S.PENDING, _GONE, NOTHING, S.ACTIVE, "it had gone on alone"),
    Row(MASTER, S.ACTIVE, _ACTIVE, NOTHING, S.PASSIVE, "the slave has taken over"),
    Row(MASTER, S.PASSIVE, _GONE, GONE_LONG, S.ACTIVE, "the slave is lost"),
    Row(MASTER, S.PASSIVE, _HERE, NOTHING, S.ACTIVE, "the slave is passive"),
    Row(SLAVE, S.PENDING, _HERE | _ACTIVE, NOTHING, S.PASSIVE, "the master is here"),
    Row(SLAVE, S.PENDING, _GONE, NOTHING, S.ACTIVE, "it had gone on alone"),
    Row(SLAVE, S.PASSIVE, _GONE, GONE_LONG, S.ACTIVE, "the master is lost"),
    Row(SLAVE, S.PASSIVE, _HERE, NOTHING, S.ACTIVE, "the master is passive"),
    Row(SLAVE, S.ACTIVE, _ACTIVE, NOTHING, S.PASSIVE, "the order names the master"),
)  # fmt: skip


def row_for(seat: str, standing: Standing, seen: Seen) -> Row | None:
    """Return the row that applies; None: nothing changes.

    If its peer is gone, a member becomes active only where it may go on alone, whatever it sees.
    """
    met = {
        NOTHING: True, CLIENT: seen.clients, NO_CLIENT: not seen.connected,
        GONE_LONG: seen.gone_long,
    }  # fmt: skip
    for row in ROWS:
        if row.seat == seat and row.standing is standing and seen.peer in row.peers:
            alone = seen.peer is Peer.GONE and row.after is Standing.ACTIVE
            if met[row.needs] and (seen.may_lead or not alone):
                return row
    return None
