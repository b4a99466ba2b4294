"""The lease of a simulated member, by the clock of its own core."""

from __future__ import annotations

from collections.abc import Collection

from broker.replication.ports import Lease
from broker.watchdogs.reply_lease import ReplyLease
from tests.sim.stacks.oracle import OracleCore
from tests.sim.world.cores import OwnClock
from tests.sim.world.tap import Core
from tests.sim.world.world import World
from vsync.totem.node import Node
from vsync.types import Member, RingId


class NodeLease:
    """Lease of a real ring, by the clock of its core."""

    def __init__(self, core: Node | OwnClock, world: World) -> None:
        self._core, self._world = core, world
        node = core.core if isinstance(core, OwnClock) else core
        assert isinstance(node, Node)
        self._rate = core.rate if isinstance(core, OwnClock) else 1.0
        self._lease = ReplyLease(node.lease, self._clock, self._clock)

    def _clock(self) -> float:
        now = self._world.now
        return self._core.local(now) if isinstance(self._core, OwnClock) else now

    def holds(self, ring: RingId) -> bool:
        return self._lease.holds(ring)

    def silent_in(self, members: Collection[Member]) -> float:
        return self._lease.silent_in(members) / self._rate


class IdealLease:
    """Lease of a core without frames: it ends the moment another member moves on."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def holds(self, ring: RingId) -> bool:
        core = self._core
        return core.lease_holds(ring) if isinstance(core, OracleCore) else ring == core.ring

    def silent_in(self, members: Collection[Member]) -> float:
        return 0.0


def lease_of(core: Core, world: World) -> Lease:
    """The lease that belongs to a core."""
    return NodeLease(core, world) if isinstance(core, Node | OwnClock) else IdealLease(core)
