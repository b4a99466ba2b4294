"""Clock worlds with more kinds of faults: the seed selects some for each history.

In one kind of world each clock has its own rate. In the other there are queues that expire when
unused, messages that clients hold and return, starts of the whole cluster from disk, one wrong
clock, and unequal votes.

Two clocks of which one is wrong are excluded: nobody can know which one is right.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from broker.machine import commands as c
from broker.machine.machine import Machine
from tests.properties.models.clock_world import (
    OUT_AFTER_S,
    ClockWorld,
    Early,
    Member,
    declared,
)

LEASE = "lease-"
LEASE_MS = (300, 1500)
COLD_EVERY_S = 5.0
WRONG_EVERY_S = 2.0
WRONG_S = (-3600.0, -9.0, 9.0, 3600.0)


class Habits(NamedTuple):
    """A history's faults beyond those that all histories have."""

    leases: bool
    takes: bool  # messages are got, and returned or acknowledged later
    cold: bool  # all members stop and start again
    wrong: bool  # one of three or more clocks is set wrong, and corrected
    votes: str  # "equal", "unequal", "arbitrator"


def habits_of(seed: int) -> Habits:
    """A swarm: each fault is combined with any others, and left out."""
    chance = random.Random(f"habits {seed}")
    leases, takes, cold, wrong = (chance.random() < 0.5 for _ in range(4))
    votes = chance.choice(("equal", "equal", "unequal", "arbitrator"))
    # With two clocks that decide, one of which is wrong, or a single one, there is no other time.
    return Habits(leases, takes, cold, wrong and votes == "equal", votes)


