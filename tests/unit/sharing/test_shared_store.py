"""One broker's use of a shared store, as far as no member is needed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.memberlog.records import Lease
from broker.options.modes.shared_store import SharedStoreOptions
from broker.sharing import shared_store
from broker.sharing.generations import (
    generation_path,
    make_generation,
    remove_former,
    source_for,
)
from broker.sharing.lease import Held, LeaseRecord
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.shared_store import Ended, SharedStore
from store.errors import StoreMissing


@asynccontextmanager
async def a_broker(directory: Path, lease_ms: int) -> AsyncIterator[SharedStore]:
    """What a broker has of a shared store, until the block ends."""
    loop = asyncio.get_running_loop()
    shared = SharedStore(SharedStoreOptions(directory, lease_ms), "shop", loop)
    try:
        yield shared
    finally:
        await shared.end()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def test_a_broker_ended_during_its_copy_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the middle of a long copy. (Regression: it was lost, and the broker served.)"""

    def make_and_end(directory: Path, number: int, source: int) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loops[0]).result(30)
        return make_generation(directory, number, source)

    loops: list[asyncio.AbstractEventLoop] = []
    monkeypatch.setattr(shared_store, "make_generation", make_and_end)

    async def live() -> None:
        loops.append(asyncio.get_running_loop())
        async with a_broker(tmp_path, 60_000) as shared:
            with pytest.raises(Ended):
                await shared.lead("amqp:tcp:here:1")
            assert not shared.holds()

    asyncio.run(live())
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.given_up, "the next broker need not wait for the lease"


def test_a_broker_ended_during_a_copy_that_hangs_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while the disk does not answer. (It waited for the copy, for ever.)"""
    thawed = threading.Event()

    def hang(directory: Path, number: int, source: int) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        thawed.wait()
        raise StoreMissing("nobody asks")

    monkeypatch.setattr(shared_store, "make_generation", hang)
    with pytest.raises(Ended):
        lead(tmp_path, [])
    thawed.set()
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.given_up


def test_a_broker_overtaken_during_its_copy_waits_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused while it copied 7; meanwhile 9 and 10 led and removed 7. (Regression: it ended
    for good.)"""
    leases = LeaseDirectory(tmp_path, "shop")
    leases.claim(LeaseRecord(7, "shop", "x", "w", "", 800, 7, 0, Held.RELEASED))
    generation_path(tmp_path, 7).mkdir()
    numbers: list[int] = []

    def make_late(directory: Path, number: int, source: int) -> Path:
        numbers.append(number)
        if number == 8:
            for later in (9, 10):
                leases.claim(LeaseRecord(later, "shop", "o", "w", "", 800, later))
                generation_path(directory, later).mkdir()
            remove_former(directory, 9, 10)
            last = LeaseRecord(10, "shop", "o", "w", "", 800, 10, 1, Held.RELEASED)
            leases.renew(last)
        return make_generation(directory, number, source)

    monkeypatch.setattr(shared_store, "make_generation", make_late)

    async def live() -> None:
        async with a_broker(tmp_path, 800) as shared:
            path = await asyncio.wait_for(shared.lead("amqp:tcp:here:1"), 30)
            assert path == generation_path(tmp_path, 11)

    asyncio.run(live())
    assert numbers == [8, 11]


def test_a_broker_whose_lease_was_removed_during_its_copy_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token is later than its own, so others may lead by that one."""
    leases = LeaseDirectory(tmp_path, "shop")
    brokers: list[SharedStore] = []

    def make(directory: Path, number: int, source: int) -> Path:
        path = make_generation(directory, number, source)
        if number == 1:
            (directory / "lease.000001").unlink()
            while not brokers[0]._lost:
                time.sleep(0.01)
            leases.claim(LeaseRecord(1, "shop", "o", "w", "", 800, 0, 0, Held.RELEASED))
        return path

    monkeypatch.setattr(shared_store, "make_generation", make)
    assert lead(tmp_path, brokers) == generation_path(tmp_path, 2)


def test_a_generation_that_was_seen_and_is_gone_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease names an older one: its holder died before it wrote that it served. (An empty
    store began in place of what had been confirmed.)"""
    leases = LeaseDirectory(tmp_path, "shop")
    leases.claim(LeaseRecord(1, "shop", "o", "w", "", 800, 0, 0, Held.RELEASED))
    generation_path(tmp_path, 1).mkdir()

    def source(directory: Path, known: int) -> int:
        generation_path(directory, 1).rmdir()
        return source_for(directory, known)

    monkeypatch.setattr(shared_store, "source_for", source)
    with pytest.raises(StoreMissing, match=r"generation\.000001 is named by the lease"):
        lead(tmp_path, [])


