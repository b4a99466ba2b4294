"""C1 and C6: operations in clients' histories, looked up in the canonical history of the members.

Clients and members identify a message by the hash of its body, and a publish also by its number.
Many messages may have one body, so counts are compared: of a body that was confirmed to clients
three times there are three messages.  Clients that keep no history do no harm: they only add
messages that no history mentions.

What a client did before the members' logs begin, or after they end, is not looked up;
`HistoryExtent` states whether there is such a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.machine.move_log import MARK_MASK
from broker.memberlog.records import ClientOp
from tools.verify.clients.lookup import FINDINGS_MAX, HistoryExtent, finding, messages, times, who
from tools.verify.clients.published import PublishOutcomes, trace_publishes
from tools.verify.clients.received import check_received
from tools.verify.findings import Coverage, Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import Row as SparkRow


class ClientReport(NamedTuple):
    """Result of the checks of clients' histories."""

    counts: ClientCounts
    findings: list[Finding]
    notes: list[str]
    outcomes: PublishOutcomes | None  # None: the logs are not complete enough for that

    def as_document(self) -> dict[str, object]:
        """Return counts and outcomes as plain values for JSON."""
        outcomes = None if self.outcomes is None else self.outcomes._asdict()
        return {**self.counts._asdict(), "account": outcomes}

    def coverage(self) -> list[Coverage]:
        """Return how many operations each check examined."""
        c = self.counts
        rows = [
            Coverage("G8", "C1 clients' confirms", c.confirmed, "confirmed publishes"),
            Coverage("G20", "C1 clients' refusals", c.refused, "refused publishes"),
            Coverage("G11", "C6 clients' receipts", c.received, "messages received"),
        ]
        if self.outcomes is not None:
            ended = self.outcomes.confirmed
            rows.append(Coverage("G20", "C2 clients' accounts", ended, "confirmed publishes"))
        return rows

    def __str__(self) -> str:
        c = self.counts
        rows = (
            f"clients {c.clients}: {c.operations:,} operations, published {c.published:,}, "
            f"confirmed {c.confirmed:,}, refused {c.refused:,}, received {c.received:,}, "
            f"acked {c.acked:,}"
        )
        return rows if self.outcomes is None else f"{rows}\n{self.outcomes}"


class ClientCounts(NamedTuple):
    """Operations in the histories of all clients, by kind."""

    clients: int = 0
    operations: int = 0
    published: int = 0
    confirmed: int = 0
    refused: int = 0
    received: int = 0
    acked: int = 0


def check_clients(
    clients: DataFrame,
    moves: DataFrame,
    history: DataFrame,
    names: DataFrame,
    extent: HistoryExtent,
) -> ClientReport:
    """Check clients' histories against the canonical history.

    `moves` are those of all logs, `history` those of the canonical history, in the columns of the
    data source; `names` has number and name of each queue.
    """
    from pyspark import StorageLevel

    counts = count(clients)
    if not counts.operations:
        return ClientReport(counts, [], [], None)
    published = messages(history, names).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        findings = check_publishes(clients, published, extent)
        findings += check_unroutable(clients, published, extent)
        found, notes = check_received(clients, published, history, moves, names, extent)
        findings += found
        outcomes = None
        if extent.begin and extent.whole:
            outcomes, found = trace_publishes(clients, published, history, names)
            findings += found
        else:
            notes.append(
                "the logs of the members do not tell the whole history: what clients did where "
                "it is not told was not looked up, nor where all messages ended"
            )
        return ClientReport(counts, findings, notes, outcomes)
    finally:
        published.unpersist()


def count(clients: DataFrame) -> ClientCounts:
    """Count the operations of all clients, by kind."""
    from pyspark.sql import functions as f

    def of(did: ClientOp) -> Column:
        return f.count(f.when(f.col("op") == int(did), 1))

    row = clients.agg(
        f.count_distinct("client", "life"), f.count("op"), of(ClientOp.PUBLISHED),
        of(ClientOp.CONFIRMED), of(ClientOp.REFUSED), of(ClientOp.RECEIVED), of(ClientOp.ACKED),
    ).collect()[0]  # fmt: skip
    return ClientCounts(*row)


def check_publishes(
    clients: DataFrame, published: DataFrame, extent: HistoryExtent
) -> list[Finding]:
    """C1: a confirmed publish is a message, in the queue it was for; a refused one is not."""
    from pyspark.sql import functions as f

    found = _looked_up(clients, published)
    mismatches = found.filter("verdict is not null")
    if not extent.whole:
        mismatches = mismatches.filter("verdict != 'missing'")
    elif not (extent.begin and extent.end):
        mismatches = _within(mismatches, found, extent)
    rows = mismatches.orderBy(f.col("who.client"), f.col("who.place")).limit(FINDINGS_MAX).collect()
    return [_publish_finding(row) for row in rows]


