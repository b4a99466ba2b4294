"""The member log of a simulated member: the judge reads along, and a file gets it if one is wanted.

As with the real log, flushed records are written later by another thread, all that have gathered at
once; a crash loses the rest.  Whether there is a file does not change a member's behaviour.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine.machine import Machine
from broker.memberlog.recorder import Recorder
from broker.memberlog.segment_file import Step
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from broker.replication.replica import Applied
from tests.sim.broker.judge import BrokerJudge
from tests.sim.world.random_tape import Tape
from vsync.primary.events import Activated
from vsync.types import Member, RingId


class SimLogFile(MemberLogWriter):
    """The file: flushed records wait until a simulated write is done."""

    waiting: tuple[Step, ...] = ()

    def _write(self, steps: list[Step]) -> None:
        self.waiting += tuple(steps)

    def carry_out(self, count: int) -> None:
        """Write the first of the waiting records."""
        steps, self.waiting = self.waiting[:count], self.waiting[count:]
        self._file.carry_out(list(steps))

    def crash(self, tape: Tape) -> None:
        """Write some of the waiting records, the last perhaps in part, and give the file up."""
        self.carry_out(tape.number(0, len(self.waiting)))
        for step in self.waiting[:1]:
            if isinstance(step, bytes):
                self._file.carry_out([step[: tape.number(0, len(step))]])
        self._file.give_up()


class SimLog:
    """A member's evidence log (`ports.EvidenceLog`), in the place of
    `broker.memberlog.recorder`."""

    def __init__(
        self,
        name: str,
        judge: BrokerJudge,
        chain: bytes,
        on_activated: Callable[[Activated], frozenset[str]],
        file: SimLogFile | None,
        on_applied: Callable[[Applied], None],
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        """`write` schedules the call for the end of a write that begins now."""
        self.name, self.judge, self.file = name, judge, file
        self.recorder = None if file is None else Recorder(file)
        self._tip = chain
        self._on_activated, self._on_applied = on_activated, on_applied
        self.written = 0  # of the flushes, which are numbered
        self._write, self._flushes, self._writing = write, 0, False
        self._unflushed: list[bytes] = []
        self._unwritten: list[bytes] = []
        judge.logs[name] = set()

    def start(self, history: History, machine: Machine) -> None:
        if self.recorder is not None:
            self.recorder.start(history, machine)
            self.flush()

    @property
    def idle(self) -> bool:
        return not self._unflushed and self.written == self._flushes

    def batch(self, applied: Applied, history: History, root: int) -> None:
        self.judge.applied(self.name, self._tip, applied, history, root)
        self._tip = history.chain
        self._unflushed.append(history.chain)
        self._on_applied(applied)
        if self.recorder is not None:
            self.recorder.batch(applied, history, root)

    @property
    def unflushed(self) -> bool:
        return bool(self._unflushed)

    def flush(self) -> int:
        if self.recorder is not None:
            self.recorder.flush()
        if self._unflushed:
            self._flushes += 1
            self._unwritten += self._unflushed
            self._unflushed.clear()
            self._begin()
        elif self.file is not None and not self._writing:
            self.file.carry_out(len(self.file.waiting))
        return self._flushes

    def _begin(self) -> None:
        if self._unwritten and not self._writing:
            self._writing = True
            gathered, self._unwritten = self._unwritten, []
            upto, steps = self._flushes, 0 if self.file is None else len(self.file.waiting)
            self._write(lambda: self._done(gathered, upto, steps))

    def _done(self, gathered: list[bytes], upto: int, steps: int) -> None:
        self._writing = False
        self.judge.logs[self.name].update(gathered)
        self.written = upto
        if self.file is not None:
            self.file.carry_out(steps)
        self._begin()

    def view(self, ring: RingId, members: tuple[Member, ...], *, regular: bool) -> None:
        if self.recorder is not None:
            self.recorder.view(ring, members, regular=regular)

    def activated(self, event: Activated, base: History | None) -> None:
        self.judge.activated(self.name, event, base, self._on_activated(event))
        if self.recorder is not None:
            self.recorder.activated(event, base)

    def inactive(self, reason: str) -> None:
        if self.recorder is not None:
            self.recorder.inactive(reason)

    def decided(self, epoch: int) -> None:
        self.judge.counters["decided"] += 1
        if self.recorder is not None:
            self.recorder.decided(epoch)

    def durable(self, position: int) -> None:
        if self.recorder is not None:
            self.recorder.durable(position)

    def snapshot(self, history: History, machine: Machine, donor: str) -> None:
        self._tip = history.chain
        if self.recorder is not None:
            self.recorder.snapshot(history, machine, donor)

    def confirmed(self, epoch: int, durable_mark: int, positions: list[int]) -> None:
        if self.recorder is not None:
            self.recorder.confirmed(epoch, durable_mark, positions)

    def voted(self, position: int, chain: bytes, root: int, verdict: str) -> None:
        if self.recorder is not None:
            self.recorder.vote(position, chain, root, verdict)

    def stop(self, reason: str, history: History) -> None:
        """The process stops cleanly."""
        if self.recorder is not None and self.file is not None:
            self.recorder.stop(reason, history)
            self.recorder.close()
            self.file.carry_out(len(self.file.waiting))
        self.file = self.recorder = None

    def crash(self, tape: Tape) -> None:
        """The process is gone, with all records not yet written."""
        if self.file is not None:
            self.file.crash(tape)
