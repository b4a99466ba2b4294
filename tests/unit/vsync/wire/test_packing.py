"""Payloads of every size: at the borders of frames and fragments, and over view changes (G2, G5).

The everyday tests use frames of 1 KiB and payloads of a few hundred fragments, the slow ones 64 MiB
in frames of the default size.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import PayloadTooLarge
from vsync.totem.config import RingConfig
from vsync.totem.ordering.packing import PIECES_APART_MAX, Reassembly, SendQueue
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member
from vsync.wire.codec import FRAGMENT_HEAD_BYTES, ITEM_OVERHEAD, fragment_head
from vsync.wire.messages import FrameKind

A, B = (Member(n, 1, f"{n}:1") for n in "ab")
G = Guarantee.AGREED
SMALL = RingConfig(frame_bytes_max=1024, message_bytes_max=1 << 18)
REAL = RingConfig()
FORMING = (Phase.GATHER, Phase.COMMIT, Phase.RECOVERY)


def empty(net: Net, *names: str) -> bool:
    """Whether nothing is incomplete, waiting or kept."""
    rings = [net.nodes[n].membership.current for n in names]
    return all(r is not None and not len(r.window) for r in rings) and not any(
        len(net.nodes[n].delivery.assembly) or len(net.nodes[n].intake.queue) for n in names
    )


def sent(net: Net, name: str) -> int:
    ring = net.nodes[name].membership.current
    return ring.forwarded if ring is not None else 0


# -- sizes ------------------------------------------------------------------------------------


def test_every_size_at_a_border_arrives_as_sent() -> None:
    """0, 1, and one byte less than, exactly, and one more than a frame, and one, two and
    three fragments."""
    net = Net("abc", config=SMALL)
    net.settle("abc")
    ring = net.nodes["a"].membership.current
    assert ring is not None
    whole = ring.room - ITEM_OVERHEAD
    piece = ring.room - 2 * ITEM_OVERHEAD - FRAGMENT_HEAD_BYTES
    borders = (whole, piece, 2 * piece, 3 * piece, 2 * whole)
    sizes = [0, 1, *(border + off for border in borders for off in (-1, 0, 1))]
    rng = random.Random(1)
    payloads = [rng.randbytes(size) for size in sizes]
    for payload in payloads:
        before = sent(net, "a")
        assert net.submit("a", payload)
        net.run(0.05)
        pieces = 1 if len(payload) <= whole else -(-len(payload) // piece)
        assert sent(net, "a") - before == pieces, len(payload)
    for name in "abc":
        assert net.payloads(name) == payloads
    assert empty(net, *"abc")


@pytest.mark.parametrize("config", [SMALL, pytest.param(REAL, marks=pytest.mark.slow)])
def test_the_largest_payload_arrives_and_one_byte_more_is_refused(config: RingConfig) -> None:
    net = Net("abc", config=config)
    net.settle("abc")
    limit = config.message_bytes_max
    payload = random.Random(1).randbytes(limit)
    with pytest.raises(PayloadTooLarge, match=f"{limit + 1} bytes .* limit of {limit} bytes"):
        net.submit("b", payload + b"x")
    assert len(net.nodes["b"].intake.queue) == 0
    assert net.submit("b", payload)
    net.run(60.0, lambda: all(net.payloads(n) for n in "abc"))
    assert all(net.payloads(n) == [payload] for n in "abc")
    net.run(0.1)
    assert empty(net, *"abc")


def test_the_backlog_excludes_sent_fragments() -> None:
    queue = SendQueue(10_000, 100, 10_000)
    queue.put(bytes(5000), G)
    assert queue.backlog(1000) == 6
    for left in (6, 5, 4, 3, 2):
        assert queue.backlog(1000) >= left - 1
        queue.next(1000)
    assert queue.backlog(1000) == 1
    queue.restart()
    assert queue.backlog(1000) == 6


def test_small_payloads_share_frames() -> None:
    net = Net("ab", config=REAL)
    net.settle("ab")
    before = sent(net, "a")
    for _ in range(3000):
        net.submit("a", bytes(64))
    net.run(0.1)
    assert len(net.payloads("b")) == 3000
    assert sent(net, "a") - before < 10


# -- the receiver checks everything ----------------------------------------------------------


def test_fragments_of_odd_sizes_are_refused() -> None:
    assembly = Reassembly(100)
    assert assembly.add(A, [fragment_head(1, 0, 3), b"x" * 40]) == ([], "")
    short = [fragment_head(1, 1, 3), b"x" * 39]
    assert assembly.add(A, short) == ([], "fragment_out_of_order")
    for last in (b"", b"x" * 41):
        assert assembly.add(A, [fragment_head(2, 0, 2), b"x" * 40]) == ([], "")
        assert assembly.add(A, [fragment_head(2, 1, 2), last]) == ([], "fragment_out_of_order")
    assert len(assembly) == 0


@pytest.mark.parametrize(("last", "taken"), [(20, True), (21, False)])
def test_the_total_size_of_the_fragments_is_limited(last: int, taken: bool) -> None:
    assembly = Reassembly(100)
    assembly.add(A, [fragment_head(1, 0, 3), b"x" * 40])
    assembly.add(A, [fragment_head(1, 1, 3), b"x" * 40])
    found, odd = assembly.add(A, [fragment_head(1, 2, 3), b"x" * last])
    assert (found, odd) == (([b"x" * 100], "") if taken else ([], "fragment_refused"))
    assert len(assembly) == 0


def test_small_fragments_cost_little_more_than_their_bytes() -> None:
    """A million one-byte objects would cost fifty times the payload."""
    assembly = Reassembly(1 << 20)
    tracemalloc.start()
    try:
        for index in range(20_000):
            assembly.add(A, [fragment_head(1, index, 1 << 19), b"x"])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(assembly) == 1
    assert held < 100_000


def test_thousands_of_small_fragments_make_one_payload() -> None:
    """Above a count they are joined early, so that they take little more than their bytes."""
    assembly, payload = Reassembly(1 << 20), bytes(n % 251 for n in range(3 * PIECES_APART_MAX + 1))
    count = len(payload)
    for index in range(count - 1):
        items = [fragment_head(1, index, count), payload[index : index + 1]]
        assert assembly.add(A, items) == ([], "")
    assert assembly.add(A, [fragment_head(1, count - 1, count), payload[-1:]]) == ([payload], "")
    assert not len(assembly)


def test_each_sender_has_one_payload_under_way() -> None:
    assembly = Reassembly(1000)
    for number in range(5):
        for sender in (A, B):
            assembly.add(sender, [fragment_head(number, 0, 4), b"x" * 100])
    assert len(assembly) == 2
    assert assembly.forget() == 2


# -- view changes in the middle ---------------------------------------------------------------


def half_way(net: Net, sender: str, payload: bytes, pieces: int) -> None:
    """Submit a payload, and stop when `pieces` fragments are ordered."""
    start = sent(net, sender)
    assert net.submit(sender, payload)
    net.run(60.0, lambda: sent(net, sender) >= start + pieces)
    assert net.payloads(sender) == []


@pytest.mark.parametrize("again", FORMING)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_payload_survives_failures_at_every_phase_whole(again: Phase, share: float) -> None:
    """One member dies in mid-payload, another when the first survivor is in that phase."""
    survives(SMALL, again, share)


@pytest.mark.slow
@pytest.mark.parametrize("again", FORMING)
def test_64_mib_survive_failures_at_every_phase_whole(again: Phase) -> None:
    survives(REAL, again, 0.5)


def survives(config: RingConfig, again: Phase, share: float) -> None:
    net = Net("abcd", config=config)
    net.settle("abcd")
    payload = random.Random(2).randbytes(config.message_bytes_max)
    pieces = len(payload) // config.frame_bytes_max
    half_way(net, "b", payload, int(share * pieces))
    net.crash("d")
    net.run(8.0, lambda: net.nodes["a"].phase is again)
    net.crash("c")
    net.settle("ab", within=15.0)
    net.run(60.0, lambda: all(net.payloads(n) for n in "ab"))
    net.run(0.2)
    assert all(net.payloads(n) == [payload] for n in "ab")
    assert empty(net, *"ab")


@pytest.mark.parametrize("again", [Phase.OPERATIONAL, *FORMING])
def test_a_payload_vanishes_whole_with_its_sender(again: Phase) -> None:
    """The sender dies in mid-payload, in the operational ring or on the way to the next one."""
    net = Net("abcd", config=SMALL)
    net.settle("abcd")
    half_way(net, "b", random.Random(3).randbytes(1 << 18), 120)
    if again is not Phase.OPERATIONAL:
        net.crash("d")
        net.run(8.0, lambda: net.nodes["a"].phase is again)
    net.crash("b")
    others = "acd" if "d" in net.nodes else "ac"
    net.settle(others, within=15.0)
    net.run(1.0)
    assert all(net.payloads(n) == [] for n in others)
    assert empty(net, *others)
    net.submit("c", b"next")
    net.run(0.1)
    assert all(net.payloads(n) == [b"next"] for n in others)


def test_a_member_that_joins_in_mid_payload_gets_the_whole_payload() -> None:
    net = Net("abc", config=SMALL)
    net.settle("abc")
    payload = random.Random(4).randbytes(1 << 18)
    half_way(net, "b", payload, 120)
    net.boot("d")
    net.settle("abcd")
    net.run(60.0, lambda: all(net.payloads(n) for n in "abcd"))
    assert all(net.payloads(n) == [payload] for n in "abcd")


def test_a_payload_crosses_a_partition_once_on_the_senders_side() -> None:
    net = Net("abcde", config=SMALL)
    net.settle("abcde")
    payload = random.Random(5).randbytes(1 << 18)
    half_way(net, "b", payload, 170)
    net.split("abc", "de")
    net.settle("abc", "de", within=15.0)
    net.run(60.0, lambda: bool(net.payloads("c")))
    net.split()
    net.settle("abcde", within=15.0)
    net.run(1.0)
    assert all(net.payloads(n) == [payload] for n in "abc")
    assert all(net.payloads(n) == [] for n in "de")
    assert empty(net, *"abcde")


def test_losses_in_mid_payload_cost_only_time() -> None:
    net = Net("abc", config=SMALL, seed=7)
    net.settle("abc")
    payload = random.Random(6).randbytes(1 << 17)
    net.drop = lambda _s, _t, f: f[1] == FrameKind.DATA and net.rng.random() < 0.05
    assert net.submit("b", payload)
    net.run(60.0, lambda: all(net.payloads(n) for n in "abc"))
    assert all(net.payloads(n) == [payload] for n in "abc")
    assert len(net.views("a")) == 1
