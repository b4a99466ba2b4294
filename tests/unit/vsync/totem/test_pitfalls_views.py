"""Pitfalls of view changes, one test each, by their numbers in docs/reference/pitfalls.md.

Each story is short and aims at one mistake; `test_pitfalls_bite.py` makes the mistakes and expects
these tests to fail.
"""

from __future__ import annotations

import pytest

from tests.support.ring.virtual_network import Net, waiting_token
from tests.unit.vsync.totem.test_pitfalls import aborting, agree
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, View
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Phase
from vsync.types import Guarantee, RingId
from vsync.wire.messages import CommitToken, Content, Data, FrameKind, Token


def ring_of(net: Net, name: str) -> Ring:
    ring = net.nodes[name].membership.current
    assert ring is not None
    return ring


def parted(net: Net, phase: Phase, name: str = "b") -> None:
    """Let c go silently, and run until `name` is in `phase` on the way to the ring without c."""
    net.crash("c")
    net.run(8.0, lambda: net.nodes[name].phase is phase)


def test_1_a_restarted_representative_is_in_the_next_ring_at_once() -> None:
    """The new incarnation must not be taken for the old one, nor wait until that one is failed."""
    net = Net("abc")
    net.settle("abc")
    rings = {ring_of(net, "b").id}
    for _ in range(5):
        net.crash("a")
        net.boot("a")
        began = net.now
        net.settle("abc")
        assert net.now - began < net.config.token_timeout_ms / 1000
        rings.add(ring_of(net, "b").id)
        assert ring_of(net, "b").id.rep_incarnation == net.nodes["a"].me.incarnation
    assert len(rings) == 6


def test_1_rings_of_a_cluster_started_anew_have_other_ids() -> None:
    net = Net("abc")
    net.settle("abc")
    before = ring_of(net, "b").id
    for name in "abc":
        net.crash(name)
        net.boot(name)
    net.settle("abc")
    assert ring_of(net, "b").id != before


