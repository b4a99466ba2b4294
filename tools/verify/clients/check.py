"""LOG, G8, G9, G11, G20: the members' canonical history has everything that clients were told.

Clients and members identify a message by the hash of its body, and a publish also by its number.
Many messages may have one body, so counts are compared: if a body was confirmed to clients three
times there are three messages. Clients that keep no history do no harm: they only add messages that
no history mentions.

A client's actions before the members' logs begin, or after they end, are not looked up;
`HistoryExtent` states whether there is such a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tools.verify.clients import judgement
from tools.verify.clients.accounts import END_STATES, PublishOutcomes
from tools.verify.clients.evidence import HistoryExtent
from tools.verify.clients.judgement import exchange_of_clients, exchange_of_deliveries
from tools.verify.clients.received import RECEIVED_ANYWHERE
from tools.verify.findings import Coverage, Finding
from tools.verify.format.records import ClientOp
from tools.verify.sql.exchange import Exchange, Tables
from tools.verify.sql.statements import answer

if TYPE_CHECKING:
    import pyarrow as pa

U64 = (1 << 64) - 1  # Arrow's numbers are signed here, as Spark has no others


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


Run: TypeAlias = Callable[[Exchange, bool], Tables]
"""Runs the steps of an exchange over the evidence, True: over the logs of all members, not over the
canonical history; and returns the results of the last step."""


def check_clients(run: Run, names: pa.Table, extent: HistoryExtent, bins: int) -> ClientReport:
    """Check clients' histories; `names` has number and name of each queue."""
    found = run(exchange_of_clients(names, extent, bins), False)
    counts = _counts(found["counts"].to_pylist())
    notes: list[str] = []
    if not counts.operations:
        return ClientReport(counts, _damage(found), notes, None)
    findings = _damage(found) + [_finding(row) for row in found["accusations"].to_pylist()]
    if suspects := found["doubtful"]:
        accused, notes = _received(run, names, extent, bins, suspects, found["older"])
        findings += accused
    outcomes: PublishOutcomes | None = None
    if extent.from_start and extent.complete:
        n = dict(zip(*found["account"].to_pydict().values(), strict=True))
        ends = {state: n.get(state, 0) for state in END_STATES}
        outcomes = PublishOutcomes(n["told"], n["found"], ends)
    else:
        notes.append(
            "the logs of the members do not tell the whole history: what clients did where "
            "it is not told was not looked up, nor where all messages ended"
        )
    return ClientReport(counts, findings, notes, outcomes)


def _received(
    run: Run, names: pa.Table, extent: HistoryExtent, bins: int, suspects: pa.Table,
    older: pa.Table,
) -> tuple[list[Finding], list[str]]:  # fmt: skip
    """C6: look up in the logs of all members the receptions that differ from the deliveries."""
    anywhere = run(exchange_of_deliveries(names, suspects, bins), True)["wanted_deliveries"]
    given = {"suspects": suspects, "anywhere": anywhere, "unknown": older}
    accused = answer(RECEIVED_ANYWHERE, given, ["accused"])["accused"].to_pylist()
    findings = [_finding(row) for row in accused if not row["older"]]
    notes = []
    if not_judged := len(accused) - len(findings):
        notes.append(
            f"{not_judged} bodies that clients received are not judged, as messages were in "
            "their queues before the logs begin"
        )
    return findings[: judgement.FINDINGS_MAX], notes


def _counts(rows: list[dict[str, Any]]) -> ClientCounts:
    n: Counter[int] = Counter()
    for row in rows:
        n[row["op"]] += row["n"]
    return ClientCounts(
        len({(row["client"], row["life"]) for row in rows}), n.total(), n[ClientOp.PUBLISHED],
        n[ClientOp.CONFIRMED], n[ClientOp.REFUSED], n[ClientOp.RECEIVED], n[ClientOp.ACKED],
    )  # fmt: skip


def _damage(found: Tables) -> list[Finding]:
    return [
        Finding("LOG", f"{row['client']} (a client)", row["life"], -1, row["what"])
        for row in found["faults"].to_pylist()
    ]


def _finding(row: dict[str, Any]) -> Finding:
    position = -1 if row["position"] is None else row["position"]
    what = (
        f"client {row['client']} (connection {row['session']}), "
        f"body {row['body'] & U64:016x}: {row['what']}"
    )
    return Finding(row["promise"], "", row["life"], position, what, queue=row["queue"])
