"""Definitions that operators make for the whole cluster: prepared here, then ordered.

    outcome = await definitions.define("vhost", "", "orders", {}, by="admin")

The origin decides here whatever does not depend on the order: it turns a password into a salted
hash, and checks that a regular expression compiles. The machine decides the rest at the command's
position (broker/machine/handlers/definitions.py lists the kinds). Its outcome comes back when it is
durable, with an HTTP status: 201 new, 204 replaced or deleted, 400 bad, 404 absent, 409 conflict,
503 not now.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from broker.access import passwords, patterns
from broker.access.access import DEFAULT_QUEUE_TYPE
from broker.machine.command_codec import BlobMalformed, pack_blob, unpack_blob
from broker.machine.commands import DEFINE, Define, Table, Value
from broker.machine.effects import Defined
from broker.machine.handlers.definitions import BAD, what_is_left
from broker.machine.handlers.policies import POLICIES
from broker.machine.limits import DEFINITION_BYTES_MAX
from broker.machine.machine import Machine
from broker.machine.policies.pattern import POLICIES_STEPS_MAX
from broker.machine.requests.arguments import CLASSIC, QUEUE_TYPES
from broker.replication.controller import Controller
from broker.shovels import definition as shovels
from broker.shovels import replicas, upstreams

log = logging.getLogger("qpidd")

NOT_NOW = 503
PATIENCE_S = 30.0
GONE_S = 10.0
"""How long the deletion of a virtual host waits for its name to be free again."""


class Outcome(NamedTuple):
    """The outcome of a definition: `code` is an HTTP status, `text` tells people what is wrong."""

    code: int
    text: str

    @property
    def good(self) -> bool:
        """Whether the definition is now as the operator requested."""
        return self.code < BAD


class _Waiting(NamedTuple):
    session: int
    since: float
    outcome: asyncio.Future[Outcome]


class Definitions:
    """The definitions requested at this member."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._now = controller, 0.0
        self._requests = 0
        self._waiting: dict[int, _Waiting] = {}
        self._leaving: list[tuple[str, float, asyncio.Future[None]]] = []

    def parameter_fault(self, vhost: str, name: str, value: Value) -> str:
        """Why no parameter `COMPONENT/NAME` can have this value; empty where one can."""
        return parameter_fault(self._controller.replica.machine, vhost, name, value)

    async def define(
        self, what: str, vhost: str, name: str, body: Mapping[str, Value] | None, by: str
    ) -> Outcome:
        """Define an object for the whole cluster, or delete it (no body); return when durable."""
        controller = self._controller
        prepared = _prepared(what, body) if body is not None else None
        if isinstance(prepared, Outcome):
            return prepared
        if what == "parameter" and prepared is not None:
            fault = self.parameter_fault(vhost, name, prepared.get("value"))
            if fault:
                return Outcome(BAD, fault)
        if not controller.serving:
            why = controller.reason
            return Outcome(NOT_NOW, f"this member is not in the primary view: {why}")
        self._requests += 1
        define = Define(DEFINE, self._requests, by, what, vhost, name, prepared)
        refusal = _misfit(define) or _too_many_steps(define, controller.replica.machine)
        if refusal is not None:
            return refusal
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(controller.submissions.session, self._now, future)
        self._waiting[define.request] = waiting
        try:
            controller.submit([define])
            outcome = await future
        finally:
            self._waiting.pop(define.request, None)
        if outcome.good and what == "vhost" and body is None:
            await self._gone(name)
        return outcome

    async def _gone(self, vhost: str) -> None:
        """Wait until a virtual host's content is gone, so that its name can be used again."""
        if vhost in self._controller.replica.machine.vhosts:
            gone = asyncio.get_running_loop().create_future()
            self._leaving.append((vhost, self._now + GONE_S, gone))
            await gone

    def done(self, defined: Defined) -> None:
        """Take the machine's durable outcome of a request made here."""
        waiting = self._waiting.get(defined.request)
        if waiting is not None and not waiting.outcome.done():
            waiting.outcome.set_result(Outcome(defined.code, defined.text))

    def wake(self, now: float) -> None:
        """Give up requests that will not be answered; called a few times a second."""
        self._now, session = now, self._controller.submissions.session
        for waiting in self._waiting.values():
            lost = waiting.session != session or now - waiting.since > PATIENCE_S
            if lost and not waiting.outcome.done():
                text = "the member lost the primary view: look whether it took effect"
                waiting.outcome.set_result(Outcome(NOT_NOW, text))
        machine = self._controller.replica.machine
        vhosts = machine.vhosts
        for one in [one for one in self._leaving if one[0] not in vhosts or now > one[1]]:
            self._leaving.remove(one)
            if (vhost := vhosts.get(one[0])) is not None:
                left = what_is_left(machine, vhost)
                log.warning("vhost '%s' was deleted, and is not gone yet: %s", one[0], left)
            if not one[2].done():
                one[2].set_result(None)


def _misfit(define: Define) -> Outcome | None:
    """Refuse a command that no member would accept: the other commands of its blob would fail with
    it."""
    try:
        packed = pack_blob(0, 1, 0, [define])
        unpack_blob(packed)
    except (BlobMalformed, OverflowError, TypeError, ValueError):
        return Outcome(BAD, "its values are nested too deep, too many, or no text and numbers")
    if len(packed) > DEFINITION_BYTES_MAX:
        return Outcome(BAD, f"it has more than {DEFINITION_BYTES_MAX} bytes")
    return None


