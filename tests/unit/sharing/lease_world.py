"""A simulated world of contenders for one lease: clocks, delays, pauses, and confirms.

Each contender runs the real `LeaseThread` and `Contender` on a thread that runs only when the world
lets it, so that a seed determines the order of all steps. Before and after each step on the shared
leases time passes, sometimes so much that leases expire.

The leases are in a simulated directory or in a row of a database: the real `LeaseDatabase` and its
statements, with connections that break before or after a statement or deliver it late, and with a
clock that is set.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.sharing.databases import Answer, Database, Table, Value
from broker.sharing.lease import Contender, Found, Held, LeaseRecord, Phase, decode
from broker.sharing.lease_database import CREATE, TABLE, LeaseDatabase
from broker.sharing.lease_thread import Leases, LeaseThread
from broker.sharing.leases import LeaseGone
from store.errors import StoreError

RATES = 0.92, 1.08
"""Of two clocks the faster one runs less than a fifth faster."""
PAUSE_SHARE = 0.12
PAUSE_S = 0.1, 3.0
STEP_S = 0.01
COPY_S = 0.0, 0.6
CUT_SHARE, LATE_SHARE, SET_SHARE = 0.02, 0.01, 0.02
SET_S = 20.0
ROW = "5e" * 16


class Directory:
    """The world's leases as files: each step is atomic."""

    medium = "the world"

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    def newest_token(self) -> int:
        return max(self.records, default=0)

    def newest(self) -> Found | None:
        return self.read(self.newest_token()) if self.records else None

    def read(self, token: int) -> Found:
        raw = self.records.get(token, b"")
        return Found(token, raw, decode(raw))

    def claim(self, lease: LeaseRecord) -> bool:
        if lease.token in self.records:
            return False
        self.records[lease.token] = lease.encode()
        return True

    def renew(self, lease: LeaseRecord) -> None:
        self.records[lease.token] = lease.encode()

    def tidy(self, token: int) -> None:
        self.records = {one: raw for one, raw in self.records.items() if one >= token - 1}


