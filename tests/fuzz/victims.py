"""A live node in each phase, and as the corpus the frames that a real ring of three sent."""

from __future__ import annotations

import copy
import random
from typing import NamedTuple

from tests.support.ring.virtual_network import Net, waiting_token
from vsync.totem.events import Broadcast, Send
from vsync.totem.node import Node
from vsync.totem.phases import Phase
from vsync.types import Guarantee
from vsync.wire.codec import Codec
from vsync.wire.messages import Content, Data, FrameKind, Message

Corpus = list[tuple[FrameKind, bytes, Message]]
FRAMES_A_KIND = 40


class Victim(NamedTuple):
    """A node as it was at one moment of a run, to be copied and fuzzed."""

    label: str
    node: Node
    now: float
    codecs: tuple[Codec, ...]  # of the members it knows: their envelopes are accepted

    def fresh(self) -> Node:
        """An independent copy."""
        return copy.deepcopy(self.node)


class Recorder(Net):
    """A ring that records its frames, and node b the first time it is in each phase."""

    def __init__(self) -> None:
        self.frames_sent: list[bytes] = []
        self.victims: dict[str, Victim] = {}
        super().__init__("abc", seed=3)

    def flush(self, name: str) -> None:
        node = self.nodes[name]
        for output in node.context.out:
            if isinstance(output, Send | Broadcast):
                self.frames_sent.append(output.frame)
        super().flush(name)
        if name == "b":
            self.keep(node)

    def keep(self, node: Node) -> None:
        label = node.phase.name
        if node.phase is Phase.OPERATIONAL:
            assert node.membership.current is not None
            label += " busy" if node.membership.current.window.high else " new"
            label += " with token" if waiting_token(node) is not None else ""
        if label not in self.victims:
            self.add(label, copy.deepcopy(node))

    def add(self, label: str, node: Node) -> None:
        codecs = tuple(other.codec for name, other in self.nodes.items() if name != "b")
        self.victims[label] = Victim(label, node, self.now, codecs)


def record() -> tuple[list[Victim], Corpus]:
    """Victims in every phase, and the corpus."""
    net = Recorder()
    net.run(2.0, lambda: all(len(n.members) == 3 for n in net.nodes.values()))
    for number in range(40):
        for name, node in net.nodes.items():
            node.submit(
                f"{name}{number}".encode() * (1 + number), net.now, Guarantee(1 + number % 2)
            )
            net.flush(name)
        net.run(0.002)
    net.nodes["a"].submit(bytes(200_000), net.now)
    net.nodes["c"].send_direct(net.nodes["b"].me, b"psst")
    for name in "ac":
        net.flush(name)
    net.run(0.5)
    net.drop = lambda *_: net.rng.random() < 0.3
    for _ in range(30):
        net.nodes["a"].submit(bytes(3_000), net.now)
        net.flush("a")
        net.run(0.01)
    net.drop = lambda *_: False
    net.suspect("a", net.nodes["b"].me.address, refused=False)  # probed, and answered
    net.run(0.1)
    net.crash("a", noticed=True)
    net.run(3.0)
    net.boot("a")
    net.run(3.0)
    _half_open(net)
    idle = Node(net.nodes["b"].me, "test", net.config, random.Random(1))
    left = copy.deepcopy(net.nodes["b"])
    left.leave(net.now)
    left.take()
    net.add("IDLE", idle)
    net.add("LEFT", left)
    missing = {phase.name for phase in Phase} - {label.split()[0] for label in net.victims}
    assert not missing, f"no victim in {missing}"
    return list(net.victims.values()), _corpus(net.frames_sent, idle.codec)


def _half_open(net: Recorder) -> None:
    """A wrapped frame of an older ring, which only a recovery with losses sends."""
    for _ in range(5):
        net.split("ab", "c")
        for name in "abc":
            net.nodes[name].submit(bytes(500), net.now)
            net.flush(name)
        net.drop = lambda *_: net.rng.random() < 0.2
        net.run(2.0)
        net.drop = lambda *_: False
        net.split()
        net.run(2.0)


def _corpus(frames: list[bytes], codec: Codec) -> Corpus:
    """Some frames of each kind, evenly over the recording."""
    by_kind: dict[str, Corpus] = {}
    for frame in frames:
        envelope = codec.open(frame)
        message = codec.decode(frame, envelope)
        label = envelope.kind.name
        if isinstance(message, Data):
            label += f" {Content(message.content).name}"
        by_kind.setdefault(label, []).append((envelope.kind, frame[envelope.start :], message))
    recorded = {label.split()[0] for label in by_kind}
    for kind in FrameKind:
        assert kind.name in recorded, f"the recording has no {kind.name}"
    chosen: Corpus = []
    for found in by_kind.values():
        step = max(1, len(found) // FRAMES_A_KIND)
        chosen += found[::step][:FRAMES_A_KIND]
    return chosen
