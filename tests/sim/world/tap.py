"""Records what passes between a core and its driver.

The tap numbers every accepted submit and puts the number in front of the payload, so the log knows
each message by its source and number whatever the layer above sends.  To that layer the tap looks
like the core.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tests.sim.checkers.history import (
    Delivered,
    Ended,
    Installed,
    Item,
    Process,
    Submitted,
    Transited,
    Who,
)
from tests.sim.world.ringtrace import Recorder
from vsync.totem.events import (
    Broadcast,
    Deliver,
    Direct,
    Marks,
    Note,
    Output,
    Send,
    Transitional,
    View,
)
from vsync.totem.node import Node
from vsync.totem.phases import Phase
from vsync.types import NO_RING, Guarantee, Member, RingId

HEADER = struct.Struct(">1sIII")  # source, incarnation, number, checksum of the rest
FRAMES = (Send, Broadcast)
FOREIGN = Item(("?", 0), 0, 0)


class Core(Protocol):
    """The part of `vsync.totem.node.Node` that the simulator needs."""

    @property
    def mark(self) -> int: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def ring(self) -> RingId: ...
    @property
    def counters(self) -> Mapping[str, int]: ...
    @property
    def members(self) -> tuple[Member, ...]: ...
    def start(self, now: float) -> None: ...
    def receive(self, frame: bytes, now: float) -> None: ...
    def drained(self, now: float) -> None: ...
    def next_timer(self) -> float | None: ...
    def wake(self, now: float) -> None: ...
    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool: ...
    def set_mark(self, mark: int, now: float) -> None: ...
    def expect_mark(self, mark: int) -> None: ...
    def send_direct(self, to: Member, payload: bytes) -> None: ...
    def leave(self, now: float) -> None: ...
    def suspect(self, address: str, now: float, *, refused: bool) -> None: ...
    def take(self) -> list[Output]: ...
    def invariants(self) -> None: ...


def who(member: Member) -> Who:
    return (member.name, member.incarnation)


def pack(name: str, incarnation: int, number: int, payload: bytes) -> bytes:
    return HEADER.pack(name.encode(), incarnation, number, zlib.crc32(payload)) + payload


def unpack(payload: bytes) -> Item:
    """Read a numbered payload; anything else becomes an item that nobody can have submitted."""
    if len(payload) < HEADER.size:
        return FOREIGN
    name, incarnation, number, digest = HEADER.unpack_from(payload)
    if zlib.crc32(payload[HEADER.size :]) != digest:
        return FOREIGN
    return Item((name.decode("ascii", "replace"), incarnation), number, digest)


class Tap:
    """One process's core; everything that passes is recorded in its `Process`."""

    def __init__(
        self, core: Core, me: Member, process: Process, trace: Callable[[str, str], None]
    ) -> None:
        self.core = core
        inner = getattr(core, "core", core)  # behind its own clock
        self.node = inner if isinstance(inner, Node) else None
        self.me = me
        self.process = process
        self.trace = trace
        self.submitted = 0
        self.own_delivered = 0
        self.last_view: View | None = None
        self.marks: dict[str, int] = {}  # as last shown
        self.recorder: Recorder | None = None
        self._ring = NO_RING
        self._seq = 0

    def submit(
        self,
        payload: bytes,
        now: float,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool:
        number = self.submitted + 1
        numbered = pack(self.me.name, self.me.incarnation, number, payload)
        if not self.core.submit(numbered, now, guarantee, urgent=urgent):
            return False
        self.submitted = number
        item = Item(who(self.me), number, zlib.crc32(payload))
        self.process.entries.append(Submitted(now, item, guarantee, self._ring, self._seq))
        self.trace("submit", f"#{number} {len(payload)} bytes {guarantee.name.lower()}")
        return True

    def set_mark(self, mark: int, now: float) -> None:
        self.core.set_mark(mark, now)

    def send_direct(self, to: Member, payload: bytes) -> None:
        """A datagram with a checksum, so that its receiver can tell it from a forged one."""
        self.core.send_direct(to, pack(self.me.name, self.me.incarnation, 0, payload))

    def take(self, now: float) -> Sequence[Output]:
        """The core's outputs, deliveries stripped of their numbers."""
        outputs: list[Output] = self.core.take()
        if not outputs:
            return outputs
        if self.recorder is not None:
            outputs = self.recorder.heard(outputs, now)
        for index, output in enumerate(outputs):
            if isinstance(output, FRAMES):
                continue
            if isinstance(output, Deliver):
                outputs[index] = self._on_deliver(output, now)
            elif isinstance(output, View):
                members = tuple(map(who, output.members))
                self.last_view = output
                self.process.entries.append(Installed(now, output.ring, members))
                self.trace("view", f"{output.ring} {{{','.join(m for m, _ in members)}}}")
            elif isinstance(output, Transitional):
                members = tuple(map(who, output.members))
                self.process.entries.append(Transited(now, output.ring, members))
                self.trace("transitional", f"{output.ring} {{{','.join(m for m, _ in members)}}}")
            elif isinstance(output, Marks):
                self.marks = output.marks
            elif isinstance(output, Direct):
                item = unpack(output.payload)
                # The ring gives datagrams no checksum: corrupted on the wire they arrive as
                # something else.
                assert item in (FOREIGN, item._replace(source=who(output.sender))), output
            elif isinstance(output, Note):
                fields = " ".join(f"{key}={value}" for key, value in output.fields.items())
                self.trace(output.code, fields)
        return outputs

    def _on_deliver(self, d: Deliver, now: float) -> Deliver:
        items = tuple(unpack(payload) for payload in d.payloads)
        entry = Delivered(now, d.ring, d.seq, who(d.sender), items, d.guarantee, d.transitional)
        self.process.entries.append(entry)
        self.own_delivered += sum(item.source == self.process.who for item in items)
        self._ring, self._seq = d.ring, d.seq
        level = d.guarantee.name.lower() + (" transitional" if d.transitional else "")
        numbers = ",".join(str(item.number) for item in items)
        self.trace("deliver", f"{d.ring}:{d.seq} {d.sender.name}#{numbers} {level}")
        return d._replace(payloads=[payload[HEADER.size :] for payload in d.payloads])

    def ended(self, now: float, how: str) -> None:
        self.process.entries.append(Ended(now, how))
