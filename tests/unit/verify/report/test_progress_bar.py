"""The progress bar on the terminal: its text, and that it leaves nothing behind."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

import pytest

from tools.verify.findings import ERASE
from tools.verify.report import progress_bar
from tools.verify.report.progress_bar import WIDTH, bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Spark:
    """The part of a session that the bar uses: one stage with 3 of 12 tasks done, one that is
    gone."""

    numCompletedTasks, numTasks = 3, 12

    @property
    def sparkContext(self) -> Spark:
        return self

    def statusTracker(self) -> Spark:
        return self

    def getActiveStageIds(self) -> list[int]:
        return [4, 5]

    def getStageInfo(self, stage: int) -> Spark | None:
        return self if stage == 4 else None


def test_the_progress_of_a_step_is_shown() -> None:
    assert (
        bar(2, 6, 12, 75.9)
        == f"[{'#' * (WIDTH // 2)}{'.' * (WIDTH // 2)}] step 2: 6 of 12 tasks, 1:15"
    )
    assert bar(2, 0, 0, 3.0) == f"[{'.' * WIDTH}] planning, 0:03"


def test_progress_comes_from_spark() -> None:
    spark = cast("SparkSession", Spark())
    assert progress_bar.stages(spark.sparkContext.statusTracker(), set()) == (2, 3, 12)


def test_it_is_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "EVERY_SECONDS", 0.001)
    out = Terminal()
    with progress_bar.progress(cast("SparkSession", Spark()), True, out):
        while "step 2: 3 of 12 tasks" not in out.getvalue():
            pass
    assert out.getvalue().endswith(ERASE)


@pytest.mark.parametrize(("wanted", "out"), [(False, Terminal()), (True, io.StringIO())])
def test_scripts_and_files_get_no_bar(wanted: bool, out: io.StringIO) -> None:
    with progress_bar.progress(cast("SparkSession", None), wanted, out):
        pass
    assert out.getvalue() == ""
