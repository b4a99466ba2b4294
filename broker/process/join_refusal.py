"""Stops a member that cannot join, because the others have other settings or refuse its key.

Only a starting member gives up: one that was in no primary view since its start, is alone in its
view, and, where two members could both be meant, started later than the other. Running members
continue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.exit_codes import Exit
from broker.replication.controller import Controller
from vsync.io.diagnosis import Lack, misfit, refusal
from vsync.io.security import KeyRefused, Security
from vsync.totem.membership.compatibility import Handshake
from vsync.types import NO_RING, Member

REMEDIES = {
    Lack.MECHANISM: (
        "give all members the same --cluster-mechanism, --cluster-key and --cluster-allow"
    ),
    Lack.KEY: "put its public file into the --cluster-allow of every member",
}
REFUSED_S = 2.0
"""How long a refusal must last: keys may be on their way to the others."""


class RingStatus(Protocol):
    """The ring, as seen here."""

    me: Member
    handshake: Handshake


class TransportStatus(Protocol):
    """The connections, as seen here."""

    security: Security

    @property
    def refusals(self) -> dict[str, KeyRefused]:
        """The peers that were reached and refuse to talk to this member."""


class JoinRefusal:
    """Called a few times a second with the loop's time."""

    def __init__(
        self,
        controller: Controller,
        ring: RingStatus,
        transport: TransportStatus,
        stop: Callable[[Exit, str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._controller, self._ring, self._transport = controller, ring, transport
        self._stop, self._warn = stop, warn
        self._refused_since = 0.0
        self._warned = ""
        self._advised_in = NO_RING
        self._advised: set[str] = set()

    def wake(self, now: float) -> None:
        """Stop or warn when a reason against joining has lasted; name settings that differ."""
        self._advise()
        if self._controller.ran or len(self._controller.primary.members) > 1:
            self._refused_since = 0.0
            return
        if other := misfit(self._ring.me, self._ring.handshake):
            self._stop(Exit.PROTOCOL, f"cannot join: {other}")
            return
        refusals = self._transport.refusals
        if not refusals:
            self._refused_since = 0.0
        elif not self._refused_since:
            self._refused_since = now
        elif now - self._refused_since > REFUSED_S:
            address, why = min(refusals.items())
            sentence = refusal_sentence(self._ring.me, self._transport.security, address, why)
            if not self._controller.filled:
                self._stop(Exit.NOT_ALLOWED, sentence)
            elif sentence != self._warned:
                # It holds a state of the cluster and waits for the others; a process that took the
                # address of one of them must not be able to end it.
                self._warned = sentence
                self._warn(sentence)

    def _advise(self) -> None:
        primary = self._controller.primary
        if primary.active and primary.ring != self._advised_in:
            self._advised_in = primary.ring
            for row in primary.advice():
                if row not in self._advised:
                    self._advised.add(row)
                    self._warn(f"settings differ that should be equal: {row}")


def refusal_sentence(me: Member, security: Security, address: str, why: KeyRefused) -> str:
    """A sentence for the operator: which member, which keys, and what to do."""
    lack, sentence = refusal(me, security, address, why)
    remedy = REMEDIES.get(lack, "")
    return f"cannot join: {sentence}{'; ' if remedy else ''}{remedy}"
