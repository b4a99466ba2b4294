"""Maintenance of one member through any other: close a client's connection, drain the member.

A *drained* member has closed its clients' connections and lets none in; it votes and replicates
like the others. The state is not stored: a restart ends it. While drained, the member announces
this to the members of its view, so that each can show which members are drained.

Requests and announcements are datagrams and may be lost: announcements are repeated, and the
requester checks whether its request took effect and repeats it if not.
Decision: docs/decisions/0026-operators-act-on-members-through-any-member.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from broker.replication.controller import Controller
from vsync.admin.protocol import Json, QueryRefused
from vsync.totem.events import Direct
from vsync.types import Member

CLOSE, DRAIN, UNDRAIN, IS_DRAINED, IS_NOT = b"Oc", b"Od", b"Ou", b"O!", b"O."
"""The first bytes of datagrams; a client's address, a zero byte and the reason follow CLOSE."""
ANNOUNCE_S = 1.0
HEARD_S = 5.0
"""A member that has not repeated its announcement for this long counts as no longer drained."""
CLOSED = "the connection was closed by an operator"


class Clients(Protocol):
    """Operators' actions on the clients of this member."""

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection from this address."""

    def drain(self, reason: str) -> None:
        """Close all connections and refuse new ones for this reason; empty: let clients in."""

    def details(self) -> dict[str, Json]:
        """Return the facts that only this member knows of its clients, by address."""


class Maintenance:
    """Tracks the drained members, and has other members close connections of their clients."""

    def __init__(
        self,
        controller: Controller,
        clients: Clients,
        send_direct: Callable[[Member, bytes], None],
        note: Callable[[str], None],
    ) -> None:
        self._controller, self._clients = controller, clients
        self._send_direct, self._note = send_direct, note
        self._drained = False
        self._heard: dict[Member, float] = {}
        self._now = self._announced_at = 0.0

    @property
    def drained(self) -> frozenset[str]:
        """The names of the members that take no clients."""
        here = self._controller.primary.members
        names = {member.name for member in self._heard if member in here}
        return frozenset(names | ({self._controller.me.name} if self._drained else set()))

    # -- requests of operators -------------------------------------------------------------------

    def connections(self) -> list[Json]:
        """Return the clients of all members, from the replicated state."""
        machine = self._controller.replica.machine
        members = {record.session: name for name, record in machine.sessions.items()}
        own, me = self._clients.details(), self._controller.me.name
        found: list[Json] = []
        for (session, number), one in machine.connections.items():
            member = members.get(session, "")
            known = own.get(one.peer, {}) if member == me else {}
            found.append(
                {
                    "member": member, "address": one.peer, "user": one.user,
                    "vhost": one.vhost.name, "channels": len(one.channels), "number": number,
                    **known,
                }
            )  # fmt: skip
        return sorted(found, key=lambda one: (str(one["member"]), str(one["address"])))

    def disconnect(self, address: str, of: str = "", reason: str = "") -> list[str]:
        """Have the connection from `address` closed; return the members that have it.

        Clients of two members may have the same address; `of` names the member then. The client is
        told the reason.
        """
        machine = self._controller.replica.machine
        members = {record.session: name for name, record in machine.sessions.items()}
        at = {
            members.get(session, "")
            for (session, _), one in machine.connections.items()
            if one.peer == address
        }
        at &= {of} if of else at
        for name in at:
            if name == self._controller.me.name:
                self._close(address, reason, "here")
            else:
                self._send(name, CLOSE + f"{address}\0{reason}".encode())
        return sorted(at)

    def drain(self, name: str, *, on: bool, force: bool) -> None:
        """Drain a member, or let it take clients again. Raises QueryRefused."""
        serving = self._controller.primary.caught_up_names
        serving -= self._controller.primary.mark.without_data | self.drained
        if on and not force and not serving - {name}:
            raise QueryRefused(
                "refused",
                f"no other member would take clients while {name} is drained; "
                "undrain another one first, or use --force",
            )
        if name == self._controller.me.name:
            self._set(on=on, by="here")
        else:
            self._send(name, DRAIN if on else UNDRAIN)

    def _send(self, name: str, datagram: bytes) -> None:
        for member in self._controller.primary.members:
            if member.name == name:
                self._send_direct(member, datagram)
                return
        raise QueryRefused("no-such-member", f"no member of this view has the id {name}")

    # -- this member -----------------------------------------------------------------------------

    def takes(self, direct: Direct) -> bool:
        """Handle a request or announcement; return whether this datagram was one."""
        payload, sender = direct.payload, direct.sender
        match payload[:2]:
            case b"Od" | b"Ou":
                self._set(on=payload == DRAIN, by=f"through {sender.name}")
            case b"Oc":
                address, _, reason = payload[2:].decode("utf-8", "replace").partition("\0")
                self._close(address, reason, f"through {sender.name}")
            case b"O!":
                self._heard[sender] = self._now
            case b"O.":
                self._heard.pop(sender, None)
            case _:
                return False
        return True

    def _close(self, address: str, reason: str, by: str) -> None:
        shown = address if address.isprintable() else repr(address)
        why = f": {reason}" if reason else ""
        self._note(f"an operator closes the connection of {shown} ({by}){why}")
        self._clients.disconnect(address, CLOSED + why)

    def _set(self, *, on: bool, by: str) -> None:
        if on is self._drained:
            return
        self._drained = on
        self._note(
            f"an operator drains this member ({by}): its clients are sent away until it is "
            "undrained or restarted"
            if on
            else f"an operator undrained this member ({by}): it takes clients again"
        )
        self._clients.drain(self._refusal() if on else "")
        self._announce(IS_DRAINED if on else IS_NOT)

    def _refusal(self) -> str:
        """Return the text for clients; other members' addresses come last, as it may be cut."""
        primary, labels = self._controller.primary, self._controller.primary.labels()
        others: Collection[str] = primary.caught_up_names - self.drained
        urls = [labels[name] for name in sorted(others) if labels.get(name)]
        elsewhere = f"; try {' or '.join(urls)}" if urls else ""
        return f"member '{self._controller.me.name}' is drained for maintenance{elsewhere}"

    def _announce(self, what: bytes) -> None:
        self._announced_at = self._now
        for member in self._controller.primary.members:
            if member != self._controller.me:
                self._send_direct(member, what)

    def wake(self, now: float) -> None:
        """Repeat the announcement, and forget other members' that were not repeated."""
        self._now = now
        if self._drained and now - self._announced_at >= ANNOUNCE_S:
            self._announce(IS_DRAINED)
        for member in [one for one, at in self._heard.items() if now - at > HEARD_S]:
            del self._heard[member]
