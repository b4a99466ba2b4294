"""Leaf modules: configuration, flow control, window, packing, and the ring's own rules."""

from __future__ import annotations

import random

import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import ConfigError, PayloadTooLarge
from vsync.totem.config import RingConfig
from vsync.totem.events import Direct
from vsync.totem.ordering.flow_control import Flow, allowance
from vsync.totem.ordering.packing import Reassembly, SendQueue
from vsync.totem.ordering.ring import Ring
from vsync.totem.ordering.window import Window
from vsync.types import Guarantee, Member, RingId
from vsync.wire.codec import FRAGMENT_HEAD_BYTES, fragment_head
from vsync.wire.messages import NOBODY, Content, Data, Token

A, B, C = (Member(n, 1, f"{n}:1") for n in "abc")
RING = RingId(1, "a", 1)
CONFIG = RingConfig()
S, G = Guarantee.SAFE, Guarantee.AGREED


# -- config -----------------------------------------------------------------------------------


def test_defaults_are_derived_from_the_token_timeout() -> None:
    config = RingConfig(token_timeout_ms=2000)
    assert (config.token_retransmit_ms, config.consensus_timeout_ms) == (476, 2400)
    assert config.token_timeout(2) == 2.0
    assert config.token_timeout(5) == 2.15
    assert config.consensus_timeout(5) > config.token_timeout(5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hold_ms", 200), ("token_retransmit_ms", 500), ("consensus_timeout_ms", 600),
     ("join_timeout_ms", 600), ("personal_frames", 65), ("accelerated_frames", 25),
     ("store_frames_max", 100), ("idle_visits_before_hold", 2), ("frame_bytes_max", 512),
     ("frame_bytes_max", 2 << 20), ("message_bytes_max", 1000), ("wanted_max", 5000),
     ("members_max", 500), ("window_frames", 0), ("merge_interval_ms", -1)],
)  # fmt: skip
def test_impossible_values_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        RingConfig(**{name: value})


# -- flow -------------------------------------------------------------------------------------


def test_the_window_is_never_exceeded_over_a_rotation_and_nobody_starves() -> None:
    rng = random.Random(4)
    for members in (1, 2, 3, 5, 9):
        flows = [Flow() for _ in range(members)]
        queues = [0] * members
        sent_sum = waiting_sum = 0
        served = [0] * members
        for rotation in range(200):
            for i, flow in enumerate(flows):
                queues[i] += rng.randrange(40) if rotation < 150 else 0
                allowed = allowance(
                    64, 24, sent_sum, flow.sent, waiting_sum, queues[i], flow.waiting
                )
                sent = min(allowed, queues[i])
                queues[i] -= sent
                served[i] += sent
                sent_sum, waiting_sum = flow.settle(sent_sum, waiting_sum, sent, queues[i])
                assert 0 <= allowed <= 24
                assert sent_sum == sum(f.sent for f in flows) <= 64
                assert waiting_sum == sum(f.waiting for f in flows)
        assert min(served) > 0.5 * max(served)


def test_numbers_out_of_range_are_clamped_not_wrapped() -> None:
    assert allowance(64, 24, 1000, 0, 0, 5, 0) == 0
    assert allowance(64, 24, 0, 60, 0, 5, 90) == 24
    assert allowance(64, 24, 0, 0, 1000, 1, 0) == 1
    assert Flow().settle(-5, -7, 3, 4) == (3, 4)
    assert Flow().describe() == "sent 0, waiting 0"


# -- window -----------------------------------------------------------------------------------


def data(seq: int, guarantee: Guarantee = G) -> Data:
    return Data(RING, seq, 0, Content.PAYLOADS, guarantee, [b"%d" % seq], b"")


def test_the_window_advances_over_any_gap_and_names_missing_frames() -> None:
    window = Window(5000)
    for seq in range(2, 3000):
        assert window.add(data(seq)) == ""
    assert (window.aru, window.high) == (0, 2999)
    assert window.missing(3001, 10) == [1, 3000, 3001]
    assert window.missing(3001, 1) == [1]
    assert window.add(data(1)) == ""
    assert window.aru == 2999
    assert window.missing(3005, 4) == [3000, 3001, 3002, 3003]
    assert window.missing(2999, 4) == []
    window.release(2500)
    window.invariants()
    assert (len(window), window.get(2500), window.released) == (499, None, 2500)
    assert window.add(data(7)) == window.add(data(2999)) == "data_again"
    assert window.add(data(1 << 60)) == "data_beyond_store"
    assert "aru 2999" in window.describe()


# -- packing ----------------------------------------------------------------------------------


def test_small_payloads_of_one_guarantee_share_a_frame() -> None:
    queue = SendQueue(10_000, 100, 10_000)
    for i in range(6):
        assert queue.put(b"x" * 10, S if i < 4 else G)
    frames = [queue.next(30), queue.next(30), queue.next(30), queue.next(30)]
    assert [(f[1], len(f[2])) for f in frames if f] == [(S, 2), (S, 2), (G, 2)]
    assert frames[3] is None
    assert (len(queue), queue.bytes, queue.backlog(30)) == (0, 0, 0)


