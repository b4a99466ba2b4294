"""A tiny network of nodes in one process, with a virtual clock: for tests of the ring alone.

It delivers in time order with a small seeded delay per link (first in, first out per link, as TCP),
and has only the faults that these tests name.  The seeded simulator is separate and larger.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from vsync.totem.config import RingConfig
from vsync.totem.events import Broadcast, Deliver, Hail, Output, Send, Transitional, View
from vsync.totem.node import Node
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member
from vsync.wire.messages import Token

Drop = Callable[[str, str, bytes], bool]


def waiting_token(node: Node) -> Token | None:
    """The token that the node has accepted and not used yet."""
    phase = node.membership.operational or node.membership.recovery
    return phase.waiting if phase is not None else None


class Net:
    """Nodes by name, the links between them, and the events of each application."""

    def __init__(self, names: str = "abc", seed: int = 1, config: RingConfig | None = None) -> None:
        self.rng = random.Random(seed)
        self.config = config or RingConfig()
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.seen: dict[str, list[Output]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.paused: dict[str, list[bytes]] = {}
        self.drop: Drop = lambda _from, _to, _frame: False
        self.frames = 0
        self.far_s = 0.0  # how much longer each frame takes than in one room
        self._incarnations = 0
        self._heap: list[tuple[float, int, str, int, bytes]] = []
        self._count = 0
        self._last: dict[tuple[str, str], float] = {}
        for name in names.split() if " " in names else names:
            self.boot(name)

    def make(self, me: Member) -> Node:
        """Return the node of a member."""
        return Node(me, "test", self.config, random.Random(self.rng.random()))

    def boot(self, name: str) -> Node:
        """Start a member, or a new incarnation of it."""
        self._incarnations += 1
        node = self.make(Member(name, self._incarnations, f"{name}:1"))
        self.nodes[name] = node
        self.seen[name] = []
        node.start(self.now)
        self.flush(name)
        return node

    def crash(self, name: str, noticed: bool = False) -> list[Output]:
        """Kill a member; `noticed`: on a reachable host, whose kernel closes its connections."""
        address = self.nodes.pop(name).me.address
        for other in list(self.nodes) if noticed else ():
            self.suspect(other, address, False)
            self.suspect(other, address, True)
        return self.seen[name]

    def suspect(self, name: str, address: str, refused: bool) -> None:
        """Let the transport of `name` hint that its link to `address` broke, or was refused."""
        self.nodes[name].suspect(address, self.now, refused=refused)
        self.flush(name)

    def split(self, *sides: str) -> None:
        """Let only members of the same side receive each other's frames; no sides: all do."""
        self.cut = {
            (a, b)
            for left in sides
            for right in sides
            if left is not right
            for a in left
            for b in right
        }

    def flush(self, name: str) -> None:
        """Carry out a node's outputs after a call."""
        node = self.nodes[name]
        node.invariants()
        for output in node.take():
            if isinstance(output, Send):
                self._carry(name, output.to.name, output.frame)
            elif isinstance(output, Hail):
                self._carry(name, output.address.partition(":")[0], output.frame)
            elif isinstance(output, Broadcast):
                for other in list(self.nodes):
                    if other != name:
                        self._carry(name, other, output.frame)
            else:
                self.seen[name].append(output)

    def _carry(self, source: str, to: str, frame: bytes) -> None:
        if to not in self.nodes or (source, to) in self.cut or self.drop(source, to, frame):
            return
        link = (source, to)
        takes = self.far_s + self.rng.uniform(0.00005, 0.0003)
        at = max(self.now + takes, self._last.get(link, 0.0) + 1e-9)
        self._last[link] = at
        self.push(at, to, frame)

    def push(self, at: float, to: str, frame: bytes) -> None:
        """Let `frame` arrive at `to`, whoever sent it."""
        self._count += 1
        incarnation = self.nodes[to].me.incarnation
        heapq.heappush(self._heap, (at, self._count, to, incarnation, frame))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; `until` ends it early."""
        end = self.now + seconds
        while until is None or not until():
            timers = [
                (due, name)
                for name, node in self.nodes.items()
                if name not in self.paused and (due := node.next_timer()) is not None
            ]
            timer = min(timers, default=None)
            frame_at = self._heap[0][0] if self._heap else None
            if timer is not None and (frame_at is None or timer[0] <= frame_at):
                if timer[0] > end:
                    break
                self.now = max(self.now, timer[0])
                self.nodes[timer[1]].wake(self.now)
                self.flush(timer[1])
            elif frame_at is not None and frame_at <= end:
                self.now = max(self.now, frame_at)
                _, _, to, incarnation, frame = heapq.heappop(self._heap)
                node = self.nodes.get(to)
                if node is None or node.me.incarnation != incarnation:
                    continue
                if to in self.paused:
                    self.paused[to].append(frame)
                    continue
                self.frames += 1
                node.receive(frame, self.now)
                node.drained(self.now)
                self.flush(to)
            else:
                break
        if until is None:
            self.now = end
        else:
            assert until(), f"not within {seconds} s: {self.describe()}"

    def resume(self, name: str) -> None:
        """End a pause: first all queued input arrives, then the late timers fire."""
        node = self.nodes[name]
        for frame in self.paused.pop(name):
            node.receive(frame, self.now)
        node.drained(self.now)
        self.flush(name)

    def submit(
        self,
        name: str,
        payload: bytes,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool:
        taken = self.nodes[name].submit(payload, self.now, guarantee, urgent=urgent)
        self.flush(name)
        return taken

    # -- what came of it ---------------------------------------------------------------------

    def settled(self, *sides: str) -> bool:
        """Whether each side is one ring of exactly its members."""
        for side in sides or ("".join(self.nodes),):
            rings = {self.nodes[n].ring for n in side}
            names = {"".join(sorted(m.name for m in self.nodes[n].members)) for n in side}
            phases = {self.nodes[n].phase for n in side}
            if len(rings) != 1 or names != {"".join(sorted(side))} or phases != {Phase.OPERATIONAL}:
                return False
        return True

    def settle(self, *sides: str, within: float = 8.0) -> None:
        self.run(within, lambda: self.settled(*sides))

    def payloads(self, name: str) -> list[bytes]:
        return [p for o in self.seen[name] if isinstance(o, Deliver) for p in o.payloads]

    def deliveries(self, name: str) -> list[Deliver]:
        return [o for o in self.seen[name] if isinstance(o, Deliver)]

    def views(self, name: str) -> list[View]:
        return [o for o in self.seen[name] if isinstance(o, View)]

    def transitions(self, name: str) -> list[Transitional]:
        return [o for o in self.seen[name] if isinstance(o, Transitional)]

    def count(self, counter: str) -> int:
        return sum(node.counters[counter] for node in self.nodes.values())

    def describe(self) -> str:
        return "; ".join(n.describe() for n in self.nodes.values())
