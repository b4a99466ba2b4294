"""Replay of all frames: to the same incarnation, to the next one, to a later ring.

CURVE keeps replayed frames out; here they get in, and may cost a message round but no guarantee.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.events import Broadcast, Deliver, Output, Send, View
from vsync.totem.membership.compatibility import settings_hash, settings_of
from vsync.totem.node import Node
from vsync.types import Guarantee, Member
from vsync.wire.codec import Codec, data_body, ring_block
from vsync.wire.messages import Content, FrameKind


class Tape(Net):
    """A ring of three that records each frame with its receiver."""

    def __init__(self, names: str = "abc", seed: int = 1) -> None:
        self.sent: list[bytes] = []
        super().__init__(names, seed)

    def flush(self, name: str) -> None:
        for output in self.nodes[name].context.out:
            if isinstance(output, Send | Broadcast):
                self.sent.append(output.frame)
        super().flush(name)

    def form(self) -> None:
        count = len(self.nodes)
        self.run(5.0, lambda: all(len(n.members) == count for n in self.nodes.values()))

    def talk(self, rounds: int) -> None:
        for number in range(rounds):
            for name, node in self.nodes.items():
                assert node.submit(f"{name}{number}{self.now}".encode(), self.now)
                self.flush(name)
            self.run(0.01)
        self.run(0.5)

    def payloads(self, name: str) -> list[bytes]:
        return [p for one in self.seen[name] if isinstance(one, Deliver) for p in one.payloads]

    def rings(self) -> set[str]:
        return {str(node.ring) for node in self.nodes.values()}

    def replay(self, frames: list[bytes], rng: random.Random) -> None:
        for frame in frames:
            self.push(self.now + rng.uniform(0, 0.2), rng.choice(list(self.nodes)), frame)
        self.run(1.0)


def counts(nodes: dict[str, Node]) -> Counter[str]:
    return sum((Counter(node.counters) for node in nodes.values()), Counter())


def kinds(frames: list[bytes]) -> set[FrameKind]:
    return {FrameKind(frame[1]) for frame in frames}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_ring_survives_a_replay_of_all_its_frames(seed: int) -> None:
    """Same incarnation, same ring: each frame again, in any order, changes nothing."""
    net = Tape(seed=seed)
    net.form()
    net.talk(10)
    before = {name: net.payloads(name) for name in net.nodes}
    ring = net.rings()
    counted = counts(net.nodes)
    frames = list(net.sent)
    assert {FrameKind.TOKEN, FrameKind.DATA, FrameKind.JOIN, FrameKind.COMMIT} <= kinds(frames)
    net.replay(frames, random.Random(seed))
    assert net.rings() == ring, "old frames changed a view"
    assert {name: net.payloads(name) for name in net.nodes} == before
    grown = counts(net.nodes) - counted
    assert grown["token_again"]
    assert grown["data_again"]
    net.talk(3)
    assert len({tuple(net.payloads(name)) for name in net.nodes}) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replayed_frames_of_former_rings_revive_none(seed: int) -> None:
    """Members left and came back meanwhile: nothing is delivered twice, and all agree in
    the end."""
    rng = random.Random(seed)
    net = Tape(seed=seed)
    net.form()
    net.talk(5)
    net.split("ab", "c")
    net.run(5.0, lambda: {len(n.members) for n in net.nodes.values()} == {1, 2})
    net.talk(3)
    net.split()
    net.form()
    frames = list(net.sent)
    net.talk(3)
    before = {name: net.payloads(name) for name in net.nodes}
    net.replay(frames, rng)
    net.form()
    net.talk(1)
    for name in net.nodes:
        got = net.payloads(name)
        assert got[: len(before[name])] == before[name]
        assert len(got) == len(set(got)), "delivered twice"
    last = {tuple(net.payloads(name)[-3:]) for name in net.nodes}
    assert len(last) == 1


def test_frames_of_a_former_incarnation_are_dropped_and_counted() -> None:
    """c restarted: frames it sent before that do not count."""
    net = Tape()
    net.form()
    net.talk(5)
    net.run(0.5)
    former = [frame for frame in net.sent if frame[24:25] == b"c"]
    assert {FrameKind.TOKEN, FrameKind.DATA, FrameKind.JOIN} <= kinds(former)
    net.crash("c")
    net.boot("c")
    net.form()
    ring = net.rings()
    counted = counts(net.nodes)
    outputs: list[Output] = net.seen["a"]
    views = sum(isinstance(one, View) for one in outputs)
    for frame in former:
        net.push(net.now + 0.001, "a", frame)
        net.push(net.now + 0.001, "b", frame)
        net.push(net.now + 0.001, "c", frame)
    net.run(1.0)
    assert net.rings() == ring
    assert sum(isinstance(one, View) for one in outputs) == views
    grown = counts(net.nodes) - counted
    assert grown["past_incarnation"] == 2 * len(former)
    assert grown["name_of_mine"] == len(former)


def test_frames_of_another_cluster_are_dropped_and_counted() -> None:
    net = Tape()
    net.form()
    net.talk(2)
    ring = net.rings()
    foreign = [frame[:6] + b"else" + frame[10:] for frame in net.sent]
    counted = counts(net.nodes)
    net.replay(foreign, random.Random(1))
    assert net.rings() == ring
    assert (counts(net.nodes) - counted)["frame_cluster"] == len(foreign)


def test_a_number_only_the_token_holder_can_give_is_dropped_and_counted() -> None:
    """Found by fuzzing: a forged frame has the number that the holder is about to assign."""
    net = Tape("a")
    net.run(1.0)
    alone = net.nodes["a"]
    assert alone.membership.current is not None
    forger = Member("z", 9, "z:1")
    codec = Codec(forger, "test", 32_768, settings_hash(settings_of(net.config)))
    body = data_body(ring_block(alone.ring), 1, 0, Content.PAYLOADS, Guarantee.AGREED, [b"forged"])
    alone.receive(codec.data_frame(body), net.now)
    assert alone.submit(b"mine", net.now)
    net.flush("a")
    net.run(0.1)
    assert net.payloads("a") == [b"mine"]
    assert alone.counters["data_beyond_token"] == 1
