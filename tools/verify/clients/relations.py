# mypy: disable-error-code="import-untyped"
"""Relational verbs over Arrow tables: the rules of clients read as they would in SQL."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def group(table: pa.Table, by: list[str], **wanted: tuple[str, str]) -> pa.Table:
    """SELECT by, NAME=FUNCTION(COLUMN)... GROUP BY by; nulls are a group of their own.

    Functions skip nulls; `count` counts what is not null, `sum` of a condition where it holds.
    """
    for column, function in set(wanted.values()):
        if function == "sum" and pa.types.is_boolean(table.schema.field(column).type):
            at = table.schema.get_field_index(column)
            table = table.set_column(at, column, table[column].cast(pa.int64()))
    made = table.group_by(by, use_threads=False).aggregate(list(wanted.values()))
    columns = [made[one] for one in by]
    columns += [made[f"{column}_{function}"] for column, function in wanted.values()]
    return pa.table(columns, names=[*by, *wanted])


def join(
    left: pa.Table, right: pa.Table, on: dict[str, str] | list[str], how: str = "inner"
) -> pa.Table:
    """LEFT how JOIN right ON on; `on` are columns of both, or of left by right."""
    pairs = on if isinstance(on, dict) else {one: one for one in on}
    made = left.join(right, list(pairs), list(pairs.values()), join_type=how, use_threads=False)
    return made.combine_chunks()


def add(table: pa.Table, **columns: pa.Array) -> pa.Table:
    """Return the table with more columns, or others in their place."""
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table


def where(condition: object, column: object) -> pa.Array:
    """CASE WHEN condition THEN column END."""
    typed = column if isinstance(column, pa.ChunkedArray | pa.Array) else pa.scalar(column)
    return pc.if_else(condition, typed, pa.scalar(None, typed.type))


def zero(column: object) -> pa.Array:
    """COALESCE(column, 0)."""
    return pc.fill_null(column, 0)


def distinct(table: pa.Table, columns: list[str]) -> pa.Table:
    """SELECT DISTINCT columns."""
    return table.select(columns).group_by(columns, use_threads=False).aggregate([])


def numbered(table: pa.Table, name: str) -> pa.Table:
    """Return the table with a number of each row."""
    return add(table, **{name: pa.array(range(len(table)), pa.int64())})
