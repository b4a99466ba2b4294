"""The accelerated ring: what is sent before and after the token, requests, and the right
to send."""

from __future__ import annotations

import random

import pytest

from tests.support.ring.virtual_network import Net, waiting_token
from vsync.totem.config import RingConfig
from vsync.types import Guarantee
from vsync.wire.messages import Data, FrameKind, Token

AHEAD = [0, 1, 4, 16]


def config(ahead: int, lead: int = 2) -> RingConfig:
    return RingConfig(frame_bytes_max=1024, accelerated_frames=ahead, lead_frames=lead)


def wire(net: Net, source: str, to: str) -> list[Token | Data]:
    """Return a list that collects what one member sends another from now on, in order."""
    found: list[Token | Data] = []
    codec = net.nodes[to].codec

    def spy(one: str, other: str, frame: bytes) -> bool:
        if (one, other) == (source, to) and frame[1] in (FrameKind.TOKEN, FrameKind.DATA):
            message = codec.decode(frame, codec.open(frame))
            assert isinstance(message, Token | Data)
            found.append(message)
        return False

    net.drop = spy
    return found


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("frames", [1, 2, 3, 12, 24])
def test_the_last_frames_of_a_visit_follow_the_token(ahead: int, frames: int) -> None:
    net = Net("abc", config=config(ahead))
    net.settle("abc")
    net.run(0.5)
    found = wire(net, "b", "c")
    for i in range(frames):
        net.submit("b", bytes(900) + b"%d" % i)
    net.run(0.02)
    first = next(i for i, m in enumerate(found) if isinstance(m, Data))
    burst = found[first : first + frames + 1]
    token = next(i for i, m in enumerate(burst) if isinstance(m, Token))
    after = [m for m in burst[token + 1 :] if isinstance(m, Data)]
    assert len(after) == max(0, min(ahead, frames - net.config.lead_frames))
    # The token already counts frames that are not sent yet; all arrive in order.
    seqs = [m.seq for m in burst if isinstance(m, Data)]
    assert burst[token].seq == seqs[-1]
    assert seqs == list(range(seqs[0], seqs[0] + frames))


def test_retransmissions_go_before_the_token() -> None:
    """What c lost is sent before a's token, although all of a's new frames may follow the token."""
    net = Net("abc", config=config(16, lead=0))
    net.settle("abc")
    lost: list[bytes] = []

    def lose(_source: str, to: str, frame: bytes) -> bool:
        if frame[1] == FrameKind.DATA and to == "c" and not lost:
            lost.append(frame)
            return True
        return False

    net.drop = lose
    net.submit("a", b"lost")
    net.run(0.02, lambda: bool(lost))
    node = net.nodes["a"]
    net.run(0.02, lambda: waiting_token(node) is None and node.counters["retransmitted"] == 0)
    sent: list[int] = []
    codec = node.codec

    def spy(source: str, to: str, frame: bytes) -> bool:
        if (source, to) == ("a", "c") and frame[1] == FrameKind.DATA:
            message = codec.decode(frame, codec.open(frame))
            assert isinstance(message, Data)
            sent.append(message.seq)
        elif (source, to) == ("a", "b") and frame[1] == FrameKind.TOKEN:
            sent.append(0)
        return False

    net.drop = spy
    for i in range(200):
        net.submit("a", bytes(900) + b"%d" % i)
    net.run(0.1)
    again = sent.index(1)
    token = sent.index(0, again)
    # The retransmission took one place of the visit; 16 of the other frames follow the token.
    assert token - again == net.config.personal_frames - 16
    assert sent[token + 1] == sent[token - 1] + 1


@pytest.mark.parametrize("ahead", AHEAD)
def test_delivery_is_the_same_on_and_off_and_nothing_is_sent_twice(ahead: int) -> None:
    net = Net("abc", config=config(ahead))
    net.settle("abc")
    for i in range(400):
        assert net.submit("abc"[i % 3], bytes(700) + b"%d" % i)
    net.run(1.0)
    assert len(net.payloads("a")) == 400
    assert net.payloads("a") == net.payloads("b") == net.payloads("c")
    assert net.count("asked") == net.count("retransmitted") == 0


def test_members_with_different_settings_of_it_still_agree() -> None:
    """It only affects speed, so a cluster may change it member by member."""
    net = Net("", config=config(0))
    for name, ahead in zip("abcd", AHEAD, strict=True):
        net.config = config(ahead)
        net.boot(name)
    net.settle("abcd")
    views = len(net.views("a"))
    rng = random.Random(3)
    net.drop = lambda _s, _t, f: f[1] == FrameKind.DATA and rng.random() < 0.05
    for i in range(300):
        net.submit(
            "abcd"[i % 4], bytes(800) + b"%d" % i, Guarantee.SAFE if i % 3 else Guarantee.AGREED
        )
        if i % 50 == 0:
            net.run(0.005)
    net.run(2.0)
    assert len(net.payloads("a")) == 300
    assert all(net.payloads(n) == net.payloads("a") for n in "bcd")
    assert len(net.views("a")) == views


@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_sums_match_the_members_whatever_is_lost(seed: int) -> None:
    """The arithmetic is signed: a rotation's frames never exceed the window, sums never drift
    or wrap."""
    net = Net("abcd", seed=seed, config=config(16))
    net.settle("abcd")
    rng = random.Random(seed)
    wrong: list[str] = []
    seen = [0]

    def check(source: str, _to: str, frame: bytes) -> bool:
        codec = net.nodes[source].codec
        if frame[1] == FrameKind.TOKEN:
            token = codec.decode(frame, codec.open(frame))
            rings = [n.membership.current for n in net.nodes.values()]
            assert isinstance(token, Token)
            flows = [r.flow for r in rings if r is not None and r.id == token.ring]
            newest = max(r.hop for r in rings if r is not None)
            if token.hop > newest and len(flows) == 4:
                seen[0] += 1
                if token.sent != sum(f.sent for f in flows) or token.sent > 64:
                    wrong.append(f"sent {token}")
                if token.backlog != sum(f.waiting for f in flows):
                    wrong.append(f"backlog {token}")
        return frame[1] == FrameKind.DATA and rng.random() < 0.1

    net.drop = check
    for i in range(1500):
        net.submit("abcd"[min(3, rng.randrange(8))], bytes(rng.randrange(2000)))
        if i % 100 == 0:
            net.run(0.003)
    net.run(3.0)
    assert not wrong
    assert seen[0] > 100
    assert len(net.payloads("a")) == 1500