def check_unroutable(
    clients: DataFrame, published: DataFrame, extent: HistoryExtent
) -> list[Finding]:
    """C1: a publish that was returned to its client as unroutable entered no queue."""
    from pyspark.sql import functions as f

    if not (extent.begin and extent.whole):
        return []
    answers = (
        clients.filter(f.col("op") == int(ClientOp.UNROUTABLE))
        .groupBy("body")
        .agg(f.count("*").alias("returned"), f.min(who()).alias("who"))
    )
    there = published.filter("cause < 2").groupBy("body").agg(
        f.count("*").alias("there"), f.count(f.when(f.col("number") == 0, 1)).alias("nowhere"),
        f.min("position").alias("position"),
    )  # fmt: skip
    compared = answers.join(there, "body", "left").na.fill(0, ["there", "nowhere"])
    mismatches = compared.filter("returned > nowhere")
    if not extent.end:
        mismatches = mismatches.filter("there >= returned")
    return [
        finding(
            "G20", row.who, row.body, row.position,
            f"was told {times(row.returned)} that it is unroutable, but {row.nowhere} of "
            f"{row.there} publishes of it reached no queue",
        )
        for row in mismatches.limit(FINDINGS_MAX).collect()
    ]  # fmt: skip


def _looked_up(clients: DataFrame, published: DataFrame) -> DataFrame:
    """Return, by body, number and queue, the answers to clients, the messages, and a verdict."""
    from pyspark.sql import functions as f

    def of(did: ClientOp) -> Column:
        return f.when(f.col("op") == int(did), 1)

    answered = of(ClientOp.CONFIRMED).isNotNull() | of(ClientOp.REFUSED).isNotNull()
    answers = (
        clients.filter(f.col("op").isin(ClientOp.PUBLISHED, ClientOp.CONFIRMED, ClientOp.REFUSED))
        .groupBy("body", f.col("aux").bitwiseAND(MARK_MASK).alias("publish_no"), "queue")
        .agg(
            f.count(of(ClientOp.PUBLISHED)).alias("attempts"),
            f.count(of(ClientOp.CONFIRMED)).alias("confirmed"),
            f.count(of(ClientOp.REFUSED)).alias("refused"),
            f.min(f.when(answered, who())).alias("who"),
        )
        .filter("who is not null")
    )
    server = published.filter("cause = 0 and publish_no > 0")
    nameless = f.size("names") < f.size("queues")  # a queue whose name is damaged may be any
    inside = f.when(f.array_contains("names", f.col("queue")) | nameless, 1)
    entered = f.when((f.col("number") == 0) | (f.size("queues") > 0), 1)
    there = (
        answers.join(server, ["body", "publish_no"], "left")
        .groupBy("body", "publish_no", "queue", "attempts", "confirmed", "refused", "who")
        .agg(
            f.count("number").alias("there"),
            f.count(inside).alias("inside"),
            f.count(f.when(f.col("number") == 0, 1)).alias("nowhere"),
            f.count(entered).alias("entered"),
            f.count_distinct("channel").alias("channels"),
            f.min("position").alias("position"),
        )
    )
    for_queue = f.col("queue") != ""
    once = (f.col("attempts") == 1) & (f.col("confirmed") == 1)
    verdict = (
        f.when(f.col("confirmed") + f.col("refused") > f.col("there"), "missing")
        .when(f.col("confirmed") > f.col("entered"), "nowhere")
        .when(for_queue & (f.col("confirmed") > f.col("inside") + f.col("nowhere")), "elsewhere")
        .when(for_queue & (f.col("refused") > f.col("there") - f.col("inside")), "not refused")
        # One of them is this client's, so the channel of all of them is its own, too.
        .when(once & (f.col("there") > 1) & (f.col("channels") == 1), "doubled")
    )
    return there.withColumn("verdict", verdict)


def _within(mismatches: DataFrame, found: DataFrame, extent: HistoryExtent) -> DataFrame:
    """Keep what a client did between the first and the last publish of it that is surely found."""
    from pyspark.sql import functions as f

    sure = found.filter("attempts = 1 and confirmed = 1 and there = 1 and verdict is null")
    spans = sure.groupBy(f.col("who.client").alias("c"), f.col("who.life").alias("l")).agg(
        f.min("who.place").alias("first"), f.max("who.place").alias("last")
    )
    joined = mismatches.join(
        spans, (f.col("who.client") == f.col("c")) & (f.col("who.life") == f.col("l")), "left"
    )
    inside = f.col("verdict") != "missing"
    after = f.coalesce(f.col("who.place") > f.col("first"), f.lit(False)) | f.lit(extent.begin)
    before = f.coalesce(f.col("who.place") < f.col("last"), f.lit(False)) | f.lit(extent.end)
    return joined.filter(inside | (after & before)).drop("c", "l", "first", "last")


def _publish_finding(row: SparkRow) -> Finding:
    number = row.who.number
    match row.verdict:
        case "missing":
            promise = "G8"
            answers = f"{row.confirmed} confirmed" + (
                f", {row.refused} refused" if row.refused else ""
            )
            what = (
                f"was answered for its publish {number} ({answers}, counting all clients), but the "
                f"members' logs have it {times(row.there)}"
            )
        case "nowhere":
            promise, what = "G8", f"its publish {number} was confirmed, but entered no queue"
        case "elsewhere":
            promise = "G8"
            what = f"its publish {number} was confirmed, but did not enter {row.queue}"
        case "doubled":
            promise = "G20"
            what = f"its publish {number} was sent once, but became {row.there} messages"
        case _:
            promise = "G20"
            what = f"its publish {number} was refused, but it entered {row.queue}"
    return finding(promise, row.who, row.body, row.position, what, row.queue)
