"""Shared by the checks of clients' histories: extent of the history, clients, and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.machine.move_log import MARK_MASK, Op
from tools.verify.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import Row as SparkRow

FINDINGS_MAX = 20
U64 = (1 << 64) - 1  # Spark has no unsigned numbers
_PLACE_BITS = 21  # operations of one record; a record is bounded to fewer


class HistoryExtent(NamedTuple):
    """How much of the canonical history the members' logs hold."""

    begin: bool  # it begins at position 1
    end: bool  # every named member stopped in order: there is nothing after it
    whole: bool  # no position in between is missing


def messages(history: DataFrame, names: DataFrame) -> DataFrame:
    """Return one row per publish: position, channel, body, and the queues that it entered.

    `number` is 0 for one that reached no queue; `cause` as in the move log.
    """
    from pyspark.sql import functions as f

    published = f.col("op") == int(Op.PUBLISHED)
    entered = f.col("op") == int(Op.ENQUEUED)
    mark = f.col("seq").bitwiseAND(MARK_MASK)
    return (
        history.filter(published | entered)
        .join(f.broadcast(names), "queue", "left")
        .groupBy(
            "epoch",
            "position",
            f.when(published, mark).otherwise(f.col("of")).alias("low"),
        )
        .agg(
            f.max(f.when(published, f.col("seq"))).alias("number"),
            f.max(f.when(published, f.col("queue"))).alias("publish_no"),
            f.max(f.when(published, f.col("detail"))).alias("body"),
            f.max(f.when(published, f.col("cause"))).alias("cause"),
            f.max(f.when(published, f.col("of"))).alias("channel"),
            f.max(f.when(entered, f.col("detail"))).alias("content"),
            f.collect_set(f.when(entered, f.col("queue"))).alias("queues"),
            f.collect_set(f.when(entered, f.col("name"))).alias("names"),
        )
    )


def who() -> Column:
    """Return the origin of an operation, ordered by client and by its place in the history."""
    from pyspark.sql import functions as f

    place = f.shiftleft(f.col("lsn"), _PLACE_BITS) + f.col("ordinal")
    return f.struct("client", "life", place.alias("place"), "session", f.col("aux").alias("number"))


def finding(
    promise: str, who: SparkRow, body: int, position: int | None, what: str, queue: str = ""
) -> Finding:
    client = f"client {who.client} (connection {who.session})"
    text = f"{client}, body {body & U64:016x}: {what}"
    return Finding(promise, "", who.life, -1 if position is None else position, text, queue=queue)


def times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
