"""Small logs checked in this process and large ones with Spark give the same verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from tests.bench.support.verifylogs import write_logs
from tests.system.verify.corruption import contract_violations as contract
from tests.system.verify.corruption import corrupt_logs as lies
from tests.system.verify.support.make_logs import LogMaker, good_history
from tests.system.verify.support.recorded_history import plain_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.input.segments import FEW_ROWS, count_rows, find_segments
from tools.verify.job import CheckOptions, verify
from tools.verify.sql import kept
from tools.verify.sql.kept import Here, InSpark, computed_once

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OF_LARGE = {"spark.sql.shuffle.partitions": "3"}
"""What the session of large logs has in place of a value for the tests' small ones."""
ROWS = 350_000  # of each of three members
ROWS_OF_FRAME = 3
MEMORY_MAX = 1200 << 20
"""The most memory of a check without Spark; with it, Java alone may take 2 GB."""
_CHECK = """
import resource, sys
from pathlib import Path
from tools.verify.job import verify
verify(None, [Path(sys.argv[1])])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


class Frame:
    """The questions about a frame."""

    def __init__(self, rows: object) -> None:
        self.rows = rows
        self.did: list[str] = []

    def count(self) -> int:
        return ROWS_OF_FRAME

    def toArrow(self) -> object:
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows

    def persist(self, _level: object) -> Frame:
        self.did.append("kept")
        return self

    def unpersist(self) -> None:
        self.did.append("let go")


def did(rows: object) -> list[str]:
    """Return what is done with a frame of these rows."""
    frame = Frame(rows)
    with computed_once(InSpark(cast("Any", frame))) as given:
        if isinstance(given, Here):
            assert given.rows is rows
            frame.did.append("taken")
        else:
            assert given == InSpark(cast("Any", frame))
    return frame.did


def test_the_driver_takes_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"n": list(range(ROWS_OF_FRAME))})
    assert did(rows) == ["kept", "taken", "let go"]
    monkeypatch.setattr(kept, "TAKEN_BYTES", ROWS_OF_FRAME * 8 - 1)
    assert did(rows) == ["kept", "let go"]


def test_many_rows_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be in the memory of Java and of the driver, before it is known how large they
    are."""
    monkeypatch.setattr(kept, "TAKEN_ROWS", ROWS_OF_FRAME - 1)
    assert did(AssertionError("asked for")) == ["kept", "let go"]


def test_more_rows_than_spark_lets_a_driver_take() -> None:
    """Few bytes of logs may be this many rows: a check of many queues once gave no verdict."""
    too_many = RuntimeError("5.3 MiB is bigger than spark.driver.maxResultSize (2.0 MiB)")
    assert did(too_many) == ["kept", "let go"]


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="another"):
        did(RuntimeError("another"))


@contextmanager
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check as if the logs were large."""
    conf = shared_session().conf
    before = {name: conf.get(name) for name in OF_LARGE}
    with monkeypatch.context() as patch:
        patch.setattr(kept, "TAKEN_ROWS", -1)
        patch.setattr("tools.verify.checks.difference_search.HERE_BYTES", -1)
        try:
            for name, value in OF_LARGE.items():
                conf.set(name, value)
            yield
        finally:
            for name, known in before.items():
                conf.set(name, str(known))


def with_lies_about_views() -> LogMaker:
    maker = good_history()
    for lie in (
        lies.change_an_outcome, lies.note_another_verdict, lies.second_primary_in_one_epoch,
        lies.confirm_what_is_no_publish, lies.raise_the_durable_mark, lies.drop_a_confirmed_publish,
    ):  # fmt: skip
        lie(maker)
    return maker


def with_lies_about_messages() -> LogMaker:
    maker = plain_history()
    for lie in (
        contract.publish_becomes_nothing, contract.delivered_to_two_at_once,
        contract.older_one_is_overtaken, contract.cold_start_loses_a_persistent_one,
    ):  # fmt: skip
        lie(maker)
    return maker


@pytest.mark.parametrize(
    "lying",
    [
        with_lies_about_messages,
        with_lies_about_views,
        pytest.param(good_history, marks=pytest.mark.slow),
    ],
)
def test_small_and_large_logs_are_judged_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lying: Callable[[], LogMaker]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    lying().write(tmp_path, 2000)
    options = CheckOptions(timeline=True)
    few = verify(None, [tmp_path], options)
    little = verify(shared_session(), [tmp_path], options)
    assert sorted(map(str, few.findings)) == sorted(map(str, little.findings))
    assert few.timeline == little.timeline
    assert few.as_document() | {"findings": []} == little.as_document() | {"findings": []}
    with as_if_large(monkeypatch):
        large = verify(shared_session(), [tmp_path], options)
    assert sorted(map(str, little.findings)) == sorted(map(str, large.findings))
    assert little.as_document() == large.as_document() | {
        "findings": little.as_document()["findings"]
    }
    assert little.timeline == large.timeline
    assert little.consistent == (lying is good_history)


def _peak(logs: Path) -> int:
    """Return the peak memory of a check of these logs, in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(logs)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ru_maxrss has another unit")
def test_the_largest_check_without_spark_fits_into_memory(tmp_path: Path) -> None:
    """The memory grows with rows, by whose number it is decided who checks."""
    write_logs(tmp_path / "little", 1000, seed=1)
    write_logs(tmp_path / "more", ROWS, seed=1)
    rows = count_rows(find_segments([tmp_path / "more"]))
    assert rows > 2 * ROWS
    least = _peak(tmp_path / "little")
    assert least + (_peak(tmp_path / "more") - least) / rows * FEW_ROWS < MEMORY_MAX
