"""Three members of a ring in one process: driver, node, codec and primary layer, without sockets.

Time is virtual: frames take 0.05 to 0.3 ms, a commit takes 0.6 ms.  Each member has its own loop
and transport, which do what the real ones do for a driver, and nothing more.  `Recorder` sees each
turn: the caller, and the frames sent.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from vsync.io.driver import Driver
from vsync.io.link_monitor import LinkHint
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    DurableMark,
    Ordered,
    PersistEpoch,
    StateReport,
)
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Direct, Marks, Note, Output
from vsync.totem.node import Node
from vsync.types import Guarantee, Member
from vsync.wire.messages import FrameKind

NAMES = ("a", "b", "c")
FRAME_S = 0.00005, 0.0003
COMMIT_S = 0.0006


class Recorder(Protocol):
    """Receives each turn."""

    def turn(self, cause: str, work: Callable[[], None], sent: list[bytes]) -> None:
        """Run `work`; when it has returned, `sent` has the frames that it sent."""


class World:
    """The clock, and the pending calls."""

    def __init__(self, seed: int, far_s: float) -> None:
        self.now = 0.0
        self.far_s = far_s  # how much longer a frame takes than between processes of one machine
        self.rng = random.Random(seed)
        self.recorder: Recorder | None = None
        self.real_loop = asyncio.new_event_loop()  # makes futures, and never runs
        self.sockets: list[socket.socket] = []
        self._due: list[tuple[float, int, Handle]] = []
        self._count = 0

    def at(self, when: float, work: Callable[[], None]) -> Handle:
        self._count += 1
        handle = Handle(work)
        heapq.heappush(self._due, (max(when, self.now), self._count, handle))
        return handle

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            when, _, handle = heapq.heappop(self._due)
            self.now = max(self.now, when)
            if handle.work is not None:
                handle.work()

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        self.at(end, lambda: None)
        self.run(lambda: self.now >= end)

    def close(self) -> None:
        self.real_loop.close()
        for one in self.sockets:
            one.close()


class Handle:
    """A pending call, which can be cancelled."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work

    def cancel(self) -> None:
        self.work = None


