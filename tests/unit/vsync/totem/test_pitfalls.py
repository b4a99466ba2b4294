"""Mistakes of other implementations, one test each, by their numbers in docs/reference/pitfalls.md.

That page names the pitfalls covered by whole-network tests elsewhere, and those that are impossible
by construction.
"""

from __future__ import annotations

import random

import pytest

from tests.support.ring.virtual_network import Net, waiting_token
from vsync.totem.config import RingConfig
from vsync.totem.node import Node
from vsync.totem.phases import Phase
from vsync.types import Guarantee
from vsync.wire.messages import FrameKind, Token


def agree(net: Net, *names: str) -> list[bytes]:
    lists = [net.payloads(n) for n in names]
    assert all(found == lists[0] for found in lists), [len(found) for found in lists]
    return lists[0]


def aborting(net: Net, times: int) -> list[int]:
    """Lose the regular tokens of the next `times` forming rings."""
    lost: list[int] = []

    def drop(source: str, _to: str, frame: bytes) -> bool:
        node = net.nodes[source]
        if (
            frame[1] != FrameKind.TOKEN
            or node.phase is not Phase.RECOVERY
            or node.membership.commit is None
        ):
            return False
        seq = node.membership.commit.ring.seq
        if seq not in lost and len(lost) < times:
            lost.append(seq)
        return seq in lost

    net.drop = drop
    return lost


@pytest.mark.parametrize("times", [1, 2, 3])
def test_2_3_4_11_aborted_recoveries_lose_nothing_and_repeat_no_ring(times: int) -> None:
    net = Net("abcd")
    net.settle("abcd")
    rings = [net.nodes["a"].ring]
    # d's frames reach only a; then d dies: b and c must get them in the recovery.
    net.drop = lambda s, t, f: s == "d" and f[1] == FrameKind.DATA and t in "bc"
    net.submit("d", b"from d", Guarantee.AGREED)
    net.run(0.002, lambda: net.payloads("a") == [b"from d"])
    net.crash("d")
    lost = aborting(net, times)
    net.settle("abc", within=20.0)
    assert len(lost) == times
    rings.append(net.nodes["a"].ring)
    assert rings[1].seq > max(lost) > rings[0].seq
    assert agree(net, *"abc") == [b"from d"]
    for name in "abc":
        assert [m.name for m in net.transitions(name)[-1].members] == ["a", "b", "c"]
        assert net.transitions(name)[-1].ring == rings[0]


