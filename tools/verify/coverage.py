"""Counts how many items each check examined: a check that saw nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tools.verify.checks.lifetimes import Incarnation
from tools.verify.checks.voter_changes import promotions
from tools.verify.findings import Coverage
from tools.verify.format.records import TAKEN, RecordKind
from tools.verify.input.rows import Row

if TYPE_CHECKING:
    from tools.verify.contract.job import ContractResult


def measure_coverage(
    rows: Iterable[Row], incarnations: Iterable[Incarnation], batches: int, contract: ContractResult
) -> list[Coverage]:
    """Return how much each check examined; `rows` are the control rows."""
    rows = list(rows)
    kinds = [row.kind for row in rows]
    members = list(incarnations)
    leads = [row for row in rows if row.kind == RecordKind.LEASE and row.text == TAKEN]
    n = contract.counts
    due = n["within"] > 0
    confirms = sum(one.confirms for one in members)
    return [
        Coverage("LOG", "links, numbers, chains", sum(one.records for one in members), "records"),
        Coverage("G1 G2 G14", "the same everywhere", batches, "batches"),
        Coverage("G6", "views", kinds.count(RecordKind.VIEW), "views as members tell them"),
        Coverage(
            "G7", "primaries", kinds.count(RecordKind.ACTIVE), "activations as members tell them"
        ),
        Coverage("G38", "who leads", len(leads), "tokens that leaders took"),
        Coverage("G25", "who is active", len(promotions(rows)), "promotions"),
        Coverage("G5", "E5 by source", n["blobs"], "submissions"),
        Coverage("G8 G9", "confirms", confirms, "confirms"),
        Coverage("G9", "durable at a majority", sum(len(one.epochs) for one in members), "epochs"),
        Coverage("G10", "votes", sum(one.votes for one in members), "votes as members tell them"),
        Coverage("G20", "causes, C1 enqueue", n["moves"], "moves"),
        Coverage("G20", "what logs say is there", n["checkpoints"], "checkpoints", due),
        Coverage("G11 G13 G20", "C2 one end, C3 delivery, C4 holder", n["examined"], "moves"),
        Coverage("G20", "C2 one end", n["messages"], "messages"),
        Coverage("G20", "C2 cold starts", n["recoveries"], "queues that came back"),
        Coverage("G12", "C5 order", n["high_waters"], "queues and channels, by segment"),
        Coverage("G29", "C8 reading", n["reads"], "messages that readers were sent"),
        Coverage("G23", "C1 repeats", n["repeats"], "publishes that came again"),
        Coverage("G30", "C9 last values", n["replaced"], "messages that newer ones replaced"),
        Coverage("G17", "H3 expiry", n["expired"], "messages that expired"),
        Coverage("G32", "H3 groups", n["grouped"] + n["kept"], "messages of groups"),
        Coverage("G34", "H3 kept groups", n["kept"], "messages of groups that are kept"),
        Coverage("G12 G20", "H2 replay", n["replayed"], "moves", due),
        Coverage("G20", "H2 replay", n["compared"], "queues that the model arrived at", due),
    ]  # fmt: skip


def unexamined(incarnations: Iterable[Incarnation], contract: ContractResult) -> Iterator[str]:
    """Yield each check that examined less than it should have: then there can be no verdict."""
    publishes, n = sum(one.publishes for one in incarnations), contract.counts
    if publishes and contract.segments and not n["moves"]:
        yield f"{publishes} publishes were accepted, and the queue contract saw no move"
    if n["examined"] != n["within"]:
        yield (
            f"{n['within']} moves of messages were read, and {n['examined']} were judged "
            "beside one another"
        )
