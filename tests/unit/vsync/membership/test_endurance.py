"""Ten thousand changes of the ring leave nothing behind (pitfall 35, at length)."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.support.ring.virtual_network import Net

CHANGES = 10_000
SAMPLES = 5
BLOCKS_MAX = 4_000
"""What caches with a bound may differ by: a member keeps up to 1,024 ring ids that it has read."""


@pytest.mark.slow
@pytest.mark.timeout(600)  # 40 s of processor time, more by the clock on a busy machine
def test_ten_thousand_changes_leave_no_objects_or_bytes_behind() -> None:
    net = Net("ab")
    net.settle("ab")
    blocks, objects = [], []
    for number in range(1, CHANGES // 2 + 1):
        if number % 5 == 0:
            net.submit("a", bytes(40_000))  # two frames, so that there are fragments
        net.split("a", "b")
        net.settle("a", "b")
        net.split()
        net.settle("ab")
        for seen in net.seen.values():
            seen.clear()
        if number % (CHANGES // 2 // SAMPLES) == 0:
            gc.collect()
            blocks.append(sys.getallocatedblocks())
            objects.append(len(gc.get_objects()))
    assert net.nodes["a"].ring.seq > CHANGES
    for counted in (blocks, objects):
        assert len(counted) == SAMPLES
        assert abs(counted[-1] - counted[0]) < BLOCKS_MAX, counted