def test_5_6_7_37_stray_tokens_change_nothing() -> None:
    net = Net("abc")
    tokens: list[tuple[str, bytes]] = []

    def spy(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.TOKEN:
            tokens.append((to, frame))
        return False

    net.drop = spy
    net.settle("abc")
    net.submit("a", b"x")
    net.run(0.003)
    stray = Net("abc", seed=9)
    stray.drop = spy
    stray.settle("abc")
    net.run(0.5)
    for to, frame in tokens[:60]:
        node = net.nodes[to]
        ring = node.membership.current
        assert ring is not None
        before = (
            dict(node.context.due),
            ring.describe(),
            ring.idle,
            ring.aru_seen,
            waiting_token(node),
        )
        node.receive(frame, net.now)
        node.drained(net.now)
        after = (
            dict(node.context.due),
            ring.describe(),
            ring.idle,
            ring.aru_seen,
            waiting_token(node),
        )
        assert before == after
        node.take()
    assert net.count("token_again") > 0


def test_7_a_token_not_from_the_predecessor_is_refused() -> None:
    net = Net("abc")
    taken: list[bytes] = []

    def drop(source: str, to: str, frame: bytes) -> bool:
        if (source, to) == ("b", "c") and frame[1] == FrameKind.TOKEN and net.settled():
            taken.append(frame)
            return True
        return False

    net.drop = drop
    net.settle("abc")
    net.run(0.05)
    token = net.nodes["b"].codec.decode(taken[0], net.nodes["b"].codec.open(taken[0]))
    net.nodes["c"].receive(net.nodes["a"].codec.encode(token), net.now)
    assert net.nodes["c"].counters["token_sender"] == 1


def test_9_a_gap_of_many_frames_closes() -> None:
    net = Net("abc", config=RingConfig(frame_bytes_max=1024, store_frames_max=1024))
    net.settle("abc")
    net.drop = lambda _s, to, f: to == "c" and f[1] == FrameKind.DATA
    for i in range(700):
        net.submit("a", bytes(900) + b"%d" % i)
    net.run(0.2)
    net.drop = lambda *_: False
    net.run(1.0)
    assert len(agree(net, *"abc")) == 700
    assert len(net.views("a")) == len(net.views("c"))


def test_10_15_a_deep_backlog_is_recovered_and_freed() -> None:
    net = Net("abc", config=RingConfig(frame_bytes_max=1024, store_frames_max=1024))
    net.settle("abc")
    # One frame never reaches c, so no later frame becomes stable.
    net.drop = lambda _s, to, f: to == "c" and b"needle" in f
    net.submit("a", b"needle", Guarantee.AGREED)
    for i in range(799):
        net.submit("a", bytes(900) + b"%d" % i, Guarantee.AGREED)
    net.run(0.2)
    held = net.nodes["a"].membership.current
    assert held is not None
    assert len(held.window) > 300
    net.crash("b")
    net.drop = lambda *_: False
    net.settle("ac")
    net.run(1.0)
    assert len(agree(net, "a", "c")) == 800
    for name in "ac":
        ring = net.nodes[name].membership.current
        assert ring is not None
        assert len(ring.window) == 0


@pytest.mark.parametrize("less", range(6))
def test_13_a_full_frame_survives_wrapping(less: int) -> None:
    net = Net("abc", config=RingConfig(frame_bytes_max=2048))
    net.settle("abc")
    ring = net.nodes["b"].membership.current
    assert ring is not None
    net.drop = lambda s, t, f: (
        f[1] == FrameKind.DATA and t == "c" and net.nodes[s].phase is Phase.OPERATIONAL
    )
    payload = bytes(ring.room - less)
    net.submit("b", payload, Guarantee.AGREED)
    net.run(0.003)
    net.crash("b")
    net.settle("ac")
    assert net.count("recovered_sent") > 0
    assert agree(net, "a", "c") == [payload]


@pytest.mark.parametrize("sender_dies", [True, False])
def test_14_gaps_at_the_end_of_a_ring(sender_dies: bool) -> None:
    """No survivor holds one frame: all drop what its failed sender sent after it, and deliver what
    survivors sent after the transitional configuration."""
    net = Net("abc")
    net.settle("abc")
    lost: list[bytes] = []

    def drop(source: str, _to: str, frame: bytes) -> bool:
        if source == "b" and frame[1] == FrameKind.DATA and b"first" in frame:
            lost.append(frame)
            return True
        return False

    net.drop = drop
    # The first frame and its followers are separate, as their guarantees differ.
    net.submit("b", b"first", Guarantee.AGREED)
    net.submit("b", b"second")
    net.submit("c", b"mine", Guarantee.AGREED)
    net.run(0.002, lambda: len(lost) >= 2)
    net.run(0.0006)
    if sender_dies:
        net.crash("b")
    else:
        net.split("ac", "b")
    net.settle("ac")
    found = agree(net, "a", "c")
    assert b"first" not in found
    assert b"second" not in found
    assert net.count("closing_skipped") >= 0
    if b"mine" in found:
        assert next(d for d in net.deliveries("a") if b"mine" in d.payloads).seq > 0
    if not sender_dies:
        net.run(2.5)
        assert net.payloads("b")[:2] == [b"first", b"second"]


def test_19_20_30_a_pairwise_cut_costs_a_bounded_share_of_time() -> None:
    net = Net("abc")
    net.settle("abc")
    net.cut = {("a", "c"), ("c", "a")}
    net.run(20.0)
    views = sum(len(net.views(n)) for n in "abc")
    up = 0
    for i in range(200):
        net.submit("b", b"%d" % i)
        net.run(0.1)
        up += any(
            net.nodes[n].phase is Phase.OPERATIONAL and len(net.nodes[n].members) == 2
            for n in "abc"
        )
    changes = sum(len(net.views(n)) for n in "abc") - views
    assert changes < 60
    assert up > 160
    net.cut = set()
    net.settle("abc", within=15.0)


def test_22_one_way_loss_ends_when_the_link_is_restored() -> None:
    net = Net("abc")
    net.settle("abc")
    net.cut = {("a", "b"), ("c", "b")}
    net.run(10.0)
    net.cut = set()
    net.settle("abc", within=15.0)


def test_23_36_many_members_in_any_order() -> None:
    names = [f"m{i:02}" for i in range(20)]
    random.Random(3).shuffle(names)
    net = Net(" ".join(names))
    net.run(3.0, lambda: all(len(n.members) == 20 for n in net.nodes.values()))
    for name in names[::3]:
        net.submit(name, name.encode())
    net.run(0.5)
    assert len(agree(net, *names)) == 7
    crashed = names[:3]
    for name in crashed:
        net.crash(name)
    net.run(15.0, lambda: all(len(n.members) == 17 for n in net.nodes.values()))
    assert len({n.ring for n in net.nodes.values()}) == 1


def test_25_duplicate_commit_tokens_start_one_ring_once() -> None:
    net = Net("")
    commits: list[tuple[str, bytes]] = []

    def spy(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.COMMIT:
            commits.append((to, frame))
            for delay in (0.0002, 0.001, 0.003):
                net.push(net.now + delay, to, frame)
        if frame[1] == FrameKind.TOKEN:
            codec = net.nodes[to].codec
            token = codec.decode(frame, codec.open(frame))
            assert isinstance(token, Token)
            if token.hop == 1:
                first.append(str(token.ring))
        return False

    first: list[str] = []  # nothing is lost here, so none is retransmitted
    net.drop = spy
    for name in "abc":
        net.boot(name)
    net.settle("abc")
    net.run(1.0)
    assert net.count("commit_again") + net.count("commit_other_ring") > 0
    assert all(len(net.views(n)) == 1 for n in "abc")
    assert len(first) == len(set(first)) > 0
    hops = [net.nodes[n].membership.current.hop for n in "abc"]  # type: ignore[union-attr]
    assert max(hops) - min(hops) < 4  # one token, not two


def test_26_a_frame_lost_while_idle_is_resent_in_milliseconds() -> None:
    net = Net("abc")
    net.settle("abc")
    for i in range(10):
        net.run(1.0)
        lost: list[int] = []

        def drop(_s: str, to: str, frame: bytes, lost: list[int] = lost) -> bool:
            if frame[1] == FrameKind.DATA and to == "b" and len(lost) < 15:
                lost.append(1)
                return True
            return False

        net.drop = drop
        net.submit("a", b"%d" % i)
        start = net.now
        net.run(0.2, lambda: net.payloads("b")[-1:] == [b"%d" % i])  # noqa: B023
        assert net.now - start < 0.03  # one rotation each


def test_27_a_token_that_overtakes_data_causes_no_retransmission() -> None:
    net = Net("abc")
    net.settle("abc")

    def late(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.DATA:
            net.push(net.now + 0.0003, to, frame)
            return True
        return False

    net.drop = late
    for i in range(200):
        net.submit("abc"[i % 3], b"%d" % i)
        net.run(0.001)
    net.run(0.1)
    assert len(agree(net, *"abc")) == 200
    assert net.count("retransmitted") < 5


@pytest.mark.parametrize("change", [False, True])
def test_34_payloads_at_every_frame_boundary(change: bool) -> None:
    net = Net("abc", config=RingConfig(frame_bytes_max=1024, message_bytes_max=1 << 20))
    net.settle("abc")
    ring = net.nodes["a"].membership.current
    assert ring is not None
    rng = random.Random(2)
    sent = []
    for pieces in (1, 2, 3, 7):
        for off in (-26, -25, -24, -9, -8, -5, -4, -3, -1, 0, 1, 4):
            sent.append(rng.randbytes(max(0, pieces * (ring.room - 24) + off)))
            sent.append(rng.randbytes(max(0, pieces * ring.room + off)))
    for i, payload in enumerate(sent):
        while not net.submit("b", payload, Guarantee.SAFE if i % 5 else Guarantee.AGREED):
            net.run(0.01)
        if change and i == len(sent) // 2:
            net.crash("c")
            net.settle("ab")
    net.run(1.0)
    assert agree(net, "a", "b") == sent


def test_35_reconfigurations_leave_nothing_behind() -> None:
    net = Net("ab")
    net.settle("ab")
    sizes = []
    for i in range(40):
        net.submit("a", bytes(100_000))
        net.split("a", "b")
        net.settle("a", "b")
        net.split()
        net.settle("ab")
        if i >= 37:
            net.run(0.5)
            node = net.nodes["a"]
            assert node.membership.current is not None
            sizes.append(
                (
                    len(node.membership.current.window),
                    len(node.delivery.assembly),
                    len(node.intake.queue),
                    len(node.context.due),
                )
            )
    assert sizes[-1] == (0, 0, 0, sizes[-1][3])
    assert sizes[-1][3] < 5
    assert len(net.nodes["a"].membership.ring_ids.past) <= 32


def test_no_timer_is_armed_before_the_start_or_after_the_leave() -> None:
    net = Net("")
    node = net.boot("a")
    idle = Node(node.me, "test", net.config, random.Random(1))
    assert idle.next_timer() is None
    idle.wake(1.0)
    idle.drained(1.0)
    assert idle.take() == []
    node.leave(0.0)
    assert node.next_timer() is None
