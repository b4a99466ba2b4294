"""Own commands on their way into the order: numbered, resent after a view change, never twice.

Every blob of a session has a number; the machine accepts exactly the next one.  A blob that was
ordered outside a primary view was dropped by all members and is submitted again here when the
session goes on; one that was ordered twice is refused the second time.  So a session's commands
are applied exactly once and in order, or its clients are told that it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.machine.commands import Command

BLOB_BYTES_TARGET = 24_000
"""A blob this large fits one ring frame; larger single commands are fragmented by the ring."""
COMMAND_OVERHEAD_BYTES = 48
OUTSTANDING_BYTES_MAX = 4_000_000
"""Above this many unapplied bytes publishers wait (their sockets are not read)."""


class _Blob(NamedTuple):
    number: int
    payload: bytes


class Submissions:
    """The blobs of this member's session that are not applied yet."""

    def __init__(
        self,
        send: Callable[[bytes], bool],
        pack: Callable[[int, int, int, list[Command]], bytes],
    ) -> None:
        self.session = 0
        self.open = False
        self.bytes_outstanding = 0
        self._send, self._pack = send, pack
        self._next_number = 1
        self._unsent: deque[_Blob] = deque()
        self._sent: deque[_Blob] = deque()

    @property
    def full(self) -> bool:
        """Whether publishers should wait."""
        return self.bytes_outstanding > OUTSTANDING_BYTES_MAX

    @property
    def outstanding(self) -> int:
        """How many blobs are not applied yet."""
        return len(self._sent) + len(self._unsent)

    def submit(self, commands: list[Command], time_us: int) -> None:
        """Take commands in order, cut them into blobs, and send what the ring has room for."""
        assert self.session, "no session yet: nobody can have sent commands"
        batch: list[Command] = []
        size = 0
        for command in commands:
            cost = COMMAND_OVERHEAD_BYTES
            for field in command:
                if isinstance(field, (bytes, tuple)):
                    cost += len(field)
            if batch and size + cost > BLOB_BYTES_TARGET:
                self._add(batch, time_us)
                batch, size = [], 0
            batch.append(command)
            size += cost
        if batch:
            self._add(batch, time_us)
        self.flush()

    def _add(self, commands: list[Command], time_us: int) -> None:
        payload = self._pack(self.session, self._next_number, time_us, commands)
        self._unsent.append(_Blob(self._next_number, payload))
        self._next_number += 1
        self.bytes_outstanding += len(payload)

    def flush(self) -> None:
        """Send what the ring did not take before."""
        while self.open and self._unsent and self._send(self._unsent[0].payload):
            self._sent.append(self._unsent.popleft())

    def applied(self, number: int) -> None:
        """Forget everything up to blob `number`: it has its place in the history."""
        for blobs in (self._sent, self._unsent):
            while blobs and blobs[0].number <= number:
                self.bytes_outstanding -= len(blobs.popleft().payload)

    def suspend(self) -> None:
        """The primary view ended: keep everything, send nothing."""
        self.open = False

    def resume(self, last_applied: int) -> None:
        """The session goes on in a new primary view: send again what was not applied."""
        self.applied(last_applied)
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self.open = True
        self.flush()

    def start(self, session: int) -> None:
        """A new session begins; whatever the old one had under way is gone with its clients."""
        self.session = session
        self._next_number = 1
        self._sent.clear()
        self._unsent.clear()
        self.bytes_outstanding = 0
        self.open = True