def test_the_queue_has_limits_but_takes_any_legal_payload_when_empty() -> None:
    queue = SendQueue(100, 3, 1000)
    assert queue.put(bytes(900), G)
    assert not queue.put(b"", G) or queue.bytes <= 900
    with pytest.raises(PayloadTooLarge):
        queue.put(bytes(1001), G)
    small = SendQueue(100, 3, 1000)
    assert [small.put(b"1", G) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("size", range(95, 310, 7))
def test_fragments_are_reassembled(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    queue = SendQueue(10_000, 100, 10_000)
    queue.put(b"before", G)
    queue.put(payload, G)
    queue.put(b"after", G)
    assembly = Reassembly(10_000)
    found: list[bytes] = []
    while (packed := queue.next(100)) is not None:
        content, _, items = packed
        assert sum(len(i) + 4 for i in items) <= 100
        if content is Content.FRAGMENT:
            whole, odd = assembly.add(A, items)
            assert not odd
            found += whole
        else:
            found += items
        queue.invariants()
    assert found == [b"before", payload, b"after"]


def test_17_a_half_sent_payload_restarts_and_received_halves_are_dropped() -> None:
    queue = SendQueue(10_000, 100, 10_000)
    queue.put(bytes(range(200)), G)
    assembly = Reassembly(10_000)
    for _ in range(2):
        packed = queue.next(100)
        assert packed is not None
        assert assembly.add(A, packed[2]) == ([], "")
    assert queue.restart()
    assert not queue.restart()
    assert assembly.forget() == 1
    found: list[bytes] = []
    while (packed := queue.next(120)) is not None:
        found += assembly.add(A, packed[2])[0]
    assert found == [bytes(range(200))]


def test_pieces_out_of_order_or_absurd_are_dropped() -> None:
    assembly = Reassembly(1000)
    first = [fragment_head(1, 0, 3), b"x" * 10]
    assert assembly.add(A, [fragment_head(1, 1, 3), b"x"]) == ([], "fragment_out_of_order")
    assert assembly.add(A, first) == ([], "")
    assert assembly.add(A, first) == ([], "fragment_restarted")
    assert assembly.add(A, [fragment_head(1, 2, 3), b"x"]) == ([], "fragment_out_of_order")
    assert assembly.add(A, [fragment_head(1, 0, 1), b"x"]) == ([], "fragment_refused")
    assert assembly.add(A, [fragment_head(1, 0, 9), b""]) == ([], "fragment_refused")
    assert assembly.add(A, [fragment_head(1, 0, 1 << 31), b"x"]) == ([], "fragment_refused")
    assert len(assembly) == 0
    assert FRAGMENT_HEAD_BYTES == 16


# -- ring -------------------------------------------------------------------------------------


def ring(me: Member = A) -> Ring:
    return Ring(RING, (A, B, C), me, (0, 0, 0), CONFIG, 30)


def token(seq: int, aru: int, hop: int = 0, by: int = NOBODY, **more: object) -> Token:
    made = Token(RING, hop, seq, aru, by, 0, 0, False, (0, 0, 0), ())
    return made._replace(**more)  # type: ignore[arg-type]


def empty() -> SendQueue:
    return SendQueue(10_000, 100, 10_000)


def test_safe_is_the_aru_that_came_back_and_agreed_never_overtakes_it() -> None:
    one = ring()
    for seq, guarantee in ((1, G), (2, S), (3, G)):
        one.add(data(seq, guarantee))
    assert [f.seq for f in one.ready()] == [1]
    passed = one.visit(token(3, 3), empty(), 0, 0).token
    assert (one.safe, passed.aru) == (
        0,
        3,
    )  # it was raised to 3 by one, which proves nothing of the others
    assert [f.seq for f in one.ready()] == []
    one.visit(token(3, 2), empty(), 0, 0)
    assert one.safe == 2
    assert [f.seq for f in one.ready()] == [2, 3]
    one.release()
    assert one.window.released == 2
    one.invariants()


def test_own_frames_are_safe_when_the_token_returns() -> None:
    """G4 at the cost of one rotation: nothing lowered aru on its way round."""
    one = ring()
    queue = empty()
    queue.put(b"x", S)
    passed = one.visit(token(0, 0), queue, 0, 0).token
    assert (passed.seq, passed.aru) == (1, 1)
    one.visit(passed._replace(hop=3), queue, 0, 0)
    assert one.safe == 1


def test_a_frame_some_member_lacks_is_not_safe() -> None:
    """G4: members receive frames late and in any order while the token makes many rotations."""
    for seed in range(60):
        rng = random.Random(seed)
        members = (A, B, C)
        rings = [ring(m) for m in members]
        queue = [SendQueue(10_000, 100, 10_000) for _ in members]
        late: list[list[Data]] = [[] for _ in members]
        going = rings[0].first_token()
        for visit in range(240):
            at = visit % 3
            here = rings[at]
            rng.shuffle(late[at])
            for _ in range(rng.randrange(len(late[at]) + 1)):
                here.add(late[at].pop())
            if rng.random() < 0.5:
                queue[at].put(b"x", S)
            known = here.window.high
            going = here.visit(going, queue[at], 0, 0).token
            least = min(r.window.aru for r in rings)
            assert here.safe <= least, (seed, visit)
            for seq in range(known + 1, going.seq + 1):
                made = here.window.get(seq)
                for other, due in enumerate(late):
                    if other != at and made is not None:
                        due.append(made)
            list(here.ready())
            here.release()
        assert max(r.safe for r in rings) > 20


def test_only_frames_that_existed_one_rotation_ago_are_requested() -> None:
    one = ring(B)
    assert one.visit(token(5, 0), empty(), 0, 0).token.wanted == ()
    again = one.visit(token(9, 0, wanted=(3,)), empty(), 0, 0)
    assert again.token.wanted == (3, 1, 2, 4, 5)
    assert again.asked == 4


def test_requested_frames_are_served_before_new_ones() -> None:
    one = ring()
    queue = empty()
    for i in range(4):
        queue.put(b"new", (G, S)[i % 2])  # one frame each
    for seq in (1, 2, 3):
        one.add(data(seq)._replace(body=b"%d" % seq))
    visit = one.visit(token(3, 0, wanted=(2, 3, 1 << 40)), queue, 5, 16)
    assert visit.resent == [b"2", b"3"]
    assert visit.token.wanted == (1 << 40,)
    assert (len(visit.before), len(visit.after)) == (CONFIG.lead_frames, 2)  # accelerated
    assert visit.token.seq == 7
    assert visit.token.sent == 6
    assert visit.token.marks == (5, 0, 0)
    plain = ring()
    queue.put(b"new", G)
    assert len(plain.visit(token(0, 0), queue, 0, 0).before) == 1


def test_aru_is_lowered_by_a_lacking_member_and_raised_only_by_it() -> None:
    one = ring(B)
    one.add(data(1))
    low = one.visit(token(3, 3), empty(), 0, 0).token
    assert (low.aru, low.aru_by) == (1, 1)
    two = ring(C)
    assert two.visit(low, empty(), 0, 0).token.aru_by == 2  # c has nothing at all
    two.add(data(1))
    two.add(data(2))
    kept = two.visit(low, empty(), 0, 0).token
    assert (kept.aru, kept.aru_by) == (1, 1)
    for seq in (2, 3):
        one.add(data(seq))
    high = one.visit(kept, empty(), 0, 0).token
    assert (high.aru, high.aru_by) == (3, NOBODY)


def test_the_store_limit_stops_new_frames() -> None:
    one = ring()
    queue = empty()
    queue.put(b"x", G)
    full = CONFIG.store_frames_max - CONFIG.window_frames
    assert one.visit(token(full, 0), queue, 0, 0).token.seq == full


def test_a_member_that_holds_aru_back_fails_after_visits_and_time() -> None:
    one = ring()
    held = token(9, 4, by=2)
    found = []
    for i in range(200):
        found.append(one.failed_to_receive(held, i * 0.005))
        one.visit(held, empty(), 0, 0)
    assert found.index(C) >= CONFIG.receive_failure_visits
    assert 0.24 < found.index(C) * 0.005 < 0.36
    mine = ring(C)
    for i in range(200):
        assert mine.failed_to_receive(held, i * 0.005) is None
        mine.visit(held, empty(), 0, 0)
    assert "delivered 0" in mine.describe()


def test_a_token_that_would_reuse_numbers_is_refused() -> None:
    one = ring(B)
    for seq in (1, 2, 3):
        one.add(data(seq))
    assert one.refuses(token(2, 0)) == "token_backwards"
    assert one.refuses(token(3, 0)) == ""
    one.visit(token(5, 0), empty(), 0, 0)
    assert one.refuses(token(4, 0, hop=1)) == "token_backwards"
    assert one.refuses(token(5, 0, marks=(0, 0))) == "token_members"
    assert one.refuses(token(5, 0, ring=RING._replace(rep_incarnation=2))) == "token_other_ring"


def test_datagrams_are_unordered() -> None:
    net = Net("ab")
    net.settle("ab")
    a, b = net.nodes["a"], net.nodes["b"]
    a.send_direct(b.me, b"to b")
    a.send_direct(a.me, b"to me")
    with pytest.raises(PayloadTooLarge):
        a.send_direct(b.me, bytes(2 * a.config.frame_bytes_max + 1))
    net.flush("a")
    net.run(0.01)
    assert [o for o in net.seen["b"] if isinstance(o, Direct)] == [Direct(a.me, b"to b")]
    assert [o for o in net.seen["a"] if isinstance(o, Direct)] == [Direct(a.me, b"to me")]
