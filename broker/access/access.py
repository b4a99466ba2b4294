"""Decides logins and permissions from the definitions that all members hold.

Every question is answered at the member to which the client is connected, before anything is
ordered (docs/decisions/0016-decide-once-at-the-origin.md). Refusals are in RabbitMQ's words,
without the name of the reply code in front; an empty text means that it is allowed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from broker.access import passwords, patterns
from broker.access.acl_file import Acl, Question
from broker.access.auth_server import USER, AuthQuestion, AuthServer
from broker.access.backends import (
    FILE,
    HTTP,
    INTERNAL,
    REFUSED,
    Backends,
    FileUser,
    Login,
    ToAsk,
)
from broker.machine.commands import Table, Value
from broker.machine.state import FAILOVER, Held, State

LOOPBACK_USERS = frozenset(("guest",))
IMPERSONATOR = "impersonator"
DEFAULT_QUEUE_TYPE = "default_queue_type"
"""The key in a virtual host's definition."""
_KEPT_MAX = 256
USER_BYTES_MAX = 255
"""Length of the name of a user that only a server knows."""
_NOBODY = FileUser("", passwords.DEFAULT_ALGORITHM, ())


SYSTEM = ""
"""The broker itself, when it imports definitions. No user can have this name or log in as it."""


REPLICA = "queue-replica"
"""The component of parameters that name queues kept the same as another broker's."""
DEFAULT_EXCHANGE = "amq.default"
_OF_WHOM = re.compile(r"\{(?:username|vhost)\}")
Asked: TypeAlias = tuple[str, Mapping[str, str]]
_ACTIONS = {
    ("exchange.declare", "configure"): "create",
    ("queue.declare", "configure"): "create",
    ("exchange.delete", "configure"): "delete",
    ("queue.delete", "configure"): "delete",
    ("queue.purge", "read"): "purge",
    ("queue.bind", "read"): "bind",
    ("exchange.bind", "read"): "bind",
    ("queue.unbind", "read"): "unbind",
    ("exchange.unbind", "read"): "unbind",
    ("queue", "read"): "consume",
    ("exchange", "write"): "publish",
}
"""The ACL file's name of the action that needs a permission, by method or else by kind."""


class Resource(NamedTuple):
    """An object in a virtual host, and the permission it requires."""

    permission: str
    """configure, write or read."""
    kind: str
    """exchange or queue."""
    name: str


_TO_FAILOVER = Resource("write", "exchange", FAILOVER)
"""Reserved for the members: clients trust its messages."""


class Topic(NamedTuple):
    """A routing key at an exchange, which may be a topic exchange, and the required permission:
    write to publish with it, read to bind."""

    permission: str
    exchange: str
    key: str


class Needs(NamedTuple):
    """All rights that a method requires: checked in this order, before any of it is done.

    `facts`: properties that an ACL file may look at beside the name.
    """

    method: str
    resources: tuple[Resource, ...] = ()
    facts: Mapping[str, str] = MappingProxyType({})
    topics: tuple[Topic, ...] = ()


def refused_vhost(user: str, vhost: str) -> str:
    """The text for a user who may not enter it."""
    return f"access to vhost '{vhost}' refused for user '{user}'"


def refused_resource(user: str, vhost: str, kind: str, name: str) -> str:
    """The text for a user without a permission for it."""
    return f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"


def refused_topic(user: str, vhost: str, exchange: str, key: str) -> str:
    """The text for a user who may not use this key there."""
    return (
        f"access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for user "
        f"'{user}'"
    )


def refused_to_all(vhost: str, resources: Collection[Resource]) -> str:
    """The text for what no client may do, whatever its rights are and whoever gives them; empty:
    there is nothing of that kind."""
    if _TO_FAILOVER in resources:
        return f"cannot publish to internal exchange '{FAILOVER}' in vhost '{vhost}'"
    return ""


def how_to_let_in(user: str, vhost: str) -> str:
    """What an operator does so that the user may do everything in a virtual host."""
    return (
        f"user '{user}' has no permissions in vhost '{vhost}' (administrators need them, too); to "
        f"grant them: qpidctl set_permissions -p {shlex.quote(vhost)} "
        f"{shlex.quote(user)} '.*' '.*' '.*'"
    )


