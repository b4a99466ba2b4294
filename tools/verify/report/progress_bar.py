"""Progress bar at the bottom of a terminal while Spark works: the step, and its finished tasks.

Spark plans its stages one after the other, so their number is not known in advance; in a large
check the first one, which reads the logs, is the longest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO

from tools.verify.findings import ERASE

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

EVERY_SECONDS = 0.5
WIDTH = 24


@contextmanager
def progress(spark: SparkSession | None, wanted: bool, out: TextIO | None = None) -> Iterator[None]:
    """Show the bar on a terminal while the block runs; do nothing where there is none."""
    to = sys.stderr if out is None else out
    if spark is None or not wanted or not to.isatty():
        yield
        return
    over, tracker, seen = Event(), spark.sparkContext.statusTracker(), set[int]()

    def renew() -> None:
        began = time.monotonic()
        while not over.wait(EVERY_SECONDS):
            to.write(ERASE + bar(*stages(tracker, seen), time.monotonic() - began))
            to.flush()

    thread = Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        to.write(ERASE)
        to.flush()


def stages(tracker: StatusTracker, seen: set[int]) -> tuple[int, int, int]:
    """Return the number of Spark's step, and how many of its tasks are done, of how many."""
    active = tracker.getActiveStageIds()
    seen.update(active)
    infos = [info for one in active if (info := tracker.getStageInfo(one)) is not None]
    done = sum(info.numCompletedTasks for info in infos)
    return len(seen), done, sum(info.numTasks for info in infos)


def bar(step: int, done: int, tasks: int, seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    filled = WIDTH * done // tasks if tasks else 0
    drawn = "#" * filled + "." * (WIDTH - filled)
    what = f"step {step}: {done} of {tasks} tasks" if tasks else "planning"
    return f"[{drawn}] {what}, {minutes}:{rest:02d}"
