# mypy: disable-error-code="import-untyped"
"""Steps over tables that are joined by a key: the shuffle behind rules stated in SQL.

A step gets, from each of its tables, the rows whose key falls into one *bin*; its results are
distributed over bins again, by the keys of the following steps. Between two steps a table travels
as packed Arrow columns, so that Spark moves few and large values. Data that fits into one bin is
one task per step, and data that fits into a few never leaves the driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from tools.verify.format.pins import by_pins
from tools.verify.input.tables import Ints, arrow_schema, batch_of
from tools.verify.spark_session import in_tasks
from tools.verify.sql.statements import Statements, answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tables: TypeAlias = Mapping[str, pa.Table]
Piece: TypeAlias = tuple[int, str, pa.Table]  # bin, name, rows
Key: TypeAlias = tuple[str, ...] | None  # columns of integers; (): one bin has all; None: each has
T = TypeVar("T")

ROWS_IN_BIN = 1 << 20
BINS_HERE = 2  # the driver handles this many in less time than Spark moves them
PIECES = "bin int, name string, packed binary"
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")  # Spark copies a piece some ten times


class Step(NamedTuple):
    """One step: the tables it takes, their keys, and its function of the rows of one bin."""

    keys: Mapping[str, Key]
    statements: Statements
    makes: Sequence[str]
    given: Tables  # the same in each bin


class Exchange:
    """Steps one after the other; tables that a step does not take bypass it."""

    def __init__(self, schemas: Mapping[str, str], steps: Sequence[Step], bins: int) -> None:
        self.schemas = {name: arrow_schema(ddl) for name, ddl in schemas.items()}
        self.steps = steps
        self.bins = bins

    def scatter(self, tables: Tables, step: int) -> Iterator[Piece]:
        """Yield the rows of tables for the bins of this step; after the last all go to bin 0."""
        for name, table in tables.items():
            taken = [one.keys[name] for one in self.steps[step:] if name in one.keys]
            if not len(table) or not (taken or step == len(self.steps)):
                continue
            table = self._shaped(name, table)
            if taken and taken[0] is None:
                here = name in self.steps[step].keys
                yield from ((bin_, name, table) for bin_ in range(self.bins if here else 1))
            elif not taken or not taken[0] or self.bins == 1:
                yield 0, name, table
            else:
                hashed = _hashed([table[column].to_numpy() for column in taken[0]], self.bins)
                order = np.argsort(hashed, kind="stable")
                for rows in np.split(order, np.flatnonzero(np.diff(hashed[order])) + 1):
                    yield int(hashed[rows[0]]), name, table.take(pa.array(rows))

    def take(self, step: int, pieces: Iterable[tuple[str, pa.Table]]) -> Tables:
        """Return a step's results for the pieces of one bin, and the tables that bypass it."""
        tables = dict(self.gather(pieces))
        of_step = {
            name: tables.pop(name) if name in tables else self.schemas[name].empty_table()
            for name in self.steps[step].keys
        }
        _, statements, makes, given = self.steps[step]
        for name, table in answer(statements, {**given, **of_step}, makes).items():
            # Pieces of the same table may bypass the step.
            passing = [tables[name]] if name in tables else []
            tables[name] = pa.concat_tables([*passing, self._shaped(name, table)])
        return tables

    def _shaped(self, name: str, table: pa.Table) -> pa.Table:
        schema = self.schemas[name]
        return table.select(schema.names).cast(schema)

    def gather(self, pieces: Iterable[tuple[str, pa.Table]]) -> Tables:
        """Return the tables to which these pieces belong."""
        parts: dict[str, list[pa.Table]] = defaultdict(list)
        for name, table in pieces:
            parts[name].append(table)
        return {name: pa.concat_tables(some).combine_chunks() for name, some in parts.items()}

    def results(self, pieces: Iterable[tuple[str, pa.Table]]) -> Tables:
        """Return the results of the last step, given the pieces of all bins."""
        tables = self.gather(pieces)
        return {
            name: tables[name] if name in tables else self.schemas[name].empty_table()
            for name in self.steps[-1].makes
        }

    def run(
        self, spark: SparkSession | None, tasks: Sequence[T], read: Callable[[T], Iterable[Tables]]
    ) -> Tables:
        """Run all steps over the results of `read` for each task: in one job of Spark, or here."""
        if spark is None or self.bins <= BINS_HERE:
            return self.run_here(tables for task in tasks for tables in read(task))
        frame = in_tasks(spark, tasks, by_pins(partial(_read, exchange=self, read=read)), PIECES)
        for at, step in enumerate(self.steps):
            bins = self.bins if any(step.keys.values()) else 1
            frame = frame.repartitionById(bins, "bin").sortWithinPartitions("bin")
            frame = frame.mapInArrow(partial(_take, exchange=self, step=at), PIECES)
        return self.results((row.name, _unpack(row.packed)) for row in frame.collect())

    def run_here(self, given: Iterable[Tables]) -> Tables:
        """Run all steps in this process."""
        pieces = [piece for tables in given for piece in self.scatter(tables, 0)]
        for step in range(len(self.steps)):
            of_bins: dict[int, list[tuple[str, pa.Table]]] = defaultdict(list)
            while pieces:  # consumed data is released: little more than one step's input is held
                bin_, *piece = pieces.pop()
                of_bins[bin_].append(tuple(piece))
            for bin_ in sorted(of_bins):
                pieces += self.scatter(self.take(step, of_bins.pop(bin_)[::-1]), step + 1)
        return self.results(piece[1:] for piece in pieces)


def _read(
    tasks: Iterable[T], exchange: Exchange, read: Callable[[T], Iterable[Tables]]
) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        for tables in read(task):
            yield _packed(exchange.scatter(tables, 0))


def _take(
    batches: Iterable[pa.RecordBatch], exchange: Exchange, step: int
) -> Iterator[pa.RecordBatch]:
    pieces = (one for batch in batches for one in zip(*batch.to_pydict().values(), strict=True))
    for _, of_bin in groupby(pieces, key=itemgetter(0)):
        made = exchange.take(step, ((name, _unpack(packed)) for _, name, packed in of_bin))
        yield _packed(exchange.scatter(made, step + 1))


def _packed(pieces: Iterable[Piece]) -> pa.RecordBatch:
    return batch_of(((bin_, name, _pack(table)) for bin_, name, table in pieces), PIECES)


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_PACKED) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpack(packed: bytes) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all()


def _hashed(columns: list[Ints], into: int) -> Ints:
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    hashed = (mixed >> np.uint64(8)) % np.uint64(into)
    return hashed.astype(np.uint16 if into < 1 << 16 else np.int64)  # few bits are sorted sooner
