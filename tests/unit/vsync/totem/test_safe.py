"""A frame a member takes for safe is held by all, whatever is lost; and who knows it first."""

from __future__ import annotations

import random

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.node import Node
from vsync.totem.ordering.ring import Ring
from vsync.wire.messages import FrameKind

CONFIG = RingConfig(window_frames=8, personal_frames=6, accelerated_frames=3)


def ring_of(node: Node) -> Ring:
    phase = node.membership.operational
    assert phase is not None
    return phase.ring


class Checked(Net):
    """Checks after each step of a member that all have what it takes for safe."""

    checks = 0

    def flush(self, name: str) -> None:
        super().flush(name)
        if self.checks:
            rings = [ring_of(node) for node in self.nodes.values()]
            assert max(ring.safe for ring in rings) <= min(ring.window.aru for ring in rings)
            self.checks += 1


@pytest.mark.turns(10)
@pytest.mark.parametrize("seed", range(40))
def test_all_have_what_any_member_takes_for_safe(seed: int) -> None:
    names = ("ab", "abc", "abcd", "abcde")[seed % 4]
    rng = random.Random(seed)
    net = Checked(names, seed, CONFIG)
    net.settle(names)
    net.run(0.1)
    share = (0.02, 0.2, 0.5)[seed % 3]
    kinds = (FrameKind.DATA, FrameKind.EARLY, FrameKind.REPORT)
    net.drop = lambda _source, _to, frame: frame[1] in kinds and rng.random() < share
    net.checks = 1
    for _ in range(150):
        for name in names:
            for _ in range(rng.choice((0, 0, 1, 2, 9))):
                net.submit(name, bytes(30_000) if rng.random() < 0.5 else b"x")
        net.run(rng.uniform(0.0, 0.004))
    net.drop = lambda _source, _to, _frame: False
    net.run(2.0)
    assert len({tuple(net.payloads(name)) for name in names}) == 1
    assert net.checks > 1000
    assert net.settled(names)


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_the_tokens_last_stop_knows_it_a_hop_before_the_sender(names: str) -> None:
    net = Net(names)
    net.settle(names)
    net.run(0.5)
    for origin in names:
        net.submit(origin, b"x")
        order = []
        for _ in range(10_000):
            net.run(0.00001)
            order += [n for n in names if net.payloads(n)[-1:] == [b"x"] and n not in order]
        last = names[names.index(origin) - 1]
        assert order[:2] == [last, origin]
        for name in names:
            net.seen[name].clear()
