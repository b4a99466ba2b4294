"""The lease on disk: how long a later incarnation waits, whatever happened to the file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from broker.durability.kept_lease import FILE_NAME, KeptLease, read_kept_lease, write_kept_lease
from vsync.totem.config import RingConfig

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
