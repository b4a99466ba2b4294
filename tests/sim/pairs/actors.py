"""Clients of a pair as actors: each has a list of both members, and tries one, then the other.

In HAC their attempt is the vote, so they belong to the world and not to a member: a client goes
elsewhere when its member is gone or silent, refuses it, or keeps it waiting for too long, and it
may be cut off from one member while it reaches the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.pairs.stack import PairStack
    from tests.sim.world.world import World

IN, HELD, REFUSED = "in", "held", "refused"


class Door(Protocol):
    """A member as its clients see it."""

    def try_in(self, actor: Actor) -> str:
        """An attempt arrives: it is admitted, kept waiting, or refused."""

    def hear(self, actor: Actor) -> bool:
        """Data of an admitted client arrive; False if it is no longer admitted."""

    def gone(self, actor: Actor) -> None:
        """Its connection has ended."""


class Actor:
    """One client; it takes a step now and then until the run ends."""

    def __init__(self, stack: PairStack, world: World, number: int) -> None:
        self.stack, self.world, self.name = stack, world, f"client {number}"
        self._tape: Tape = world.tape.fork(f"actor {number}")
        token_s = world.plan.token_timeout_ms / 1000.0
        self._pace_s = token_s * self._tape.pick((0.1, 0.5))
        self._patience_s = token_s * self._tape.between(1.0, 8.0)
        self._list = list(world.plan.names)
        if self._tape.chance(0.5):
            self._list.reverse()
        self.at: Door | None = None  # where it is admitted
        self._since = 0.0  # when it began to wait for a reaction of its member
        self.away = False  # it wants nothing now
        self._later()

    def _later(self) -> None:
        self.world.after(self._tape.gap(self._pace_s), self._step)

    def _step(self) -> None:
        self._act(self._list[0])
        self._later()

    def _act(self, name: str) -> None:
        now = self.world.now
        if self.away and not self.world.healed:
            self._hang_up()
            return
        member, door = self.world.members[name], self.stack.door(name)
        if door is None or (self.at is not None and self.at is not door):
            self._hang_up()
            self._next()
        elif member.paused or not self.stack.reaches(self, name):
            self._wait(now)
        elif self.at is not None:
            self._since = 0.0
            if not door.hear(self):
                self.at = None
                self._next()
        else:
            self._try(door, now)

    def _try(self, door: Door, now: float) -> None:
        answer = door.try_in(self)
        if answer == IN:
            self.at, self._since = door, 0.0
        elif answer == HELD:
            self._wait(now)
        else:
            self._next()

    def _wait(self, now: float) -> None:
        """The member sends nothing."""
        self._since = self._since or now
        if now - self._since > self._patience_s:
            self._hang_up()
            self._next()

    def _hang_up(self) -> None:
        if self.at is not None:
            self.at.gone(self)
        self.at = None

    def _next(self) -> None:
        self._since = 0.0
        self._list.append(self._list.pop(0))
