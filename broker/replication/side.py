"""Tells whether clients have anything from a member of a pair that went on alone: then it is a
*side* (G28).

Until a client has anything from it, the other member's history holds everything that any client
knows, and this member's can be given up without a loss. A client has what was sent to it, and may
count on what it sent itself once that is released, because then it is confirmed. Nothing that only
waits for the disk was promised: a member whose disk is full or hangs is no side, however much it
was sent.

A report stays true: between the view in which a member reports and the next activation nothing is
released, and nothing is sent to a client.
Decision: docs/decisions/0091-a-side-of-a-pair-is-what-clients-have.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.machine.commands import (
    ACTIVATE,
    ALARM,
    CANCEL,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONSUME,
    DEMOTE,
    DIGEST,
    GET,
    PROMOTE,
    QOS,
    REFUSED,
    TICK,
    VOTERS,
)
from broker.machine.effects import DeliverEffect, Effect, GetOk
from broker.replication.durable_gate import acknowledges_durable
from vsync.quorum.voter_set import Terms, voter_set

UNCOUNTED = frozenset((
    REFUSED, ACTIVATE, ALARM, CANCEL, CHANNEL_CLOSE, CHANNEL_OPEN, CONNECTION_CLOSE,
    CONNECTION_OPEN, CONSUME, DEMOTE, DIGEST, GET, PROMOTE, QOS, TICK, VOTERS,
))  # fmt: skip
"""Commands of the broker itself, and of a connection, whose effects end with the connection: only
the messages that they had sent are kept."""


class Side:
    """Follows applied and released positions from the moment when this member went on alone."""

    def __init__(self) -> None:
        self.took_nothing = False
        """No client has anything from it; not known after a restart."""
        self._begun = False  # with what was undecided, and the activation follows
        self._first = 0  # where the first command is that a client may come to count on; 0: none

    def decided(self, voters: Terms) -> None:
        """The next items were undecided when a view ended: maybe no other member received them."""
        now = voter_set(voters)
        if now.pair and not now.away and not self._begun:
            self._begin()
            self._begun = True

    def _begin(self) -> None:
        self.took_nothing, self._first = True, 0

    def activated(self, before: Terms, now: Terms) -> None:
        """A view is primary with the voters `now`; before, they were `before`."""
        if not voter_set(now).away:
            self.took_nothing = False
        elif not voter_set(before).away and not self._begun:
            self._begin()
        self._begun = False

    def applied(self, first: int, kinds: bytes, effects: Iterable[tuple[int, Effect]]) -> None:
        """Commands were applied from a position on, with these effects for local clients."""
        if not UNCOUNTED.issuperset(kinds):
            self._first = self._first or first
        for position, effect in effects:
            if isinstance(effect, (DeliverEffect, GetOk)) or not (
                kinds[position - first] in UNCOUNTED or acknowledges_durable(effect)
            ):
                self.took_nothing = False

    def released(self, position: int) -> None:
        """Everything up to this position is confirmed."""
        if 0 < self._first <= position:
            self.took_nothing = False
