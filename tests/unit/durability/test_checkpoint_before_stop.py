"""An orderly stop of one member leaves a checkpoint, and nothing prevents the stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker.durability import store_writer
from broker.durability.recovery import recover
from broker.durability.store_writer import (
    CheckpointBeforeStop,
    CheckpointFailed,
    CheckpointWriter,
    DataDirectoryDevice,
    LmdbPersister,
    close_store,
)
from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.persister import Persister
from broker.replication.replica import Item, Replica
from broker.waiting.pager import PageLost
from store.api import Marker, Meta
from store.errors import NoSpace, StoreError
from store.files.space import Reserve
from store.lmdb_store import LmdbStore
from vsync.primary.events import Activation
from vsync.types import RingId

RING = RingId(1, "a", 1)
PROMISE = Promise("c", ("a",), 1)
PATIENCE_S = 30.0
STOPPING = "the next start is a short one"


class Rig:
    """A member's store with some log in it, on a loop whose time the test sets."""

    def __init__(self, path: Path, *, items: int = 5) -> None:
        self.errors: list[StoreError] = []
        self.replica = Replica("a", Machine("a"), History())
        self.replica.apply(
            Item(1, RING, 1, "a", Activation(1, (("a", 1, True),), False, ("a",), "c"))
        )
        self.store = LmdbStore(path / "store", Meta("c", "a", "s"))
        loop = asyncio.get_running_loop()
        device = DataDirectoryDevice(path, loop, self.errors.append, Reserve(path))
        self.persister: LmdbPersister = Persister(
            device, self.store, self.store.meta, lambda _: None
        )
        self.number = 0
        for _ in range(items):
            self.apply()
        self.before_stop = CheckpointBeforeStop(self.persister, PATIENCE_S)

    def apply(self) -> None:
        """Apply one more item and hand it to the store."""
        self.number += 1
        session = self.replica.machine.sessions["a"].session
        command = c.ConnectionOpen(c.CONNECTION_OPEN, self.number, "/", "guest", f"p:{self.number}")
        body = pack_blob(session, self.number, 1, [command])
        self.replica.apply(Item(1, RING, 1 + self.number, "a", body))
        self.keep()

    def keep(self) -> None:
        """The work of a turn."""
        self.persister.keep(self.replica, PROMISE)

    def awaited(self, now: float = 0.0) -> bool:
        return self.before_stop.awaited(self.replica, now)

    async def until_over(self) -> None:
        """Wait as the member does while its turns go on."""
        async with asyncio.timeout(30):
            while self.awaited():
                self.apply()
                await asyncio.sleep(0.001)

    async def end(self, marker: Marker = Marker.DIRTY) -> LmdbStore:
        await close_store(self.persister, self.replica, marker, "")
        assert recover("a", self.store).machine.root() == self.replica.machine.root()
        return self.store


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any log worth a checkpoint unless a test says otherwise."""
    monkeypatch.setattr(store_writer, "SHORT_LOG_BYTES", 0)


def run(path: Path, test: Callable[[Rig], object]) -> None:
    async def whole() -> None:
        rig = Rig(path)
        result = test(rig)
        if asyncio.iscoroutine(result):
            await result
        store = await rig.end()
        assert store.meta.marker is Marker.DIRTY, "the others have gone on: it is not clean"
        store.close()

    asyncio.run(whole())


def run_to_the_end(path: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    """The same for a shutdown of all: nothing is applied any more, and no turn comes."""

    async def whole() -> None:
        rig = Rig(path)
        rig.replica.shutdown_id = "the end"
        await test(rig)
        store = await rig.end(Marker.CLEAN)
        assert store.meta.marker is Marker.CLEAN, "with a checkpoint or without"
        assert store.meta.shutdown_id == "the end"
        assert store.meta.position == rig.replica.history.position
        store.close()

    asyncio.run(whole())


def test_a_shutdown_of_all_leaves_one_of_the_last_position(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.before_stop.at_the_end(rig.replica, PROMISE)
        saved = rig.store.checkpoint()
        assert saved is not None
        assert saved[0] == rig.replica.history.position
        assert rig.persister.bytes_to_start[1] == 0, "the next start executes nothing"

    run_to_the_end(tmp_path, test)


@pytest.mark.parametrize("how", ["asked again", "failed"])
def test_a_shutdown_of_all_does_not_wait_for_one_that_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The loop lives meanwhile, so it hears a second SIGTERM, and that the store failed."""

    def endless(_: Replica) -> Iterator[None]:
        while True:
            yield None  # a page is being read, from a disk that does not answer

    monkeypatch.setattr(store_writer, "checkpoint_in_steps", endless)

    async def test(rig: Rig) -> None:
        asyncio.get_running_loop().call_later(0.01, rig.before_stop.skip, how)
        async with asyncio.timeout(30):
            await rig.before_stop.at_the_end(rig.replica, PROMISE)
        assert rig.store.checkpoint() is None

    run_to_the_end(tmp_path, test)


def test_a_shutdown_of_all_waits_so_long_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(_: Replica) -> Iterator[bytes | None]:
        yield bytes(3 << 20)
        while True:
            yield None

    monkeypatch.setattr(store_writer, "checkpoint_in_steps", slow)

    async def test(rig: Rig) -> None:
        now = 100.0

        def later() -> float:
            nonlocal now
            now += PATIENCE_S / 20
            return now

        monkeypatch.setattr(asyncio.get_running_loop(), "time", later)
        await rig.before_stop.at_the_end(rig.replica, PROMISE)
        monkeypatch.undo()
        assert not rig.persister.checkpoint_to_come

    with caplog.at_level(logging.INFO):
        run_to_the_end(tmp_path, test)
    assert "the checkpoint before the stop: 3.0 MiB packed, the last one had 0.0 MiB" in caplog.text
    assert caplog.messages[-1].endswith("the disk did not take it within 30 s")


