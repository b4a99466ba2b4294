"""The cost of larger rings: 3 to 64 members in virtual time, one row each.

    python -m tests.bench.scaling
    python -m tests.bench.scaling --members 3 16 64 --seed 2

All members are real cores on a virtual network (50 to 300 us a hop, nothing lost), so times are
those of the protocol alone: no CPU, no wire.  Joins and frames are counted as sent, one for each
receiver.  docs/reference/bench-ring.md explains the columns, docs/SCALING.md the conclusions.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.wire.messages import FrameKind

DEFAULT_MEMBERS = [3, 5, 9, 16, 24, 32, 48, 64]
PATIENCE_S = 120.0


class Row(NamedTuple):
    """One size of ring.  Times in milliseconds of virtual time, sizes in bytes."""

    members: int
    form_ms: float
    form_joins: int
    form_rings: int
    join_bytes: int
    commit_bytes: int
    token_bytes: int
    full_token_bytes: int
    rotation_ms: float
    safe_ms: float
    killed_ms: float
    silent_ms: float
    leave_ms: float
    enter_ms: float
    enter_joins: int


class Meter:
    """Frames on the network, by kind: how many, and the largest."""

    def __init__(self, net: Net) -> None:
        self.count: Counter[int] = Counter()
        self.largest: Counter[int] = Counter()
        net.drop = self._see

    def _see(self, _source: str, _to: str, frame: bytes) -> bool:
        kind = frame[1]
        self.count[kind] += 1
        self.largest[kind] = max(self.largest[kind], len(frame))
        return False


def joined(net: Net, names: list[str]) -> Callable[[], bool]:
    """Whether these are one ring; cheaper than `settled` for many members."""

    def one() -> bool:
        return (
            all(len(net.nodes[n].members) == len(names) for n in names)
            and len({net.nodes[n].ring for n in names}) == 1
        )

    return one


def timed(net: Net, until: Callable[[], bool]) -> float:
    start = net.now
    net.run(PATIENCE_S, until)
    return 1000 * (net.now - start)


def measure(members: int, seed: int) -> Row:
    """One cluster of this many members, from start to stop."""
    names = [f"m{i:02}" for i in range(members)]
    config = RingConfig(members_max=max(64, members))
    net = Net("", seed=seed, config=config)
    meter = Meter(net)
    for name in names:
        net.boot(name)
    form_ms = timed(net, joined(net, names))
    form_joins = meter.count[FrameKind.JOIN]
    form_rings = max(node.ring.seq for node in net.nodes.values())
    join_bytes, commit_bytes = meter.largest[FrameKind.JOIN], meter.largest[FrameKind.COMMIT]

    net.run(0.02)
    hop, start = hops(net, names[0]), net.now
    for name in names:  # keep the token awake
        net.submit(name, name.encode())
    net.run(0.5, lambda: hops(net, names[0]) >= hop + 6 * members)
    rotation_ms = 1000 * (net.now - start) / ((hops(net, names[0]) - hop) / members)
    net.run(1.0)
    net.submit(names[1], b"safe")
    safe_ms = timed(net, lambda: b"safe" in net.payloads(names[1])[-1:])

    net.run(1.0)
    gone = names[len(names) // 2]
    rest = [n for n in names if n != gone]
    net.crash(gone, noticed=True)
    killed_ms = timed(net, joined(net, rest))
    net.run(1.0)
    before = meter.count[FrameKind.JOIN]
    net.boot(gone)
    enter_ms = timed(net, joined(net, names))
    enter_joins = meter.count[FrameKind.JOIN] - before
    net.run(1.0)
    net.nodes[gone].leave(net.now)
    net.flush(gone)
    leave_ms = timed(net, joined(net, rest))
    del net.nodes[gone]
    net.run(1.0)
    net.boot(gone)
    timed(net, joined(net, names))
    net.run(1.0)
    net.crash(gone)
    silent_ms = timed(net, joined(net, rest))
    token = meter.largest[FrameKind.TOKEN]
    return Row(
        members,
        form_ms,
        form_joins,
        form_rings,
        join_bytes,
        commit_bytes,
        token,
        token + 8 * config.wanted_max,
        rotation_ms,
        safe_ms,
        killed_ms,
        silent_ms,
        leave_ms,
        enter_ms,
        enter_joins,
    )


def hops(net: Net, name: str) -> int:
    ring = net.nodes[name].membership.current
    return ring.hop if ring is not None else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=DEFAULT_MEMBERS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.stdout.write("".join(f"{name:>17}" for name in Row._fields) + "\n")
    for members in options.members:
        row = measure(members, options.seed)
        cells = (f"{v:.1f}" if isinstance(v, float) else str(v) for v in row)
        sys.stdout.write("".join(f"{cell:>17}" for cell in cells) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
