# mypy: disable-error-code="import-untyped"
"""What members' segments and clients' segments hold for the checks of clients, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.verify.clients.exchange import Tables
from tools.verify.clients.lookup import SCHEMAS, WHOLE
from tools.verify.clients.relations import add, group, join
from tools.verify.format.moves import MARK_MASK, Op
from tools.verify.format.records import ClientOp, ConfirmRecord
from tools.verify.input.moves import OPS_OF_MESSAGES, OPS_OF_QUEUES
from tools.verify.input.parse import scan_segment
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import FAULT
from tools.verify.input.segments import read_bytes, records_of
from tools.verify.input.tables import (
    CLIENTS_SCHEMA,
    EVERYWHERE,
    MOVES_SCHEMA,
    arrow_schema,
    clients_of,
    moves_of,
)

_PLACE_BITS = 21  # operations of one record; a record is bounded to fewer
_LOOKED_UP = (
    ClientOp.PUBLISHED, ClientOp.CONFIRMED, ClientOp.REFUSED, ClientOp.UNROUTABLE,
    ClientOp.RECEIVED,
)  # fmt: skip


class EvidenceFile(NamedTuple):
    """A segment to be read: of a client, or of a member in these ranges; None: in all."""

    file: str
    of_client: bool
    ranges: list[FileRange] | None = None


def read_evidence(one: EvidenceFile) -> Iterator[Tables]:
    """Yield the tables of a segment, in parts."""
    data = read_bytes(Path(one.file))
    if one.of_client:
        for batch in clients_of(data, one.file, arrow_schema(CLIENTS_SCHEMA)):
            yield tables_of_operations(pa.Table.from_batches([batch]))
        yield {"damage": _damage(data, one.file)}
        return
    positions = [
        position
        for record in records_of(data, one.file)
        if isinstance(record, ConfirmRecord)
        for position in record.positions
    ]
    yield {"confirms": pa.table({"position": pa.array(positions, pa.int64())})}
    ranges = EVERYWHERE if one.ranges is None else one.ranges
    if ranges:
        for batch in moves_of(data, one.file, arrow_schema(MOVES_SCHEMA), ranges):
            yield tables_of_moves(pa.Table.from_batches([batch]))


def tables_of_operations(operations: pa.Table) -> Tables:
    """Return the operations that are looked up, and how many there are of each kind."""
    place = pc.add(
        pc.shift_left(operations["lsn"], _PLACE_BITS), operations["ordinal"].cast(pa.int64())
    )
    masked = pc.bit_wise_and(operations["aux"], MARK_MASK)
    publishing = pc.is_in(
        operations["op"],
        pa.array([ClientOp.PUBLISHED, ClientOp.CONFIRMED, ClientOp.REFUSED], pa.int32()),
    )
    number = pc.if_else(publishing, masked, operations["aux"])
    ops = add(operations, place=place, number=number, op=operations["op"].cast(pa.int64()))
    columns = [column.name for column in arrow_schema(SCHEMAS["ops"])]
    looked_up = pc.is_in(ops["op"], pa.array(_LOOKED_UP, pa.int64()))
    return {
        "ops": ops.filter(looked_up).select(columns),
        "did": group(ops, ["client", "life", "op"], n=("body", "count")),
    }


def tables_of_moves(moves: pa.Table) -> Tables:
    """Return publishes, what entered queues with the body it was published with, and moves.

    A publish and what it enters are moves of one command, so both are in the same part.
    """
    columns = {name: moves[name].cast(pa.int64()) for name in ("ordinal", "op", "cause")}
    moves = add(moves, **columns)
    published = moves.filter(pc.equal(moves["op"], int(Op.PUBLISHED)))
    low = pc.bit_wise_and(published["seq"], MARK_MASK)
    no_confirm = pa.array(np.zeros(len(published), np.bool_))
    publishes = pa.table({
        "epoch": published["epoch"], "position": published["position"], "low": low,
        "number": published["seq"], "publish_no": published["queue"],
        "body": published["detail"], "cause": published["cause"], "channel": published["of"],
        "answered": no_confirm,
    })  # fmt: skip
    entered = moves.filter(pc.equal(moves["op"], int(Op.ENQUEUED)))
    key = ["epoch", "position", "low"]
    bodies = group(publishes, key, body=("body", "max"))
    entries = pa.table({
        "epoch": entered["epoch"], "position": entered["position"], "low": entered["of"],
        "queue": entered["queue"], "content": entered["detail"],
    })  # fmt: skip
    whole = moves.filter(pc.is_in(moves["op"], pa.array(OPS_OF_QUEUES, pa.int64())))
    wanted = [column.name for column in arrow_schema(SCHEMAS["moves"])]
    return {
        "publishes": publishes,
        "entries": join(entries, bodies, key, "left outer").select(
            [*key, "queue", "content", "body"]
        ),
        "moves": moves.filter(pc.is_in(moves["op"], pa.array(OPS_OF_MESSAGES, pa.int64()))).select(
            wanted
        ),
        **dict.fromkeys(WHOLE, whole.select(wanted)),
    }


def _damage(data: bytes, file: str) -> pa.Table:
    faults = [row for row in scan_segment(data, file) if row.kind == FAULT]
    columns: Iterable[tuple[str, list[object]]] = (
        ("client", [row.member for row in faults]),
        ("life", [row.incarnation for row in faults]),
        ("what", [getattr(row, "text", None) for row in faults]),
    )
    return pa.table(dict(columns), schema=arrow_schema(SCHEMAS["damage"]))
