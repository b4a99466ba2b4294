"""What the core orders from whoever owns the ring, the store, the clients and the clock.

`member.BrokerMember` does it in a process, the simulator and the tests in a world of their own.
"""

from __future__ import annotations

from typing import Protocol

from broker.divergence.digest_vote import DigestVerdict
from broker.exit_codes import Exit
from broker.machine.effects import Effect
from broker.replication.chain import History
from broker.replication.promise import Promise
from vsync.primary.events import Activated
from vsync.types import Member


class Shell(Protocol):
    """One member's own means; every call returns at once."""

    def multicast(self, payload: bytes) -> bool:
        """Submit to the ring with guarantee SAFE; False: no room now."""

    def persist_promise(self, promise: Promise) -> None:
        """Make what was applied and then the promise durable; then call `epoch_persisted`."""

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Fetch a state at or beyond `base`; then call `state_installed`."""

    def abort_transfer(self) -> None:
        """Drop a transfer under way, if there is one."""

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Carry these out for the local clients, in order."""

    def release(self, position: int) -> None:
        """Speak what waited for `position` to be durable."""

    def hold(self, reason: str) -> None:
        """Say nothing to any client until `speak`."""

    def speak(self) -> None:
        """This member is in the primary, with its state: it may speak."""

    def session_started(self, session: int) -> None:
        """All connections of an older session are void."""

    def activated(self, event: Activated, base: History | None) -> None:
        """Record that this member is in the primary view whose first command follows `base`.

        None: the activation came inside a transferred state.
        """

    def decided(self, epoch: int) -> None:
        """Record that the primary view of `epoch` decided what is applied next."""

    def voted(self, verdict: DigestVerdict) -> None:
        """Record a verdict on a digest."""

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member; it can do no good here."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds, as a stamp for own commands."""
