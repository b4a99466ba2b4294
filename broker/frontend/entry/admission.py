"""Decides whether a member admits clients at this moment.

A client that has logged in and opens a virtual host is let in, waits, or goes elsewhere. The first
line that holds decides; "others" are all clients but operators and parts of this cluster (`stays`):

| holds | of whom | a new client | those who are in |
| --- | --- | --- | --- |
| `drained` | all but parts of this cluster | is sent away, with the reason | were sent away |
| `fenced_briefly` | all | waits, for `WAIT_S` at most | stay, and are told nothing meanwhile |
| `standby_holds` | others | waits, as long as it may take to log in | were sent away |
| fenced, or no session yet | all | is refused, to try the next member | stay |
| `standby`, `standby_briefly` | all but operators | waits, `WAIT_S` at most | were sent away |
| `standby` | all but operators | is sent away, with the reason | were sent away |

A new session closes the connections of the previous one, whatever holds here. While a member
`begins` nobody gets as far as this: logins wait for its first session (`ClientLogins`).
Decision: docs/decisions/0066-the-active-member-is-ordered.md.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from broker.amqp import errors
from broker.amqp.errors import reply_text
from broker.frontend.client import Client, Port
from broker.frontend.dispatch import release

WAIT_S = 2.0
"""How long a client waits to be admitted or refused: longer than the token timeout, the forming of
a ring and the activation of its view take together, and less than any client waits."""
BEGIN_S = 5.0
"""How long after its start logins wait for a member's first session: programs connect as soon as
the port is open, and a start takes a second or three."""


class Entry(Enum):
    """The verdict on a client that asks to come in."""

    LET_IN = auto()
    WAITS = auto()
    SENT_AWAY = auto()
    REFUSED = auto()


def is_operator(client: Client) -> bool:
    """Whether a client may use a standby member: it belongs to this process (the management API,
    a shovel), or to an administrator and asks for this by Qpid's property."""
    says_so = client.connection.client_properties.get("qpid.ha-admin") in (True, 1)
    return bool(client.purpose) or (says_so and "administrator" in client.login.tags)


def is_ordinary(client: Client) -> bool:
    """Whether a client is neither an operator's nor a part of this cluster."""
    return not is_operator(client) and not client.stays


class Admission:
    """The reasons why this member admits no clients, and the clients that wait until it does."""

    def __init__(self, member: str, port: Port, on_work: Callable[[], None]) -> None:
        self.drained = ""  # why no client is let in, by an operator's wish
        self.standby = ""  # why only operators are: this member is a backup
        self.standby_briefly = False  # that may be over in a moment, here or elsewhere
        self.standby_holds = False  # new clients wait for its end, in no primary view as well
        self.fenced_briefly = False  # fenced, but that may be over in a moment
        self.loading = ""
        """Why a client that may not enter should try again: users are being loaded."""
        self.watches = False  # whether clients come: the other one of a pair is gone
        self.heard = False  # one came since
        self.waiting: dict[Client, None] = {}
        self._begins_until = 0.0  # 0: it does not begin any more
        self._member, self._port, self._on_work = member, port, on_work

    def decide(self, client: Client) -> tuple[Entry, str]:
        """Return the verdict on this client, and the reason."""
        if self.drained and not client.stays:
            return Entry.SENT_AWAY, self.drained
        if self.watches and is_ordinary(client):
            self.heard = True
            self._on_work()
        if self._port.session and self._port.fenced and self.fenced_briefly:
            return Entry.WAITS, ""
        if self.standby_holds and is_ordinary(client):
            return Entry.WAITS, ""
        if self.is_inactive:
            return Entry.REFUSED, self._why_refused
        if self.standby and not is_operator(client):
            return (Entry.WAITS if self.standby_briefly else Entry.SENT_AWAY), self.standby
        return Entry.LET_IN, ""

    def stand_by(self, reason: str, *, briefly: bool, holds: bool) -> bool:
        """Let only operators in, for this reason; return whether that begins now."""
        begins = bool(reason) and not self.standby
        self.standby, self.standby_briefly, self.standby_holds = reason, briefly, holds
        return begins

    def begin(self, now: float) -> None:
        """The member starts, and will most likely have a session soon."""
        self._begins_until = now + BEGIN_S

    @property
    def begins(self) -> bool:
        """Whether logins wait for this member's first session."""
        return self._begins_until > 0.0 and not self._port.session

    def watch(self, *, on: bool) -> None:
        """Start or stop noticing whether clients come."""
        self.watches, self.heard = on, False

    def admit_waiting(self, *, soon: bool) -> None:
        """Judge the waiting clients again, unless the fence may be gone `soon`."""
        self.fenced_briefly = self._port.fenced and soon
        if self.waiting and not (self.fenced_briefly or self.standby_briefly or self.standby_holds):
            waiting, self.waiting = self.waiting, {}
            for client in waiting:
                release(client)

    def refuse_overdue(self, now: float) -> None:
        """Refuse clients that have waited too long."""
        if now > self._begins_until or self._port.session:
            self._begins_until = 0.0
        wait_s = self._port.limits.handshake_s if self.standby_holds else WAIT_S
        for client in [one for one in self.waiting if now - one.connected_at > wait_s]:
            del self.waiting[client]
            if client.kept.holds_all:  # its connection was not ended while it waited
                refuse(client, self._why_refused)

    @property
    def is_inactive(self) -> bool:
        """Whether this member may send no output of the machine."""
        return self._port.fenced or not self._port.session

    @property
    def may_be_old(self) -> str:
        """Return why this member may know of users nothing or old facts; empty: it is current."""
        if self.is_inactive:
            return f"member '{self._member}' is not part of the primary view at this time"
        return self.loading

    @property
    def _why_refused(self) -> str:
        return self.may_be_old or self.standby


def refuse(client: Client, reason: str) -> None:
    """Refuse a client, which should try another member, or this one again."""
    client.refuse(errors.CONNECTION_FORCED, reply_text(errors.CONNECTION_FORCED, reason))
