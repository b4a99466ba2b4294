"""C6: messages that clients received were delivered, with the same redelivered flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.machine.move_log import Op
from broker.memberlog.records import ClientOp
from tools.verify.clients.lookup import FINDINGS_MAX, HistoryExtent, finding, messages, times, who
from tools.verify.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import Row as SparkRow

_SAME = ["position", "ordinal", "op", "queue", "seq", "of", "flag", "detail"]
_TOO_OFTEN = "plain > delivered_plain or again > delivered_again"


def check_received(
    clients: DataFrame,
    published: DataFrame,
    history: DataFrame,
    moves: DataFrame,
    names: DataFrame,
    extent: HistoryExtent,
) -> tuple[list[Finding], list[str]]:
    """C6: what a client received was delivered, with the same flag, and once without it.

    First against the canonical history; only mismatches are looked up in the logs of all members,
    as a superseded history may have delivered before it ended.
    """
    if not extent.whole:
        return [], []
    received = _received(clients)
    entered = _entered(published)
    delivered_of = _delivered(history, published, names)
    compared = _compared(received, delivered_of, entered)
    suspects = compared.filter(f"{_TOO_OFTEN} or plain > entered").limit(1000).persist()
    try:
        if not suspects.head(1):
            return [], []
        everything = moves.dropDuplicates([*_SAME, "epoch"])
        anywhere = _delivered(moves.dropDuplicates(_SAME), messages(everything, names), names)
        asked = suspects.select("body", "queue", "delivered_plain").withColumnRenamed(
            "delivered_plain", "in_history"
        )
        again = (
            _compared(received, anywhere, entered)
            .join(asked, ["body", "queue"])
            .filter(f"{_TOO_OFTEN} or plain > entered + delivered_plain - in_history")
        )
        if not (extent.begin and extent.end):
            again = _in_span(again, received, delivered_of, extent)
        rows = again.orderBy("body").limit(1000).collect()
    finally:
        suspects.unpersist()
    # Of what was enqueued before the logs begin the body is not known.
    kept = [row for row in rows if not row.unknown]
    notes = []
    if len(kept) < len(rows):
        notes.append(
            f"{len(rows) - len(kept)} bodies that clients received are not judged, as messages "
            "were in their queues before the logs begin"
        )
    return [_received_finding(row) for row in kept[:FINDINGS_MAX]], notes


def _received(clients: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        clients.filter(f.col("op") == int(ClientOp.RECEIVED))
        .groupBy("body", "queue")
        .agg(
            f.count(f.when(~f.col("flag"), 1)).alias("plain"),
            f.count(f.when(f.col("flag"), 1)).alias("again"),
            f.min(who()).alias("who"),
            f.max(who()["place"]).alias("until"),
            f.count_distinct("client", "life").alias("lives"),
        )
    )


def _in_span(
    mismatches: DataFrame, received: DataFrame, delivered_of: DataFrame, extent: HistoryExtent
) -> DataFrame:
    """Keep what one client received between two messages that are surely found."""
    from pyspark.sql import functions as f

    sure = (
        received.filter("plain + again = 1")
        .join(delivered_of, "body")
        .groupBy("body", "who")
        .agg(f.sum(f.col("delivered_plain") + f.col("delivered_again")).alias("there"))
        .filter("there = 1")
        .groupBy(f.col("who.client").alias("c"), f.col("who.life").alias("l"))
        .agg(f.min("who.place").alias("first"), f.max("who.place").alias("last"))
    )
    joined = mismatches.join(
        sure, (f.col("who.client") == f.col("c")) & (f.col("who.life") == f.col("l"))
    )
    after = (f.col("who.place") > f.col("first")) | f.lit(extent.begin)
    before = (f.col("until") < f.col("last")) | f.lit(extent.end)
    return joined.filter(after & before & (f.col("lives") == 1)).drop("c", "l", "first", "last")


def _delivered(rows: DataFrame, published: DataFrame, names: DataFrame) -> DataFrame:
    """Return deliveries by queue and body; null: the message is not in the logs."""
    from pyspark.sql import functions as f

    contents = published.select("content", "body").filter("content is not null").distinct()
    return (
        rows.filter(f.col("op") == int(Op.DELIVERED))
        .join(f.broadcast(names), "queue", "left")
        .join(contents, f.col("detail") == f.col("content"), "left")
        .groupBy("name", "body")
        .agg(
            f.count(f.when(~f.col("flag"), 1)).alias("delivered_plain"),
            f.count(f.when(f.col("flag"), 1)).alias("delivered_again"),
            f.min("position").alias("position"),
        )
    )


def _entered(published: DataFrame) -> DataFrame:
    """Return how many messages of a body entered each queue."""
    from pyspark.sql import functions as f

    each = published.select("body", f.explode("names").alias("name"))
    return each.groupBy("body", "name").agg(f.count("*").alias("entered"))


def _compared(received: DataFrame, delivered: DataFrame, entered: DataFrame) -> DataFrame:
    """Return, beside what was received, how often it was delivered, and entered that queue.

    `unknown` counts deliveries from that queue of messages whose body is not in the logs.
    """
    from pyspark.sql import functions as f

    def zero(column: str) -> Column:
        return f.coalesce(f.sum(column), f.lit(0)).alias(column)

    # A queue whose name is damaged may be any.
    in_queue = (f.col("queue") == "") | (f.col("name") == f.col("queue")) | f.col("name").isNull()
    theirs = delivered.join(entered, ["body", "name"], "full")
    joined = (
        received.alias("r")
        .join(theirs.alias("t"), (f.col("r.body") == f.col("t.body")) & in_queue, "left")
        .groupBy(*(f.col(f"r.{name}") for name in received.columns))
        .agg(
            zero("delivered_plain"),
            zero("delivered_again"),
            zero("entered"),
            f.min("position").alias("at"),
        )
        .withColumnRenamed("at", "position")
    )
    unknown = delivered.filter("body is null").groupBy("name").agg(
        f.sum(f.col("delivered_plain") + f.col("delivered_again")).alias("unknown")
    )  # fmt: skip
    return (
        joined.join(f.broadcast(unknown), in_queue, "left")
        .groupBy(*joined.columns)
        .agg(zero("unknown"))
    )


def _received_finding(row: SparkRow) -> Finding:
    plain, again, delivered_plain, delivered_again = (
        row.plain,
        row.again,
        row.delivered_plain,
        row.delivered_again,
    )
    if plain + again > delivered_plain + delivered_again:
        promise = "G20"
        what = (
            f"received it {times(plain + again)} (counting all clients), but it was delivered "
            f"{times(delivered_plain + delivered_again)}, and entered {times(row.entered)}"
        )
        if delivered_plain + delivered_again:
            promise = "G11"
    elif plain > delivered_plain:
        promise = "G11"
        what = (
            f"received it {times(plain)} without the redelivered flag (counting all clients), but "
            f"it was delivered so {times(delivered_plain)}"
        )
    elif again <= delivered_again:
        promise = "G11"
        what = (
            f"received it {times(plain)} without the redelivered flag (counting all clients), but "
            f"it entered {times(row.entered)}"
        )
    else:
        promise = "G11"
        what = (
            f"received it {times(again)} with the redelivered flag (counting all clients), but it "
            f"was delivered so {times(delivered_again)}"
        )
    return finding(promise, row.who, row.body, row.position, what, row.queue)
