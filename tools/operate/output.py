"""Output formats: aligned for people, tabs or CSV for filters, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from tools.cli.answers import Json, Object, aligned
from vsync.types import record

FORMATS = ("table", "pretty_table", "csv", "json")
Row = Sequence[Json]


def plain(value: Json) -> str:
    """One cell, on one line: a name chosen by a client cannot control a terminal."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list():
            return "[" + ", ".join(plain(one) for one in value) + "]"
        case dict():
            return json.dumps(value)
        case _:
            return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def print_json(document: Json) -> None:
    """One JSON document."""
    print(json.dumps(document, indent=2))


def print_rows(
    columns: Sequence[str], rows: Iterable[Row], form: str = "table", *, heads: bool = True
) -> None:
    """Print a list in one of `FORMATS`.

    `table` is aligned on a terminal and separated by tabs otherwise, so that `cut` and `awk` work.
    """
    found = [list(row) for row in rows]
    if form == "json":
        print_json([dict(zip(columns, row, strict=True)) for row in found])
        return
    cells = [[plain(value) for value in row] for row in found]
    if heads:
        cells.insert(0, list(columns))
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(cells)
        print(text.getvalue(), end="")
    elif form == "pretty_table":
        print_boxed(cells, heads=heads)
    elif sys.stdout.isatty():
        for line in aligned(cells, found):
            print(line)
    else:
        for row in cells:
            print("\t".join(row))


def print_boxed(cells: Sequence[Sequence[str]], *, heads: bool) -> None:
    """Print a table in a frame."""
    if not cells:
        return
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    print(rule)
    for number, row in enumerate(cells):
        padded = (f" {cell.ljust(width)} " for cell, width in zip(row, widths, strict=True))
        print("|" + "|".join(padded) + "|")
        if heads and number == 0:
            print(rule)
    if len(cells) > heads:
        print(rule)


def _as_it_is(value: Json) -> Json:
    return value


@record
class Column:
    """A column that is a field of the API's row; dots in its path lead into objects."""

    path: str
    shown: Callable[[Json], Json] = _as_it_is

    def __call__(self, row: Object) -> Json:
        value: Json = row
        for step in self.path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return self.shown(value)


def at(path: str) -> Column:
    """The field, unchanged."""
    return Column(path)


def asked(columns: Iterable[Column], *more: str) -> str:
    """The fields that these columns need, as a request to the API.

    A hundred thousand rows with all fields are a hundred megabytes, with two columns five. Paging
    would not help: the member would sort all rows again for each page.
    """
    return ",".join(dict.fromkeys([*(column.path for column in columns), *more]))
