# mypy: disable-error-code="import-untyped"
"""Steps over tables that are brought together by a key: the shuffle of the checks of clients.

A step gets, of each of its tables, the rows whose key falls into one *bin*; what it returns is
distributed over bins again, by the keys of the steps that follow.  Between two steps a table
travels as packed Arrow columns, so that Spark moves few and large values; what fits into one bin
is one task a step.  Pure: `tools.verify.clients.check` runs the steps in Spark, tests without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tools.verify.input.moves import Ints
from tools.verify.input.tables import arrow_schema

Tables: TypeAlias = dict[str, pa.Table]
Piece: TypeAlias = tuple[int, str, bytes]  # bin, table, packed rows
Key: TypeAlias = tuple[str, ...] | None  # columns of integers; (): one bin has all; None: each has

ROWS_IN_BIN = 1 << 20
PIECES = "bin int, name string, packed binary"


class Step(NamedTuple):
    """One step: which tables it takes, by which keys, and what it makes of the rows of one bin."""

    keys: dict[str, Key]
    work: Callable[[Tables], Tables]


class Exchange:
    """Steps one after the other; tables that a step does not take pass it by."""

    def __init__(self, schemas: dict[str, str], steps: Sequence[Step], bins: int) -> None:
        self.schemas = {name: arrow_schema(ddl) for name, ddl in schemas.items()}
        self.steps = steps
        self.bins = bins

    def scatter(self, tables: Tables, step: int) -> Iterator[Piece]:
        """Yield the rows of tables for the bins of this step."""
        for name, table in tables.items():
            taken = [one.keys[name] for one in self.steps[step:] if name in one.keys]
            if not taken or not len(table):
                continue
            table = table.cast(self.schemas[name])
            here = name in self.steps[step].keys
            if taken[0] is None:
                packed = _pack(table)
                yield from ((bin_, name, packed) for bin_ in range(self.bins if here else 1))
            elif not taken[0] or self.bins == 1:
                yield 0, name, _pack(table)
            else:
                hashed = _hashed([table[column].to_numpy() for column in taken[0]], self.bins)
                for bin_ in np.unique(hashed).tolist():
                    yield bin_, name, _pack(table.filter(pa.array(hashed == bin_)))

    def take(self, step: int, pieces: Iterable[tuple[str, bytes]]) -> Tables:
        """Return what a step makes of the pieces of one bin, and what passes it by."""
        parts: dict[str, list[pa.Table]] = defaultdict(list)
        for name, packed in pieces:
            parts[name].append(pa.ipc.open_stream(packed).read_all())
        tables = {name: pa.concat_tables(some).combine_chunks() for name, some in parts.items()}
        of_step = {
            name: tables.pop(name) if name in tables else self.schemas[name].empty_table()
            for name in self.steps[step].keys
        }
        return tables | self.steps[step].work(of_step)


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _hashed(columns: list[Ints], into: int) -> Ints:
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return ((mixed >> np.uint64(8)) % np.uint64(into)).astype(np.int64)
