"""C2 with clients: in which state each publish that was confirmed to a client has ended.

A message in a queue is identified by the hash of its content, which stays when a cold start
renumbers the queue.  Settled and dropped are moves of their own; a purge takes what is ready in its
queue: messages not delivered since they were enqueued or returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.machine.move_log import BY_DEAD_LETTER, CAUSE_SHIFT, FORGOTTEN, MARK_MASK, REJECTED, Op
from broker.memberlog.records import ClientOp
from tools.verify.clients.lookup import FINDINGS_MAX, U64
from tools.verify.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLD_START = FORGOTTEN >> CAUSE_SHIFT
_DISCARDED = REJECTED >> CAUSE_SHIFT
_DEAD_LETTERED = BY_DEAD_LETTER >> CAUSE_SHIFT
END_STATES = ("settled", "dropped", "dead-lettered", "purged", "still there", "unroutable")


class PublishOutcomes(NamedTuple):
    """How many publishes were confirmed, and how their copies in queues have ended."""

    told: int  # confirmed, according to clients
    confirmed: int  # those of them that are found
    ends: dict[str, int]  # by ENDS; one publish may have entered several queues

    def __str__(self) -> str:
        listed = [f"{count:,} {end}" for end, count in self.ends.items() if count]
        missing = self.told - self.confirmed
        found = f"{missing:,} NOT accounted for" if missing else "all accounted for"
        return f"{self.told:,} confirmed by clients, {found}: {', '.join(listed) or 'nothing'}"


def trace_publishes(
    clients: DataFrame, published: DataFrame, history: DataFrame, names: DataFrame
) -> tuple[PublishOutcomes, list[Finding]]:
    """C2: each confirmed publish has one end in each queue that it entered, or is still there."""
    from pyspark.sql import functions as f

    mine = _confirmed(clients, published).persist()
    try:
        claimed = clients.filter(f.col("op") == int(ClientOp.CONFIRMED)).count()
        found = mine.agg(f.count("*"), f.count(f.when(f.col("number") == 0, 1))).collect()[0]
        entered = mine.select(
            "content", "body", "client", f.explode("queues").alias("queue"), "position"
        )
        lifecycles = entered.join(_lifecycles(history), ["queue", "content"], "left")
        dead_lettered = published.filter(f.col("cause") == _DEAD_LETTERED).select(
            f.col("position").alias("until"), "body", f.lit(1).alias("dead_lettered")
        )
        lifecycles = lifecycles.join(dead_lettered.distinct(), ["until", "body"], "left").persist()
        try:
            counts = lifecycles.groupBy(_end().alias("end")).count().collect()
            twice = lifecycles.filter("ends > 1").join(f.broadcast(names), "queue", "left")
            found_twice = twice.orderBy("position").limit(FINDINGS_MAX).collect()
        finally:
            lifecycles.unpersist()
    finally:
        mine.unpersist()
    ends = dict.fromkeys(END_STATES, 0) | {row["end"]: row["count"] for row in counts}
    ends["unroutable"] = found[1]
    findings = [
        Finding(
            "G20", "", 0, row.until,
            f"client {row.client}, body {row.body & U64:016x}: a confirmed message ended "
            f"{row.ends} times in {row.name}",
            queue=row.name or "",
        )
        for row in found_twice
    ]  # fmt: skip
    return PublishOutcomes(claimed, found[0], ends), findings


def _confirmed(clients: DataFrame, published: DataFrame) -> DataFrame:
    """Return, by body and number, the earliest publishes: as many as were confirmed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    claimed = (
        clients.filter(f.col("op") == int(ClientOp.CONFIRMED))
        .groupBy("body", f.col("aux").bitwiseAND(MARK_MASK).alias("publish_no"))
        .agg(f.count("*").alias("confirmed"), f.min("client").alias("client"))
    )
    nth = f.row_number().over(
        Window.partitionBy("body", "publish_no").orderBy(
            f.when(f.size("queues") > 0, 0).otherwise(1), "position"
        )
    )
    server = published.filter("cause = 0 and publish_no > 0")
    return (
        server.join(claimed, ["body", "publish_no"])
        .withColumn("nth", nth)
        .filter("nth <= confirmed")
    )


