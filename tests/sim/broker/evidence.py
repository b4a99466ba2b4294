"""The member log of a simulated member: the judge reads along, a file gets it if one is wanted.

As with the real one, what was flushed is written later, by somebody else, all that has gathered at
once; a crash loses the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine.machine import Machine
from broker.memberlog.recorder import Recorder
from broker.replication.chain import History
from broker.replication.replica import Applied
from tests.sim.broker.judge import BrokerJudge
from vsync.primary.events import Activated
from vsync.types import Member, RingId


class SimLog:
    """What `broker.memberlog.recorder` is to a member (`ports.EvidenceLog`)."""

    def __init__(
        self,
        name: str,
        judge: BrokerJudge,
        chain: bytes,
        on_activated: Callable[[Activated], frozenset[str]],
        recorder: Recorder | None,
        on_applied: Callable[[Applied], None],
        write: Callable[[Callable[[], None]], None],
    ) -> None:
        """`write` has the call made when a write that begins now is done."""
        self.name, self.judge, self.recorder = name, judge, recorder
        self._tip = chain
        self._on_activated, self._on_applied = on_activated, on_applied
        self.written = 0  # of the flushes, which are numbered
        self._write, self._flushes, self._writing = write, 0, False
        self._unflushed: list[bytes] = []
        self._unwritten: list[bytes] = []
        judge.logs[name] = set()

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
        recorded = self.recorder is not None and self.recorder.unflushed
        return bool(self._unflushed) or recorded

    def flush(self) -> int:
        if self._unflushed:
            self._flushes += 1
            self._unwritten += self._unflushed
            self._unflushed.clear()
            self._begin()
        if self.recorder is not None:
            self.recorder.flush()
        return self._flushes

    def _begin(self) -> None:
        if self._unwritten and not self._writing:
            self._writing = True
            gathered, self._unwritten = self._unwritten, []
            upto = self._flushes
            self._write(lambda: self._done(gathered, upto))

    def _done(self, gathered: list[bytes], upto: int) -> None:
        self._writing = False
        self.judge.logs[self.name].update(gathered)
        self.written = upto
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

    def close(self) -> None:
        """The process is gone; what was recorded and not flushed is gone with it."""
        if self.recorder is not None:
            self.recorder.close()
