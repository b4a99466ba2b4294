"""G8, G9, G11, G20: what clients were told is in the canonical history of the members.

Clients and members identify a message by the hash of its body, and a publish also by its number.
Many messages may have one body, so counts are compared: of a body that was confirmed to clients
three times there are three messages.  Clients that keep no history do no harm: they only add
messages that no history mentions.

What a client did before the members' logs begin, or after they end, is not looked up;
`HistoryExtent` states whether there is such a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tools.verify.clients.evidence import EvidenceFile, read_evidence
from tools.verify.clients.exchange import PIECES, Exchange, Key, Step, Tables
from tools.verify.clients.judgement import Judgement, Result, as_table, in_span, summed
from tools.verify.clients.lives import by_content, by_place
from tools.verify.clients.lookup import FINDINGS_MAX, SCHEMAS, WHOLE, HistoryExtent, by_client
from tools.verify.clients.published import END_STATES, PublishOutcomes
from tools.verify.clients.received import fits, judge, receipt_sentence
from tools.verify.findings import Coverage, Finding
from tools.verify.format.records import ClientOp
from tools.verify.input.tables import batch_of
from tools.verify.spark_session import in_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


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


class Run(Protocol):
    """Runs the steps of an exchange over the evidence, and returns the results."""

    def __call__(self, exchange: Exchange, *, everywhere: bool) -> list[Result]:
        """`everywhere`: over what all members logged, not over the canonical history."""


class InSpark:
    """Runs the steps as Spark's tasks: each reads some segments, or takes some bins."""

    def __init__(
        self, spark: SparkSession, files: list[EvidenceFile], everywhere: list[EvidenceFile]
    ) -> None:
        self._spark, self._files, self._everywhere = spark, files, everywhere

    def __call__(self, exchange: Exchange, *, everywhere: bool) -> list[Result]:
        """Run all steps, in one job."""
        files = self._everywhere if everywhere else self._files
        frame = in_tasks(self._spark, files, partial(_read, exchange=exchange), PIECES)
        last = len(exchange.steps) - 1
        for at, step in enumerate(exchange.steps):
            schema = PIECES if at < last else SCHEMAS["results"]
            bins = exchange.bins if any(step.keys.values()) else 1
            frame = frame.repartition(bins, "bin").sortWithinPartitions("bin")
            frame = frame.mapInArrow(partial(_take, exchange=exchange, step=at), schema)
        return [row.asDict() for row in frame.collect()]


def _read(files: Iterable[EvidenceFile], exchange: Exchange) -> Iterator[pa.RecordBatch]:
    for file in files:
        for tables in read_evidence(file):
            yield batch_of(exchange.scatter(tables, 0), PIECES)


def _take(
    batches: Iterator[pa.RecordBatch], exchange: Exchange, step: int
) -> Iterator[pa.RecordBatch]:
    pieces = (one for batch in batches for one in zip(*batch.to_pydict().values(), strict=True))
    for _, of_bin in groupby(pieces, key=itemgetter(0)):
        made = exchange.take(step, (piece[1:] for piece in of_bin))
        if step + 1 < len(exchange.steps):
            yield batch_of(exchange.scatter(made, step + 1), PIECES)
        else:
            yield from made["results"].combine_chunks().to_batches()


def check_clients(run: Run, names: pa.Table, extent: HistoryExtent, bins: int) -> ClientReport:
    """Check clients' histories; `names` has number and name of each queue."""
    results = run(Exchange(SCHEMAS, _steps(names, extent), bins), everywhere=False)
    counts = _counts(results)
    findings = [_finding(row) for row in results if row["kind"] == "finding"]
    notes: list[str] = []
    if not counts.operations:
        return ClientReport(counts, findings, notes, None)
    if suspects := [_suspect(row) for row in results if row["kind"] == "suspect"]:
        found, notes = _received(run, names, extent, bins, suspects, results)
        findings += found
    outcomes: PublishOutcomes | None = None
    if extent.begin and extent.whole:
        n = {row["name"]: row["n"] for row in results if row["kind"] == "outcome"}
        ends = {state: n.get(state, 0) for state in END_STATES}
        outcomes = PublishOutcomes(n.get("told", 0), n.get("found", 0), ends)
    else:
        notes.append(
            "the logs of the members do not tell the whole history: what clients did where "
            "it is not told was not looked up, nor where all messages ended"
        )
    return ClientReport(counts, findings, notes, outcomes)


