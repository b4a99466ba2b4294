"""Every boundary of store, join, shutdown and ejection, met by a kill, an error or a power loss.

What was promised before is there afterwards, on the real store (G9, G14). As a control there is a
disk that forgets what was synced, and mistakes that must be noticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.crash import workloads
from tests.crash.power_loss import (
    NOTE,
    SYNC,
    WRITE,
    Choice,
    Disk,
    File,
    Folder,
    Record,
    choices,
    digest,
    read_records,
    write,
)

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def directory() -> Iterator[Path]:
    """A directory in memory if possible: the record says what is durable, not a disk."""
    path = Path(mkdtemp(prefix="crash-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run(library: Path, workload: str, place: Path, mode: str, *, broken: str = "") -> str:
    """Run a workload under the library, with a mistake if one is named; return its output."""
    arguments = [str(library), workload, str(place), mode, *([broken] if broken else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.workloads", *arguments], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(
    workload: str, records: list[Record], place: Path, *, syncs: bool = True, most: int = 10,
    found: Disk | None = None,
) -> list[str]:  # fmt: skip
    """Lose power after each operation, and in each that is durable on return; return what was wrong
    with what was left.

    `found` is the content before the first operation.
    """
    wrong: list[str] = []
    seen: set[tuple[bytes, int]] = set()
    disk = found or Disk(str(place / "data"), syncs=syncs)
    for count, record in enumerate(records):
        if record.kind == WRITE and record.sure:
            torn = record._replace(sure=False)
            disk.take(torn)
            wrong += _wrong(workload, disk, place, count, f"in operation {count}", torn, seen)
            disk.take_back(torn)
        disk.take(record)
        if record.kind == SYNC:
            continue  # nothing was written since the previous operation
        wrong += _wrong(workload, disk, place, count, f"after operation {count}", record, seen)
        if len(wrong) >= most:
            break
    return wrong[:most]


def _wrong(
    workload: str, disk: Disk, place: Path, seed: int, when: str, record: Record,
    seen: set[tuple[bytes, int]],
) -> list[str]:  # fmt: skip
    """Check what each choice leaves.

    `seen` has what was left before, with the number of promises: the same content gives the same
    result, which holds for more than half of all.
    """
    wrong: list[str] = []
    for number, choice in enumerate(choices(seed)):
        left = disk.left(choice)
        state = digest(left), len(disk.notes)
        if state in seen:
            continue
        seen.add(state)
        write(left, place / "left" / "data")
        try:
            workloads.check(workload, place / "left" / "data", disk.notes)
        except Exception:
            at = f"{when}, {record._replace(data=b'')}, choice {number}"
            wrong.append(f"{at}: {traceback.format_exc()}")
        shutil.rmtree(place / "left")
    return wrong


LONG = ("join", "killed", "ejection", "switches")


def the_long_ones_slow(*rows: tuple[str, ...]) -> list[object]:
    """Parameters; those with a long workload, named last, are slow tests."""
    return [pytest.param(*row, marks=pytest.mark.slow if row[-1] in LONG else ()) for row in rows]


@pytest.mark.parametrize("workload", the_long_ones_slow(*zip(workloads.WORKLOADS, strict=True)))
def test_power_is_lost_after_each_operation(library: Path, workload: str) -> None:
    with directory() as place:
        run(library, workload, place, "record")
        records = read_records(place / "records")
        assert sum(record.kind == NOTE for record in records) > 3
        wrong = losses(workload, records, place, most=1)
        assert not wrong, wrong[0]


AGAIN = 3
"""So many losses are followed by another life and a second loss."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", ["store", "killed"])
def test_power_is_lost_again_after_a_restart(library: Path, workload: str) -> None:
    """While the journal left by the first loss is replayed, and during later commits."""
    with directory() as place:
        run(library, workload, place, "record")
        records = read_records(place / "records")
        disk = Disk(str(place / "data"))
        for count, record in enumerate(records):
            disk.take(record)
            if count % (len(records) // AGAIN) == len(records) // AGAIN - 1:
                again = place / f"again-{count}"
                write(disk.left(Choice(None, None, count)), again / "data")
                found = Disk.found(again / "data")
                found.notes = list(disk.notes)
                run(library, "killed", again, "record")
                later = read_records(again / "records")
                assert sum(one.kind == NOTE for one in later) > 3
                wrong = losses("killed", later, again, most=1, found=found)
                assert not wrong, f"lost before after operation {count}: {wrong[0]}"
                shutil.rmtree(again)


KILLED_WITHIN = 4
"""So many of LMDB's durable writes, the last ones, are killed within."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_power_is_lost_after_a_kill_within_a_durable_write(library: Path) -> None:
    """On a network file system a process may be killed between write and flush: the next one finds
    in the system's cache what the disk lacks."""
    with directory() as place:
        run(library, "store", place, "record")
        records = read_records(place / "records")
        disk = Disk(str(place / "data"))
        sure = [
            count for count, record in enumerate(records)
            if record.kind == WRITE and record.sure and record.path.endswith("data.mdb")
        ][-KILLED_WITHIN:]  # fmt: skip
        assert sure
        for count, record in enumerate(records):
            if count in sure:
                torn = record._replace(sure=False)
                disk.take(torn)
                again = place / f"again-{count}"
                write(disk.left(Choice(True, True)), again / "data")  # what the cache shows
                write(disk.left(Choice(True, False)), again / "disk")
                found = Disk.found(again / "data")
                found.notes = list(disk.notes)
                store = found.top.now["store"]
                assert isinstance(store, Folder)
                file = store.now["data.mdb"]
                assert isinstance(file, File)
                file.content = bytearray((again / "disk" / "store" / "data.mdb").read_bytes())
                file.later = [(False, record.offset, record.data)]
                disk.take_back(torn)
                run(library, "killed", again, "record")
                later = read_records(again / "records")
                wrong = losses("killed", later, again, most=1, found=found)
                assert not wrong, f"killed within operation {count}: {wrong[0]}"
                shutil.rmtree(again)
            disk.take(record)


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", workloads.WORKLOADS)
def test_each_operation_fails_or_kills(library: Path, workload: str) -> None:
    """SIGKILL, EIO and ENOSPC: the error is reported in words, and nothing promised is lost."""
    with directory() as place:
        run(library, workload, place, "fault")


@pytest.mark.parametrize("workload", workloads.WORKLOADS)
def test_a_disk_that_forgets_what_was_synced_is_noticed(library: Path, workload: str) -> None:
    """The control: if no fsync does anything, each workload loses what was promised."""
    with directory() as place:
        run(library, workload, place, "record")
        assert losses(workload, read_records(place / "records"), place, syncs=False, most=1)


@pytest.mark.parametrize(
    ("mistake", "workload"),
    the_long_ones_slow(*((name, workload) for name, (workload, _) in workloads.MISTAKES.items())),
)
def test_a_mistake_is_noticed(library: Path, mistake: str, workload: str) -> None:
    """Each mistake loses what was promised, and only in a power loss."""
    with directory() as place:
        run(library, workload, place, "record", broken=mistake)
        assert losses(workload, read_records(place / "records"), place, most=1)
