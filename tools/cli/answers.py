"""JSON answers: reads fields, treating those of an unexpected type as absent, and prints tables.

A member may be of another release: a field missing from its answer ends no command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Object: TypeAlias = dict[str, Json]


def items(found: Json) -> list[Json]:
    """The items of a list; none if it is not one."""
    return found if isinstance(found, list) else []


def objects(found: Json) -> list[Object]:
    """The objects in a list."""
    return [one for one in items(found) if isinstance(one, dict)]


def fields(found: Json) -> Object:
    """The fields of an object; none if it is not one."""
    return found if isinstance(found, dict) else {}


def aligned(cells: Sequence[Sequence[str]], values: Sequence[Sequence[Json]] = ()) -> list[str]:
    """Lines with columns as wide as their widest cell; numbers in `values` are right-aligned."""
    if not cells:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    right = [
        bool(values) and all(isinstance(row[at], int | float) for row in values)
        for at in range(len(widths))
    ]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