def _steps(names: pa.Table, extent: HistoryExtent) -> list[Step]:
    """Return the steps of the check: by place in a queue, by content, by body, and together."""
    by_body: dict[str, Key] = dict.fromkeys(
        ("publishes", "entries", "lives", "deliveries", "ops"), ("body",)
    )
    together: dict[str, Key] = dict.fromkeys(("did", "damage", "unknown"), ())
    return [
        *_steps_of_moves(names, extent, once=False),
        Step({**by_body, **together, WHOLE[2]: None}, partial(_judge, names=names, extent=extent)),
        Step({"results": ()}, partial(summed, extent=extent)),
    ]


def _steps_of_moves(names: pa.Table, extent: HistoryExtent, *, once: bool) -> list[Step]:
    return [
        Step(
            {"moves": ("queue", "seq"), "publishes": ("position",), "confirms": ("position",),
             WHOLE[0]: None},
            partial(by_place, confirms=extent.confirms, once=once),
        ),
        Step(
            {"entries": ("content",), "places": ("content",), "handed": ("content",),
             WHOLE[1]: None},
            partial(by_content, names=names),
        ),
    ]  # fmt: skip


def _judge(tables: Tables, names: pa.Table, extent: HistoryExtent) -> Tables:
    return Judgement(tables, names, extent).run()


def _counts(results: list[Result]) -> ClientCounts:
    did = [row for row in results if row["kind"] == "did"]

    def of(op: ClientOp) -> int:
        return sum(row["n"] for row in did if row["name"] == str(int(op)))

    return ClientCounts(
        len({(row["client"], row["life"]) for row in did}), sum(row["n"] for row in did),
        of(ClientOp.PUBLISHED), of(ClientOp.CONFIRMED), of(ClientOp.REFUSED),
        of(ClientOp.RECEIVED), of(ClientOp.ACKED),
    )  # fmt: skip


def _finding(row: Result) -> Finding:
    member = f"{row['client']} (a client)" if row["name"] == "LOG" else ""
    position = -1 if row["position"] is None else row["position"]
    return Finding(
        row["name"], member, row["life"] or 0, position, row["more"], queue=row["queue"] or ""
    )


def _suspect(row: Result) -> Result:
    more: Result = json.loads(row["more"])
    return row | more


def _received(
    run: Run, names: pa.Table, extent: HistoryExtent, bins: int, suspects: list[Result],
    results: list[Result],
) -> tuple[list[Finding], list[str]]:  # fmt: skip
    """C6: look up in the logs of all members what was received otherwise than delivered."""
    wanted = {row["body"] for row in suspects}
    last = Step({"deliveries": ()}, partial(_delivered, wanted=wanted))
    steps = [*_steps_of_moves(names, extent, once=True), last]
    rows = run(Exchange(SCHEMAS, steps, bins), everywhere=True)
    anywhere = [row | json.loads(row["more"]) for row in rows]
    spans: dict[tuple[object, ...], Result] = {
        ("span", row["name"], None, row["client"], row["life"]): row
        for row in results
        if row["kind"] == "span"
    }
    certain = extent.begin and extent.end
    accused = [
        row
        for row in judge(suspects, anywhere)
        if certain or (row["lives"] == 1 and in_span(row, spans, "receipt", extent))
    ]
    # Of what was enqueued before the logs begin the body is not known.
    unknown = [row["queue"] for row in results if row["kind"] == "unknown"]
    kept = [row for row in accused if not any(fits(row["queue"], one or None) for one in unknown)]
    notes = []
    if len(kept) < len(accused):
        notes.append(
            f"{len(accused) - len(kept)} bodies that clients received are not judged, as messages "
            "were in their queues before the logs begin"
        )
    findings = []
    for row in sorted(kept, key=lambda one: (one["body"], one["queue"]))[:FINDINGS_MAX]:
        promise, what = receipt_sentence(row)
        text = by_client(row["client"], row["session"], row["body"], what)
        findings.append(
            Finding(promise, "", row["life"], row["position"], text, queue=row["queue"])
        )
    return findings, notes


def _delivered(tables: Tables, wanted: set[int]) -> Tables:
    rows = [row for row in tables["deliveries"].to_pylist() if row["body"] in wanted]
    return {"results": as_table([{"kind": "delivered", "more": json.dumps(row)} for row in rows])}