class World:
    """All contenders, and the invariants over them."""

    def __init__(
        self,
        seed: int,
        count: int,
        make: Callable[[LeaseRecord], Contender] = Contender,
        *,
        in_row: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.directory = Directory()
        self.rows = Rows(self) if in_row else None
        self.generations: dict[int, set[int]] = {0: set()}
        self.confirmed: set[int] = set()
        self.takeovers = 0
        self.violations: list[str] = []
        self._make = make
        self._last_message = 0
        self._due: list[tuple[float, int, Process]] = []
        self._order = 0
        self.processes = [Process(self, f"p{index}") for index in range(count)]

    def new_contender(self, name: str) -> Contender:
        lease_ms = self.random.choice((400, 800, 800, 2000))
        return self._make(LeaseRecord(0, "c", name, name, "", lease_ms, 0))

    def delay(self) -> float:
        if self.random.random() < PAUSE_SHARE:
            return self.random.uniform(*PAUSE_S)
        return self.random.uniform(0, STEP_S)

    def resume_at(self, when: float, process: Process) -> None:
        self._order += 1
        self._due.append((when, self._order, process))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        try:
            while self._due and self.now < seconds and not self.violations:
                self._due.sort(key=lambda one: one[:2])
                self.now, _, process = self._due.pop(0)
                self._act()
                if self.rows is not None:
                    self.rows.do_what_is_late()
                process.go()
                self._act()
        finally:
            for process in self.processes:
                process.close()

    def _act(self) -> None:
        """Every process commits something now, and confirms its commits while it holds
        the lease."""
        holders = [one for one in self.processes if one.holds()]
        if len(holders) > 1:
            self.violations.append(
                f"{self.now:.3f}: {[one.name for one in holders]} hold the lease"
            )
        for one in self.processes:
            if one.generation:
                self._last_message += 1
                self.generations[one.generation].add(self._last_message)
                if one.holds():
                    self.confirmed.add(self._last_message)
        for one in holders:
            if not one.generation:
                self.violations.append(f"{self.now:.3f}: {one.name} holds without a generation")
            elif lost := self.confirmed - self.generations[one.generation]:
                self.violations.append(f"{self.now:.3f}: {one.name} has not {len(lost)} confirmed")


class Process:
    """A contender with its own clock; it starts again after a loss, and ends now and then."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.generation = 0
        self._rate = world.random.uniform(*RATES)
        self._offset = world.random.uniform(-1000, 1000)
        self._baton, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._closed = False
        self._lives, self._alive = 0, True
        self.contender = world.new_contender(name)
        world.resume_at(world.delay(), self)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def clock(self) -> float:
        return self.world.now * self._rate + self._offset

    def holds(self) -> bool:
        return self._alive and self.contender.holds(self.clock())

    def go(self) -> None:
        """Run until time has to pass."""
        self._baton.release()
        self._back.acquire()

    def close(self) -> None:
        self._closed = True
        self._baton.release()
        self._thread.join()

    def sleep(self, seconds: float) -> None:
        self.world.resume_at(self.world.now + seconds, self)
        self._back.release()
        self._baton.acquire()
        if self._closed:
            raise SystemExit

    # -- what the thread of the lease sees -------------------------------------------------------

    def _live(self) -> None:
        self._baton.acquire()
        if self._closed:
            return
        try:
            while True:
                self._one_life()
        except SystemExit:
            pass

    def _one_life(self) -> None:
        self._lives += 1
        self._alive = True
        self.generation = 0
        self.contender = contender = self.world.new_contender(f"{self.name}.{self._lives}")
        rows = self.world.rows
        delayed: Leases = (
            LeasesInRow(Path(), "c", Connection(self, rows), self.world)
            if rows is not None
            else Delayed(self, self.world.directory)
        )
        told = Heard()
        thread = LeaseThread(delayed, contender, self.clock, told, lambda call: call(), str)
        ends_at = self.world.now + self.world.random.expovariate(0.1)
        while (wait_s := thread.step()) is not None:
            if self.world.random.random() < 0.02:
                wait_s += self.world.random.uniform(0.5, 3)
            if told.news.pop("elected", False):
                self._copy(delayed)
            if contender.phase is Phase.LOST:
                return
            if self.world.now > ends_at:
                self._end(delayed)
                return
            self.sleep(wait_s)

    def _copy(self, delayed: Leases) -> None:
        """Copy, renewing meanwhile as the real thread does, if slowly."""
        contender, world = self.contender, self.world
        source, own = max(world.generations), contender.own.token
        assert source >= contender.own.generation
        left_s = world.random.choice((0.0, 0.0, world.random.uniform(*COPY_S)))
        while left_s > 0:
            self.sleep(0.1)
            left_s -= 0.1
            began = self.clock()
            written = contender.renewal(began)
            assert written is not None
            try:
                delayed.renew(written)
                newest = delayed.newest_token()
            except LeaseGone:
                newest = 0
            except OSError:
                continue
            contender.renewed(written, newest, began, self.clock())
            if contender.phase is Phase.LOST:
                return
        world.generations[own] = set(world.generations[source])
        self.generation = own
        world.takeovers += 1
        contender.serve()
        if world.rows is None and world.random.random() < 0.5:
            world.directory.tidy(own)

    def _end(self, delayed: Leases) -> None:
        """End by a kill or in order."""
        if self.world.random.random() < 0.5:
            last = self.contender.ends(Held.RELEASED)
            if last is not None:
                with contextlib.suppress(LeaseGone, OSError):
                    delayed.renew(last)
        self.generation, self._alive = 0, False
        self.sleep(self.world.random.uniform(0, 2))


class Delayed:
    """The directory as a process sees it: time passes before and after each step."""

    medium = "the world"

    def __init__(self, process: Process, directory: Directory) -> None:
        self._process, self._directory = process, directory

    def _wait(self) -> None:
        self._process.sleep(self._process.world.delay())

    def newest_token(self) -> int:
        self._wait()
        found = self._directory.newest_token()
        self._wait()
        return found

    def newest(self) -> Found | None:
        self._wait()
        found = self._directory.newest()
        self._wait()
        if found is not None and self._process.world.random.random() < 0.02:
            return replace_torn(found)
        return found

    def read(self, token: int) -> Found:
        self._wait()
        found = self._directory.read(token)
        self._wait()
        return found

    def claim(self, lease: LeaseRecord) -> bool:
        self._wait()
        got = self._directory.claim(lease)
        self._wait()
        return got

    def renew(self, lease: LeaseRecord) -> None:
        self._wait()
        self._directory.renew(lease)
        self._wait()


class Rows:
    """The world's database: each statement is atomic, and its clock is set."""

    def __init__(self, world: World) -> None:
        self._world, self._set_s = world, 0.0
        self._late: list[tuple[float, str, Sequence[Value]]] = []
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self._connection.create_function("world_seconds", 0, lambda: world.now + self._set_s)
        self._connection.execute(CREATE)
        self._connection.execute(
            f"INSERT INTO {TABLE} VALUES (?, 0, '', 0, 'released', 0, 0, 0, '', '', '')", [ROW]
        )

    def do(self, statement: str, values: Sequence[Value]) -> Answer:
        chance = self._world.random
        if chance.random() < SET_SHARE:
            self._set_s += chance.uniform(-SET_S, SET_S)
        cursor = self._connection.execute(statement.replace("%s", "?"), values)
        return Answer(cursor.fetchall(), cursor.rowcount)

    def do_late(self, statement: str, values: Sequence[Value]) -> None:
        delay_s = self._world.random.expovariate(0.5)
        self._late.append((self._world.now + delay_s, statement, values))

    def do_what_is_late(self) -> None:
        due = [one for one in self._late if one[0] <= self._world.now]
        self._late = [one for one in self._late if one[0] > self._world.now]
        for _, statement, values in due:
            self.do(statement, values)


class Connection(Database):
    """The database as a process reaches it."""

    seconds = "world_seconds()"
    finds_table = "SELECT 1 WHERE %s <> ''"

    def __init__(self, process: Process, rows: Rows) -> None:
        super().__init__("the world", Table(TABLE, CREATE))
        self._process, self._rows = process, rows

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, BrokenPipeError)

    def _connect(self) -> None: ...

    def _disconnect(self) -> None: ...

    def _do(self, statement: str, values: Sequence[Value]) -> Answer:
        process, chance = self._process, self._process.world.random
        process.sleep(process.world.delay())
        what = chance.random()
        if what < LATE_SHARE:
            self._rows.do_late(statement, values)
            raise BrokenPipeError
        if what < LATE_SHARE + CUT_SHARE:
            raise BrokenPipeError
        answer = self._rows.do(statement, values)
        if what < LATE_SHARE + 2 * CUT_SHARE:
            raise BrokenPipeError
        process.sleep(process.world.delay())
        return answer


class LeasesInRow(LeaseDatabase):
    """The real lease in a database, over the world's generations."""

    def __init__(self, directory: Path, cluster: str, database: Database, world: World) -> None:
        super().__init__(directory, cluster, database)
        self._world = world

    def _highest_generation(self) -> int:
        return max(self._world.generations)

    def _complete(self) -> int:
        return max(self._world.generations)

    def _read_mark(self) -> str:
        return ROW


def replace_torn(found: Found) -> Found:
    """The same as a reader finds it while it is being written."""
    return Found(found.token, found.raw[:20] + b"?" + found.raw[21:], None)


class Heard:
    """What the loop is told."""

    def __init__(self) -> None:
        self.news: dict[str, bool] = {}

    def waits(self, found: Found) -> None: ...

    def elected(self) -> None:
        self.news["elected"] = True

    def serves(self) -> None: ...

    def lost(self, found: Found | None) -> None: ...

    def shut_down(self) -> None: ...

    def failed(self, error: StoreError) -> None:
        raise AssertionError(error)

    def broke(self, error: Exception) -> None:
        raise AssertionError(error)
