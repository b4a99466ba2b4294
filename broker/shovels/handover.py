"""When a shovel that comes to this member may begin: only after its former attempt has ended.

An attempt that is stopped in order keeps the messages it took from the source until they are
confirmed. An attempt that began meanwhile would take later messages first. So the next attempt on
this member waits until the process has ended and its messages are back in the queue: the close of
its connection is ordered like everything else. A member that begins to serve also asks all others.
Each answers for those shovels that are the asker's by the answerer's state, too, and of which
nothing is left there. A member that gives no answer for `HANDOVER_S` has ended its attempt by then:
it kills what does not end, and if it cannot do even that it is no longer a member, and its ends at
this cluster are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgpack

from broker.shovels.status import ROWS, Key

MAY_I, FREE = b"Sq", b"Sf"
"""The first bytes of datagrams."""
ASK_S = 0.5
HANDOVER_S = 11.0
"""A second more than a stopping attempt may take (`worker_process.ORDERLY_S`)."""


class Attempt(Protocol):
    """One attempt to move messages, which runs until it ends or is stopped."""

    def stop(self, *, at_once: bool) -> None:
        """End it: no event follows. Unless `at_once`, what is in progress may be confirmed
        first.
        """

    def tell(self, change: Mapping[str, object]) -> None:
        """Report a change on this side that a link has to know (federation.py)."""

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left, and no connection of it holds messages in the state."""


class Handover:
    """Attempts that still run here, and those that others must end first."""

    def __init__(self, me: str, tell: Callable[[bytes], None]) -> None:
        self._me, self._tell = me, tell
        self._last: dict[Key, Attempt] = {}
        self._awaited: dict[Key, set[str]] = {}
        self._until = self._asked_at = 0.0

    def began(self, key: Key, attempt: Attempt) -> None:
        """An attempt was begun here."""
        self._last = {other: one for other, one in self._last.items() if not one.ended}
        self._last[key] = attempt

    def is_here(self, key: Key) -> bool:
        """Whether some part of it still runs here."""
        last = self._last.get(key)
        return last is not None and not last.ended

    def nothing_here(self) -> bool:
        """Whether nothing at all runs here."""
        return not any(map(self.is_here, self._last))

    def end_all(self) -> None:
        """End all at once: this member does not serve."""
        for attempt in self._last.values():
            if not attempt.ended:
                attempt.stop(at_once=True)

    def joined(self, keys: Iterable[Key], members: Iterable[str], now: float) -> None:
        """This member serves from now on, with these shovels: who else may still run them?"""
        others = {member for member in members if member != self._me}
        self._awaited = {key: set(others) for key in keys} if others else {}
        self._until, self._asked_at = now + HANDOVER_S, now - ASK_S

    def ask(self, members: Sequence[str], now: float) -> None:
        """Ask, once per beat. Members that are gone run nothing."""
        if now >= self._until:
            self._awaited.clear()
        for key, others in list(self._awaited.items()):
            others.intersection_update(members)
            if not others:
                del self._awaited[key]
        if now - self._asked_at >= ASK_S:
            self._asked_at = now
            for datagram in _datagrams(MAY_I, sorted(self._awaited)):
                self._tell(datagram)

    def may_begin(self, key: Key) -> bool:
        """Whether no attempt of it is known to run."""
        return key not in self._awaited and not self.is_here(key)

    def takes(self, sender: str, payload: bytes, runs: Callable[[Key], str]) -> bool:
        """Whether this datagram belongs here; `runs` says who runs a shovel by the state."""
        kind, content = payload[:2], payload[2:]
        if kind not in (MAY_I, FREE):
            return False
        try:
            keys = [tuple(map(str, key)) for key in msgpack.unpackb(content)]
        except (TypeError, ValueError, msgpack.UnpackException):
            return True
        if kind == FREE:
            for key in keys:
                self._awaited.get(key, set()).discard(sender)
            return True
        free = [key for key in keys if runs(key) == sender and not self.is_here(key)]
        for datagram in _datagrams(FREE, free):
            self._tell(datagram)
        return True


def _datagrams(kind: bytes, keys: Sequence[Key]) -> list[bytes]:
    return [
        kind + bytes(msgpack.packb(keys[place : place + ROWS]))
        for place in range(0, len(keys), ROWS)
    ]
