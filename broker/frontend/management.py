"""Requests of operators and tools: newline-delimited JSON on the client port.

The protocol (requests, replies, codes) is specified in `tools/commands/qpid_cluster` and
implemented by `vsync.admin.protocol`; this module has a broker's replies, and checks who may have
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.access.backends import Login
from broker.machine.commands import Table
from vsync.admin.protocol import Json, NotYet, Op, QueryRefused, QuerySession


class Managed(Protocol):
    """The replies of a member.  Each may raise `QueryRefused`."""

    def login(
        self, user: str, password: str, peer: str, then: Callable[[Login, float], None]
    ) -> Login | None:
        """Return the verdict on credentials from an address; None: `then` gets it later."""

    def note(self, sentence: str) -> None:
        """Record an operator's order."""

    def status(self) -> Json:
        """Return the reply to `status`."""

    def stop_member(self, name: str) -> None:
        """Make the member `name` leave."""

    def shutdown(self) -> str:
        """Order the clean stop of all; return its id."""

    def all_counters(self) -> dict[str, int]:
        """Return this member's counters."""

    def groups(self) -> Json:
        """Return the reply to `groups`."""

    def quorum(self) -> Json:
        """Return the reply to `quorum`."""

    def trace(self, request: Json) -> Json:
        """Return the reply to `trace`; switch it when the request demands it."""

    def change_voters(self, action: str, name: str, by: str, votes: int) -> tuple[str, ...]:
        """Order a change of the voters; return the terms that will be in force."""

    def upgrade(self, *, force: bool) -> int:
        """Order that the newest version which all members execute is in force; return it."""

    def connections(self) -> list[Json]:
        """Return the clients of all members."""

    def disconnect(self, address: str, of: str) -> list[str]:
        """Close a client's connection, at any member or at one; return the members that have it."""

    def drain(self, name: str, *, on: bool, force: bool) -> None:
        """Drain the member `name`, or let it take clients again."""

    def promote(self) -> Json:
        """Have this member become the active one; return the reply to `status` under `ha`."""

    def replicas(self) -> list[dict[str, object]]:
        """Return the replicas of queues elsewhere, as lists show them."""

    def replicate(self, by: str, vhost: str, queue: str, value: Table | None) -> None:
        """Have a queue replicate one of another broker; without a value no longer."""

    def force_passive(self) -> Json:
        """Have the peer in a pair become active; return the reply to `status` under `ha`."""


READING = frozenset(("status", "counters", "groups", "quorum", "connections", "trace", "replicas"))
"""The requests that a user with the tag monitoring may make; the rest change something."""
NOTED = ("id", "address", "action", "by", "votes", "on", "force", "vhost", "queue")
"""The recorded fields of an order; a value may contain a password."""


class ManagementSession(QuerySession):
    """One management connection, after its preamble.  `write` sends replies whose requests had to
    wait."""

    def __init__(self, member: Managed, peer: str, write: Callable[[bytes], None]) -> None:
        self._member, self._peer, self._write = member, peer, write
        self._known: Login | None = None
        """The verdict on the login that the first request waits for."""
        ops: dict[str, Op] = {
            "status": lambda _: self._member.status(),
            "stop": self._stop,
            "shutdown": lambda _: {"shutdown_id": self._member.shutdown()},
            "voters": self._voters,
            "upgrade": self._upgrade,
            "counters": lambda _: {"counters": self._member.all_counters()},
            "groups": lambda _: self._member.groups(),
            "quorum": lambda _: self._member.quorum(),
            "connections": lambda _: {"connections": self._member.connections()},
            "disconnect": self._disconnect,
            "drain": self._drain,
            "promote": lambda _: {"ha": self._member.promote()},
            "passive": lambda _: {"ha": self._member.force_passive()},
            "trace": lambda request: self._member.trace(request),
            "replicas": lambda _: {"replicas": self._member.replicas()},
            "replicate": self._replicate,
        }
        super().__init__(ops, self._login)

    def _login(self, request: Json) -> None:
        user, password = request.get("user", "guest"), request.get("password", "guest")
        if not isinstance(user, str) or not isinstance(password, str):
            raise QueryRefused("bad-request", "user and password must be text")
        login, self._known = self._known, None
        if login is None:
            login = self._member.login(user, password, self._peer, self._on_login)
        if login is None:
            raise NotYet
        reads = request.get("op") in READING and not (
            request.get("op") == "trace" and set(request) - {"op", "user", "password"}
        )
        needed = ("administrator", "monitoring") if reads else ("administrator",)
        if not login.backend:
            raise QueryRefused("access-refused", f"the login of user '{user}' was refused")
        if not any(tag in login.tags for tag in needed):
            raise QueryRefused(
                "access-refused",
                f"user '{user}' may not do this: it takes the tag {' or '.join(needed)}",
            )
        if not reads:
            said = [f"{key} {request[key]!r:.100}" for key in NOTED if key in request]
            what = ", ".join([str(request.get("op")), *said])
            self._member.note(f"user {user!r:.100} at {self._peer} orders: {what}")

    def _on_login(self, login: Login, _now: float) -> None:
        self._known = login
        self._write(self.go_on())

    def _stop(self, request: Json) -> Json:
        name = request.get("id")
        if not isinstance(name, str):
            raise QueryRefused("bad-request", "stop needs the id of a member")
        self._member.stop_member(name)
        return {"id": name}

    def _disconnect(self, request: Json) -> Json:
        address, of = request.get("address"), request.get("id", "")
        if not (isinstance(address, str) and isinstance(of, str)):
            raise QueryRefused("bad-request", "disconnect needs the address of a client")
        return {"members": self._member.disconnect(address, of)}

    def _drain(self, request: Json) -> Json:
        name, on, force = request.get("id"), request.get("on", True), request.get("force", False)
        if not (isinstance(name, str) and isinstance(on, bool) and isinstance(force, bool)):
            raise QueryRefused(
                "bad-request", "drain needs the id of a member; on, force: yes or no"
            )
        self._member.drain(name, on=on, force=force)
        return {"id": name, "on": on}

    def _voters(self, request: Json) -> Json:
        action, name, by = (request.get(key, "") for key in ("action", "id", "by"))
        votes = request.get("votes", 0)
        if not (isinstance(action, str) and isinstance(name, str) and isinstance(by, str)):
            raise QueryRefused("bad-request", "action, id and by must be text")
        if type(votes) is not int or not 0 <= votes <= 1_000_000:
            raise QueryRefused("bad-request", "votes must be a whole number from 0 to 1000000")
        return {"voter_set": list(self._member.change_voters(action, name, by, votes))}

    def _replicate(self, request: Json) -> Json:
        queue, vhost, by = request.get("queue"), request.get("vhost", "/"), request.get("user", "")
        value = request.get("value")
        if not (isinstance(queue, str) and isinstance(vhost, str) and isinstance(by, str)):
            raise QueryRefused("bad-request", "replicate needs the queue, and vhost as text")
        if value is not None and not isinstance(value, dict):
            raise QueryRefused("bad-request", "value is an object with src-uri, or none: no more")
        self._member.replicate(by, vhost, queue, value)
        return {"queue": queue, "vhost": vhost}

    def _upgrade(self, request: Json) -> Json:
        force = request.get("force", False)
        if type(force) is not bool:
            raise QueryRefused("bad-request", "force must be true or false")
        return {"machine_version": self._member.upgrade(force=force)}
