"""A scripted node and a scripted transport with a driver between them."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from vsync.io.driver import Driver
from vsync.io.link_monitor import LinkHint
from vsync.io.transport import parse_address
from vsync.totem.events import Note, Output
from vsync.types import Guarantee, Member

A = Member("a", 1, "127.0.0.1:7001")
B = Member("b", 1, "127.0.0.1:7002")


def note(code: str) -> Note:
    return Note(code, {})


class FakeNode:
    """Does what the test prescribes: `reactions` maps a call to the outputs that follow it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reactions: dict[str, list[Output]] = {}
        self.out: list[Output] = []
        self.due: float | None = None
        self.raises: Exception | None = None
        self.members: tuple[Member, ...] = ()

    def _called(self, what: str) -> None:
        self.calls.append(what)
        self.out += self.reactions.pop(what, [])
        if self.raises is not None:
            raise self.raises

    def start(self, now: float) -> None:
        self._called("start")

    def receive(self, frame: bytes, now: float) -> None:
        self._called(f"receive {frame.decode()}")

    def drained(self, now: float) -> None:
        self._called("drained")

    def next_timer(self) -> float | None:
        return self.due

    def wake(self, now: float) -> None:
        assert self.due is not None
        assert now >= self.due
        self.due = None
        self._called("wake")

    def submit(
        self,
        payload: bytes,
        now: float,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool:
        self._called(f"submit {payload.decode()}")
        return payload != b"full"

    def set_mark(self, mark: int, now: float) -> None:
        self._called(f"mark {mark}")

    def expect_mark(self, mark: int) -> None:
        self._called(f"expects {mark}")

    def send_direct(self, to: Member, payload: bytes) -> None:
        self._called(f"direct {to}")

    def leave(self, now: float) -> None:
        self._called("leave")

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        self._called(f"suspect {address} {refused}")

    def known_members(self) -> tuple[Member, ...]:
        return self.members

    def become(self, *members: Member) -> None:
        self.members = members
        self.out.append(note("phase"))

    def take(self) -> list[Output]:
        out, self.out = self.out, []
        return out


class FakeTransport:
    """Frames that the test puts in; a log of sent frames.  The descriptor never signals."""

    def __init__(self, log: list[str]) -> None:
        self.counters: dict[str, int] = {}
        self.log = log
        self.inbox: deque[bytes] = deque()
        self.peers: dict[str, None] = {}
        self.address = "127.0.0.1:7000"
        self._silent, self._other = socket.socketpair()

    def fileno(self) -> int:
        return self._silent.fileno()

    def auth_fileno(self) -> int:
        return -1

    def maintain(self, now: float) -> None:
        """Nobody connects."""

    def watch(
        self, loop: asyncio.AbstractEventLoop, maintain: Callable[[], None], on_hint: LinkHint
    ) -> None:
        self.on_hint = on_hint

    def receive(self, limit: int, *, expected: bool = True) -> list[bytes]:
        return [self.inbox.popleft() for _ in range(min(limit, len(self.inbox)))]

    def connect(self, address: str) -> None:
        parse_address(address)
        self.peers[address] = None

    def forget(self, address: str) -> None:
        self.peers.pop(address, None)

    def send(self, address: str, frame: bytes) -> bool:
        self.log.append(f"send {frame.decode()}")
        return True

    def hail(self, address: str, frame: bytes) -> None:
        self.log.append(f"hail {frame.decode()}")

    def broadcast(self, frame: bytes) -> int:
        self.log.append(f"broadcast {frame.decode()}")
        return 1

    def close(self, linger_ms: int = 0) -> None:
        self.log.append(f"close {linger_ms}")
        self._silent.close()
        self._other.close()


class Bench:
    """One driver between fakes.  Its log holds sends and events in the order they happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.node = FakeNode()
        self.transport = FakeTransport(self.log)
        self.on_note: Callable[[Note], None] = lambda _: None
        self.driver = Driver(self.node, self.transport, self.on_event)

    def on_event(self, event: Output) -> None:
        if isinstance(event, Note):
            self.log.append(f"event {event.code}")
            self.on_note(event)
        else:
            self.log.append(f"event {type(event).__name__}")

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Bounded, so that a hang becomes a failure; asserts nothing about time."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are the product's own state
            await asyncio.sleep(0.001)


def run(story: Callable[[Bench], object]) -> None:
    async def main() -> None:
        bench = Bench()
        try:
            result = story(bench)
            assert asyncio.iscoroutine(result)
            await result
        finally:
            bench.driver.stop()

    asyncio.run(main())
