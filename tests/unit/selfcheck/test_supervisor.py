"""How a member handles its own failures, in which order, and what it reports (G10, G16)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from broker.divergence.digest_vote import DigestVerdict, Value
from broker.divergence.judgement import Judgement
from broker.divergence.split_vote import PROVEN
from broker.exit_codes import Exit
from broker.incidents.quarantine import KIND
from broker.machine.commands import Command, Reexecuted
from broker.options.retention import BackupPolicy
from broker.replication.chain import Promise
from broker.replication.replica import ExecutionFailed
from broker.selfcheck.scrubber import DiskFault
from broker.selfcheck.supervisor import DISPUTE, SCRUB, Supervisor, is_damage
from broker.waiting.pager import PageDamaged, PageLost
from store.errors import DiskBroken, FullMidway, NotWritable, StoreFailed, StoreMissing, broken
from store.lmdb_store import LmdbStore
from tests.support.replaced_message import replace_message
from tests.support.stores.poisoned import (
    META,
    POISON,
    VOTERS,
    Author,
    flip_on_disk,
    publish,
    raising,
)

if TYPE_CHECKING:
    from broker.durability.store_writer import LmdbPersister
    from broker.replication.controller import Controller


class FakeController:
    """The part of a controller that the supervisor reads and calls."""

    def __init__(self, author: Author, voters: tuple[str, ...] = VOTERS) -> None:
        self.replica = author.replica
        self.promise = Promise("ab" * 16, voters, 1)
        self.judgement = Judgement("a", voters, 64)
        self.halted, self.filled, self.serving = "", True, True
        self.primary = SimpleNamespace(has_caught_up=True)
        self.admitted: list[Command] = []
        self.codes: list[Exit] = []
        self.distrust: list[tuple[str, bool]] = []

    def submit(self, commands: list[Command]) -> None:
        self.admitted += commands

    def stop_serving(self) -> None:
        self.serving = False

    def distrusted(self, reason: str, *, disk: bool, code: Exit = Exit.INTERNAL) -> None:
        self.distrust.append((reason, disk))
        self.codes.append(code)


class FakePersister:
    """The part of a persister that the supervisor reads."""

    def __init__(self, store: LmdbStore) -> None:
        self.store, self.meta = store, store.meta
        self.checkpoints = 0
        self.hold_checkpoints = self.switching = False
        self.requests = 0

    @property
    def for_others(self) -> LmdbStore | None:
        return None if self.switching else self.store

    def request_checkpoint(self) -> None:
        self.requests += 1


class FakeLog:
    """Records the verdicts."""

    def __init__(self) -> None:
        self.verdicts: list[str] = []

    def vote(self, position: int, chain: bytes, root: int, verdict: str) -> None:
        self.verdicts.append(verdict)


class Supervised:
    """A supervisor over fakes, and a store with its own history."""

    def __init__(
        self, data: Path, loop: asyncio.AbstractEventLoop, voters: tuple[str, ...], rate: int
    ) -> None:
        self.author = Author()
        self.author.submit(publish(1, b"one"))
        self.store = LmdbStore(data / "store", META)
        self.author.keep(self.store)
        self.core, self.persister = FakeController(self.author, voters), FakePersister(self.store)
        self.recorder, self.loop = FakeLog(), loop
        self.supervisor = Supervisor(data, "a")
        self.supervisor.start(
            cast("Controller", self.core), cast("LmdbPersister", self.persister),
            self.recorder.vote, rate, BackupPolicy(), loop,
        )  # fmt: skip
        self.supervisor.evidence.do = lambda work: work()  # to be checked at once

    def beat(self, times: int = 40) -> None:
        """Some turns of the loop, each with a wake-up."""

        async def turn() -> None:
            self.supervisor.wake()
            await asyncio.sleep(0.005)

        for _ in range(times):
            self.loop.run_until_complete(turn())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def test_a_failure_is_stored_before_anything_more_is_sent(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """G16."""
    member = Supervised(tmp_path, loop, VOTERS, 0)
    with raising(), pytest.raises(ExecutionFailed) as caught:
        member.author.submit(publish(2, POISON))
    code, reason = member.supervisor.failed(caught.value)
    assert code is Exit.INTERNAL
    assert "it is quarantined" in reason
    assert not member.core.serving
    assert len(member.supervisor.evidence.all(KIND)) == 1
    assert "KeyError" in member.supervisor.failed(KeyError("x"))[1]
    assert member.supervisor.all_counters()["executions_failed"] == 1


def test_a_disk_error_is_not_blamed_on_a_command_or_the_store(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    member = Supervised(tmp_path, loop, VOTERS, 0)
    of_checkpoint = StoreFailed("a checkpoint failed")
    of_checkpoint.__cause__ = PageLost("a page is gone")
    for error in (PageLost("a page is gone"), of_checkpoint):
        assert member.supervisor.failed(error) == (Exit.LATE_DISK, "a page is gone")
        assert not is_damage(error)
    assert member.supervisor.failed(StoreFailed("x")) == (Exit.INTERNAL, "the store failed: x")
    assert member.supervisor.failed(DiskBroken("x")) == (Exit.IO_ERROR, "the store failed: x")
    for changed in (NotWritable("x"), StoreMissing("x")):  # since it started
        assert member.supervisor.failed(changed) == (Exit.IO_ERROR, "the store failed: x")
    assert member.supervisor.failed(FullMidway("x")) == (Exit.FULL, "the store failed: x")
    assert not member.supervisor.evidence.all(KIND)


def test_a_wrong_page_is_the_stores_fault(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """G10: it is found before anybody has the message, and another member gives its state."""
    member = Supervised(tmp_path, loop, VOTERS, 0)
    of_checkpoint = StoreFailed("a checkpoint failed")
    of_checkpoint.__cause__ = PageDamaged("message 7 has another hash")
    for error in (PageDamaged("message 7 has another hash"), of_checkpoint):
        expected = Exit.INTERNAL, "message 7 has another hash"
        assert member.supervisor.failed(error) == expected
        assert is_damage(error)
    assert not member.core.serving


def test_corrupt_memory_ends_the_member_and_its_disk_is_trusted(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10."""
    monkeypatch.setattr("broker.selfcheck.scrubber.PAUSE_S", 0.0)
    member = Supervised(tmp_path, loop, VOTERS, 10_000)
    member.beat(5)
    assert not member.core.distrust
    ready = member.author.replica.machine.vhosts["/"].queues["q"].ready
    replace_message(ready, 0, (*ready.first[:8], b"0ne"))
    while not member.core.distrust:
        member.beat(1)
    reason, disk = member.core.distrust[0]
    assert "queue 'q' in vhost '/'" in reason
    assert not disk
    assert member.supervisor.evidence.all(SCRUB)