def test_2_a_regular_token_is_not_used_in_gather() -> None:
    """Even the right ring's next token: a member in gather has given that ring up."""
    net = Net("abc")
    held: list[bytes] = []

    def drop(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.TOKEN and to == "b" and not held and net.settled():
            held.append(frame)
        return bool(held) and frame[1] == FrameKind.TOKEN

    net.drop = drop
    net.settle("abc")
    net.submit("a", b"x")
    net.run(5.0, lambda: net.nodes["b"].phase is Phase.GATHER)
    node = net.nodes["b"]
    before = (ring_of(net, "b").hop, dict(node.context.due))
    node.receive(held[0], net.now)
    assert waiting_token(node) is None
    assert node.phase is Phase.GATHER
    assert (ring_of(net, "b").hop, node.context.due) == before
    assert node.counters["token_in_gather"] == 1


def test_3_the_commit_token_of_an_aborted_attempt_is_refused() -> None:
    """A member never commits twice to the same ring, and ring numbers only rise."""
    net = Net("abc")
    net.settle("abc")
    commits: list[bytes] = []

    def spy(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.COMMIT and to == "b" and not commits:
            commits.append(frame)
        return False

    net.drop = spy
    net.crash("c")
    net.run(8.0, lambda: bool(commits))
    net.run(0.01, lambda: net.nodes["b"].phase is Phase.RECOVERY)
    net.drop = lambda _s, _t, f: f[1] == FrameKind.TOKEN
    node = net.nodes["b"]
    net.run(5.0, lambda: node.phase is Phase.GATHER)
    tried = node.membership.ring_ids.committed_seq
    node.receive(commits[0], net.now)
    assert node.phase is Phase.GATHER
    assert node.membership.ring_ids.committed_seq == tried
    assert node.counters["commit_stale"] == 1
    net.drop = lambda *_: False
    net.settle("ab", within=15.0)
    assert ring_of(net, "b").id.seq > tried


def test_3_a_commit_token_for_other_members_is_refused() -> None:
    net = Net("abc")
    net.settle("abc")
    parted(net, Phase.GATHER)
    node = net.nodes["b"]
    (a, b) = (net.nodes[n].me for n in "ab")
    entry = net.nodes["a"].membership._entry()
    for members, code in (((a, b), "commit_members_differ"), ((a, b, node.members[2]), "")):
        ring = RingId(99, a.name, a.incarnation)
        entries = (entry, *(None for _ in members[1:]))
        node.receive(net.nodes["a"].codec.encode(CommitToken(ring, members, 1, entries)), net.now)
        assert (node.phase is Phase.GATHER) == bool(code), code
        assert not code or node.counters[code] == 1


@pytest.mark.parametrize("times", [2, 3])
def test_4_the_transitional_members_stay_the_same_after_several_attempts(times: int) -> None:
    net = Net("abcd")
    net.settle("abcd")
    first = ring_of(net, "a").id
    net.crash("d")
    lost = aborting(net, times)
    net.settle("abc", within=20.0)
    assert len(lost) == times
    for name in "abc":
        (moved,) = net.transitions(name)
        assert ([m.name for m in moved.members], moved.ring) == (["a", "b", "c"], first)


def test_a_frame_that_arrives_in_commit_is_not_taken() -> None:
    """My frames are already listed in the commit token. With one more frame I would deliver what
    the members that come along do not even look for (Spread, fixed again in 2018)."""
    net = Net("abc")
    net.settle("abc")
    late: list[bytes] = []

    def drop(source: str, _to: str, frame: bytes) -> bool:
        if source == "c" and frame[1] == FrameKind.DATA:
            late.append(frame)
        return source == "c" and frame[1] == FrameKind.DATA

    net.drop = drop
    net.submit("c", b"late", Guarantee.AGREED)
    net.run(0.1, lambda: bool(late))
    parted(net, Phase.COMMIT)
    net.nodes["b"].receive(late[0], net.now)
    net.settle("ab")
    assert agree(net, "a", "b") == []


def test_10_a_recovery_as_large_as_the_store_terminates() -> None:
    config = RingConfig(frame_bytes_max=1024, store_frames_max=256)
    net = Net("abc", config=config)
    net.settle("abc")
    # One frame never reaches c, so no later frame becomes stable.
    net.drop = lambda _s, to, f: to == "c" and b"needle" in f
    net.submit("a", b"needle", Guarantee.AGREED)
    for i in range(299):
        net.submit("a", bytes(900) + b"%d" % i, Guarantee.AGREED)
    net.run(0.1)
    assert ring_of(net, "a").window.high >= config.store_frames_max - config.window_frames
    net.crash("b")
    net.drop = lambda *_: False
    net.settle("ac", within=15.0)
    net.run(1.0)
    assert len(agree(net, "a", "c")) == 300


def test_15_recovered_frames_are_kept_until_all_have_them() -> None:
    net = Net("abc")
    net.settle("abc")
    refused: list[int] = []

    def drop(source: str, to: str, frame: bytes) -> bool:
        node = net.nodes[source]
        if frame[1] != FrameKind.DATA or to != "b":
            return False
        data = node.codec.decode(frame, node.codec.open(frame))
        assert isinstance(data, Data)
        if data.content is Content.RECOVERED and len(refused) < 60:
            refused.append(data.seq)
            return True
        return data.content is not Content.RECOVERED

    net.drop = drop
    for i in range(30):
        net.submit("a", b"%d" % i, (Guarantee.AGREED, Guarantee.SAFE)[i % 2])  # one frame each
        net.run(0.002)
    net.crash("c")
    net.settle("ab", within=15.0)
    assert len(refused) == 60
    assert len(agree(net, "a", "b")) == 30


def test_18_a_payload_completed_in_recovery_is_whole_and_before_the_view() -> None:
    """Fragments delivered in the regular configuration and fragments found in recovery form
    one payload."""
    net = Net("abc", config=RingConfig(frame_bytes_max=1024, message_bytes_max=1 << 20))
    net.settle("abc")
    big = bytes(range(256)) * 40
    seen: list[int] = []

    def drop(source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.DATA and to == "b":
            seen.append(1)
            return len(seen) > 4  # b has the beginning
        return False

    net.drop = drop
    net.submit("a", big, Guarantee.AGREED)
    net.run(0.02)
    assert len(net.nodes["b"].delivery.assembly) == 1
    net.crash("c")
    net.run(8.0, lambda: net.nodes["b"].phase is Phase.COMMIT)
    net.drop = lambda *_: False
    net.settle("ab")
    for name in "ab":
        outputs = [o for o in net.seen[name] if isinstance(o, View | Deliver)]
        places = [i for i, o in enumerate(outputs) if isinstance(o, Deliver) and o.payloads]
        assert len(places) == 1
        views = [i for i, o in enumerate(outputs) if isinstance(o, View)]
        assert views[-2] < places[0] < views[-1]
    assert agree(net, "a", "b") == [big]


@pytest.mark.parametrize("seed", range(4))
def test_31_unequal_members_and_a_recovery_with_losses_settle(seed: int) -> None:
    net = Net("abcd", seed=seed)
    net.settle("abcd")
    net.drop = lambda s, t, f: f[1] == FrameKind.DATA and (s, t) in (("a", "b"), ("d", "c"))
    for i in range(40):
        net.submit("ad"[i % 2], b"%d" % i, (Guarantee.AGREED, Guarantee.SAFE)[i % 4 // 2])
        net.run(0.0007)
    net.crash("d")
    net.drop = lambda _s, _t, f: f[1] == FrameKind.DATA and net.rng.random() < 0.3
    net.settle("abc", within=15.0)
    net.run(0.5)
    agree(net, *"abc")
    before = {c: net.count(c) for c in ("asked", "retransmitted", "token_held")}
    net.run(1.0)
    assert net.count("asked") == before["asked"] > 0
    assert net.count("retransmitted") == before["retransmitted"]
    assert net.count("token_held") > before["token_held"] + 10


def test_37_a_token_of_another_ring_changes_nothing() -> None:
    """It has a larger aru and a later hop and comes from my predecessor: only the ring's
    id differs."""
    net = Net("abc")
    net.settle("abc")
    net.submit("a", b"x")
    net.run(1.0)
    node = net.nodes["b"]
    ring = ring_of(net, "b")
    other = ring.id._replace(seq=ring.id.seq + 1)
    stray = Token(other, ring.hop + 50, 900, 900, 0xFFFF, 0, 0, False, ring.marks, ())
    before = (dict(node.context.due), ring.describe(), ring.idle, ring.aru_seen, ring.aru_sent)
    node.receive(net.nodes["a"].codec.encode(stray), net.now)
    node.drained(net.now)
    after = (dict(node.context.due), ring.describe(), ring.idle, ring.aru_seen, ring.aru_sent)
    assert before == after
    assert waiting_token(node) is None
    assert node.counters["token_other_ring"] == 1