class RatedWorld(ClockWorld):
    """A history in which each clock has its own rate; none is twice as fast as another."""

    def __init__(self, seed: int, faulty: bool = True) -> None:
        chance = random.Random(f"rates {seed}")
        self._rates = {name: chance.uniform(0.71, 1.41) for name in "abcde"}
        self._of_majority = 0.0
        super().__init__(seed, faulty)

    def _clock_s(self, member: Member) -> float:
        return member.offset_s + self.now * self._rates[member.name]

    def _reform(self) -> None:
        super()._reform()
        self._look_at_rates()

    def _judge(self, before: dict[int, tuple[str, float]]) -> None:
        self._look_at_rates()
        super()._judge(before)

    def _look_at_rates(self) -> None:
        """The highest rate, in any view so far, of a majority of its clocks."""
        inside = (self._rates[m.name] for m in self.members.values() if m.inside)
        rates = sorted(inside, reverse=True)
        self._of_majority = max(self._of_majority, rates[len(rates) // 2])

    def _lived_s(self, published: float) -> float:
        return (self.now - published) * self._of_majority


class SwarmWorld(ClockWorld):
    """A history with these habits."""

    def __init__(
        self,
        seed: int,
        habits: Habits | None = None,
        faulty: bool = True,
    ) -> None:
        self.habits = habits_of(seed) if habits is None else habits
        self.more = random.Random(f"more {seed}")
        self._used: dict[str, float] = {}  # expiring queues, with the time of their last use
        self._leases: tuple[str, ...] = ()
        self._powered_off = False  # all are stopped
        super().__init__(seed, faulty)
        self.lease_ms = dict.fromkeys(self._names, self.more.choice(LEASE_MS))
        self.wrong = self.members[self.more.choice(self._names)]
        self._right_s = self.wrong.offset_s
        if self.habits.cold:
            self._soon(COLD_EVERY_S, self._stop_all)
        if self.habits.wrong and len(self._names) > 2:
            self._soon(WRONG_EVERY_S, self._set_clock)

    # -- clients ---------------------------------------------------------------------------------

    def _queues(self, member: Member) -> list[c.Command]:
        timed = [declared(name, {"x-message-ttl": ttl_ms}) for name, ttl_ms in self.ttl_ms.items()]
        return [*timed, *([self._lease(member)] if self.habits.leases else [])]

    def _lease(self, member: Member) -> c.Command:
        return declared(LEASE + member.name, {"x-expires": self.lease_ms[member.name]})

    def _client(self, member: Member) -> None:
        chance = self.more.random()
        if self.habits.leases and chance < 0.1:
            self._send(member, [self._lease(member)])
        elif self.habits.takes and chance < 0.4:
            queue = self.more.choice(self._names)
            self._send(member, [self._taken(queue)])
        elif self.habits.takes and chance < 0.5:
            self._send(member, [c.Nack(c.NACK, 1, 1, 0, True, True)])
        elif self.habits.takes and chance < 0.6:
            self._send(member, [c.Ack(c.ACK, 1, 1, 0, True)])
        else:
            super()._client(member)

    def _taken(self, queue: str) -> c.Command:
        return c.Get(c.GET, 1, 1, queue, False)

    # -- what is judged --------------------------------------------------------------------------

    def _before(self, member: Member, sent_at: float, command: c.Command) -> None:
        if isinstance(command, c.QueueDeclare) and command.name.startswith(LEASE):
            self._used[command.name] = max(sent_at, self._used.get(command.name, 0.0))
        vhost = self._machine.vhosts.get("/")
        self._leases = () if vhost is None else tuple(q for q in vhost.queues if q in self._used)

    def _after(self, member: Member, sent_at: float, command: c.Command) -> None:
        if not isinstance(command, c.Tick):
            return
        for name in self._leases:
            if name not in self._machine.vhosts["/"].queues:
                self.expired += 1
                unused_s = self.now - self._used.pop(name)
                lease_s = self.lease_ms[name.removeprefix(LEASE)] / 1e3
                if unused_s < lease_s - 1e-6:
                    self.early.append(Early(name, lease_s, unused_s))

    # -- trouble ---------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Power fails at all members; later they start together, from their disks."""
        if self._powered_off:
            return
        self._powered_off = True
        until = self.now + self.more.choice((0.2, 2.0, 15.0))
        for member in self.members.values():
            member.away_until = member.stopped_until = max(member.away_until, until)
            member.inside = False
            member.pending.clear()
        self._at(until + OUT_AFTER_S, self._start_all)

    def _start_all(self) -> None:
        self._powered_off = False
        for member in self.members.values():
            member.away_until = member.stopped_until = 0.0
            member.inside = True
            member.ticker, member.session = self._ticker(member), -1
        self._machine = Machine.restore("nobody", self._machine.snapshot())
        self._used = dict.fromkeys(self._used, self.now)
        self._soon(COLD_EVERY_S, self._stop_all)
        self._activate(self._names, self._names, cold=True)
        self._announce()

    def _set_clock(self) -> None:
        self._soon(WRONG_EVERY_S, self._set_clock)
        jump_s = self.more.choice((0.0, *WRONG_S))
        if not all(record.last_blob_no for record in self._machine.sessions.values()):
            jump_s = 0.0
        self.wrong.offset_s = self._right_s + jump_s

    def _activate(
        self, members: tuple[str, ...], fresh: tuple[str, ...], cold: bool = False
    ) -> None:
        super()._activate(members, fresh, cold)
        if fresh and self._machine.epoch > 1:
            # Until others have sent something, the first sender is the majority: excluded.
            self.wrong.offset_s = self._right_s
            self.wrong.ticker = self._ticker(self.wrong)

    # -- votes -----------------------------------------------------------------------------------

    def _terms(self) -> tuple[str, ...]:
        if self.habits.votes == "unequal":
            return (f"{self._names[0]}={self._votes}", *self._names[1:])
        return (*self._names, "@arbitrator=z") if self.habits.votes == "arbitrator" else self._names

    @property
    def _votes(self) -> int:
        """The votes of the first member: with two or three others, it needs one of them."""
        return max(1, len(self._names) - 1)

    def _may_go_on(self, inside: tuple[str, ...]) -> bool:
        if self.habits.wrong and len(inside) < 3 <= len(self._names):
            return False  # nobody knows which of two is right: excluded
        extra = 0 if self.habits.votes == "equal" else 1  # the arbitrator is always there
        total = len(self._names) + extra
        if self.habits.votes == "unequal":
            extra = (self._votes - 1) * (self._names[0] in inside)
            total = len(self._names) + self._votes - 1
        return not self._powered_off and bool(inside) and 2 * (len(inside) + extra) > total
