# mypy: disable-error-code="import-untyped"
"""Arrow tables by their columns; of moves and of clients' operations a row for each.

These are built column by column from the packed bytes of many records at once: no row becomes a
Python object.  Damage is reported by the table "records"; here, readable records are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow
from numpy.typing import NDArray

from tools.verify.format.moves import CAUSE_SHIFT, FLAG, MOVE, PASSED, Op
from tools.verify.format.records import (
    CLIENT_ROW,
    REDELIVERED,
    ROLE_CLIENT,
    Batch,
    Client,
    ConfirmRecord,
    Header,
)
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.segments import sound_entries

Ints: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = Mapping[str, NDArray[Any]]
Unsure: TypeAlias = Mapping[tuple[str, int], int]
"""Of what a member submitted in an epoch, the position above which it may have confirmed more than
it recorded."""
ALL_SURE: Unsure = {}

# A move as bytes, see docs/MEMBERLOG.md; the same as `format.moves.MOVE`.
ROW = np.dtype(
    [("what", "u1"), ("index", "<u2"), ("queue", "<u4"), ("seq", "<u8"), ("of", "<u4"),
     ("detail", "<u8")]
)  # fmt: skip
ORDINAL_BITS = 20  # of a time: position in the high bits, index in the batch in the low ones
ORDINAL_MAX = (1 << ORDINAL_BITS) - 1

OPS_OF_MESSAGES = (Op.ENQUEUED, Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.DROPPED)
ROWS_PER_BATCH = 1 << 16
EVERYWHERE = (FileRange(0, (1 << 63) - 1),)
_TYPES = {
    "string": pyarrow.string(), "bigint": pyarrow.int64(), "int": pyarrow.int32(),
    "boolean": pyarrow.bool_(), "binary": pyarrow.binary(),
    "array<string>": pyarrow.list_(pyarrow.string()),
    "array<bigint>": pyarrow.list_(pyarrow.int64()),
}  # fmt: skip

_CLIENT = np.dtype([("op", "u1"), ("body", "<u8"), ("aux", "<u8")])


def arrow_schema(ddl: str) -> pyarrow.Schema:
    """Return the Arrow schema of plain columns as Spark names them: "name type, ..."."""
    columns = (column.replace("`", "").split() for column in ddl.split(","))
    return pyarrow.schema([(name, _TYPES[kind]) for name, kind in columns])


def batch_of(rows: Iterable[tuple[object, ...]], ddl: str) -> pyarrow.RecordBatch:
    """Return rows as a batch of these columns."""
    schema = arrow_schema(ddl)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(one, of.type) for one, of in zip(columns, schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def table_of(rows: Iterable[tuple[object, ...]], ddl: str) -> pyarrow.Table:
    """Return rows as a table of these columns."""
    return pyarrow.Table.from_batches([batch_of(rows, ddl)], arrow_schema(ddl))


def unpack(packed: list[bytes], firsts: list[int]) -> tuple[Ints, dict[str, NDArray[Any]]]:
    """Return how many moves each batch has, and these as columns, in the order in which the machine
    made them.

    `firsts` are the first positions of the batches.  A move whose index is outside of its batch
    gets the position that the index stands for.
    """
    counts, rows = _expand(packed)
    begins = np.cumsum(counts) - counts
    first = np.repeat(np.array(firsts, np.int64), counts)
    what = rows["what"].astype(np.int64)
    index = rows["index"].astype(np.int64)
    return counts, {
        "position": first + ((index - first) & 0xFFFF),
        "ordinal": np.arange(len(rows), dtype=np.int64) - np.repeat(begins, counts),
        "op": what & 15,
        "flag": (what & FLAG) != 0,
        "cause": (what & 0x70) >> CAUSE_SHIFT,
        "queue": rows["queue"].astype(np.int64),
        "seq": rows["seq"].astype(np.int64),
        "of": rows["of"].astype(np.int64),
        "detail": np.ascontiguousarray(rows["detail"]).view("<i8"),  # Spark has no unsigned numbers
    }


def _expand(packed: list[bytes]) -> tuple[Ints, NDArray[Any]]:
    """Return how many moves each batch has, and these, two for each that stands for two."""
    written = np.array([len(one) // ROW.itemsize for one in packed], np.int64)
    rows = np.frombuffer(b"".join(packed), ROW)
    passed = (rows["what"] & ~np.uint8(FLAG)) == PASSED
    published = np.where(rows["what"] & 15 == Op.PUBLISHED, np.arange(len(rows)), 0)
    number = rows["seq"][np.maximum.accumulate(published)[passed]]
    ends = np.cumsum(1 + passed)
    rows = np.repeat(rows, 1 + passed)
    delivered = ends[passed] - 1
    rows["what"][delivered - 1] ^= PASSED ^ Op.ENQUEUED
    rows["of"][delivered - 1] = number & 0xFFFFFFFF
    rows["what"][delivered] = Op.DELIVERED
    return np.diff(np.append(0, ends)[np.append(0, np.cumsum(written))]), rows


def moves_of(
    data: bytes, file: str, ranges: Iterable[FileRange], confirmed: list[int], unsure: Unsure
) -> Iterator[pyarrow.Table]:
    """Yield the moves of a member's segment: those of batches that begin in one of the ranges.

    The positions that it confirmed, in all ranges, are added to `confirmed`, and of these ranges
    what is `unsure`: to read is most of the work, so all is read at once.
    """
    cursor = RangeCursor(ranges)
    taken: list[Batch] = []
    size = 0
    for _, _, _, record, _ in sound_entries(data, file):
        cursor.advance(record)
        if isinstance(record, ConfirmRecord):
            confirmed += record.positions
        elif isinstance(record, Batch) and record.moves and cursor.covers(record.first_position):
            taken.append(record)
            above = unsure.get((record.origin, record.epoch))
            if above is not None:
                first = record.first_position
                confirmed += range(max(first, above + 1), first + len(record.kinds))
            size += len(record.moves)
            if size >= ROWS_PER_BATCH * MOVE.size:
                yield _moves(taken)
                taken, size = [], 0
    if taken:
        yield _moves(taken)


def _moves(batches: list[Batch]) -> pyarrow.Table:
    counts, moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    epoch = np.repeat(np.array([one.epoch for one in batches], np.int64), counts)
    return pyarrow.table({"epoch": epoch, **moves})


def clients_of(data: bytes, file: str) -> Iterator[pyarrow.Table]:
    """Yield the operations that a client's segment records."""
    header: Header | None = None
    taken: list[tuple[int, Client]] = []
    size = 0
    for lsn, _, _, record, _ in sound_entries(data, file):
        if isinstance(record, Header):
            header = record
            if header.role != ROLE_CLIENT:
                return
        elif isinstance(record, Client) and header is not None:
            taken.append((lsn, record))
            size += len(record.ops)
            if size >= ROWS_PER_BATCH * CLIENT_ROW.size:
                yield _clients(header, taken)
                taken, size = [], 0
    if taken and header is not None:
        yield _clients(header, taken)