def _too_many_steps(define: Define, machine: Machine) -> Outcome | None:
    """Refuse too many policies: declaring a queue compares it with all of them at one position."""
    at = machine.vhosts.get(define.vhost)
    if define.what not in POLICIES or define.body is None or at is None:
        return None
    key = define.name, define.what == "operator_policy"
    others = [p.pattern for ranked in at.policies for p in ranked if (p.name, p.operator) != key]
    pattern = define.body.get("pattern")
    if isinstance(pattern, str) and patterns.steps_of(pattern, *others) > POLICIES_STEPS_MAX:
        return Outcome(
            BAD,
            f"the patterns of the policies of vhost '{define.vhost}' have more than "
            f"{POLICIES_STEPS_MAX} steps together, and each queue that is declared is compared "
            "with all of them: use shorter patterns, or delete some",
        )
    return None


# -- runtime parameters --------------------------------------------------------------------------


_PARSE: Mapping[str, Callable[[str, str, object], object]] = {
    shovels.COMPONENT: shovels.parse_shovel,
    replicas.COMPONENT: replicas.parse_replica,
    upstreams.UPSTREAM: lambda _, name, value: upstreams.parse_upstream(name, value),
    upstreams.UPSTREAM_SET: lambda _, name, value: upstreams.parse_set(name, value),
}
"""By component: checks a virtual host, a name and a value. A value that its component could not run
is refused, because to accept it silently would mislead the operator. Parameters of other components
are stored unchecked."""
_MOST = {
    shovels.COMPONENT: (shovels.SHOVELS_MAX, "shovels"),
    replicas.COMPONENT: (replicas.REPLICAS_MAX, "replicas of queues"),
}
"""The most parameters of a component in the cluster."""


def parameter_fault(machine: Machine, vhost: str, parameter: str, value: object) -> str:
    """Why no parameter `COMPONENT/NAME` of a cluster can have this value; empty where one can."""
    component, _, name = parameter.partition("/")
    if component not in _PARSE:
        return ""
    try:
        _PARSE[component](vhost, name, value)
    except shovels.BadShovel as bad:
        return f"Validation failed\n\n{component} '{name}': {bad}\n"
    most, each = _MOST.get(component, (None, ""))
    defined = machine.definitions["parameter"] if most is not None else {}
    count = sum(1 for _, one in defined if shovels.name_in(component, one) is not None)
    if most is not None and count >= most and (vhost, parameter) not in defined:
        return f"there are {most} {each}, each of which is a process"
    return ""


# -- decided at the origin -----------------------------------------------------------------------


def _prepared(what: str, body: Mapping[str, Value]) -> Table | Outcome:
    prepare = _PREPARE.get(what)
    return dict(body) if prepare is None else prepare(dict(body))


def _user(body: Table) -> Table | Outcome:
    """From `password`, or `password_hash` and `hashing_algorithm`; `tags` as words or list."""
    first = {"first": True} if body.get("first") is True else {}
    algorithm = body.get("hashing_algorithm", passwords.DEFAULT_ALGORITHM)
    password, password_hash = body.get("password"), body.get("password_hash", "")
    if not (isinstance(algorithm, str) and isinstance(password_hash, str)):
        return Outcome(BAD, "password_hash and hashing_algorithm must be text")
    if fault := passwords.fault_of(password_hash, algorithm):
        return Outcome(BAD, fault)
    if password is not None and not isinstance(password, str):
        return Outcome(BAD, "password must be text")
    if password:
        try:
            salt = secrets.token_bytes(passwords.SALT_BYTES)
            password_hash = passwords.hashed(password, salt, algorithm)
        except UnicodeEncodeError:
            return Outcome(BAD, "password must be text")
    tags = _words(body.get("tags", ()))
    kept: Table = {"password_hash": password_hash, "hashing_algorithm": algorithm, "tags": tags}
    return kept | first


def _vhost(body: Table) -> Table | Outcome:
    """Read a virtual host; RabbitMQ's documents have `undefined` where no type was chosen."""
    kept: Table = {"description": "", **body, "tags": _words(body.get("tags", ()))}
    kind = kept.get(DEFAULT_QUEUE_TYPE)
    if kind in (None, "", "undefined", CLASSIC):
        kept.pop(DEFAULT_QUEUE_TYPE, None)
    elif kind not in QUEUE_TYPES:
        known = ", ".join(QUEUE_TYPES)
        return Outcome(BAD, f"{DEFAULT_QUEUE_TYPE} {kind!r} is none of {known}")
    return kept


def _words(tags: Value) -> Value:
    """Return a list from a list or comma-separated words; the machine refuses anything else."""
    if isinstance(tags, str):
        return tuple(word.strip() for word in tags.split(",") if word.strip())
    return tuple(cast("list[Value]", tags)) if isinstance(tags, list | tuple) else tags


def _with_patterns(
    *keys: str, fault_of: Callable[[str], str] = patterns.fault_of
) -> Callable[[Table], Table | Outcome]:
    def prepare(body: Table) -> Table | Outcome:
        for key in keys:
            pattern = body.get(key)
            if isinstance(pattern, str) and (fault := fault_of(pattern)):
                return Outcome(BAD, f"{key}: invalid regular expression '{pattern}': {fault}")
        return body

    return prepare


_PREPARE: dict[str, Callable[[Table], Table | Outcome]] = {
    "user": _user,
    "vhost": _vhost,
    "permission": _with_patterns("configure", "write", "read"),
    "topic_permission": _with_patterns("write", "read"),
    "policy": _with_patterns("pattern", fault_of=patterns.fault_of_policy),
    "operator_policy": _with_patterns("pattern", fault_of=patterns.fault_of_policy),
}