def _may_be_asked_about(user: str, password: str | None) -> bool:
    """Whether a server may be asked about it: not without a name, which is the broker's own, nor
    with an empty password, which some servers take for no password at all, nor with one that cannot
    be encoded (JSON may have halves of surrogate pairs)."""
    good = user.isprintable() and 0 < len(user.encode("utf-8", "replace")) <= USER_BYTES_MAX
    if password is None:
        return good
    return good and password != "" and password.encode("utf-8", "ignore").decode() == password


class Access:
    """The users of the cluster, as this member knows them."""

    def __init__(
        self,
        state: Callable[[], State],
        loopback_users: Collection[str] = LOOPBACK_USERS,
        backends: Backends | None = None,
    ) -> None:
        self._state, self._loopback_users = state, loopback_users
        self._backends = backends or Backends()

    @property
    def version(self) -> tuple[int, int, int]:
        """Changes whenever definitions, or the users of a file, have changed."""
        state = self._state()
        return id(state), state.defined, self._backends.version

    def _defined(self, what: str, vhost: str, name: str) -> Table | None:
        return self._state().definitions.get(what, {}).get((vhost, name))

    def default_queue_type(self, vhost: str) -> str:
        """The type of queues of this virtual host that are declared without one; empty: classic."""
        body = self._defined("vhost", "", vhost) or {}
        return cast("str", body.get(DEFAULT_QUEUE_TYPE, ""))

    # -- users -----------------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        """Whether this member has had any state of its cluster, and so any users; users of a file
        exist without it."""
        if INTERNAL not in self._backends.order:
            return True
        state = self._state()
        return state.version > 0 or any(state.definitions.values())

    @property
    def server(self) -> AuthServer | None:
        """The server that decides logins, and rights of users it let in; None: there is none."""
        return self._backends.server

    @property
    def asks_members(self) -> bool:
        """Whether the cluster's own users may log in here."""
        return INTERNAL in self._backends.order

    def _known(self, user: str, backend: str) -> FileUser | None:
        """The user, from a back end that keeps users."""
        if backend == FILE:
            return self._backends.users.get(user)
        body = self._defined("user", "", user) if backend == INTERNAL else None
        if body is None:
            return None
        return FileUser(
            cast("str", body.get("password_hash", "")),
            cast("str", body.get("hashing_algorithm", passwords.DEFAULT_ALGORITHM)),
            cast("tuple[str, ...]", body.get("tags", ())),
        )

    def knows(self, user: str, backend: str) -> bool:
        """Whether the back end that let this user in would still know it; a server is asked only
        when there is something to do."""
        if backend == HTTP:
            return True
        return backend in self._backends.order and self._known(user, backend) is not None

    def tags(self, user: str, login: Login) -> tuple[str, ...]:
        """The user's management rights, from the back end that let it in."""
        if login.backend == HTTP:
            return login.tags
        known = self._known(user, login.backend)
        return known.tags if known is not None else ()

    def login(self, user: str, password: str | None, *, is_local: bool) -> Login | ToAsk:
        """The result of these credentials, from that address. An unknown user takes as long.

        Without a password the user was identified in another way.
        """
        taken, asks, after = REFUSED, False, REFUSED
        for backend in self._backends.order:
            if backend == HTTP:
                asks = True
                continue
            known = self._known(user, backend)
            good = known is not None
            if password is not None:
                entry = known or _NOBODY
                good = passwords.matches(password, entry.password_hash or None, entry.algorithm)
            if good and not taken.backend and not after.backend:
                login = Login(backend, known.tags if known is not None else ())
                taken, after = (taken, login) if asks else (login, after)
        if not self._may_come_from(user, is_local=is_local):
            return REFUSED
        if taken.backend or not asks or not _may_be_asked_about(user, password):
            return taken if taken.backend else after
        fields = (("username", user),)
        return ToAsk(
            AuthQuestion(USER, fields if password is None else (*fields, ("password", password))),
            after,
        )

    def keeper(self, user: str) -> Login:
        """The first back end that keeps users and has this one."""
        known = (one for one in self._backends.order if one != HTTP and self.knows(user, one))
        return Login(next(known, ""))

    def _may_come_from(self, user: str, *, is_local: bool) -> bool:
        """Whether the user may log in from this address, local or remote."""
        return is_local or user not in self._loopback_users

    # -- virtual hosts ---------------------------------------------------------------------------

    def has_vhost(self, vhost: str) -> bool:
        """Whether there is such a virtual host."""
        return self._defined("vhost", "", vhost) is not None

    @property
    def acl(self) -> Acl | None:
        """The ACL file that replaces permissions; None: permissions apply."""
        return self._backends.acl

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has any rights there."""
        if self.acl is not None and user != SYSTEM:
            return self.acl.has_business_here(user)
        return user == SYSTEM or self._defined("permission", vhost, user) is not None

    def refuses_open(
        self,
        user: str,
        vhost: str,
        waiting: Callable[[], Collection[tuple[str, str]]],
        *,
        unlimited: bool = False,
    ) -> str:
        """Why a connection may not be opened, whatever rights its user has; `waiting` gives user
        and virtual host of connections admitted here and not ordered yet."""
        if not self.has_vhost(vhost):
            return f"vhost {vhost} not found"
        if unlimited:
            return ""
        state = self._state()
        limit = self._limit("vhost_limit", vhost, "limits", "max-connections")
        if limit >= 0:
            count = state.vhosts[vhost].connections + sum(one[1] == vhost for one in waiting())
            if count >= limit:
                return f"{refused_vhost(user, vhost)}: connection limit ({limit}) is reached"
        limit = self._limit("user_limit", "", user, "max-connections")
        if limit >= 0:
            count = state.connected.get(user, 0) + sum(one[0] == user for one in waiting())
            if count >= limit:
                refused = f"connection refused for user '{user}'"
                return f"{refused}: user connection limit ({limit}) is reached"
        return ""

    def is_ordered(self, session: int, conn: int) -> bool:
        """Whether the machine knows this connection, and counts it."""
        return (session, conn) in self._state().connections

    def outstanding(self, session: int, conn: int, channel: int) -> dict[int, Held]:
        """The unsettled delivery tags on a channel, ascending: deliveries that its client was sent,
        or will be."""
        found = self._state().channels.get((session, conn, channel))
        return found.unacked if found is not None else {}

    def is_idle(self, session: int, conn: int, channel: int) -> bool:
        """Whether it has no consumers, and no unsettled messages."""
        found = self._state().channels.get((session, conn, channel))
        return found is None or not (found.consumers or found.unacked or found.unsent)

    def refuses_channel(self, session: int, user: str, opened: Callable[[], int]) -> str:
        """Why a user with this many channels in the session may open no more."""
        limit = self._limit("user_limit", "", user, "max-channels")
        if limit < 0:
            return ""
        connections = self._state().connections.values()
        elsewhere = [
            len(one.channels) for one in connections if one.user == user and one.key[0] != session
        ]
        if sum(elsewhere) + opened() < limit:
            return ""
        return (
            f"number of channels opened for user '{user}' has reached the maximum allowed user "
            f"limit of ({limit})"
        )

    def _limit(self, what: str, vhost: str, name: str, limit: str) -> int:
        return cast("int", (self._defined(what, vhost, name) or {}).get(limit, -1))

    # -- things in a virtual host ----------------------------------------------------------------

    def refuses(self, user: str, vhost: str, resource: Resource) -> str:
        """Why the user may not do this."""
        if user == SYSTEM:
            return ""
        permission, kind, name = resource
        if kind == "exchange" and name == "":
            name = DEFAULT_EXCHANGE
        body = self._defined("permission", vhost, user)
        if body is not None and patterns.matches(cast("str", body[permission]), name):
            return ""
        return refused_resource(user, vhost, kind, name)

    def refuses_by_acl(
        self, acl: Acl, user: str, vhost: str, resource: Resource, asked: Asked
    ) -> str:
        """The same by an ACL file, which makes finer distinctions."""
        permission, kind, name = resource
        method, facts = asked
        action = _ACTIONS.get((method, permission)) or _ACTIONS.get((kind, permission))
        name = name or DEFAULT_EXCHANGE if kind == "exchange" else name
        if user == SYSTEM or action is None:
            return ""
        if acl.allows(user, Question(action, kind, {**facts, "name": name})):
            return ""
        return refused_resource(user, vhost, kind, name)

    def topics(self, user: str, vhost: str, exchange: str) -> Table | None:
        """The user's topic permissions there; None: there are none, and all keys are allowed."""
        if self.acl is not None:
            return None
        body = self._defined("topic_permission", vhost, user) or {}
        return cast("Table | None", body.get(exchange))

    def refuses_topic(self, user: str, vhost: str, permission: str, exchange: str, key: str) -> str:
        """Why the user may not publish (write) or bind (read) with this key."""
        body = self.topics(user, vhost, exchange)
        if body is None or not self.may_be_of_topics(vhost, exchange):
            return ""
        pattern = _OF_WHOM.sub(  # names, literally: a user may be called .*
            lambda name: re.escape(user if name[0] == "{username}" else vhost),
            cast("str", body[permission]),
        )
        if not patterns.fault_of(pattern) and patterns.matches(pattern, key):
            return ""
        return refused_topic(user, vhost, exchange, key)

    def may_be_of_topics(self, vhost: str, exchange: str) -> bool:
        """Whether it is a topic exchange; one that does not exist may be declared as such by a
        command in progress."""
        there = self._state().vhosts.get(vhost)
        found = there.exchanges.get(exchange) if there is not None else None
        return found is None or found.type == "topic"

    def is_copy(self, vhost: str, queue: str) -> bool:
        """Whether this queue is kept the same as another broker's (broker/shovels/replicas.py)."""
        parameters = self._state().definitions.get("parameter")
        return (vhost, f"{REPLICA}/{queue}") in parameters if parameters else False

    def alternate(self, vhost: str, exchange: str) -> Value:
        """The declared destination of messages that an exchange cannot route; None if none."""
        there = self._state().vhosts.get(vhost)
        found = there.exchanges.get(exchange) if there is not None else None
        return found.arguments.get("alternate-exchange") if found is not None else None