def _clients(header: Header, taken: list[tuple[int, Client]]) -> pyarrow.Table:
    rows = np.frombuffer(b"".join(record.ops for _, record in taken), _CLIENT)
    counts = np.array([len(record.ops) // CLIENT_ROW.size for _, record in taken], np.int64)
    begins = np.cumsum(counts) - counts
    nth = np.repeat(np.arange(len(taken)), counts)  # of the record
    queues = pyarrow.array([record.queue for _, record in taken], pyarrow.string())
    return pyarrow.table({
        "client": pyarrow.repeat(header.member, len(rows)),
        "life": np.full(len(rows), header.incarnation, np.int64),
        "session": np.array([record.session for _, record in taken], np.int64)[nth],
        "queue": queues.take(pyarrow.array(nth)),
        "lsn": np.array([lsn for lsn, _ in taken], np.int64)[nth],
        "ordinal": np.arange(len(rows), dtype=np.int64) - begins[nth],
        "op": rows["op"].astype(np.int64) & (REDELIVERED - 1), "flag": rows["op"] >= REDELIVERED,
        "body": _signed(rows["body"]), "aux": _signed(rows["aux"]),
    })  # fmt: skip


def _signed(column: Ints) -> Ints:
    return np.ascontiguousarray(column).view("<i8")
