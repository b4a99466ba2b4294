"""The frame transport against itself: real sockets on loopback, waits with a time limit."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator

import pytest

from vsync.io.transport import (
    HIGH_WATER_FRAMES,
    SHARED_BYTES_MIN,
    Transport,
    TransportError,
    ZmqTransport,
    parse_address,
)

Make = Callable[..., ZmqTransport]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ZmqTransport] = []

    def build(bind: str = "127.0.0.1:0", max_frame_bytes: int = 65_536) -> ZmqTransport:
        made.append(ZmqTransport(bind, max_frame_bytes))
        return made[-1]

    yield build
    for transport in made:
        transport.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for the I/O threads; the time limit only turns a hang into a failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.002)


def collect(receiver: ZmqTransport, count: int) -> list[bytes]:
    """Receive at least `count` frames."""
    got: list[bytes] = []

    def enough() -> bool:
        got.extend(receiver.receive(64))
        return len(got) >= count

    until(enough)
    return got


def link(sender: ZmqTransport, receiver: ZmqTransport) -> None:
    until(lambda: sender.send(receiver.address, b"hello"))
    until(lambda: bool(receiver.receive(1)))


def test_frames_arrive_whole_and_in_order(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    frames = [bytes([n]) * size for n, size in enumerate([0, 1, 255, 256, 16_384, 65_536])]
    assert all(a.send(b.address, frame) for frame in frames)
    assert collect(b, len(frames)) == frames


@pytest.mark.parametrize("expected", [True, False])
def test_receive_stops_at_the_limit_and_reports_empty(make: Make, expected: bool) -> None:
    a, b = make(), make()
    link(a, b)
    for n in range(5):
        a.send(b.address, bytes([n]))
    got: list[bytes] = []
    while len(got) < 5:
        part = b.receive(2, expected=expected)
        assert len(part) <= 2
        got += part
    assert got == [bytes([n]) for n in range(5)]
    assert b.receive(2, expected=expected) == []
    assert b.counters["frames_received"] == 6
    assert b.counters["bytes_received"] == len(b"hello") + 5


def test_the_descriptor_signals_a_frame_after_an_empty_read(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    for n in range(20):  # each round: drained, then exactly one edge must be seen
        assert b.receive(8) == []
        assert a.send(b.address, bytes([n]))
        got: list[bytes] = []
        while not got:
            readable, _, _ = select.select([b.fileno()], [], [], 10.0)
            assert readable, "an edge was lost"
            got = b.receive(8)
        assert got == [bytes([n])]


def test_a_send_to_nobody_is_a_counted_loss_and_does_not_block(make: Make) -> None:
    a, b = make(), make()
    address = b.address
    b.close()
    assert not a.send(address, b"x")
    assert not a.send(address, b"x")
    assert a.counters["sends_lost"] == 2
    assert a.counters["frames_sent"] == 0


def test_refused_frames_do_not_reach_a_peers_next_incarnation(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    address = b.address
    b.close()
    until(lambda: not a.send(address, b"old"))
    again = make(address)
    until(lambda: a.send(address, b"new"))
    assert collect(again, 1)[0] == b"new"


def test_a_peer_that_does_not_read_costs_losses_not_memory(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    frame = bytes(32_768)
    until(lambda: not a.send(b.address, frame))
    assert a.counters["sends_lost"] > 0
    got = 0

    def relieved() -> bool:
        nonlocal got
        got += len(b.receive(64))
        return got > HIGH_WATER_FRAMES and a.send(b.address, b"fresh")

    until(relieved)


def test_broadcast_reaches_every_peer_and_not_the_sender(make: Make) -> None:
    a, b, c = make(), make(), make()
    link(a, b)
    link(a, c)
    a.connect(a.address)
    assert a.peers == (b.address, c.address)
    assert a.broadcast(b"all") == 2
    for peer in (b, c):
        assert collect(peer, 1) == [b"all"]
    assert a.receive(8) == []


@pytest.mark.parametrize("size", [SHARED_BYTES_MIN - 1, SHARED_BYTES_MIN, 50_000])
def test_a_large_frame_reaches_every_peer(make: Make, size: int) -> None:
    """All peers share one copy."""
    sender, peers = make(), [make() for _ in range(3)]
    for peer in peers:
        link(sender, peer)
    frames = [bytes((number,)) * size for number in range(20)]
    for frame in frames:
        assert sender.broadcast(frame) == 3
    assert [collect(peer, 20) for peer in peers] == [frames] * 3
    assert sender.counters["bytes_sent"] >= 60 * size


def test_a_peer_is_reached_while_both_sides_send(make: Make) -> None:
    a, b, nobody = make(), make(), make()
    gone = nobody.address
    nobody.close()
    for address in (b.address, gone):
        a.connect(address)
        assert not a.reached(address)

    def after_events() -> bool:
        a.maintain(time.monotonic())
        return a.reached(b.address)

    until(after_events)
    assert not a.reached(gone)
    assert not a.reached("10.0.0.1:1"), "it was never named"
    b.close()
    until(lambda: not after_events())


def test_forget_drops_the_peer(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    a.forget(b.address)
    a.forget(b.address)
    assert a.peers == ()
    assert a.broadcast(b"x") == 0


def test_a_lingering_close_sends_the_last_frame(make: Make) -> None:
    a, b = make(), make()
    link(a, b)
    assert a.send(b.address, b"bye")
    a.close(linger_ms=2_000)
    assert collect(b, 1) == [b"bye"]
    a.close()


def test_an_oversized_frame_from_outside_is_refused(make: Make) -> None:
    small, wide = make(max_frame_bytes=1_000), make()
    link(wide, small)
    wide.send(small.address, bytes(1_001))
    got: list[bytes] = []

    def through() -> bool:
        wide.send(small.address, b"ok")
        got.extend(small.receive(8))
        return bool(got)

    until(through)
    assert set(got) == {b"ok"}


def test_sending_an_oversized_frame_is_a_bug(make: Make) -> None:
    small, other = make(max_frame_bytes=1_000), make()
    with pytest.raises(AssertionError, match="1001"):
        small.send(other.address, bytes(1_001))


def test_a_busy_port_is_named_in_one_sentence(make: Make) -> None:
    a = make()
    with pytest.raises(TransportError) as caught:
        make(a.address)
    text = str(caught.value)
    assert a.address in text
    assert "another program listens there" in text
    assert "\n" not in text


def test_an_address_of_another_host_cannot_be_bound(make: Make) -> None:
    with pytest.raises(TransportError, match=r"192\.0\.2\.1:0: \w+"):
        make("192.0.2.1:0")


def test_a_member_bound_to_all_interfaces_needs_a_host(make: Make) -> None:
    with pytest.raises(TransportError, match=r"0\.0\.0\.0:0: bind to one address"):
        make("0.0.0.0:0")
    b = ZmqTransport("0.0.0.0:0", 1_000, host="localhost")
    try:
        assert b.address.startswith("localhost:")
        link(make(), b)
    finally:
        b.close()


def test_a_name_is_resolved_for_binding(make: Make) -> None:
    host, port = parse_address(make("localhost:0").address)
    assert host in ("127.0.0.1", "::1")
    assert port > 0
    with pytest.raises(TransportError, match="no-such-host"):
        make("no-such-host.invalid:0")


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":5", "host:x", "host:65536", "host:-1", "a b:1", "::1:5", "[]:5"]
)
def test_malformed_addresses_are_named_in_the_error(make: Make, text: str) -> None:
    with pytest.raises(TransportError, match="ring address"):
        parse_address(text)
    a = make()
    with pytest.raises(TransportError):
        a.connect(text)
    assert not a.send(text, b"x")
    assert a.counters["sends_to_nowhere"] == 1


def test_addresses_are_split() -> None:
    assert parse_address("node-1.example:5400") == ("node-1.example", 5400)
    assert parse_address("[::1]:7") == ("::1", 7)


def test_it_satisfies_the_transport_protocol(make: Make) -> None:
    transport: Transport = make()
    assert transport.fileno() >= 0


def test_a_hail_reaches_an_address_without_making_it_a_peer(make: Make) -> None:
    a, b = make(), make()
    a.hail(b.address, b"who are you")
    assert collect(b, 1) == [b"who are you"]
    assert a.peers == ()
    assert a.broadcast(b"not for strangers") == 0
    a.hail("127.0.0.1:9", b"to nobody")
    a.hail("no address", b"to nowhere")
    assert a.counters["hails"] == 3
    assert a.counters["sends_to_nowhere"] == 1
    link(a, b)
    a.hail(b.address, b"over the link that is there")
    assert collect(b, 1) == [b"over the link that is there"]
    assert a.counters["hails"] == 3
