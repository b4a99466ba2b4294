"""Operator definitions for the whole cluster: virtual hosts, users, permissions, limits, policies.

Each is a table under its kind, its virtual host (empty: the cluster's) and its name. A `Define`
creates, replaces or deletes one at its position, with everything that depends on it: the
permissions of a user, all definitions of a virtual host. Its member has already decided whether the
operator may do this, and whether a password or a regular expression is valid
(broker/admin/definitions.py); here only the shape is checked, and whether referenced objects exist.

A deleted virtual host takes no more connections. Its queues and exchanges go in slices at the
following positions. The virtual host itself goes, and its name becomes free, when it has no
connection left; the members close the connections.
Decision: docs/decisions/0030-what-operators-define-is-ordered.md.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from broker.machine.commands import IGNORED, OK, Define, Table, Value
from broker.machine.digest import canonical, item_hash
from broker.machine.effects import Defined
from broker.machine.handlers.connections import session_exists
from broker.machine.handlers.poison import refusal_of
from broker.machine.handlers.policies import POLICIES, follow_policies, go_on_with_policies
from broker.machine.limits import (
    BINDING_WORK,
    DEFINITION_BYTES_MAX,
    DEFINITIONS_MAX,
    LEAVING_WORK_MAX,
    POLICIES_MAX,
    QUEUE_WORK,
)
from broker.machine.policies.settings import (
    operator_policy_fault,
    policy_fault,
)
from broker.machine.publishing.producers import forget_producers
from broker.machine.queueing.bindings import add_vhost, remove_exchange
from broker.machine.queueing.deletion import delete_queue, deletion_work
from broker.machine.state import State, Vhost

CREATED, REPLACED, BAD, ABSENT, CONFLICT, FAULT = 201, 204, 400, 404, 409, 500
"""The codes of `Defined`, which are HTTP statuses; a deletion is 204."""
NAME_BYTES_MAX = 255
DEFAULT_VHOST, DEFAULT_USER = "/", "guest"
FIRST_ADMINISTRATOR = "first_administrator"
"""The global parameter that names the administrator created with the cluster."""
_GUEST: Table = {
    "password_hash": "cXBpZJ873THijXLl//7s2zQUmXWlRQNBOFnwiWGMiI7mScqS",  # the password of "guest"
    "hashing_algorithm": "rabbit_password_hashing_sha256",
    "tags": ("administrator",),
}
_VHOST: Table = {"description": "Default virtual host", "tags": ()}
_ALL: Table = {"configure": ".*", "write": ".*", "read": ".*"}

Check = Callable[[Table], str]


def definition_element(what: str, vhost: str, name: str, body: Table) -> int:
    return item_hash("definition", what, vhost, name, canonical(body))


class Kind(NamedTuple):
    """A kind of definition. `check` returns what is wrong with the shape of a body, or nothing."""

    check: Check
    in_vhost: bool
    of_user: bool = False
    """Its name is a user's, and it goes with the user."""


# -- shapes --------------------------------------------------------------------------------------


def _are_texts(body: Table, *keys: str) -> str:
    for key in keys:
        if not isinstance(body.get(key), str):
            return f"'{key}' must be text"
    return ""


def _vhost(body: Table) -> str:
    return _are_texts(body, "description") or _tags(body)


def _tags(body: Table) -> str:
    tags = body.get("tags")
    good = isinstance(tags, tuple) and all(isinstance(tag, str) for tag in tags)
    return "" if good else "'tags' must be a list of words"


def _user(body: Table) -> str:
    return _are_texts(body, "password_hash", "hashing_algorithm") or _tags(body)


def _permission(body: Table) -> str:
    return _are_texts(body, "configure", "write", "read")


def _topic_permission(body: Table) -> str:
    """Without patterns the permission is taken away, for this exchange alone."""
    return _are_texts(body, *(("exchange",) if len(body) == 1 else ("exchange", "write", "read")))


def _limits(*names: str) -> Check:
    def check(body: Table) -> str:
        for name, value in body.items():
            if name not in names:
                return f"there is no limit '{name}', but {', '.join(names)}"
            if type(value) is not int or not -1 <= value < 1 << 32:
                return f"'{name}' must be a whole number from -1, which means none, to 4294967295"
        return ""

    return check


def _parameter(body: Table) -> str:
    return "" if list(body) == ["value"] else "a parameter is a 'value'"


KINDS: dict[str, Kind] = {
    "vhost": Kind(_vhost, False),
    "user": Kind(_user, False),
    "permission": Kind(_permission, True, True),
    "topic_permission": Kind(_topic_permission, True, True),
    "policy": Kind(policy_fault, True),
    "operator_policy": Kind(operator_policy_fault, True),
    "parameter": Kind(_parameter, True),
    "global_parameter": Kind(_parameter, False),
    "vhost_limit": Kind(_limits("max-connections", "max-queues"), True),
    "user_limit": Kind(_limits("max-connections", "max-channels"), False, True),
}


