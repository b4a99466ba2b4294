"""Pages of waiting messages on a simulated disk: read late, not at all while it stands still, and
no longer once it fails.

Applying runs on a second stack, as in a process; the two take turns, so a seed always gives the
same run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.durability.pages import ApplyStack
from broker.waiting.pager import COUNTERS, Pager, Work
from store.errors import StoreFailed
from tests.properties.models.memory_shelf import MemoryShelf
from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper


class SimShelf(MemoryShelf):
    """A shelf that fails while `sick`."""

    sick = False

    def get(self, place: tuple[int, int, int]) -> bytes:
        if self.sick:
            raise StoreFailed("the simulated disk gives nothing back")
        return super().get(place)


class SimPages:
    """The pages of one incarnation of a member, in the place of `broker.durability.pages`."""

    def __init__(self, upper: BrokerUpper, tape: Tape) -> None:
        self._upper, self._tape = upper, tape
        self._shelf = SimShelf()
        limit = tape.pick((0, 2_000, 1 << 30))
        self._read_s = tape.pick((0.0, 0.0003, 0.005, 0.05))
        self._write_s = tape.pick((0.0, 0.001, 0.05))
        self.pager = Pager(self._shelf, limit, self._read, self._write, dict.fromkeys(COUNTERS, 0))
        self.executor = ApplyStack(self._wake)

    def _wake(self) -> None:
        self._upper.judge.counters["pages_waited_for"] += 1
        self._upper.schedule()

    def _read(self, work: Work) -> None:
        self._later(self._read_s, work)

    def _write(self, work: Work) -> None:
        self._later(self._write_s, work)

    def _later(self, took_s: float, work: Work) -> None:
        if not took_s:
            work()  # the system has it in its cache
            return
        slow = self._upper.member.disk_slowness
        self._upper.world.after(took_s * slow * self._tape.between(0.1, 2.0), self._do, work)

    def _do(self, work: Work) -> None:
        member = self._upper.member
        if self._upper.dead or member.disk_waits(partial(self._do, work)):
            return
        self._shelf.sick = member.disk_fails
        work()
        self._shelf.sick = False
