"""Stops a member that cannot join, because the others have other settings or refuse its key.

Only a starting member gives up: one that was in no primary view since its start, is alone in its
view, and, where two members could both be meant, started later than the other. Running members
continue.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from broker.exit_codes import Exit
from broker.replication.controller import Controller
from vsync.io.diagnosis import Lack, misfit, refusal
from vsync.io.security import KeyRefused, Security
from vsync.totem.events import Direct, Note
from vsync.totem.membership.compatibility import Handshake
from vsync.types import Member, RingId

REMEDIES = {
    Lack.MECHANISM: (
        "give all members the same --cluster-mechanism, --cluster-key and --cluster-allow"
    ),
    Lack.KEY: "put its public file into the --cluster-allow of every member",
}
OUTDATED = b"OUTDATED"
"""A datagram that begins so tells a member of the later start with which its name is known."""
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
        self._known = 0  # the later start that this member was told of
        self._warned = ""
        self._advised: set[str] = set()
        self._compared_in: RingId | None = None

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

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram is about the start of this member; if so, warn of what it says.

        The member does not take a later start by itself: two processes under one name, say a copy
        of a virtual machine, would drive each other out in turn.
        """
        if direct.payload[: len(OUTDATED)] != OUTDATED:
            return False
        known, ours = int.from_bytes(direct.payload[len(OUTDATED) :][:8]), self._ring.me
        alone = len(self._controller.primary.members) <= 1
        if ours.incarnation < known != self._known and alone:
            self._known = known
            self._warn(
                f"{direct.sender.name} drops the frames of this member, which started at "
                f"{_time(ours.incarnation)}: it knows a process named {ours.name} that started at "
                f"{_time(known)}. If this machine's clock was set back, set it right and start "
                "this member again; if another process has this name, end one of the two"
            )
        return True

    def _advise(self) -> None:
        primary = self._controller.primary
        if not primary.active or primary.ring == self._compared_in:
            return  # each member says once in a view what its settings are
        self._compared_in = primary.ring
        for row in primary.advice():
            if row not in self._advised:
                self._advised.add(row)
                self._warn(f"settings differ that should be equal: {row}")


def outdated(note: Note) -> tuple[str, Member, bytes]:
    """Return what to warn of when a process goes on under a name that is known with a later start,
    and the datagram that tells the process."""
    fields = note.fields
    incarnation, known = int(fields["incarnation"]), int(fields["known"])
    member = Member(str(fields["member"]), incarnation, str(fields["address"]))
    sentence = (
        f"the frames of {member.name} are dropped: it started at {_time(incarnation)} by its "
        f"clock, and a process of that name is known that started at {_time(known)}; its clock "
        "was set back, or it should have ended"
    )
    return sentence, member, OUTDATED + known.to_bytes(8)


def _time(incarnation: int) -> str:
    """The start of an incarnation, which is one in milliseconds."""
    try:
        return datetime.fromtimestamp(incarnation / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):  # as a datagram has it
        return str(incarnation)


def refusal_sentence(me: Member, security: Security, address: str, why: KeyRefused) -> str:
    """A sentence for the operator: which member, which keys, and what to do."""
    lack, sentence = refusal(me, security, address, why)
    remedy = REMEDIES.get(lack, "")
    return f"cannot join: {sentence}{'; ' if remedy else ''}{remedy}"
