"""One incarnation of the real arbiter in virtual time; the file of its record is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgpack

from broker.exit_codes import Exit
from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord
from tests.sim.broker.lease import lease_of
from tests.sim.world.member import SimMember
from tests.sim.world.tap import Tap
from vsync.primary.component import Primary
from vsync.primary.events import PROMISED, PrimaryPhase
from vsync.totem.events import Direct, Note, Output
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.broker.stack import BrokerStack

POLL_S = 0.01


class ArbiterRing:
    """The ring of one arbiter (`ports.Ring`); the judge reads along."""

    def __init__(self, upper: SimArbiter) -> None:
        self._upper = upper

    def submit(self, payload: bytes, guarantee: Guarantee, *, urgent: bool = True) -> bool:
        upper = self._upper
        if payload[:1] == PROMISED:
            epoch = msgpack.unpackb(payload[1:], use_list=False)[1]
            upper.stack.promises(upper.member.name, epoch, upper.primary.members)
            if upper.record.promised_epoch < epoch:
                text = f"{upper.member.name} promises {epoch}, its file holds {upper.record}"
                upper.stack.judge.broken("G8", text)
        return upper.tap.submit(payload, upper.world.now, guarantee, urgent=urgent)

    def set_mark(self, mark: int) -> None:
        upper = self._upper
        if upper.record.epoch < mark:
            text = f"{upper.member.name} reports epoch {mark}, its file holds {upper.record}"
            upper.stack.judge.broken("G9", text)
        upper.tap.core.set_mark(mark, upper.world.now)

    def expect_mark(self, mark: int) -> None:
        """The token does not wait for its file."""


class SimArbiter:
    """An `Upper` of the simulator, and the process of an arbiter (`arbiter.ArbiterShell`)."""

    def __init__(self, stack: BrokerStack, member: SimMember, tap: Tap) -> None:
        self.stack, self.member, self.tap, self.world = stack, member, tap, member.world
        self.tape = self.world.tape.fork(f"arbiter {member.name} {member.incarnation}")
        self.dead = False
        self._waiting: list[tuple[ArbiterRecord, Callable[[], None]]] = []
        self._writing = False
        record = stack.records.setdefault(member.name, ArbiterRecord("simulated", member.name))
        record = stack.records[member.name] = replace(record, incarnation=member.incarnation)
        self.arbiter = Arbiter(
            tap.me, record, ArbiterRing(self), lease_of(tap.core, self.world), self,
            size=stack.data_members(self.world.plan),
            requested=stack.requested(self.world.plan, member.name),
        )  # fmt: skip

    # -- for the simulator -----------------------------------------------------------------------

    @property
    def record(self) -> ArbiterRecord:
        """The contents of its file."""
        return self.stack.records[self.member.name]

    @property
    def primary(self) -> Primary:
        return self.arbiter.primary

    @property
    def ready(self) -> bool:
        return self.primary.phase is PrimaryPhase.ACTIVE and not self._waiting

    def started(self, now: float) -> None:
        self.arbiter.start()

    def on_output(self, output: Output, now: float) -> None:
        if not self.dead and not isinstance(output, (Direct, Note)):
            self.arbiter.on_output(output)

    def pump(self, now: float) -> None:
        self.arbiter.work()

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        """It has no clients."""
        return False

    def crashed(self) -> None:
        self.dead = True
        if self._writing and self.tape.chance(0.5):
            self.stack.records[self.member.name] = self._waiting[0][0]

    # -- its process -----------------------------------------------------------------------------

    def write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        self._waiting.append((record, then))
        self._begin()

    def _begin(self) -> None:
        if self._waiting and not self._writing:
            self._writing = True
            self.world.after(self.member.fsync_s(self.tape), self._written)

    def _written(self) -> None:
        if self.dead or self.member.disk_waits(self._written) or self.member.disk_failed():
            return
        record, then = self._waiting.pop(0)
        self.stack.records[self.member.name] = record
        self.stack.judge.counters["arbiter_records"] += 1
        self._writing = False
        self._begin()
        self.later(0.0, then)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.after(delay_s, self._later, call)

    def _later(self, call: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.member.paused:
            self.world.after(POLL_S, self._later, call)
            return
        call()
        self.member.finish_step()

    def stop(self, code: Exit, reason: str) -> None:
        if self.world.plan.has("voter_changes"):
            self.stack.tell(self.world.plan, self.member.name, reason)
            self.world.after(0.0, self._leave)
            return
        self.stack.judge.broken("G0", f"{self.member.name} stops: {reason}")

    def _leave(self) -> None:
        """Its options are not the voters' rule; the operator restarts it with the right ones."""
        if not self.dead:
            self.member.leave(self.world.plan.token_timeout_ms / 1000.0)

    def note(self, text: str) -> None:
        self.world.trace.add(self.world.now, self.member.name, "arbiter", text)
