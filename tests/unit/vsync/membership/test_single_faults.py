"""One fault at every place: lose, or crash at, each frame of a short history (G1 to G6).

The simulator injects many faults at random; this test walks through every frame of one small story,
so that it leaves out no step of the membership protocol. The everyday `STRIDE` thins the places
out; 1 tries all of them.
"""

from __future__ import annotations

import os

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Output, Transitional, View
from vsync.types import Guarantee, RingId

STRIDE = int(os.environ.get("EXPLORE_STRIDE", "71"))
FRAMES = 740
CONFIG = RingConfig(
    token_timeout_ms=200, join_timeout_ms=20, merge_interval_ms=50, lonely_wait_ms=50, hold_ms=20
)

Passage = tuple[tuple[tuple[int, list[bytes]], ...], tuple[tuple[int, list[bytes]], ...]]


def passages(outputs: list[Output]) -> dict[tuple[RingId, tuple[str, ...], RingId], Passage]:
    """What was delivered in each ring and the transition out of it, keyed by the ring, who moved
    on, and the next ring."""
    found: dict[tuple[RingId, tuple[str, ...], RingId], Passage] = {}
    ring: RingId | None = None
    moved: tuple[str, ...] = ()
    regular: list[tuple[int, list[bytes]]] = []
    late: list[tuple[int, list[bytes]]] = []
    transitional = False
    for output in outputs:
        if isinstance(output, Deliver):
            assert output.ring == ring
            assert output.transitional == transitional
            (late if transitional else regular).append((output.seq, output.payloads))
        elif isinstance(output, Transitional):
            assert output.ring == ring
            moved, transitional = tuple(m.name for m in output.members), True
        elif isinstance(output, View):
            if ring is not None:
                assert transitional
                assert output.ring.seq > ring.seq
                found[ring, moved, output.ring] = (tuple(regular), tuple(late))
            ring, regular, late, transitional = output.ring, [], [], False
    return found


def check(net: Net, histories: list[list[Output]]) -> None:
    """Check G1 and G2, G5 and G6 over all incarnations."""
    agreed: dict[tuple[RingId, tuple[str, ...], RingId], Passage] = {}
    placed: dict[tuple[RingId, int], list[bytes]] = {}
    members: dict[RingId, tuple[object, ...]] = {}
    for outputs in histories:
        for key, passage in passages(outputs).items():
            assert agreed.setdefault(key, passage) == passage, (key, net.describe())
        seen: list[bytes] = []
        last: dict[RingId, int] = {}
        for output in outputs:
            if isinstance(output, View):
                assert members.setdefault(output.ring, output.members) == output.members
            elif isinstance(output, Deliver):
                assert output.seq > last.get(output.ring, 0)
                if not output.transitional and output.ring in last:
                    assert output.seq == last[output.ring] + 1
                last[output.ring] = output.seq
                place = (output.ring, output.seq)
                if output.payloads:
                    assert placed.setdefault(place, output.payloads) == output.payloads
                seen += output.payloads
        assert len(seen) == len(set(seen)), "delivered twice"


def story(lost: int, crashed: int) -> None:
    """Form a ring, talk, lose a member, talk, take it back; `lost` and `crashed` number the frames
    of the faults."""
    net = Net("", config=CONFIG)
    histories: list[list[Output]] = []
    count = 0

    def fault(_source: str, to: str, _frame: bytes) -> bool:
        nonlocal count
        count += 1
        if count == crashed:
            doomed.append(to)
        return count == lost

    doomed: list[str] = []
    sent: dict[str, list[bytes]] = {n: [] for n in "abcd"}

    def submit_all(names: str, label: str) -> None:
        for i in range(6):
            for name in names:
                if name not in net.nodes:
                    continue
                payload = f"{label} {name} {i}".encode() + bytes(200 * (i % 3))
                guarantee = Guarantee.SAFE if i % 2 else Guarantee.AGREED
                if net.submit(name, payload, guarantee):
                    sent[name].append(payload)
            pause(0.0007)

    def pause(seconds: float) -> None:
        end = net.now + seconds
        while net.now < end:
            net.run(min(0.0002, end - net.now + 1e-9))
            for name in doomed:
                if name in net.nodes:
                    histories.append(net.crash(name))
            doomed.clear()

    net.drop = fault
    for name in "abc":
        net.boot(name)
    pause(0.1)
    submit_all("abc", "one")
    if "b" in net.nodes:
        histories.append(net.crash("b"))
    submit_all("ac", "two")
    pause(1.0)
    submit_all("ac", "three")
    if "b" not in net.nodes:
        net.boot("b")
    pause(0.2)
    submit_all("abc", "four")
    net.drop = lambda *_: False
    net.settle(within=6.0)
    net.run(0.3)
    histories += [net.seen[name] for name in net.nodes]
    check(net, histories)
    for name in net.nodes:
        mine = [p for p in net.payloads(name) if p in sent[name]]
        expected = sent[name] if name != "b" else [p for p in sent[name] if p.startswith(b"four")]
        assert mine == expected, f"self delivery of {name} (G3)"


@pytest.mark.parametrize("start", range(4))
def test_one_frame_lost_anywhere(start: int) -> None:
    for place in range(1 + start * STRIDE // 4, FRAMES, STRIDE):
        story(lost=place, crashed=0)


@pytest.mark.parametrize("start", range(4))
def test_one_crash_anywhere(start: int) -> None:
    for place in range(1 + start * STRIDE // 4, FRAMES, STRIDE):
        story(lost=0, crashed=place)


def test_a_loss_and_a_crash_together() -> None:
    for place in range(1, FRAMES, 3 * STRIDE):
        story(lost=place, crashed=place + 1 + place % 37)
