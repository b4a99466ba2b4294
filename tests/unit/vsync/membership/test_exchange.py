"""A member that installs the new ring has all of the old one, whatever is lost or delayed.

The exchange alone: real rings and exchanges, a token that arrives, and data frames of which each
member holds any and any may be lost. Windows are small, so that the exchange takes many rotations
and members finish sending at different times, which is rare in whole members with ordinary windows.
"""

from __future__ import annotations

import random

import pytest

from vsync.totem.config import RingConfig
from vsync.totem.membership.recovery import Exchange
from vsync.totem.ordering.ring import Ring
from vsync.types import Guarantee, Member, RingId
from vsync.wire.codec import Codec, data_body, ring_block
from vsync.wire.messages import CommitEntry, Content, Data

OLD, NEW = RingId(3, "a", 1), RingId(4, "a", 1)
CODEC = Codec(Member("z", 1, "z:1"), "test", 1 << 20, bytes(4), RingConfig().wire_versions)
HOPS_MAX = 3000


def frame(seq: int, origin: int) -> Data:
    items = [b"%d" % seq]
    body = data_body(ring_block(OLD), seq, origin, Content.PAYLOADS, Guarantee.AGREED, items)
    return Data(OLD, seq, origin, Content.PAYLOADS, Guarantee.AGREED, items, body)


class Attempt:
    """Members of one old ring, each with an arbitrary subset of its frames, and the new
    ring's token."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        window = rng.choice([2, 4, 8])
        config = RingConfig(
            window_frames=window, personal_frames=rng.randint(1, window), accelerated_frames=0
        )
        members = tuple(Member(name, 1, "") for name in "abcde"[: rng.choice([2, 3, 3, 4, 5])])
        marks = (0,) * len(members)
        old = [Ring(OLD, members, member, marks, config, 30) for member in members]
        for ring in old:
            share = rng.choice([0.1, 0.5, 0.9])
            for seq in range(1, rng.randint(1, 30) + 1):
                if rng.random() < share:
                    ring.add(frame(seq, seq % len(members)))
        windows = [ring.window for ring in old]
        entries = tuple(CommitEntry(OLD, one.aru, one.high, 0, 0, ()) for one in windows)
        self.rings = [Ring(NEW, members, member, marks, config, 30) for member in members]
        self.exchanges = [
            Exchange(ring, held, entries) for ring, held in zip(self.rings, old, strict=True)
        ]
        self.loss = rng.choice([0.0, 0.1, 0.3, 0.5])
        self.held = {seq for one in windows for seq in range(1, one.high + 1) if one.get(seq)}

    def lacks(self, index: int) -> list[int]:
        """Frames that some member of the old ring holds and this one lacks."""
        exchange = self.exchanges[index]
        assert exchange.old is not None
        held = exchange.old.window
        return sorted(s for s in self.held if held.get(s) is None and s not in exchange.found)

    def run(self) -> None:
        """Pass the token round until all have installed, each with every frame."""
        token, installed, index = self.rings[0].first_token(), set[int](), 0
        for _ in range(HOPS_MAX):
            ring, exchange = self.rings[index], self.exchanges[index]
            assert not ring.refuses(token)
            ring.accept(token)
            visit = ring.visit(token, exchange, 0, 0)
            for body in visit.resent + visit.before:
                self._broadcast(index, body)
            forward = exchange.flag(visit.token)
            ring.consume_recovered()
            ring.release()
            if exchange.complete(forward, token.aru):
                assert not self.lacks(index), f"member {index} installs without all frames"
                installed.add(index)
            if len(installed) == len(self.rings):
                return
            token, index = forward, (index + 1) % len(self.rings)
        raise AssertionError("no end")

    def _broadcast(self, source: int, body: bytes) -> None:
        for to, ring in enumerate(self.rings):
            if to != source and self.rng.random() >= self.loss:
                data = CODEC.data(body)
                if not ring.add(data):
                    self.exchanges[to].absorb(CODEC.data(data.items[0]))


@pytest.mark.parametrize("first", range(0, 800, 200))
def test_installing_members_have_every_frame_anybody_held(first: int) -> None:
    for seed in range(first, first + 200):
        Attempt(random.Random(seed)).run()