# -- the command ---------------------------------------------------------------------------------


def on_define(state: State, session: int, command: Define) -> int:
    _, request, by, what, vhost, name, body = command
    if not session_exists(state, session):
        return IGNORED
    if state.poison and (refusal := refusal_of(state, command)) is not None:
        code, text = FAULT, refusal.text
    elif body is not None and body.get("first") is True:
        code, text = _define_first_administrator(state, what, name, body, by)
    else:
        code, text = _define(state, what, vhost, name, body)
    if session == state.local_session:
        state.effects.append(Defined(request, code, text))
    return OK if code < BAD else code


def _define(state: State, what: str, vhost: str, name: str, body: Table | None) -> tuple[int, str]:
    kind = KINDS.get(what)
    if kind is None:
        return BAD, f"nothing is called a {what}"
    if kind.in_vhost != bool(vhost):
        return BAD, f"a {what} {'needs a' if kind.in_vhost else 'has no'} virtual host"
    if what == "global_parameter" and name == FIRST_ADMINISTRATOR:
        return CONFLICT, f"'{name}' is set by the cluster itself, once"
    defined, key = state.definitions[what], (vhost, name)
    if body is None:
        if key not in defined:
            return ABSENT, f"there is no {what} '{name}'" + (
                f" in vhost '{vhost}'" if vhost else ""
            )
        _delete(state, what, key)
        follow(state)
        _follow_policies(state, what, vhost or name)
        return REPLACED, ""
    code, text = _refusal(state, kind, what, vhost, name, body)
    if code:
        return code, text
    if what == "topic_permission":
        exchange = body["exchange"]
        assert isinstance(exchange, str)
        if "write" not in body:
            return _take_topic(state, key, exchange)
        one: Value = {"write": body["write"], "read": body["read"]}
        body = {**defined.get(key, {}), exchange: one}
        if len(canonical(body)) > DEFINITION_BYTES_MAX:
            return BAD, f"{what} '{name}' has more than {DEFINITION_BYTES_MAX} bytes"
    new = key not in defined
    _put(state, what, key, body)
    if what == "vhost" and new:
        add_vhost(state, name)
    follow(state)
    _follow_policies(state, what, vhost or name)
    return (CREATED if new else REPLACED), ""


def _take_topic(state: State, key: tuple[str, str], exchange: str) -> tuple[int, str]:
    """Take away the permission for one exchange."""
    what = "topic_permission"
    defined = state.definitions[what].get(key, {})
    if exchange not in defined:
        return ABSENT, f"there is no {what} '{key[1]}' for exchange '{exchange}'"
    others = {other: one for other, one in defined.items() if other != exchange}
    if others:
        _put(state, what, key, others)
    else:
        _delete(state, what, key)
    follow(state)
    return REPLACED, ""


def _define_first_administrator(
    state: State, what: str, name: str, body: Table, by: str
) -> tuple[int, str]:
    """Define the user that comes with a new cluster: once in the cluster's life, and never
    replacing another user."""
    marked = ("", FIRST_ADMINISTRATOR) in state.definitions["global_parameter"]
    if what != "user" or marked or ("", name) in state.definitions["user"]:
        return CONFLICT, "the cluster has had its first administrator"
    kept = {key: value for key, value in body.items() if key != "first"}
    code, text = _define(state, "user", "", name, kept)
    if code < BAD:
        _put(state, "global_parameter", ("", FIRST_ADMINISTRATOR), {"value": (name, by)})
        if ("", DEFAULT_VHOST) in state.definitions["vhost"]:
            _define(state, "permission", DEFAULT_VHOST, name, _ALL)
    return code, text


def _refusal(
    state: State, kind: Kind, what: str, vhost: str, name: str, body: Table
) -> tuple[int, str]:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        return BAD, f"the name of a {what} has 1 to {NAME_BYTES_MAX} bytes"
    wrong = kind.check(body)
    if wrong and what in POLICIES:
        return BAD, f"Validation failed\n\n{wrong}\n"  # as in RabbitMQ
    if wrong:
        return BAD, f"{what} '{name}': {wrong}"
    if len(canonical(body)) > DEFINITION_BYTES_MAX:
        return BAD, f"{what} '{name}' has more than {DEFINITION_BYTES_MAX} bytes"
    if vhost and ("", vhost) not in state.definitions["vhost"]:
        return ABSENT, f"there is no vhost '{vhost}'"
    if kind.of_user and ("", name) not in state.definitions["user"]:
        return ABSENT, f"there is no user '{name}'"
    if (vhost, name) not in state.definitions[what]:
        if sum(map(len, state.definitions.values())) >= DEFINITIONS_MAX:
            return BAD, f"there are {DEFINITIONS_MAX} definitions; delete some that nobody needs"
        of_vhost = sum(1 for at, _ in state.definitions[what] if at == vhost)
        if what in POLICIES and of_vhost >= POLICIES_MAX:
            return BAD, f"there are {POLICIES_MAX} of them in vhost '{vhost}'; delete some"
        if what == "vhost" and name in state.vhosts:
            left = what_is_left(state, state.vhosts[name])
            return CONFLICT, f"vhost '{name}' was deleted and is not gone yet ({left}); try again"
    return 0, ""


