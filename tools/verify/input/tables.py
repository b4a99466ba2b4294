# mypy: disable-error-code="import-untyped"
"""Tables "moves" and "clients": a row for each move, and for each operation of a client.

Built column by column from the packed bytes of many records at once: no row becomes a Python
object.  Damage is reported by the table "records"; here, readable records are read.
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
    Active,
    Batch,
    Client,
    ConfirmRecord,
    Decided,
    Header,
    Inactive,
    Snapshot,
    Start,
)
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.segments import sound_entries

Ints: TypeAlias = NDArray[np.int64]
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

MOVES_SCHEMA = (
    "file string, member string, incarnation bigint, lsn bigint, position bigint, ordinal int, "
    "epoch bigint, decided bigint, op int, flag boolean, cause int, queue bigint, seq bigint, "
    "of bigint, detail bigint"
)
CLIENTS_SCHEMA = (
    "file string, client string, life bigint, session bigint, queue string, lsn bigint, "
    "ordinal int, op int, flag boolean, body bigint, aux bigint, time_us bigint"
)
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
    data: bytes,
    file: str,
    schema: pyarrow.Schema,
    ranges: Iterable[FileRange] = EVERYWHERE,
    confirmed: list[int] | None = None,
    unsure: Unsure = ALL_SURE,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the moves of a member's segment: those of batches that begin in one of the ranges.

    The positions that it confirmed, in all ranges, are added to `confirmed`, and of these ranges
    what is `unsure`: to read is most of the work, so all is read at once.
    """
    cursor = RangeCursor(ranges)
    header = Header(0, "", "", "", -1, -1, b"", "", 0)
    deciding = 0
    taken: list[tuple[int, int, int, int]] = []  # lsn, first position, epoch, decided
    packed: list[bytes] = []
    size = 0
    for lsn, _, _, record, _ in sound_entries(data, file):
        cursor.advance(record)
        match record:
            case Batch():
                first = record.first_position
                if record.moves and cursor.covers(first):
                    taken.append((lsn, first, record.epoch, deciding or record.epoch))
                    packed.append(record.moves)
                    above = unsure.get((record.origin, record.epoch))
                    if confirmed is not None and above is not None:
                        confirmed += range(max(first, above + 1), first + len(record.kinds))
                    size += len(record.moves)
                    if size >= ROWS_PER_BATCH * MOVE.size:
                        yield _moves(header, file, taken, packed, schema)
                        size = 0
            case ConfirmRecord():
                if confirmed is not None:
                    confirmed += record.positions
            case Decided(epoch):
                deciding = epoch
            case Active() | Inactive() | Start() | Snapshot():
                deciding = 0
            case Header():
                header = record
            case _:
                pass
    if taken:
        yield _moves(header, file, taken, packed, schema)


def clients_of(data: bytes, file: str, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Yield the operations that a client's segment records."""
    header = Header(0, "", "", "", -1, -1, b"", "", 0)
    taken: list[tuple[int, Client]] = []
    size = 0
    for lsn, _, _, record, _ in sound_entries(data, file):
        if isinstance(record, Client):
            taken.append((lsn, record))
            size += len(record.ops)
            if size >= ROWS_PER_BATCH * CLIENT_ROW.size:
                yield _clients(header, file, taken, schema)
                size = 0
        elif isinstance(record, Header):
            header = record
            if header.role != ROLE_CLIENT:
                return
    if taken:
        yield _clients(header, file, taken, schema)


def _moves(
    header: Header,
    file: str,
    taken: list[tuple[int, int, int, int]],
    packed: list[bytes],
    schema: pyarrow.Schema,
) -> pyarrow.RecordBatch:
    columns = np.array(taken, np.int64)
    counts, moves = unpack(packed, [one[1] for one in taken])
    lsn, _, epoch, decided = (np.repeat(column, counts) for column in columns.T)
    taken.clear()
    packed.clear()
    return _record_batch(
        schema,
        *(file, header.member, header.incarnation, lsn, moves.pop("position")),
        *(moves.pop("ordinal"), epoch, decided, *moves.values()),
    )


def _clients(
    header: Header, file: str, taken: list[tuple[int, Client]], schema: pyarrow.Schema
) -> pyarrow.RecordBatch:
    rows = np.frombuffer(b"".join(record.ops for _, record in taken), _CLIENT)
    counts = np.array([len(record.ops) // CLIENT_ROW.size for _, record in taken], np.int64)
    begins = np.cumsum(counts) - counts
    columns = np.array([(lsn, one.session, one.time_us) for lsn, one in taken], np.int64)
    lsn, session, time_us = (np.repeat(column, counts) for column in columns.T)
    queues = pyarrow.array([record.queue for _, record in taken])
    queue = queues.take(pyarrow.array(np.repeat(np.arange(len(taken)), counts)))
    ordinal = np.arange(len(rows), dtype=np.int64) - np.repeat(begins, counts)
    taken.clear()
    return _record_batch(
        schema,
        *(file, header.member, header.incarnation, session, queue, lsn, ordinal),
        *(rows["op"] & (REDELIVERED - 1), rows["op"] >= REDELIVERED),
        *(_signed(rows["body"]), _signed(rows["aux"]), time_us),
    )


def _signed(column: Ints) -> Ints:
    return np.ascontiguousarray(column).view("<i8")


def _record_batch(schema: pyarrow.Schema, *columns: object) -> pyarrow.RecordBatch:
    """Return a batch of columns; a value that is no array is repeated in all rows."""
    size = max(len(column) for column in columns if isinstance(column, np.ndarray))
    arrays = [
        column.cast(field.type)
        if isinstance(column, pyarrow.Array)
        else pyarrow.array(column.astype(field.type.to_pandas_dtype(), copy=False))
        if isinstance(column, np.ndarray)
        else pyarrow.repeat(pyarrow.scalar(column, field.type), size)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
