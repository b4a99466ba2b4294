"""How a member measures its memory and disk.

Memory of freed small objects does not count as used, though the process keeps it.
"""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from broker.watchdogs import resource_gauge
from broker.watchdogs.resource_gauge import (
    FAILED_LOOKS,
    GROWTH_BYTES,
    LOOKS_PER_REPORT,
    PERIOD_S,
    QUIET_PERIOD_S,
    ResourceGauge,
    idle_bytes,
    idle_in,
    own_bytes,
)
from store.files.space import Reserve
from store.lmdb_store import LmdbStore

MB = 1 << 20
BODY_BYTES = 256
MESSAGES = 100_000
PIN_EVERY = 1_000  # one object stays in each third of an arena

REPORT = b"""\
# arenas allocated current         =                   19
19 arenas * 1048576 bytes/arena    =           19,922,944

# bytes in allocated blocks        =           18,491,856
# bytes in available blocks        =              389,552
"""


def used() -> int:
    return own_bytes() - idle_bytes()


def test_freed_small_messages_do_not_count_as_used() -> None:
    before = used()
    messages = [bytes([1]) * BODY_BYTES for _ in range(MESSAGES)]
    full = used()
    assert full - before > MESSAGES * BODY_BYTES // 2
    pins = messages[::PIN_EVERY]
    del messages
    assert used() - before < (full - before) // 4
    assert len(pins) == MESSAGES // PIN_EVERY


def test_the_interpreters_report_is_read() -> None:
    assert idle_in(REPORT) == 19_922_944 - 18_491_856


def test_an_unreadable_report_counts_nothing_as_idle() -> None:
    assert idle_in(b"") == 0
    assert idle_in(REPORT.replace(b"bytes/arena", b"bytes per arena")) == 0


def test_this_interpreter_reports_its_idle_memory() -> None:
    assert idle_bytes() > 0


def test_a_reserve_the_disk_has_no_room_for_is_owed(tmp_path: Path) -> None:
    """G21."""
    store = SimpleNamespace(reusable_bytes=lambda: 0, bytes_to_start=lambda: (0, 0))
    reserve = Reserve(tmp_path)
    gauge = ResourceGauge(lambda: cast("LmdbStore", store), reserve)
    gauge.look()
    assert gauge.reading is not None
    assert gauge.reading.owed == 0
    reserve.give_up()
    reserve.bytes = gauge.reading.disk
    gauge.look()
    assert gauge.reading.owed == reserve.bytes


def test_half_of_the_stores_free_pages_count_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scattered pages hold no large message: publishers went on until the disk was full."""
    store = SimpleNamespace(reusable_bytes=lambda: 100 * MB, bytes_to_start=lambda: (0, 0))
    found = SimpleNamespace(f_bavail=7, f_blocks=9, f_frsize=MB)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    gauge = ResourceGauge(lambda: cast("LmdbStore", store), Reserve(tmp_path))
    gauge.look()
    assert gauge.reading is not None
    assert (gauge.reading.room, gauge.reading.disk) == (57 * MB, 9 * MB)


def test_a_file_system_that_does_not_tell_its_space_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reading stays, and with it each alarm."""
    store = SimpleNamespace(
        reusable_bytes=lambda: 0, bytes_to_start=lambda: (0, 0), meta=SimpleNamespace(position=7)
    )
    gauge = ResourceGauge(lambda: cast("LmdbStore", store), Reserve(tmp_path))
    gauge.attempt()
    before = gauge.reading

    def fails(_: Path) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", fails)
        for _ in range(FAILED_LOOKS - 1):
            assert gauge.attempt() == PERIOD_S
        assert not gauge.failure
        gauge.attempt()
        assert "Input/output error" in gauge.failure
        assert gauge.reading == before is not None
    gauge.attempt()
    assert not gauge.failure


def test_a_store_that_takes_nothing_is_checked_less_often(tmp_path: Path) -> None:
    meta = SimpleNamespace(position=7)
    store = SimpleNamespace(meta=meta)
    gauge = ResourceGauge(lambda: cast("LmdbStore", store), Reserve(tmp_path))
    assert gauge.pause_s() == PERIOD_S
    assert gauge.pause_s() == gauge.pause_s() == QUIET_PERIOD_S
    meta.position = 8
    assert gauge.pause_s() == PERIOD_S
    assert gauge.pause_s() == QUIET_PERIOD_S


def test_the_report_is_requested_seldom_unless_the_process_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes most of a reading's time, and the interpreter's lock."""
    own, asked = [100 * MB], list[int]()
    monkeypatch.setattr(resource_gauge, "own_bytes", lambda: own[0])

    def idle() -> int:
        asked.append(own[0])
        return 10 * MB

    monkeypatch.setattr(resource_gauge, "idle_bytes", idle)
    store = SimpleNamespace(reusable_bytes=lambda: 0, bytes_to_start=lambda: (0, 0))
    gauge = ResourceGauge(lambda: cast("LmdbStore", store), Reserve(tmp_path))
    for _ in range(LOOKS_PER_REPORT):
        gauge.look()
        assert gauge.reading is not None
        assert gauge.reading.used == 90 * MB
    assert len(asked) == 1
    gauge.look()
    assert len(asked) == 2
    own[0] += GROWTH_BYTES + 1
    gauge.look()
    assert len(asked) == 3
    gauge.look()
    assert len(asked) == 3