class Rights:
    """The rights of one client. Answers are cached until `forget`, which the watcher of the
    definitions calls."""

    def __init__(self, access: Access, user: str, vhost: str, *, announces: bool = False) -> None:
        """`announces`: this is a member, which may tell clients the addresses of all."""
        self.access, self.user, self.vhost = access, user, vhost
        self._announces = announces
        self.publishes: dict[str, bool] = {}
        """Exchanges to which any key may be published; looked up for each publish."""
        self.missing: tuple[AuthQuestion, ...] = ()
        """Questions for a server, without whose answers the last check is undecided."""
        self._allowed: dict[Resource, bool] = {}
        self._keys: dict[tuple[str, str], bool] = {}
        """Exchanges and keys to which an ACL file lets it publish; evaluating its rules is slow."""

    def forget(self) -> None:
        """The definitions have changed."""
        self.publishes.clear()
        self._allowed.clear()
        self._keys.clear()

    def refuses_entry(self) -> str | None:
        """Why the virtual host may not be opened; None: not known yet."""
        if self.access.may_enter(self.user, self.vhost):
            return ""
        return refused_vhost(self.user, self.vhost)

    def refuses(self, needs: Needs) -> str | None:
        """Why this may not be done; None: not known yet."""
        asked = needs.method, needs.facts
        for resource in needs.resources:
            if refusal := self._refuses_resource(resource, asked):
                return refusal
        for topic in needs.topics:
            if refusal := self._refuses_topic(*topic):
                return refusal
        return ""

    def _refuses_resource(self, resource: Resource, asked: Asked) -> str:
        if not self._announces and (refusal := refused_to_all(self.vhost, [resource])):
            return refusal
        acl = self.access.acl
        if acl is not None:
            return self.access.refuses_by_acl(acl, self.user, self.vhost, resource, asked)
        if resource in self._allowed:
            return ""
        refusal = self.access.refuses(self.user, self.vhost, resource)
        if not refusal:
            if len(self._allowed) >= _KEPT_MAX:
                self._allowed.clear()
            self._allowed[resource] = True
        return refusal

    def refuses_publish(self, exchange: str, keys: Collection[str]) -> str | None:
        """Why nothing may be published there with these keys; None: not known yet."""
        for key in keys:
            if exchange in self.publishes:
                return ""
            if refusal := self._refuses_key(exchange, key):
                return refusal
        return ""

    def _refuses_key(self, exchange: str, key: str) -> str:
        if (exchange, key) in self._keys:
            return ""
        asked = "basic.publish", {"routingkey": key}
        refusal = self._refuses_resource(Resource("write", "exchange", exchange), asked)
        if refusal:
            return refusal
        if self.access.acl is not None:  # its rules may look at each key
            if len(self._keys) >= _KEPT_MAX:
                self._keys.clear()
            self._keys[exchange, key] = True
            return ""
        if self.access.topics(self.user, self.vhost, exchange) is not None:
            # Its type may change with the next declaration, so each key is checked.
            return self._refuses_topic("write", exchange, key)
        if len(self.publishes) >= _KEPT_MAX:
            self.publishes.clear()
        self.publishes[exchange] = True
        return ""

    def _refuses_topic(self, permission: str, exchange: str, key: str) -> str:
        return self.access.refuses_topic(self.user, self.vhost, permission, exchange, key)
