"""Members with correct clocks, and everything that delays their ticks and messages.

One machine applies the ordered log. Each member knows an earlier state, as it applies late; what it
sends is ordered late, and later still while its link is cut. Nothing else of a cluster is here, so
that thousands of histories a minute can be tried. `broker.timers.ticker` decides when members tick,
and `broker.machine.clock.cluster_time` what their ticks mean.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import NamedTuple, cast

from broker.machine import commands as c
from broker.machine.machine import Machine
from broker.machine.state import BODY, NUMBER, Clock, Span
from broker.machine.version import MACHINE_VERSION
from broker.replication.controller import Controller
from broker.timers.ticker import Ticker

Call = Callable[[], None]
BEAT_S = 0.1
OUT_AFTER_S = 1.0
"""Who is cut off for so long leaves the view, and comes back with another session."""
TTLS_MS = (50, 400, 2000)


class Seen(NamedTuple):
    """The part of the machine's state that a member sees once it has applied this much of
    the log."""

    epoch: int
    wants_tick: bool
    now_us: int
    due_in_us: int
    clocks: dict[str, Clock]
    session: int
    position: int
    horizon_us: int
    spans: list[Span]
    last_other: int
    last_tick: int


class Early(NamedTuple):
    """A message or a queue that expired too early."""

    queue: str
    ttl_s: float
    age_s: float


@dataclass
class Member:
    """One member."""

    name: str
    offset_s: float  # of its clock
    beats: float
    seen: Seen
    ticker: Ticker = field(init=False)
    lag_s: float = 0.0
    applied_at: float = 0.0
    ordered_at: float = 0.0
    look_at: float = 0.0
    away_until: float = 0.0  # cut off, or stopped
    stopped_until: float = 0.0
    inside: bool = True  # the primary view
    session: int = -1
    blob_no: int = 0
    publishes: float = 0.0
    pending: deque[Call] = field(default_factory=deque)


def stamp(now: float) -> bytes:
    """The body of a message published now."""
    return round(now * 1e6).to_bytes(8)


def declared(name: str, arguments: c.Table) -> c.Command:
    """The first channel declares a durable queue."""
    return c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, name, False, True, False, False, True, arguments)


class ClockWorld:
    """One history."""

    def __init__(self, seed: int, faulty: bool = True) -> None:
        chance = self.chance = random.Random(seed)
        self.now = 0.0
        self.early: list[Early] = []
        self.expired = 0
        self.latest_s = 0.0  # lateness of everything that expired
        self._heap: list[tuple[float, int, Call]] = []
        self._number = count()
        self._machine = Machine("nobody")
        self._cores: dict[str, SimpleNamespace] = {}
        self._position = 0
        self._stands_since: float | None = None  # the token
        names = tuple("abcde"[: chance.choice((1, 2, 3, 3, 3, 4, 5))])
        self.ttl_ms = {name: chance.choice(TTLS_MS) for name in names}
        self.delay_s = chance.choice((0.001, 0.01, 0.05))
        self.lag_s = chance.choice((0.001, 0.05, 0.3))
        self.fault_s = chance.choice((0.3, 1.0, 4.0))
        self._names = names
        self._activate(names, names)
        seen = self._look()
        self.members = {
            name: Member(name, chance.uniform(0.0, 1e6), chance.uniform(0.5, 1.5), seen)
            for name in names
        }
        busy = chance.choice((0.05, 0.5, 3.0))
        for member in self.members.values():
            member.publishes = busy * chance.choice((0.2, 1.0, 5.0))
            member.ticker = self._ticker(member)
            self._soon(BEAT_S, self._beat, member)
            self._soon(0.1, self._publish, member)
        if faulty:
            self._soon(self.fault_s, self._fault)
        self._announce()

    def run(self, until_s: float) -> list[Early]:
        """Run, and return what expired too early."""
        while self._heap[0][0] < until_s:
            self.now, _, call = heappop(self._heap)
            call()
        return self.early

    # -- time ------------------------------------------------------------------------------------

    def _at(self, time: float, call: Call) -> None:
        heappush(self._heap, (time, next(self._number), call))

    def _soon(self, mean_s: float, call: Callable[..., None], *of: Member) -> None:
        self._at(self.now + self.chance.uniform(0.5, 1.5) * mean_s, lambda: call(*of))

    # -- what members do -------------------------------------------------------------------------

    def _ticker(self, member: Member) -> Ticker:
        core = SimpleNamespace(
            replica=SimpleNamespace(
                machine=SimpleNamespace(**member.seen._asdict()),
                history=SimpleNamespace(position=0),
            ),
            me=SimpleNamespace(name=member.name),
            primary=SimpleNamespace(has_caught_up=True),
            serving=True,
            submit=lambda commands: self._send(member, commands),
            flush=lambda: None,
        )
        self._cores[member.name] = core
        return Ticker(cast("Controller", core), self._clock_s(member))

    def _clock_s(self, member: Member) -> float:
        """What its clock shows; its origin does not matter."""
        return member.offset_s + self.now

    def _beat(self, member: Member) -> None:
        self._soon(BEAT_S * member.beats, self._beat, member)
        if self.now < member.stopped_until:
            return
        self._show(member)
        member.ticker.turn(self._clock_s(member), busy=False)

    def _show(self, member: Member) -> None:
        core = self._cores[member.name]
        vars(core.replica.machine).update(member.seen._asdict())
        core.replica.history.position = member.seen.position
        core.serving = member.inside

    def _turn(self, member: Member, *, busy: bool = False) -> None:
        """It has applied something, its clients have sent something, or something is due."""
        if self.now < member.stopped_until:
            return
        self._show(member)
        delay_s = member.ticker.turn(self._clock_s(member), busy=busy)
        if delay_s is not None and delay_s < BEAT_S and self.now >= member.look_at:
            member.look_at = self.now + delay_s
            self._at(member.look_at, lambda: self._turn(member))

    def _publish(self, member: Member) -> None:
        self._soon(1.0 / member.publishes, self._publish, member)
        if self.now >= member.stopped_until and member.inside:
            self._turn(member, busy=True)
            self._client(member)

    def _client(self, member: Member) -> None:
        """Send what one of its clients sends now."""
        if self.chance.random() < 0.15:
            queue = self.chance.choice(self._names)
            self._send(member, [c.QueuePurge(c.QUEUE_PURGE, 1, 1, queue, False)])
            return
        published = stamp(self.now)
        publish = c.Publish(c.PUBLISH, 1, 1, 0, "", member.name, c.PERSISTENT, b"", published)
        self._send(member, [publish])

    def _send(self, member: Member, commands: list[c.Command]) -> None:
        if member.session != member.seen.session:
            member.session, member.blob_no = member.seen.session, 0
            opening = [
                c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "p:1"),
                c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
                *self._queues(member),
            ]
            commands = [*opening, *commands]
        member.blob_no += 1
        blob = member.session, member.blob_no, self.now, commands
        self._at_order(member, lambda: self._ordered(member, *blob))

    def _queues(self, member: Member) -> list[c.Command]:
        """Its clients' declarations, before anything else."""
        return [declared(member.name, {"x-message-ttl": self.ttl_ms[member.name]})]

    def _stalled(self) -> bool:
        """Whether the token is delayed because a member of the view is cut off."""
        stalled = any(m.inside and m.away_until >= self.now for m in self.members.values())
        if stalled and self._stands_since is None:
            self._stands_since = self.now
        return stalled

    def _at_order(self, member: Member, call: Call) -> None:
        delay_s = self.chance.expovariate(1 / self.delay_s)
        member.ordered_at = max(member.ordered_at, member.away_until, self.now) + delay_s
        member.pending.append(call)
        self._at(member.ordered_at, lambda: self._take(member))

    def _take(self, member: Member) -> None:
        """Order the oldest waiting command, unless the token is delayed."""
        if self._stalled():
            self._at(self.now + 0.01 + self.delay_s, lambda: self._take(member))
            return
        if self._stands_since is not None:
            long, self._stands_since = self.now - self._stands_since > OUT_AFTER_S, None
            if long:
                self._reform()
        if member.pending and member.inside:
            member.pending.popleft()()

    # -- the order -------------------------------------------------------------------------------

    def _ordered(
        self,
        member: Member,
        session: int,
        blob_no: int,
        sent_at: float,
        commands: list[c.Command],
    ) -> None:
        machine = self._machine
        if not machine.accept_blob(member.name, session, blob_no):
            return
        for command in commands:
            self._position += 1
            before = self._waiting() if isinstance(command, c.Tick | c.Get) else {}
            self._before(member, sent_at, command)
            machine.apply(self._position, session, 0, command)
            machine.effects.clear()
            machine.take_moves()
            machine.invariants()
            if before:
                self._judge(before)
            self._after(member, sent_at, command)
        self._announce()

    def _before(self, member: Member, sent_at: float, command: c.Command) -> None:
        """Called before a command is applied that the member sent at that time."""

    def _after(self, member: Member, sent_at: float, command: c.Command) -> None:
        """Called after a command was applied."""

    def _waiting(self) -> dict[int, tuple[str, float]]:
        """By number, the queue and the time of publishing of messages that wait or are held."""
        vhost = self._machine.vhosts.get("/")
        there = [
            (queue, message)
            for queue in (vhost.queues.values() if vhost is not None else ())
            for message in (*queue.ready, *queue.returned.values())
        ]
        there += [
            (queue, message)
            for channel in self._machine.channels.values()
            for queue, _, message, _, _ in channel.unacked.values()
        ]
        return {
            message[NUMBER]: (queue.name, int.from_bytes(message[BODY]) / 1e6)
            for queue, message in there
        }

    def _judge(self, before: dict[int, tuple[str, float]]) -> None:
        after = self._waiting()
        for number in before.keys() - after.keys():
            queue, published = before[number]
            self.expired += 1
            ttl_s = self.ttl_ms[queue] / 1e3
            self.latest_s = max(self.latest_s, self.now - published - ttl_s)
            if self._lived_s(published) < ttl_s - 1e-5:
                self.early.append(Early(queue, ttl_s, self._lived_s(published)))

    def _lived_s(self, published: float) -> float:
        """The time since then on the clocks that count."""
        return self.now - published

    def _look(self) -> Seen:
        machine = self._machine
        return Seen(
            machine.epoch, machine.wants_tick, machine.now_us,
            machine.due_in_us, dict(machine.clocks), -1, self._position,
            machine.horizon_us, machine.spans[:], machine.last_other, machine.last_tick,
        )  # fmt: skip

    def _announce(self) -> None:
        """All members of the view apply this state some time later."""
        seen = self._look()
        for member in self.members.values():
            if member.inside:
                wait_s = self.chance.expovariate(1 / (self.lag_s if member.lag_s else 0.001))
                held = max(self.now + wait_s, member.away_until)
                member.applied_at = max(member.applied_at, held)
                self._at(member.applied_at, lambda m=member: self._apply(m, seen))  # type: ignore[misc]

    def _apply(self, member: Member, seen: Seen) -> None:
        record = self._machine.sessions.get(member.name)
        session = record.session if record is not None else -1
        if seen.epoch >= member.seen.epoch and member.inside:
            member.seen = seen._replace(session=session)
            self._turn(member)

    # -- trouble ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        self._soon(self.fault_s, self._fault)
        member = self.members[self.chance.choice(self._names)]
        length_s = self.chance.choice((0.1, 0.5, 1.5, 4.0)) * self.chance.uniform(0.5, 1.5)
        what = self.chance.randrange(5)
        if what == 0:
            member.lag_s = 1.0 - member.lag_s
        elif what == 1:
            self._reform()
        else:
            several = list(self.members.values()) if what == 2 else [member]
            for one in several:
                one.away_until = max(one.away_until, self.now + length_s)
                if what == 3:
                    one.stopped_until = one.away_until
            self._stalled()
            if length_s > OUT_AFTER_S:
                self._at(self.now + OUT_AFTER_S, self._reform)
                self._at(self.now + length_s + 1e-6, self._reform)

    def _may_go_on(self, inside: tuple[str, ...]) -> bool:
        return 2 * len(inside) > len(self._names)

    def _reform(self) -> None:
        """A new view of all members that are not cut off, if they are a majority."""
        inside = tuple(m.name for m in self.members.values() if m.away_until <= self.now)
        if not self._may_go_on(inside):
            return
        fresh = tuple(name for name in inside if not self.members[name].inside)
        gone = set(self._names) - set(inside)
        for member in self.members.values():
            member.inside = member.name in inside
            if member.name in gone:
                member.pending.clear()
            if member.name in fresh:
                member.ticker, member.session = self._ticker(member), -1
                member.pending.clear()
        self._activate(inside, fresh)
        self._announce()

    def _terms(self) -> tuple[str, ...]:
        """The voters."""
        return self._names

    def _activate(
        self, members: tuple[str, ...], fresh: tuple[str, ...], cold: bool = False
    ) -> None:
        self._position += 1
        machine = self._machine
        listed = tuple(c.ActiveMember(name, 1, name in fresh) for name in members)
        command = c.Activate(
            c.ACTIVATE, machine.epoch + 1, listed, cold, self._terms(), "c", MACHINE_VERSION
        )
        machine.apply(self._position, 0, 0, command)
        machine.effects.clear()
        machine.take_moves()
