"""Three members on one network: formation, order, losses, partition and merge."""

from __future__ import annotations

import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import PayloadTooLarge
from vsync.totem.config import RingConfig
from vsync.totem.events import Marks, View
from vsync.totem.phases import Phase
from vsync.types import Guarantee
from vsync.wire.messages import FrameKind


def same_order(net: Net, *names: str) -> list[bytes]:
    """Assert that `names` delivered the same payloads, and return them."""
    lists = [net.payloads(n) for n in names]
    assert all(found == lists[0] for found in lists), [len(found) for found in lists]
    return lists[0]


def test_three_members_form_one_ring_soon() -> None:
    net = Net("abc")
    net.settle("abc", within=1.0)
    assert net.now < 0.3
    assert len({n.ring for n in net.nodes.values()}) == 1


def test_all_deliver_the_same_in_the_same_order() -> None:
    net = Net("abc")
    net.settle("abc")
    for i in range(300):
        guarantee = Guarantee.AGREED if i % 3 else Guarantee.SAFE
        assert net.submit("abc"[i % 3], b"%d" % i, guarantee)
        if i % 10 == 0:
            net.run(0.001)
    net.run(0.5)
    assert len(same_order(net, *"abc")) == 300
    for name in "abc":
        mine = [p for d in net.deliveries(name) for p in d.payloads if d.sender.name == "a"]
        assert mine == sorted(mine, key=int)


def test_each_frame_of_a_ring_is_delivered_once_and_without_gap() -> None:
    net = Net("abc")
    net.settle("abc")
    for i in range(100):
        net.submit("b", bytes(5000) + b"%d" % i)
    net.run(0.5)
    seqs = [d.seq for d in net.deliveries("c")]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_lost_frames_are_retransmitted() -> None:
    net = Net("abc")
    net.settle("abc")
    net.drop = lambda _s, _t, f: f[1] == FrameKind.DATA and net.rng.random() < 0.3
    for i in range(200):
        net.submit("abc"[i % 3], b"%d" % i)
        net.run(0.0005)
    net.run(1.0)
    assert len(same_order(net, *"abc")) == 200
    assert net.count("retransmitted") > 0
    assert len(net.views("a")) == len(net.views("b")) >= 1


