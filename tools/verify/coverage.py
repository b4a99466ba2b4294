"""How much each check has looked at: a check that saw nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.memberlog.records import RecordKind
from tools.verify.checks.lifetimes import Lived
from tools.verify.findings import Touched
from tools.verify.input.rows import Row

if TYPE_CHECKING:
    from tools.verify.contract.job import Contract


def touched(
    rows: Iterable[Row], lives: Iterable[Lived], batches: int, contract: Contract
) -> list[Touched]:
    """Return what was looked at; `rows` are the control rows."""
    kinds = [row.kind for row in rows]
    lived = list(lives)
    confirms = sum(life.confirms for life in lived)
    return [
        Touched("LOG", "links, numbers, chains", sum(life.records for life in lived), "records"),
        Touched("G1 G2 G14", "the same everywhere", batches, "batches"),
        Touched("G6", "views", kinds.count(RecordKind.VIEW), "views as members tell them"),
        Touched("G7", "primaries", kinds.count(RecordKind.ACTIVE), "activations members tell"),
        Touched("G8 G9", "confirms", confirms, "confirms"),
        Touched("G9", "durable at a majority", sum(len(life.epochs) for life in lived), "epochs"),
        Touched("G20", "causes, C1 enqueue, balances", contract.moves, "moves"),
        Touched("G20", "what logs say is there", contract.balances, "checkpoints"),
        Touched("G11 G13 G20", "C2 one end, C3 delivery, C4 holder", contract.judged, "moves"),
        Touched("G20", "C2 one end", contract.messages, "messages"),
        Touched("G20", "C2 cold starts", contract.recoveries, "queues that came back"),
        Touched("G12", "C5 order", contract.reaches, "queues and channels, by segment"),
        Touched("G12 G20", "H2 replay", contract.replayed, "moves"),
        Touched("G20", "H2 replay", contract.compared, "queues that the model arrived at"),
    ]  # fmt: skip


def blind(lives: Iterable[Lived], contract: Contract) -> Iterator[str]:
    """Yield which check saw nothing, or not all, though there was something: no verdict then."""
    publishes = sum(life.publishes for life in lives)
    if publishes and contract.segments and not contract.moves:
        yield f"{publishes} publishes were accepted, and the queue contract saw no move"
    if contract.judged != contract.within:
        yield (
            f"{contract.within} moves of messages were read, and {contract.judged} were judged "
            "beside one another"
        )
    if contract.moves and contract.segments and not contract.stretches:
        yield "there are moves, and no history of them"