def _lifecycles(history: DataFrame) -> DataFrame:
    """Return, by queue and content, the number of ends, the last of them, or a purge."""
    from pyspark.sql import functions as f

    cold = (f.col("op") == int(Op.PURGED)) & (f.col("cause") == _COLD_START)
    starts = (
        history.filter(cold | (f.col("op") == int(Op.RECOVERED)))
        .groupBy("position")
        .agg(f.min("ordinal").alias("ordinal"))
        .collect()
    )
    # A cold start renumbers messages: a place identifies one only between two cold starts.
    era: Column = f.lit(0)
    for start in starts:
        later = (f.col("position") == start.position) & (f.col("ordinal") >= start.ordinal)
        era = era + f.when((f.col("position") > start.position) | later, 1).otherwise(0)

    def op_is(*ops: Op) -> Column:
        return f.col("op").isin([int(op) for op in ops])

    content = f.when(~op_is(Op.SETTLED), f.col("detail"))
    end = f.when(op_is(Op.SETTLED, Op.DROPPED), 1)
    time = f.struct("position", "ordinal", "op", "cause")
    in_era = (
        history.filter(op_is(Op.ENQUEUED, Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.DROPPED))
        .withColumn("era", era)
        .groupBy("queue", "era", "seq")
        .agg(
            f.max(content).alias("content"),
            f.count(end).alias("ends"),
            f.max(f.when(end.isNotNull(), time)).alias("ended"),
            f.max(time).alias("last"),
            f.max(f.when(op_is(Op.ENQUEUED), f.col("flag"))).alias("persistent"),
        )
    )
    whole = in_era.groupBy("queue", "content").agg(
        f.sum("ends").alias("ends"), f.max("ended").alias("ended"), f.max("last").alias("last"),
        f.max("persistent").alias("persistent"),
    )  # fmt: skip
    return _purged(whole, history).withColumn("until", f.col("ended.position"))


def _purged(whole: DataFrame, history: DataFrame) -> DataFrame:
    """Add whether a purge removed a message that has no end of its own."""
    from pyspark.sql import functions as f

    kept = f.col("op") == int(Op.RECOVERED)
    purges = (
        history.filter(kept | (f.col("op") == int(Op.PURGED)))
        .groupBy("queue")
        .agg(
            f.max(f.when(~kept & (f.col("cause") != _COLD_START), f.col("position"))).alias("by"),
            f.max(f.when(~kept & (f.col("cause") == _COLD_START), f.col("position"))).alias("cold"),
            f.collect_set(f.when(kept, f.col("position"))).alias("kept_at"),
        )
    )
    ready = f.col("last.op").isin(int(Op.ENQUEUED), int(Op.RETURNED))
    last = f.col("last.position")
    by_purge = f.coalesce(f.col("by") >= last, f.lit(False)) & ready
    # What is persistent survives a cold start where the queue does.
    survives = f.col("persistent") & f.array_contains("kept_at", f.col("cold"))
    by_start = f.coalesce(f.col("cold") >= last, f.lit(False)) & ~f.coalesce(survives, f.lit(False))
    return whole.join(purges, "queue", "left").withColumn("purged", by_purge | by_start)


def _end() -> Column:
    from pyspark.sql import functions as f

    dropped = f.col("ended.op") == int(Op.DROPPED)
    discarded = (f.col("ended.op") == int(Op.SETTLED)) & (f.col("ended.cause") == _DISCARDED)
    ended = f.col("ends") > 0
    return (
        f.when(ended & (dropped | discarded) & f.col("dead_lettered").isNotNull(), "dead-lettered")
        .when(ended & dropped, "dropped")
        .when(ended, "settled")
        .when(f.col("purged"), "purged")
        .otherwise("still there")
    )
