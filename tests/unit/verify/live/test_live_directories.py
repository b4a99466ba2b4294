"""Directories that members write to, compress in and drop from during a check: the verdict is that
on a copy of what was there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

pytest.importorskip("duckdb")

from broker.memberlog.segments import pack
from tests.system.verify.corruption.corrupt_logs import change_an_outcome
from tests.system.verify.support.live_logs import LiveWriters
from tests.system.verify.support.make_logs import good_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.fast import compare_ends
from tools.verify.findings import BadInput
from tools.verify.format import pins
from tools.verify.input.segments import pinned_segments
from tools.verify.input.source import read_here
from tools.verify.job import CheckOptions, verify
from tools.verify.sql.kept import read_kept

STEPS, AT_ONCE = 24, 6
Outcome = list[str]
Check = Callable[[Path], Outcome]


class Members:
    """Members with half-written logs; `go_on` does what may happen at any moment."""

    def __init__(self, directory: Path) -> None:
        self.logs, self._kept = directory / "logs", directory / "kept"
        self.maker = good_history(12)

    def write(self) -> None:
        """Write the first half of the logs, each in a few segments."""
        LiveWriters(self.maker, self.logs, 2500).step(45)
        shutil.copytree(self.logs, self._kept)

    def again(self) -> None:
        """Restore the directories."""
        shutil.rmtree(self.logs)
        shutil.copytree(self._kept, self.logs)

    def go_on(self) -> None:
        """Each member drops its oldest segment, compresses one, and writes most of a record."""
        for directory in sorted(self.logs.iterdir()):
            *closed, newest = sorted(directory.glob("*.qml"))
            with newest.open("ab") as file:
                file.write(newest.read_bytes()[-30:-1])
            for path in closed[:1]:
                member, incarnation, number = path.name.removesuffix(".qml").rsplit(".", 2)
                dropped = {f"{member}.{incarnation}": (int(number), 0)}
                (directory / "dropped").write_text(json.dumps(dropped), encoding="utf-8")
                path.unlink()
            for path in closed[1:2]:
                path.with_name(f"{path.name}.gz").write_bytes(pack(path.read_bytes()))
                path.unlink()


def full(logs: Path, since: Path | None = None) -> Outcome:
    """Return what the full check reports, except sizes, which compression changes."""
    report = verify(None, [logs], CheckOptions(since=since))
    counts = replace(report.counts, bytes=0)
    return [str(counts), *map(str, report.findings), *report.notes, *map(str, report.checks)]


def fast(logs: Path) -> Outcome:
    """Return what the comparison of ends reports."""
    document = compare_ends([logs]).as_document() | {"bytes": 0}
    return [json.dumps(document)]


@contextmanager
def at_each_open(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> Iterator[None]:
    """Call a function just before the check opens each segment."""
    opened, by_number = pins.opened, os.open

    def open_pinned(path: Path) -> BinaryIO:
        then()
        return opened(path)

    def open_first(path: str | Path, *arguments: int) -> int:
        if str(path).endswith((".qml", ".qml.gz")):
            then()
        return by_number(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(pins, "opened", open_pinned)
        patched.setattr(os, "open", open_first)
        yield


def outcomes(
    members: Members, check: Check, steps: range, monkeypatch: pytest.MonkeyPatch
) -> list[Outcome]:
    """Return the report of a check during which members go on at each of these steps, all at once.
    The check has more steps than these."""
    found: list[Outcome] = []
    for step in steps:
        members.again()
        left = iter([False] * step + [True])

        def then(left: Iterator[bool] = left) -> None:
            if next(left, False):
                members.go_on()

        with at_each_open(monkeypatch, then):
            found.append(check(members.logs))
        assert next(left, None) is None, f"there is no step {step}"
    return found


def judge(
    members: Members, check: Check, steps: range, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcome, int]:
    """Require one of two verdicts at each step: that of a copy made before, or, while segments are
    still being listed, after. Return the first, and at how many steps it was given."""
    before = check(members.logs)
    members.go_on()
    after = check(members.logs)
    assert after != before
    found = outcomes(members, check, steps, monkeypatch)
    same = [one == before for one in found]
    assert same == sorted(same), "a file opened once stays open to the end"
    assert all(one in (before, after) for one in found)
    return before, sum(same)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, STEPS, AT_ONCE))
def test_members_that_go_on_change_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    members = Members(tmp_path)
    promise, member, position = change_an_outcome(members.maker)
    members.write()
    files = len(list(members.logs.rglob("*.qml")))
    said, same = judge(members, full, range(first, first + AT_ONCE), monkeypatch)
    assert any(f"{promise} " in one and f"{member} (" in one for one in said), position
    assert same == len([step for step in range(first, first + AT_ONCE) if step >= files])


@pytest.mark.slow
def test_they_change_no_verdict_on_new_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(tmp_path)
    members.write()
    files = len(list(members.logs.rglob("*.qml")))
    point = tmp_path / "point"
    verify(None, [members.logs], CheckOptions(save=point))
    check = partial(full, since=point)
    steps = range(1, STEPS, AT_ONCE)
    _, same = judge(members, check, steps, monkeypatch)
    assert same == len([step for step in steps if step >= files])


def test_they_change_no_verdict_on_the_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(tmp_path)
    members.write()
    files = len(list(members.logs.rglob("*.qml")))
    _, same = judge(members, fast, range(2 * files), monkeypatch)
    assert same == files


@pytest.mark.slow
@pytest.mark.spark
def test_tasks_of_spark_read_what_was_there(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    members = Members(tmp_path)
    members.write()
    with pinned_segments([members.logs]) as (segments, _):
        there = read_here("scan", segments)
        members.go_on()
        kept = read_kept(shared_session(), "scan", segments)
        assert kept.ask("SELECT COUNT(*) AS n FROM kept").to_pylist() == [{"n": len(there)}]


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(tmp_path)
    members.write()

    def refused() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "a.1.000000.qml")

    with (
        at_each_open(monkeypatch, refused),
        pytest.raises(BadInput, match="qml: Permission denied"),
    ):
        fast(members.logs)


def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are reopened by name, and read up to where they ended."""
    members = Members(tmp_path)
    members.write()
    monkeypatch.setattr(pins, "OTHER_FILES", 1 << 40)
    (newest,) = sorted((members.logs / "a").glob("*.qml"))[-1:]
    size = newest.stat().st_size
    with pins.pinned([newest]):
        members.go_on()
        assert pins.bytes_of(newest) == newest.read_bytes()[:size]
        assert len(newest.read_bytes()) > size