def test_the_lost_tail_of_a_burst_is_requested() -> None:
    net = Net("abc")
    net.settle("abc")
    lost: list[bytes] = []

    def drop(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.DATA and to == "c" and not lost:
            lost.append(frame)
            return True
        return False

    net.drop = drop
    net.submit("a", b"only")
    net.run(0.02)
    assert lost
    assert same_order(net, *"abc") == [b"only"]


def test_a_lost_token_is_retransmitted_without_a_new_ring() -> None:
    net = Net("abc")
    net.settle("abc")
    ring = net.nodes["a"].ring
    lost: list[bytes] = []

    def drop(_source: str, _to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.TOKEN and len(lost) < 2:
            lost.append(frame)
            return True
        return False

    net.drop = drop
    net.submit("b", b"x")
    net.run(0.9)
    assert same_order(net, *"abc") == [b"x"]
    assert net.nodes["a"].ring == ring
    assert net.count("token_resent") >= 2


def test_after_a_crash_the_others_continue() -> None:
    net = Net("abc")
    net.settle("abc")
    net.submit("a", b"before")
    net.run(0.05)
    net.crash("c")
    net.submit("a", b"after")
    net.settle("ab")
    net.run(0.1)
    assert same_order(net, *"ab") == [b"before", b"after"]
    view = net.views("a")[-1]
    assert [m.name for m in view.left] == ["c"]
    assert view.joined == ()


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_quick_restart_is_a_new_member(victim: str) -> None:
    """Pitfalls 1 and 12: it is back before its ring has noticed that it was gone."""
    net = Net("abc")
    net.settle("abc")
    net.submit("b", b"early")
    net.run(0.05)
    net.crash(victim)
    net.boot(victim)
    net.settle("abc")
    for name in set("abc") - {victim}:
        view = net.views(name)[-1]
        assert [m.name for m in view.left] == [victim]
        assert [m.name for m in view.joined] == [victim]
        transitional = net.transitions(name)[-1]
        assert victim not in {m.name for m in transitional.members}
    net.submit("abc"[0], b"late")
    net.run(0.1)
    assert net.payloads(victim)[-1] == b"late"


def test_the_sides_of_a_partition_continue_and_merge() -> None:
    net = Net("abcde")
    net.settle("abcde")
    net.split("abc", "de")
    net.submit("a", b"left")
    net.submit("d", b"right")
    net.settle("abc", "de")
    net.run(0.1)
    assert b"left" in net.payloads("c")
    assert b"right" in net.payloads("e")
    assert b"left" not in net.payloads("e")
    net.split()
    net.settle("abcde")
    view = net.views("a")[-1]
    assert [m.name for m in view.joined] == ["d", "e"]
    assert view.left == ()
    net.submit("e", b"together")
    net.run(0.1)
    assert {net.payloads(n)[-1] for n in "abcde"} == {b"together"}


def test_a_clean_leave_takes_no_timeout() -> None:
    net = Net("abc")
    net.settle("abc")
    start = net.now
    net.nodes["a"].leave(net.now)
    net.flush("a")
    net.settle("bc", within=0.3)
    assert net.now - start < 0.1
    assert net.nodes["a"].phase is Phase.LEFT
    assert not net.submit("a", b"too late")


def test_a_lost_leave_notice_is_repeated() -> None:
    net = Net("abc")
    net.settle("abc")
    net.drop = lambda source, _t, _f: source == "a"
    net.nodes["a"].leave(net.now)
    net.flush("a")
    net.run(0.01)
    net.drop = lambda *_: False
    net.settle("bc", within=1.2)


def test_a_ring_of_one_delivers_without_network_and_without_spinning() -> None:
    net = Net("a")
    net.settle("a")
    for i in range(50):
        net.submit("a", b"%d" % i)
    net.run(0.01)
    assert len(net.payloads("a")) == 50
    timers: list[float] = []
    start = net.now
    while net.now < start + 2.0:
        due = net.nodes["a"].next_timer()
        assert due is not None
        timers.append(due)
        net.run(due - net.now + 1e-6)
    assert len(timers) < 20
    assert net.nodes["a"].lease.holds(net.nodes["a"].ring, net.now)


def test_an_idle_ring_holds_its_token_and_releases_it_at_once() -> None:
    net = Net("abc")
    net.settle("abc")
    net.run(1.0)
    frames = net.frames
    net.run(1.0)
    assert net.frames - frames < 150
    for name in "abc":
        net.run(1.0)
        start = net.now
        net.submit(name, b"wake " + name.encode())
        net.run(0.1, lambda: net.payloads("b")[-1:] == [b"wake " + name.encode()])  # noqa: B023
        assert net.now - start < 0.004, name


def test_a_mark_goes_round_even_on_an_idle_ring() -> None:
    net = Net("abc")
    net.settle("abc")
    for name in "abc":
        net.run(1.0)
        start = net.now
        net.nodes[name].set_mark(ord(name), net.now)
        net.flush(name)

        def shown(name: str = name) -> bool:
            return all(
                [o for o in net.seen[n] if isinstance(o, Marks)][-1].marks[name] == ord(name)
                for n in "abc"
            )

        net.run(0.1, shown)
        assert net.now - start < 0.004, name


def test_marks_survive_a_view_change() -> None:
    net = Net("abc")
    net.settle("abc")
    net.nodes["b"].set_mark(7, net.now)
    net.flush("b")
    net.run(0.05)
    net.crash("c")
    net.settle("ab")
    outputs = net.seen["a"]
    view = max(i for i, o in enumerate(outputs) if isinstance(o, View))
    shown = next(o for o in outputs[view:] if isinstance(o, Marks))
    assert shown.marks == {"a": 0, "b": 7}


def test_large_payloads_travel_in_pieces_between_small_ones() -> None:
    net = Net("abc")
    net.settle("abc")
    big = bytes(range(256)) * 4000
    for i in range(3):
        net.submit("a", b"s%d" % i)
        net.submit("a", big + b"%d" % i)
    net.submit("b", b"other")
    net.run(1.0)
    found = same_order(net, *"abc")
    assert [p for p in found if p != b"other"] == [
        b"s0", big + b"0", b"s1", big + b"1", b"s2", big + b"2",
    ]  # fmt: skip


@pytest.mark.parametrize("sender_dies", [False, True])
def test_a_large_payload_survives_a_view_change_whole_or_not_at_all(sender_dies: bool) -> None:
    net = Net("abc", config=RingConfig(frame_bytes_max=32_768))
    net.settle("abc")
    big = bytes(6_000_000)  # eight visits
    net.submit("b", big)
    net.run(0.003)
    assert net.count("fragments_sent_again") == 0
    net.crash("b" if sender_dies else "c")
    left = "ac" if sender_dies else "ab"
    net.settle(left)
    net.boot("d")
    net.settle(left + "d")
    net.run(2.0)
    for name in left:
        assert net.payloads(name) == ([] if sender_dies else [big])
        assert len(net.nodes[name].delivery.assembly) == 0


def test_a_full_queue_refuses_and_takes_nothing() -> None:
    net = Net("abc")
    net.settle("abc")
    taken = 0
    while net.submit("a", bytes(100_000)):
        taken += 1
    assert 50 < taken < 200
    net.run(3.0)
    assert len(same_order(net, *"abc")) == taken
    assert net.submit("a", b"again")
    with pytest.raises(PayloadTooLarge):
        net.submit("a", bytes(net.config.message_bytes_max + 1))


def test_a_member_that_receives_nothing_is_failed_by_the_others() -> None:
    net = Net("abc")
    net.settle("abc")
    # c still passes tokens on, but no data reaches it.
    net.drop = lambda _s, to, f: to == "c" and f[1] == FrameKind.DATA
    net.submit("a", b"x")
    start = net.now
    net.run(5.0, lambda: net.settled("ab"))
    assert net.now - start < 3.0
    net.run(0.1)
    assert b"x" in net.payloads("a")
    assert b"x" in net.payloads("b")


def test_a_pause_longer_than_the_token_timeout() -> None:
    """Pitfall 28: the queued frames are history, and the paused member learns that it was away."""
    net = Net("abc")
    net.settle("abc")
    net.paused["b"] = []
    net.nodes["b"].submit(b"from b", net.now)
    net.submit("a", b"while away")
    net.settle("ac")
    net.run(1.0)
    net.resume("b")
    net.settle("abc")
    net.run(0.2)
    assert net.payloads("a").count(b"from b") == 1
    assert net.payloads("b").count(b"from b") == 1
    left = {m.name for v in net.views("b") for m in v.left}
    assert left == {"a", "c"}