def test_it_is_written_while_the_member_goes_on(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        begun = rig.replica.history.position
        await rig.until_over()
        saved = rig.store.checkpoint()
        assert saved is not None
        assert saved[0] >= begun
        assert rig.persister.meta.position > begun, "items applied meanwhile are kept too"
        assert not rig.awaited(), "it is requested once"
        assert rig.persister.checkpoints == 1

    run(tmp_path, test)


def test_a_checkpoint_under_way_is_waited_for(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.persister.request_checkpoint()
        rig.keep()
        await rig.until_over()
        assert rig.persister.checkpoints == 1

    run(tmp_path, test)


def test_a_short_log_is_not_worth_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "SHORT_LOG_BYTES", 4 << 20)

    def test(rig: Rig) -> None:
        assert not rig.awaited()
        rig.keep()
        assert rig.store.checkpoint() is None

    run(tmp_path, test)


@pytest.mark.parametrize("what", ["disputed", "broken", "to be replaced"])
def test_a_doubtful_state_is_not_checkpointed(tmp_path: Path, what: str) -> None:
    def test(rig: Rig) -> None:
        rig.persister.hold_checkpoints = what == "disputed"
        rig.replica.broken = what == "broken"
        rig.persister.switching = what == "to be replaced"
        assert not rig.awaited()
        rig.persister.switching = False
        rig.keep()
        assert rig.store.checkpoint() is None

    run(tmp_path, test)


def test_a_state_that_becomes_doubtful_is_not_waited_for(tmp_path: Path) -> None:
    def test(rig: Rig) -> None:
        assert rig.awaited()
        rig.persister.hold_checkpoints = True
        assert not rig.awaited()

    run(tmp_path, test)


@pytest.mark.parametrize("asked_again", [False, True])
def test_the_wait_ends_at_a_time_limit_or_at_a_second_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, asked_again: bool
) -> None:
    """The disk takes nothing: nothing here writes a slice."""

    def test(rig: Rig) -> None:
        assert rig.awaited(now=100.0)
        rig.keep()
        assert rig.persister.checkpoint_to_come
        assert rig.awaited(now=100.0 + PATIENCE_S - 0.1)
        if asked_again:
            rig.before_stop.skip("it was asked to end once more")
            assert not rig.awaited(now=100.2)
        else:
            assert not rig.awaited(now=100.0 + PATIENCE_S)
        assert not rig.persister.checkpoint_to_come

    with caplog.at_level(logging.INFO):
        run(tmp_path, test)
    why = "asked to end once more" if asked_again else "the disk did not take it within 30 s"
    assert [why in one.message for one in caplog.records] == [False, False, True]
    assert "0.0 MiB packed" in caplog.messages[1]
    assert STOPPING in caplog.messages[0]


def test_a_second_request_before_it_begins_makes_none(tmp_path: Path) -> None:
    def test(rig: Rig) -> None:
        rig.before_stop.skip("again")
        assert not rig.awaited()

    run(tmp_path, test)


def full(store: LmdbStore, _: int) -> object:
    """There is no space for a checkpoint."""

    class Full:
        def add(self, _: list[bytes]) -> None:
            raise NoSpace(str(store.path), 1)

        def abandon(self) -> None:
            """Nothing to abandon."""

    return Full()


def test_the_stop_goes_on_without_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LmdbStore, "stage", full)
            await rig.until_over()
        assert not rig.errors

    run(tmp_path, test)
    assert "there is no space for it" in caplog.messages[-1]


def test_a_state_that_cannot_be_packed_differs_from_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member goes on to its orderly end: the store accepts what follows."""

    async def test(rig: Rig) -> None:
        def broken(_: CheckpointWriter) -> None:
            raise PageLost("a page is gone")

        with monkeypatch.context() as patch:
            patch.setattr(
                store_writer,
                "checkpoint_in_steps",
                lambda _: (broken(rig) for _ in (1,)),  # type: ignore[arg-type,func-returns-value]
            )
            assert rig.awaited()
            rig.keep()
            async with asyncio.timeout(30):
                while not rig.errors:  # noqa: ASYNC110  (as a member polls)
                    await asyncio.sleep(0.001)
        (error,) = rig.errors
        assert isinstance(error, CheckpointFailed)
        assert isinstance(error.__cause__, PageLost)
        rig.before_stop.skip(str(error))
        assert not rig.awaited()
        rig.apply()

    run(tmp_path, test)


def test_the_log_behind_the_checkpoint_is_counted_as_the_store_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a checkpoint in progress, and after one that was abandoned."""

    async def settled(rig: Rig) -> None:
        async with asyncio.timeout(30):
            while rig.persister.writer.lag().waiting or rig.persister.checkpoint_to_come:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def test(rig: Rig) -> None:
        await settled(rig)
        assert rig.persister.bytes_to_start == rig.store.bytes_to_start()
        with monkeypatch.context() as patch:
            patch.setattr(LmdbStore, "stage", full)
            rig.persister.request_checkpoint()
            rig.apply()
            await settled(rig)
        assert rig.persister.bytes_to_start == rig.store.bytes_to_start()
        before = rig.persister.bytes_to_start[1]
        rig.persister.request_checkpoint()
        rig.apply()
        rig.apply()
        assert rig.persister.bytes_to_start[1] > before, "until it is written"
        await settled(rig)
        (size, behind), (there, log) = rig.persister.bytes_to_start, rig.store.bytes_to_start()
        assert size == there
        assert 0 < behind <= log < before, "a partly covered commit counts whole"

    run(tmp_path, test)
