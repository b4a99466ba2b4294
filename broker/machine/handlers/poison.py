# mypy: disable-error-code="import-untyped"
"""Poison: commands that killed members, and the agreed refusal of similar ones.

Decision: docs/decisions/0007-quarantine-and-culprits.md.

A command at which a handler raises was never applied by the member it killed, and is not in that
member's store. If it kills all members it is in no store at all, so the cluster comes up without
it; but its client sends it again. So a member killed by a command reports it, as the first command
of its next session. Once a majority of the voters died of the same kind and content, all members
refuse that content, at the same position: outcome 541, the connection is closed, no handler runs.
One member's broken memory never makes a majority, so it causes no refusal.

A cold start forgets all reports: that is how to try a release that can execute the command.
"""

from hashlib import blake2b
from typing import cast

import msgpack

from broker.machine import commands as c
from broker.machine.clock.voters import voter_names
from broker.machine.commands import IGNORED, OK, Command, Poisoned, Value
from broker.machine.digest import item_hash, ordered
from broker.machine.requests.refusals import Refusal, poisonous
from broker.machine.state import State

CONTENT_BYTES = 16
KEPT_MAX = 64
"""Number of contents remembered; the oldest goes first."""

# The items from here on decide whether two commands of a kind are alike. The items before, and the
# tag of a Consume and the settlements of a TxCommit, differ each time the client comes back.
_CONTENT: dict[int, slice] = {
    c.EXCHANGE_DECLARE: slice(3, None),
    c.EXCHANGE_DELETE: slice(3, None),
    c.EXCHANGE_BIND: slice(3, None),
    c.EXCHANGE_UNBIND: slice(3, None),
    c.QUEUE_DECLARE: slice(3, None),
    c.QUEUE_BIND: slice(3, None),
    c.QUEUE_UNBIND: slice(3, None),
    c.QUEUE_PURGE: slice(3, None),
    c.QUEUE_DELETE: slice(3, None),
    c.PUBLISH: slice(4, None),
    c.CONSUME: slice(5, None),
    c.GET: slice(3, None),
    c.TX_COMMIT: slice(3, 4),
    c.DEFINE: slice(3, None),
}


def content_of(command: Command) -> bytes | None:
    """Hash of what a client would send again; None for kinds with no content of the client's (acks,
    closes, ticks): refusing one of them would mean refusing all."""
    part = _CONTENT.get(command[0])
    if part is None:
        return None
    items = cast("tuple[Value, ...]", command)
    head = (items[0], items[3]) if items[0] == c.CONSUME else (items[0],)
    rest = [ordered(item) for item in items[part]]
    if items[0] == c.DEFINE and isinstance(rest[-1], dict):
        rest[-1].pop("password_hash", None)  # salted differently each time
    packed = msgpack.packb((*head, *rest))
    return blake2b(packed, digest_size=CONTENT_BYTES).digest()


def poison_element(kind: int, content: bytes, names: tuple[str, ...]) -> int:
    return item_hash("poison", kind, content, names)


def on_poisoned(state: State, session: int, command: Poisoned) -> int:
    """Record a report. The session identifies the sender, so no member can report for another."""
    _, kind, content = command
    name = next((n for n, record in state.sessions.items() if record.session == session), None)
    if name is None or kind not in _CONTENT or len(content) != CONTENT_BYTES:
        return IGNORED
    names = state.poison.get((kind, content), ())
    if name in names:
        return IGNORED
    if not names and len(state.poison) >= KEPT_MAX:
        _drop(state, next(iter(state.poison)))
    elif names:
        _drop(state, (kind, content))
    names = (*names, name)
    state.poison[kind, content] = names
    state.add(poison_element(kind, content, names))
    return OK


def forget_poison(state: State) -> None:
    for key in list(state.poison):
        _drop(state, key)


def _drop(state: State, key: tuple[int, bytes]) -> None:
    state.remove(poison_element(*key, state.poison.pop(key)))


def refusal_of(state: State, command: Command) -> Refusal | None:
    """The refusal of a command that a majority of the voters died of, like a client's hard
    error.
    """
    kind = command[0]
    if not any(kind == one for one, _ in state.poison):
        return None
    content = content_of(command)
    names = state.poison.get((kind, content), ()) if content is not None else ()
    voters = voter_names(state.voters)
    dead = sum(name in names for name in voters)
    return poisonous() if dead > len(voters) // 2 else None