def _follow_policies(state: State, what: str, vhost: str) -> None:
    """A policy was defined or deleted, or a virtual host with its policies."""
    if what in POLICIES or what == "vhost":
        follow_policies(state, state.vhosts[vhost])


def _put(state: State, what: str, key: tuple[str, str], body: Table) -> None:
    defined = state.definitions[what]
    if key in defined:
        state.remove(definition_element(what, *key, defined[key]))
    defined[key] = body
    state.add(definition_element(what, *key, body))
    state.defined += 1


def _delete(state: State, what: str, key: tuple[str, str]) -> None:
    """Delete a definition and everything that depends on it."""
    _, name = key
    _take_out(state, what, key)
    if what == "user":
        for other, kind in KINDS.items():
            if kind.of_user:
                for one in [one for one in state.definitions[other] if one[1] == name]:
                    _take_out(state, other, one)
    elif what == "vhost":
        for other, kind in KINDS.items():
            if kind.in_vhost:
                for one in [one for one in state.definitions[other] if one[0] == name]:
                    _take_out(state, other, one)


def _take_out(state: State, what: str, key: tuple[str, str]) -> None:
    state.remove(definition_element(what, *key, state.definitions[what].pop(key)))
    state.defined += 1


def follow(state: State) -> None:
    """Update the state derived from the definitions: after a change, and after a restore."""
    limits = state.definitions["vhost_limit"]
    for vhost in state.vhosts.values():
        limit = limits.get((vhost.name, "limits"), {}).get("max-queues", -1)
        assert isinstance(limit, int)
        vhost.max_queues = limit
        vhost.leaving = ("", vhost.name) not in state.definitions["vhost"]
    state.leaving = [vhost for vhost in state.vhosts.values() if vhost.leaving]


def define_first(state: State) -> None:
    """In a new cluster define the default virtual host, and `guest` (from the member's machine)."""
    for what, vhost, name, body in (
        ("vhost", "", DEFAULT_VHOST, _VHOST),
        ("user", "", DEFAULT_USER, _GUEST),
        ("permission", DEFAULT_VHOST, DEFAULT_USER, _ALL),
    ):
        code, _ = _define(state, what, vhost, name, body)
        assert code == CREATED


def go_on(state: State) -> None:
    """Continue the effects of a definition that one position was too short for."""
    if state.leaving:
        end_leaving_vhosts(state, LEAVING_WORK_MAX)
    if state.stale or state.trimming:
        go_on_with_policies(state)


# -- virtual hosts that were deleted -------------------------------------------------------------


def end_leaving_vhosts(state: State, work_max: int) -> None:
    """Delete the content of deleted virtual hosts, as much as one position may cost. One that has
    to wait for its connections, or for letters on their way, does not make the others wait."""
    work = 0
    for vhost in list(state.leaving):
        if work >= work_max:
            return
        for queue in list(islice(vhost.queues.values(), (work_max - work) // QUEUE_WORK + 1)):
            if work >= work_max:
                return
            work += deletion_work(queue)
            delete_queue(state, queue)
        if vhost.queues or vhost.connections or _has_letters(state, vhost):
            continue
        work += _end_exchanges(state, vhost, work_max - work)
        if not vhost.exchanges:
            forget_producers(state, vhost)
            del state.vhosts[vhost.name]
            state.leaving.remove(vhost)
            state.close_totals(vhost.name)


def what_is_left(state: State, vhost: Vhost) -> str:
    """What still exists of a deleted virtual host, for people."""
    letters = "; messages on their way" if _has_letters(state, vhost) else ""
    return f"connections {vhost.connections}, queues {len(vhost.queues)}{letters}"


def _has_letters(state: State, vhost: Vhost) -> bool:
    return vhost.letters > 0 or any(letter.vhost is vhost for letter in state.dead_letters)


def _end_exchanges(state: State, vhost: Vhost, work_max: int) -> int:
    work = 0
    for exchange in list(vhost.exchanges.values()):
        if work >= work_max:
            break
        if vhost.exchanges.get(exchange.name) is exchange:  # not gone with an earlier one
            work += QUEUE_WORK + BINDING_WORK * (len(exchange.bindings) + len(exchange.inbound))
            remove_exchange(state, vhost, exchange)
    return work