class Loop:
    """The part of an event loop that a driver uses; each callback of it is a turn."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[bytes] = []  # frames of this turn
        self.on_readable: Callable[[], None] = lambda: None
        self.after_turn: Callable[[], None] = lambda: None

    def create_future(self) -> asyncio.Future[None]:
        return self.world.real_loop.create_future()

    def add_reader(self, _: int, callback: Callable[[], None]) -> None:
        self.on_readable = callback

    def remove_reader(self, _: int) -> None:
        """Nothing ends here before the process does."""

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_later(0.0, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle:
        cause = getattr(callback, "__name__", "").strip("_")
        return self.world.at(self.world.now + seconds, partial(self.turn, cause, callback))

    def turn(self, cause: str, work: Callable[[], None]) -> None:
        if self.world.recorder is None:
            work()
        else:
            self.world.recorder.turn(cause, work, self.sent)
        self.after_turn()
        self.sent.clear()


class MemoryTransport:
    """Puts frames into the inbox of another member, first in first out on each link."""

    def __init__(self, world: World, name: str, loop: Loop) -> None:
        self.counters: dict[str, int] = {}
        self.address = f"{name}:1"
        self.inbox: list[bytes] = []
        self.peers: dict[str, MemoryTransport] = {}
        self._loop, self._world = loop, world
        self._outbox: list[tuple[str, bytes]] = []
        self._last: dict[str, float] = {}
        loop.after_turn = self._carry
        self._silent, other = socket.socketpair()  # never signals
        world.sockets += [self._silent, other]

    def fileno(self) -> int:
        return self._silent.fileno()

    def auth_fileno(self) -> int:
        return -1

    def watch(
        self, loop: asyncio.AbstractEventLoop, maintain: Callable[[], None], on_hint: LinkHint
    ) -> None:
        """No link breaks."""

    def maintain(self, now: float) -> None:
        """Nobody connects."""

    def receive(self, limit: int, *, expected: bool = True) -> list[bytes]:
        frames, self.inbox = self.inbox[:limit], self.inbox[limit:]
        return frames

    def connect(self, address: str) -> None:
        """All are connected from the start."""

    def forget(self, address: str) -> None:
        """No member leaves."""

    def send(self, address: str, frame: bytes) -> bool:
        self._loop.sent.append(frame)
        self._outbox.append((address, frame))
        return True

    def hail(self, address: str, frame: bytes) -> None:
        raise AssertionError("all are of one version")

    def broadcast(self, frame: bytes) -> int:
        self._loop.sent.append(frame)
        self._outbox += [(address, frame) for address in self.peers]
        return len(self.peers)

    def close(self, linger_ms: int = 0) -> None:
        """Nothing ends here before the process does."""

    def _carry(self) -> None:
        """Put the frames of this turn under way."""
        world = self._world
        for address, frame in self._outbox:
            takes = world.far_s + world.rng.uniform(*FRAME_S)
            at = max(world.now + takes, self._last.get(address, 0.0) + 1e-9)
            self._last[address] = at
            world.at(at, partial(self.peers[address].arrive, frame))
        self._outbox.clear()

    def arrive(self, frame: bytes) -> None:
        self.inbox.append(frame)
        self._loop.turn(FrameKind(frame[1]).name, self._loop.on_readable)


class RingMember:
    """One member: it is in the primary, commits ordered messages, and counts confirmed ones."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.loop = Loop(world)
        self.transport = MemoryTransport(world, name, self.loop)
        self.me = Member(name, 1, self.transport.address)
        self.node = Node(self.me, "bench", RingConfig(), random.Random(name))
        self.driver = Driver(
            self.node,
            self.transport,
            self.on_output,
            clock=lambda: world.now,
            loop=cast("asyncio.AbstractEventLoop", self.loop),
        )
        self.primary = Primary(self.me, self)
        self.position = self.epoch = self.promised = 0
        self.voters: tuple[str, ...] = ()
        self.confirmed = 0
        self.acks = False  # an applied message is followed by an ack, which is not urgent
        self.applied: Callable[[bytes, int], None] = lambda _payload, _position: None
        self.durable: Callable[[int], None] = lambda _position: None

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        return StateReport(
            True, self.epoch > 0, self.epoch > 0, False, "bench", "bench", NAMES, len(NAMES),
            self.promised, self.epoch, 0, b"", b"", self.me.name,
        )  # fmt: skip

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        return -1

    # -- from the ring ---------------------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        if isinstance(output, Direct | Note):
            return
        self.primary.on_output(output)
        for event in self.primary.take():
            match event:
                case Activated() | Ordered():
                    self.apply(event)
                case PersistEpoch():
                    self.promised = event.epoch
                    self.primary.persisted(event.request)
                case DurableMark(position):
                    self.confirmed = position
                    self.durable(position)
                case _:
                    pass  # no member leaves, so no view ends
        if not isinstance(output, Deliver | Marks) or self.primary.phase.value != "active":
            for payload in self.primary.take_outgoing():
                assert self.driver.submit(payload)

    def apply(self, event: Activated | Ordered) -> None:
        self.position += 1
        if isinstance(event, Activated):
            self.epoch = event.activation.epoch
            self.primary.activation_applied(self.position)
        else:
            self.applied(event.payload, self.position)
            if self.acks and event.payload != b"ack":
                self.loop.call_later(0.0, self.submit_ack)
        self.driver.expect_mark(self.position)
        self.world.at(self.world.now + COMMIT_S, self.committed(self.position))

    def committed(self, position: int) -> Callable[[], None]:
        return lambda: self.loop.turn("commit", lambda: self.driver.set_mark(position))

    def submit_ack(self) -> None:
        assert self.driver.submit(Primary.wrap(b"ack"), urgent=False)

    def submit(self, payload: bytes) -> None:
        """A client's message."""
        wrapped = Primary.wrap(payload)
        self.loop.turn("submit", lambda: self._submit(wrapped))

    def _submit(self, payload: bytes) -> None:
        assert self.driver.submit(payload, Guarantee.SAFE)


def cluster(seed: int, far_s: float = 0.0) -> tuple[World, dict[str, RingMember]]:
    """Return members of one active primary, `far_s` more than usual from each other."""
    world = World(seed, far_s)
    members = {name: RingMember(world, name) for name in NAMES}
    for member in members.values():
        others = (other.transport for other in members.values() if other is not member)
        member.transport.peers = {other.address: other for other in others}
    for member in members.values():
        member.driver.start()
    world.run(lambda: all(m.primary.has_caught_up and m.confirmed for m in members.values()))
    return world, members
