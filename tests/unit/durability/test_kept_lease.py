"""The lease on disk: how long a later incarnation waits, whatever happened to the file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.durability.kept_lease import (
    FILE_NAME,
    LOOK_S,
    KeptLease,
    read_kept_lease,
    write_kept_lease,
)
from vsync.totem.config import RingConfig
from vsync.totem.ordering.lease import SLACK

CONFIG = RingConfig()


def run(case: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await case()

    asyncio.run(main())


async def settled(kept: KeptLease) -> None:
    kept.look()
    writing = kept._writing
    if writing is not None:
        await asyncio.wait([writing])
        await asyncio.sleep(0)  # its callback


def test_a_longer_lease_is_agreed_to_once_it_is_on_disk(tmp_path: Path) -> None:
    async def case() -> None:
        kept = KeptLease(tmp_path, CONFIG, asyncio.get_running_loop())
        kept.tempo.lease_ms = 700
        for _ in range(2):  # the second time it is being written
            kept.look()
            assert kept.tempo.kept_ms == CONFIG.lease_ms
        await settled(kept)
        assert kept.tempo.kept_ms == read_kept_lease(tmp_path, CONFIG) == 800

    run(case)


def test_the_next_incarnation_waits_for_the_old_lease_then_lowers_it(tmp_path: Path) -> None:
    write_kept_lease(tmp_path, 1600)

    async def case() -> None:
        kept = KeptLease(tmp_path, CONFIG, asyncio.get_running_loop())
        assert kept.tempo.former_ms == 1600
        kept.start()
        await settled(kept)
        assert read_kept_lease(tmp_path, CONFIG) == 1600  # the old leases may still run
        kept._lower_at = 0.0
        await settled(kept)
        assert read_kept_lease(tmp_path, CONFIG) == CONFIG.lease_ms
        kept.stop()

    run(case)


def test_nothing_longer_is_agreed_to_while_the_lease_is_lowered(tmp_path: Path) -> None:
    write_kept_lease(tmp_path, 1600)

    async def case() -> None:
        kept = KeptLease(tmp_path, CONFIG, asyncio.get_running_loop())
        kept._lower_at = 0.0
        kept.look()  # starts to write the usual lease
        kept.tempo.lease_ms = 700
        kept.look()
        assert kept.tempo.kept_ms == CONFIG.lease_ms
        await settled(kept)
        await settled(kept)
        assert kept.tempo.kept_ms == read_kept_lease(tmp_path, CONFIG) == 800

    run(case)


def test_an_unreadable_file_counts_as_the_longest_lease(tmp_path: Path) -> None:
    assert read_kept_lease(tmp_path, CONFIG) == 0
    (tmp_path / FILE_NAME).write_text("damaged")
    assert read_kept_lease(tmp_path, CONFIG) == CONFIG.lease_max_ms


def test_an_unwritable_disk_keeps_the_lease_short(tmp_path: Path) -> None:
    async def case() -> None:
        kept = KeptLease(tmp_path / "gone", CONFIG, asyncio.get_running_loop())
        kept.tempo.lease_ms = 700
        await settled(kept)
        assert kept.tempo.kept_ms == CONFIG.lease_ms
        assert kept.counters["leases_not_kept"] == 1

    run(case)


class Loop:
    """A loop whose time the test sets, and whose writes it ends."""

    def __init__(self) -> None:
        self.now, self.later = 100.0, list[tuple[float, Callable[[], None]]]()
        self.writes: list[tuple[int, Mock]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Mock:
        self.later.append((delay_s, call))
        return Mock(cancel=self.later.clear)

    def run_in_executor(self, _pool: None, _write: object, _dir: Path, lease_ms: int) -> Mock:
        self.writes.append((lease_ms, Mock()))
        return self.writes[-1][1]

    def end(self, error: Exception | None = None) -> int:
        """End the write under way; return what it writes."""
        lease_ms, writing = self.writes[-1]
        (done,) = writing.add_done_callback.call_args.args
        done(Mock(exception=lambda: error))
        return lease_ms

    def beat(self) -> None:
        ((delay_s, call),) = self.later
        assert delay_s == LOOK_S
        self.later.clear()
        call()


def kept_on(loop: Loop, data_dir: Path) -> KeptLease:
    on: Any = loop
    return KeptLease(data_dir, CONFIG, on)


def test_one_lease_is_written_at_a_time(tmp_path: Path) -> None:
    """Two threads could end in the other order, and leave the shorter one on disk."""
    loop = Loop()
    kept = kept_on(loop, tmp_path)
    kept.look()
    assert not loop.writes, "the next incarnation waits for the usual one anyway"
    kept.tempo.lease_ms = 700
    kept.look()
    kept.tempo.lease_ms = 1500
    kept.look()
    assert [one for one, _ in loop.writes] == [800]
    assert loop.end() == kept.tempo.kept_ms == 800
    kept.look()
    assert loop.end() == kept.tempo.kept_ms == 1600
    kept.look()
    assert len(loop.writes) == 2


def test_a_lease_is_lowered_when_the_former_ones_are_over(tmp_path: Path) -> None:
    write_kept_lease(tmp_path, 1600)
    loop = Loop()
    kept = kept_on(loop, tmp_path)
    kept.tempo.lease_ms = 700
    kept.start()
    assert kept.tempo.kept_ms == 800, "agreed to at once: the file has more"
    loop.now += 1.6 * (1 + SLACK)
    loop.beat()
    assert not loop.writes
    loop.now += 0.001
    loop.beat()
    assert loop.end() == 800
    loop.beat()
    assert len(loop.writes) == 1
    kept.stop()
    assert not loop.later


def test_a_disk_that_refuses_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    kept = kept_on(loop, tmp_path)
    kept.tempo.lease_ms = 700
    for number in range(1, 4):
        kept.look()
        loop.end(OSError("no space"))
        assert (len(loop.writes), kept.counters["leases_not_kept"]) == (number, number)
    assert len(caplog.messages) == 1