def lead(directory: Path, brokers: list[SharedStore]) -> Path:
    """Where a broker leads that begins to wait now, and then ends."""

    async def live() -> Path:
        async with a_broker(directory, 800) as shared:
            brokers.append(shared)
            return await asyncio.wait_for(shared.lead("amqp:tcp:here:1"), 30)

    return asyncio.run(live())


def test_a_leader_stops_after_ten_seconds_without_its_lease_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store, "BEAT_S", shared_store.AWAY_S / 2)
    leader = Leading(0)

    async def live() -> None:
        async with a_broker(tmp_path, 60_000) as shared:
            holds = True
            monkeypatch.setattr(shared, "holds", lambda: holds)

            def beat() -> bool:
                assert shared._beating is not None
                shared._beating.cancel()
                shared._show_life()
                return bool(leader.stopped)

            await shared.lead("amqp:tcp:here:1")
            shared.follow(leader)
            assert not any([beat(), beat(), beat()])
            holds = False
            assert not beat()
            holds = True
            assert not beat()
            holds = False
            assert not beat()
            assert beat()

    asyncio.run(live())
    ((code, reason),) = leader.stopped
    assert code is Exit.FENCED
    assert "could not renew its lease for 10 s" in reason


def test_a_lease_that_is_given_up_is_over_at_once_by_the_log(tmp_path: Path) -> None:
    """The check of the next leader's beginning rests on it (G38)."""
    records: list[Lease] = []

    async def live() -> None:
        async with a_broker(tmp_path, 60_000) as shared:
            await shared.lead("amqp:tcp:here:1")
            shared.recorded_by(records.append)
            shared.given_up()
            shared.given_up()

    asyncio.run(live())
    taken, given_up = records
    assert taken.until_us > taken.at_us
    assert given_up.until_us == given_up.at_us


class Leading:
    """A member that leads; an operator shut it down at this position, or nowhere."""

    def __init__(self, shutdown_position: int) -> None:
        self.shutdown_position = shutdown_position
        self.stopped: list[tuple[Exit, str]] = []

    @property
    def controller(self) -> Leading:
        return self

    def stop(self, code: Exit, reason: str) -> None:
        self.stopped.append((code, reason))

    def terminate(self) -> None:
        self.shutdown_position = self.shutdown_position or 9


@pytest.mark.parametrize(
    ("position", "asked", "held"),
    [(5, 2, Held.SHUT_DOWN), (0, 2, Held.RELEASED), (5, 0, Held.SHUT_DOWN), (0, 0, Held.RELEASED)],
)
def test_a_leader_asked_to_end_during_a_shutdown_of_all_still_ends_all(
    tmp_path: Path, position: int, asked: int, held: Held
) -> None:
    """`qpid-cluster -k`, and SIGTERM while the leader writes its checkpoint; the waiting brokers
    are to end as well. Without the former, another one leads, however often it is asked, or if it
    ends by a fault of its own."""

    async def live() -> None:
        async with a_broker(tmp_path, 60_000) as shared:
            await shared.lead("amqp:tcp:here:1")
            shared.follow(Leading(position))
            for _ in range(asked):
                shared.terminate()

    asyncio.run(live())
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.lease is not None
    assert newest.lease.held is held