@pytest.mark.parametrize("voters", [VOTERS, ("a",)])
def test_a_corrupt_disk_is_rewritten_twice_and_then_left(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, voters: tuple[str, ...]
) -> None:
    """G10: where others have the state; a sole voter goes on with its memory."""
    member = Supervised(tmp_path, loop, voters, 0)
    done: asyncio.Future[DiskFault | None] = loop.create_future()
    done.set_result(DiskFault("the checksum of an entry does not hold"))
    for time in (1, 2):
        member.supervisor._disk_read(done)
        assert member.persister.requests == time
        assert not member.core.distrust
    member.supervisor._disk_read(done)
    assert bool(member.core.distrust) is (len(voters) > 1)
    assert all(disk for _, disk in member.core.distrust)


def test_after_a_fault_the_disk_is_read_again_past_the_new_checkpoint(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.selfcheck.supervisor.DISK_PERIOD_S", 0.0)
    member = Supervised(tmp_path, loop, VOTERS, 1)
    flip_on_disk(member.store, b"l")
    while not member.persister.requests:
        member.beat(1)
    member.beat(10)
    counters = member.supervisor.all_counters()
    assert (counters["disk_faults"], counters["disk_passes"]) == (1, 0)
    flip_on_disk(member.store, b"l")  # which sends it back to the start
    member.persister.checkpoints = 1
    while not member.supervisor.all_counters()["disk_passes"]:
        member.beat(1)
    assert member.supervisor.all_counters()["disk_faults"] == 1


def test_a_store_that_is_not_in_its_place_is_believed_the_second_time(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer that replaces the store looks the same for a moment."""
    monkeypatch.setattr("broker.selfcheck.supervisor.LOOK_PERIOD_S", 0.0)
    member = Supervised(tmp_path, loop, VOTERS, 0)
    looked: list[str] = []

    def misplaced(store: LmdbStore) -> str:
        looked.append("gone" if store is member.persister.store else "replaced")
        return "it is gone"

    monkeypatch.setattr(LmdbStore, "misplaced", misplaced)
    while not looked:
        member.beat(1)
    member.persister.store = LmdbStore(tmp_path / "other", META)
    looked.clear()
    while looked.count("gone") < 1 or member.supervisor._misplaced is not member.persister.store:
        member.beat(1)
        assert not member.core.distrust or looked.count("gone") > 1
    while not member.core.distrust:
        member.beat(1)
    (reason, disk), *_ = member.core.distrust
    assert "it is gone; a restart would not find" in reason
    assert not disk
    assert member.core.codes[0] == Exit.IO_ERROR


def test_a_store_whose_disk_broke_under_a_reader_ends_the_member(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """The scrubber brings the journal into LMDB; where nothing else is written, no commit fails."""
    member = Supervised(tmp_path, loop, VOTERS, 0)
    member.store._poison(broken("data.mdb: commit failed: Read-only file system", errno.EROFS))
    member.beat(1)
    (reason, disk), *_ = member.core.distrust
    assert reason.startswith("the store failed: data.mdb: commit failed: Read-only file system")
    assert not disk
    assert member.core.codes == [Exit.IO_ERROR]


def test_a_store_that_is_being_replaced_is_not_blamed(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed, and no longer at its place; the member is level and serves meanwhile."""
    monkeypatch.setattr("broker.selfcheck.supervisor.LOOK_PERIOD_S", 0.0)
    member = Supervised(tmp_path, loop, VOTERS, 0)
    member.persister.switching = True
    member.store.close()
    member.store.path.rename(tmp_path / "aside")
    member.beat(20)
    assert not member.core.distrust
    member.persister.switching = False
    member.beat(1)
    assert "the store is closed" in member.core.distrust[0][0]


def test_a_split_vote_is_re_executed_once_its_position_is_durable(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """G10: on another thread, from the store; the result is reported and recorded."""
    member = Supervised(tmp_path, loop, VOTERS, 0)
    member.author.submit(publish(2, b"two"))
    history = member.author.replica.history
    right = (history.epoch, history.chain, member.author.replica.machine.root())
    votes: dict[str, Value] = {"a": right, "b": (history.epoch, b"w" * 16, 1)}
    verdict = DigestVerdict(history.position, None, (), True, votes)
    member.core.judgement._open(verdict)
    member.core.halted = member.core.judgement.fenced
    member.supervisor.voted(verdict)
    assert member.persister.hold_checkpoints, "at once: one could begin in this turn"
    member.supervisor.voted(verdict)
    member.beat(5)
    assert member.persister.hold_checkpoints
    assert not member.core.admitted
    member.author.keep(member.store)
    while not member.core.admitted:
        member.beat(1)
    member.beat(5)
    (report,) = member.core.admitted
    assert isinstance(report, Reexecuted)
    assert tuple(report)[1:] == (history.position, PROVEN, *right[1:])
    (_, facts), *_ = member.supervisor.evidence.all(DISPUTE)
    assert "checkpoint at position 0" in str(facts["reexecuted"])
    assert member.recorder.verdicts == ["undecided", "undecided"]
    member.core.judgement.report("a", report)
    member.core.judgement.report("b", report)
    member.core.halted = member.core.judgement.fenced
    member.beat(1)
    assert member.supervisor.counters["convictions"] == 1
    assert not member.persister.hold_checkpoints
