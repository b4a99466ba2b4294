"""One broker's use of a shared store, as far as no member is needed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.options.modes.shared_store import SharedStoreOptions
from broker.sharing import shared_store
from broker.sharing.generations import generation_path, make_generation, remove_former
from broker.sharing.lease import Held, LeaseRecord
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.shared_store import Ended, SharedStore


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
        shared = SharedStore(SharedStoreOptions(tmp_path, 60_000), "shop", loops[0])
        try:
            with pytest.raises(Ended):
                await shared.lead("amqp:tcp:here:1")
            assert not shared.holds()
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loops[0].remove_signal_handler(number)

    asyncio.run(live())
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.given_up, "the next broker need not wait for the lease"


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
        loop = asyncio.get_running_loop()
        shared = SharedStore(SharedStoreOptions(tmp_path, 800), "shop", loop)
        try:
            path = await asyncio.wait_for(shared.lead("amqp:tcp:here:1"), 30)
            assert path == generation_path(tmp_path, 11)
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    asyncio.run(live())
    assert numbers == [8, 11]


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


@pytest.mark.parametrize(("position", "held"), [(5, Held.SHUT_DOWN), (0, Held.RELEASED)])
def test_a_leader_asked_to_end_during_a_shutdown_of_all_still_ends_all(
    tmp_path: Path, position: int, held: Held
) -> None:
    """`qpid-cluster -k`, and SIGTERM while the leader writes its checkpoint; the waiting brokers
    are to end as well. Without the former, another one leads, however often it is asked."""

    async def live() -> None:
        loop = asyncio.get_running_loop()
        shared = SharedStore(SharedStoreOptions(tmp_path, 60_000), "shop", loop)
        try:
            await shared.lead("amqp:tcp:here:1")
            shared.follow(Leading(position))
            shared.terminate()
            shared.terminate()
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    asyncio.run(live())
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.lease is not None
    assert newest.lease.held is held


def test_a_leader_overtaken_before_its_member_is_there_ends(tmp_path: Path) -> None:
    """Reading a large store takes longer than the lease on a disk that does not answer."""
    leases, leader = LeaseDirectory(tmp_path, "shop"), Leading(0)

    async def live() -> None:
        loop = asyncio.get_running_loop()
        shared = SharedStore(SharedStoreOptions(tmp_path, 800), "shop", loop)
        try:
            await shared.lead("amqp:tcp:here:1")
            leases.claim(LeaseRecord(2, "shop", "o", "the other one", "", 800, 1))
            await asyncio.wait_for(shared._over.wait(), 30)
            shared.follow(leader)
            assert not shared.holds()
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

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
        loop = asyncio.get_running_loop()
        shared = SharedStore(SharedStoreOptions(tmp_path, 60_000), "shop", loop)
        try:
            await shared.lead("amqp:tcp:here:1")
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    asyncio.run(live())
    assert seen == [["generation.000007", "generation.000009"]]
