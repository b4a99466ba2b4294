"""A simulated disk under the real commit queue: it is slow, stands still, fills up, fails.

`store.commit_queue` decides what is written next, as in a process; here the writer is not a thread
but an event of the world.  A write under way when the power fails is there as a whole afterwards,
or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from broker.durability.store_writer import CheckpointWriter, begin_checkpoint
from broker.replication.replica import Replica
from store.commit_queue import Call, CommitQueue, Task
from store.errors import StoreStuck
from tests.sim.world.random_tape import Tape
from tests.support.stores.memory import MemoryStore

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

POLL_S = 0.01
PACKING_S = 0.0004
"""How far the clock of a checkpoint advances at each call: a slice packs a few chunks."""


def run_to_end(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine that never waits here, as all that it awaits is done at once."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something")


class SimWake:
    """The lock of a world with one thread; `notify` makes the disk look for work."""

    def __init__(self, kick: Callable[[], None]) -> None:
        self.notify = kick

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """No other thread runs."""


class SimHandle:
    """A pending call, which can be cancelled."""

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None

    def __call__(self) -> None:
        if self.call is not None:
            self.call()


class SimTimers:
    """The part of one incarnation's event loop that a checkpoint needs."""

    def __init__(self, upper: BrokerUpper) -> None:
        self._upper = upper
        self._packing = 0.0

    def call_soon(self, callback: Call, /) -> SimHandle:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Call, /) -> SimHandle:
        handle = SimHandle(callback)
        self._upper.later(delay, handle)
        return handle

    def clock(self) -> float:
        self._packing += PACKING_S
        return self._packing


class SimWriter(CommitQueue):
    """The commit queue of one open store, written by a simulated disk."""

    def __init__(
        self, upper: BrokerUpper, tape: Tape, store: MemoryStore, on_durable: Callable[[int], None]
    ) -> None:
        self.upper, self.member, self.tape, self.disk = upper, upper.member, tape, store.disk
        self._writing: Task | None = None
        self._over = self._kicked = False
        self._timers = SimTimers(upper)
        world = self.member.world
        super().__init__(
            store, SimWake(self._kick), lambda: world.now, on_durable, upper.store_failed,
            lambda: False,
        )  # fmt: skip
        self._kick()

    def checkpoint(
        self, replica: Replica, done: Callable[[], None], given_up: Callable[[], None]
    ) -> CheckpointWriter:
        def counted() -> None:
            self.upper.judge.counters["checkpoints"] += 1
            done()

        self.upper.note("checkpoint", str(replica.history))
        clock = self._timers.clock
        return begin_checkpoint(
            self, self._timers, replica, counted, given_up, self.on_failed, clock
        )

    def close(self) -> None:
        """Commit all submitted entries and end; the caller waits for it, and hears of it later."""
        self.stop()
        while (task := self._writing or self.take()) is not None:
            self._writing = None
            self._perform(task)
        self._over = True

    async def drain(self, _patience_s: float | None = None) -> None:
        """The same: a member that ends waits for its disk, though not for ever."""
        if self.member.disk_frozen:
            raise StoreStuck("the simulated disk does not answer")
        self.close()

    def crash(self, keep: bool) -> None:
        """The power fails."""
        if self._writing is not None and keep and not self.member.disk_fails:
            self._writing.write()
        self._over = True

    def _kick(self) -> None:
        """Wake the writer at once, or after the caller has continued for a while."""
        if self._writing is not None or self._over:
            return
        if self.tape.chance(0.5):
            self._begin()
        elif not self._kicked:
            self._kicked = True
            self.member.world.after(0.0, self._begin)

    def _begin(self) -> None:
        self._kicked = False
        if self._writing is None and not self._over:
            self._writing = self.take()
            if self._writing is not None:
                member = self.member
                member.world.after(member.fsync_s(self.tape), self._written, self._writing)

    def _written(self, task: Task) -> None:
        if self._over or self._writing is not task:
            return
        if self.member.disk_waits(partial(self._written, task)):
            return
        self._writing = None
        self._perform(task)
        self._kick()

    def _perform(self, task: Task) -> None:
        disk, member = self.disk, self.member
        disk.fails = member.disk_fails
        try:
            calls = task.write()
        except Exception as error:
            member.world.fault("commit_failed", f"{member.name}: {error}", member)
            calls = self.fail(error)
        finally:
            disk.fails = False
        if calls:
            member.world.after(member.turn_s() * self.tape.between(0.0, 2.0), self._tell, calls)

    def _tell(self, calls: list[Call]) -> None:
        """Tell the loop, which hears of it when it runs and may have had other turns before."""
        if self.upper.dead:
            return
        if self.member.paused:
            self.member.world.after(POLL_S, self._tell, calls)
            return
        for call in calls:
            call()
            if self.upper.dead:
                return
        self.member.finish_step()