def test_a_leader_overtaken_before_its_member_is_there_ends(tmp_path: Path) -> None:
    """Reading a large store takes longer than the lease on a disk that does not answer."""
    leases, leader = LeaseDirectory(tmp_path, "shop"), Leading(0)

    async def live() -> None:
        async with a_broker(tmp_path, 800) as shared:
            await shared.lead("amqp:tcp:here:1")
            leases.claim(LeaseRecord(2, "shop", "o", "the other one", "", 800, 1))
            await asyncio.wait_for(shared._over.wait(), 30)
            shared.follow(leader)
            assert not shared.holds()

    asyncio.run(live())
    ((code, reason),) = leader.stopped
    assert code is Exit.FENCED
    assert reason.startswith("the other one (token 2) leads")


def test_the_generation_last_served_stays_until_a_copy_of_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 served, 8 and 9 are copies that no broker could open. (Regression: the leader with token 10
    removed 7 before it began.)"""
    leases = LeaseDirectory(tmp_path, "shop")
    for number in (7, 8, 9):
        leases.claim(LeaseRecord(number, "shop", "x", "w", "", 800, 7, 0, Held.RELEASED))
    for number in (6, 7, 8, 9):
        generation_path(tmp_path, number).mkdir()
    seen: list[list[str]] = []

    def make(directory: Path, number: int, source: int) -> Path:
        seen.append(sorted(path.name for path in directory.glob("generation.*")))
        return make_generation(directory, number, source)

    monkeypatch.setattr(shared_store, "make_generation", make)

    async def live() -> None:
        async with a_broker(tmp_path, 60_000) as shared:
            await shared.lead("amqp:tcp:here:1")

    asyncio.run(live())
    assert seen == [["generation.000007", "generation.000009"]]


@pytest.mark.parametrize(
    ("event", "code", "why"),
    [
        (lambda shared: shared.failed(StoreMissing("it is gone")), Exit.DATA, "it is gone"),
        (lambda shared: shared.broke(ValueError("it is gone")), Exit.INTERNAL, "it is gone"),
        (lambda shared: shared.lost(None), Exit.FENCED, "another broker leads"),
    ],
    ids=["failed", "broke", "lost"],
)
def test_a_leader_whose_lease_thread_ends_stops_with_the_reason(
    tmp_path: Path, event: Callable[[SharedStore], None], code: Exit, why: str
) -> None:
    """It would go on without a lease for ten seconds, and be started again to wait for ever."""
    leader = Leading(0)

    async def live() -> None:
        async with a_broker(tmp_path, 60_000) as shared:
            await shared.lead("amqp:tcp:here:1")
            shared.follow(leader)
            event(shared)

    asyncio.run(live())
    ((found, reason),) = leader.stopped
    assert found is code
    assert why in reason


def test_a_broker_overtaken_as_it_claims_waits_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused between its claim and the look behind it."""
    claim = LeaseDirectory.claim

    def claim_late(leases: LeaseDirectory, lease: LeaseRecord) -> bool:
        got = claim(leases, lease)
        if lease.token == 1:
            other = LeaseRecord(2, "shop", "o", "w", "", 800, 0, 0, Held.RELEASED)
            assert claim(leases, other)
        return got

    monkeypatch.setattr(LeaseDirectory, "claim", claim_late)
    assert lead(tmp_path, []) == generation_path(tmp_path, 3)


def test_a_waiting_broker_tells_who_leads(tmp_path: Path) -> None:
    """Operators ask it which broker to look at."""
    since = "2026-01-02T03:04:05+00:00"
    own = LeaseRecord(7, "shop", "x", "broker a", since, 60_000, 0)
    LeaseDirectory(tmp_path, "shop").claim(own)

    async def live() -> str:
        async with a_broker(tmp_path, 60_000) as shared:
            waiting = asyncio.create_task(shared.lead("amqp:tcp:here:1"))
            try:
                async with asyncio.timeout(30):
                    while shared._other is None:
                        assert shared.waiting_for == f"waits for the lease on {tmp_path}"
                        await asyncio.sleep(0.01)
                assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL, (
                    "it would end the broker"
                )
                return shared.waiting_for
            finally:
                waiting.cancel()

    assert asyncio.run(live()) == f"waits: broker a leads {tmp_path} since {since} (token 7)"
