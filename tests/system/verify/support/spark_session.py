"""One Spark session for all tests of a run, as starting one takes longer than most checks."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from tools.verify.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@cache
def shared_session() -> SparkSession:
    """Return the session, started at the first call and stopped at the end of the process."""
    stack = ExitStack()
    session = stack.enter_context(spark_session("local[2]", verbose=False))
    atexit.register(stack.close)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session
