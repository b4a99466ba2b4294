"""The driver's turns: with a scripted node and transport, then two of them over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

import pytest
import uvloop

from vsync import driver as driver_module
from vsync.driver import FRAMES_A_TURN, Driver, RingNode
from vsync.events import Broadcast, Deliver, Direct, Marks, Note, Output, Send
from vsync.node import Node
from vsync.transport import ZmqTransport, parse_address
from vsync.types import Guarantee, Member

A = Member("a", 1, "127.0.0.1:7001")
B = Member("b", 1, "127.0.0.1:7002")


def note(code: str) -> Note:
    return Note(code, {})


class FakeNode:
    """Does what the test says: `reactions` maps a call to the outputs that follow it."""

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

    def submit(self, payload: bytes, now: float, guarantee: Guarantee = Guarantee.SAFE) -> bool:
        self._called(f"submit {payload.decode()}")
        return payload != b"full"

    def set_mark(self, mark: int, now: float) -> None:
        self._called(f"mark {mark}")

    def send_direct(self, to: Member, payload: bytes) -> None:
        self._called(f"direct {to}")

    def leave(self, now: float) -> None:
        self._called("leave")

    def acquaintances(self) -> tuple[Member, ...]:
        return self.members

    def become(self, *members: Member) -> None:
        self.members = members
        self.out.append(note("phase"))

    def take(self) -> list[Output]:
        out, self.out = self.out, []
        return out


class FakeTransport:
    """Frames that the test puts in; a log of what went out.  The descriptor never signals."""

    def __init__(self, log: list[str]) -> None:
        self.counters: dict[str, int] = {}
        self.log = log
        self.inbox: deque[bytes] = deque()
        self.peers: dict[str, None] = {}
        self.address = "127.0.0.1:7000"
        self._silent, self._other = socket.socketpair()

    def fileno(self) -> int:
        return self._silent.fileno()

    def receive(self, limit: int) -> list[bytes]:
        return [self.inbox.popleft() for _ in range(min(limit, len(self.inbox)))]

    def connect(self, address: str) -> None:
        parse_address(address)
        self.peers[address] = None

    def forget(self, address: str) -> None:
        self.peers.pop(address, None)

    def send(self, address: str, frame: bytes) -> bool:
        self.log.append(f"send {frame.decode()}")
        return True

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


def test_every_send_of_a_turn_goes_before_its_first_event() -> None:
    async def story(bench: Bench) -> None:
        bench.node.reactions["drained"] = [
            note("1"), Broadcast(b"x"), note("2"), Send(B, b"token"), Broadcast(b"y"), note("3"),
        ]  # fmt: skip
        bench.driver.start()
        bench.transport.inbox.extend([b"f1", b"f2"])
        await until(lambda: "event 3" in bench.log)
        assert bench.node.calls == ["start", "receive f1", "receive f2", "drained"]
        assert bench.log == [
            "broadcast x", "send token", "broadcast y", "event 1", "event 2", "event 3",
        ]  # fmt: skip
        assert bench.driver.counters["edges_missed"] == 1  # by the safety timer, in this test

    run(story)


def test_submit_sends_at_once_and_hands_events_over_later() -> None:
    async def story(bench: Bench) -> None:
        bench.driver.start()
        bench.node.reactions["submit p"] = [note("own"), Broadcast(b"p")]
        assert bench.driver.submit(b"p")
        assert bench.log == ["broadcast p"]
        assert not bench.driver.submit(b"full")
        await bench.turns()
        assert bench.log == ["broadcast p", "event own"]

    run(story)


def test_every_call_of_the_application_flushes() -> None:
    async def story(bench: Bench) -> None:
        bench.driver.start()
        for call in ("mark 7", "direct b", "leave"):
            bench.node.reactions[call] = [Send(B, call.encode())]
        bench.driver.set_mark(7)
        bench.driver.send_direct(B, b"")
        bench.driver.leave()
        assert bench.log == ["send mark 7", "send direct b", "send leave"]

    run(story)


def test_an_event_handler_may_submit() -> None:
    async def story(bench: Bench) -> None:
        def submit_once(event: Note) -> None:
            if event.code == "first":
                bench.driver.submit(b"re")

        bench.on_note = submit_once
        bench.node.reactions["start"] = [note("first"), note("second")]
        bench.node.reactions["submit re"] = [note("third"), Broadcast(b"re")]
        bench.driver.start()
        await bench.turns(6)
        assert bench.log == ["event first", "broadcast re", "event second", "event third"]

    run(story)


def test_an_event_handler_may_stop_and_hears_no_more() -> None:
    async def story(bench: Bench) -> None:
        bench.on_note = lambda _: bench.driver.stop(5)
        bench.node.reactions["start"] = [note("first"), note("second")]
        bench.driver.start()
        await bench.driver.closed
        await bench.turns()
        assert bench.log == ["event first", "close 5"]
        assert not bench.driver.submit(b"p")
        bench.driver.set_mark(1)
        bench.driver.send_direct(B, b"")
        bench.driver.leave()
        bench.driver.stop()
        assert bench.node.calls == ["start", "drained"]

    run(story)


def test_a_full_socket_is_read_in_turns_and_the_token_used_when_it_is_empty() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.inbox.extend([b"f"] * (2 * FRAMES_A_TURN + 1))
        bench.node.reactions["start"] = [note("go")]
        bench.driver.start()
        await bench.turns(6)
        calls = bench.node.calls[1:]
        assert calls == ["receive f"] * (2 * FRAMES_A_TURN + 1) + ["drained"]
        assert bench.driver.counters["turns_capped"] == 2

    run(story)


def test_a_socket_that_never_empties_does_not_starve_the_token() -> None:
    async def story(bench: Bench) -> None:
        bench.transport.inbox.extend([b"f"] * (20 * FRAMES_A_TURN))
        bench.node.reactions["start"] = [note("go")]
        bench.driver.start()
        await until(lambda: "drained" in bench.node.calls)
        assert bench.node.calls.index("drained") == 4 * FRAMES_A_TURN + 1

    run(story)


def test_slow_work_is_cut_in_slices_and_the_socket_served_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "SLICE_S", 0.0)

    async def story(bench: Bench) -> None:
        bench.node.reactions["start"] = [note("1"), note("2"), note("3")]
        bench.node.reactions["receive late"] = [Send(B, b"token")]
        bench.on_note = lambda event: (
            bench.transport.inbox.append(b"late") if event.code == "1" else None
        )
        bench.driver.start()
        await bench.turns(8)
        assert bench.log == ["event 1", "send token", "event 2", "event 3"]

    run(story)


def test_an_application_that_lags_stops_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "SLICE_S", 0.0)
    monkeypatch.setattr(driver_module, "BACKLOG_EVENTS_MAX", 2)

    async def story(bench: Bench) -> None:
        bench.node.reactions["start"] = [note(str(n)) for n in range(5)]
        bench.transport.inbox.append(b"f")
        bench.node.reactions["receive f"] = [note("f")]
        bench.driver.start()
        await bench.turns(12)
        assert bench.log == [f"event {n}" for n in range(5)] + ["event f"]
        assert bench.driver.counters["turns_without_reading"] == 3

    run(story)


def test_a_timer_that_moves_away_is_not_armed_anew_and_fires_when_due() -> None:
    async def story(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        bench.node.due = now + 0.01
        bench.driver.start()
        bench.node.due = now + 0.03
        bench.driver.submit(b"p")
        await until(lambda: "wake" in bench.node.calls)
        assert loop.time() >= now + 0.03
        bench.node.due = loop.time() + 60
        bench.driver.submit(b"q")
        bench.node.due = 0.0  # earlier than what is armed
        bench.node.reactions["wake"] = [note("woken")]
        bench.driver.submit(b"r")
        await until(lambda: "event woken" in bench.log)
        assert bench.driver.counters["timer_late_ms_max"] > 0

    run(story)


def test_broadcasts_reach_configured_present_and_former_members() -> None:
    async def story(bench: Bench) -> None:
        extra = "127.0.0.1:7009"
        bench.driver.start([extra])
        bench.node.become(A, B)
        bench.driver.set_mark(1)
        assert set(bench.transport.peers) == {extra, A.address, B.address}
        bench.node.become(A)
        bench.driver.set_mark(2)
        assert B.address in bench.transport.peers  # somebody must call it after a partition
        moved = Member("b", 2, "127.0.0.1:7003")
        bench.node.become(A, moved)
        bench.driver.set_mark(3)
        assert set(bench.transport.peers) == {extra, A.address, moved.address}
        bench.driver.drop_peer(extra)
        bench.driver.drop_peer(A.address)
        assert set(bench.transport.peers) == {A.address, moved.address}

    run(story)


def test_former_members_are_bounded_and_nonsense_is_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "FORMER_MEMBERS_MAX", 2)

    async def story(bench: Bench) -> None:
        bench.driver.start()
        bench.node.become(A, B, Member("c", 1, "nonsense"))
        bench.driver.set_mark(1)
        assert set(bench.transport.peers) == {A.address, B.address}
        bench.node.become(A)
        bench.driver.set_mark(2)
        bench.node.become(A, Member("d", 1, "127.0.0.1:7004"))
        bench.driver.set_mark(3)
        assert set(bench.transport.peers) == {A.address, "127.0.0.1:7004"}

    run(story)


@pytest.mark.parametrize("where", ["handler", "node"])
def test_a_failure_ends_the_member_with_its_reason(where: str) -> None:
    async def story(bench: Bench) -> None:
        def explode(_: Note) -> None:
            raise ValueError(where)

        bench.driver.start()
        if where == "handler":
            bench.on_note = explode
            bench.node.out = [note("x")]
            bench.driver.set_mark(1)
        else:
            bench.node.raises = ValueError(where)
            bench.transport.inbox.append(b"f")
        with pytest.raises(ValueError, match=where):
            await asyncio.wait_for(bench.driver.closed, 10)
        assert bench.log[-1] == "close 0"

    run(story)


class EchoNode(FakeNode):
    """Numbers travel between two of these, one higher at each end: an edge for every frame."""

    def __init__(self, peer: str, last: int) -> None:
        super().__init__()
        self.peer = Member("peer", 1, peer)
        self.last = last

    def receive(self, frame: bytes, now: float) -> None:
        number = int(frame)
        if number < self.last:
            self.out.append(Send(self.peer, str(number + 1).encode()))
        self.out.append(note(str(number)))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_two_drivers_over_sockets_miss_no_edge(loop: str) -> None:
    last = 2_000

    async def main() -> None:
        transports = [ZmqTransport("127.0.0.1:0", 1_000) for _ in range(2)]
        heard: list[int] = []
        drivers = []
        for mine, other in (transports, transports[::-1]):
            node = EchoNode(other.address, last)

            def on_event(event: Output) -> None:
                assert isinstance(event, Note)
                heard.append(int(event.code))

            drivers.append(Driver(node, mine, on_event))
            drivers[-1].start([other.address])
        await until(lambda: transports[0].send(transports[1].address, b"1"))
        await until(lambda: heard[-1:] == [last])
        assert heard == list(range(1, last + 1))
        # A frame may come between the question and the reading; the timer must not carry more.
        assert sum(d.counters["edges_missed"] for d in drivers) <= 2
        for one in drivers:
            one.stop()

    factory = asyncio.new_event_loop if loop == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


def test_the_real_node_fits() -> None:
    fits: type[RingNode] = Node
    assert fits is Node
    assert {Deliver, Direct, Marks} <= set(Output.__args__)
