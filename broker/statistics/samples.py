"""Requests for samples, and their selection and display beside a rate: cluster, objects, members.

A row holds the counts at one time; rows are handed in newest first, as they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Fragment: TypeAlias = dict[str, object]

TAKEN = ("deliver", "deliver_no_ack", "get", "get_no_ack")
SUMS: Mapping[str, tuple[str, ...]] = {
    "deliver_get": TAKEN, "messages": ("messages_ready", "messages_unacknowledged"),
}  # fmt: skip
"""Figures shown as the sum of others."""
EARLY_S = 0.5
"""How much before its step a row may come: sweeps do not begin exactly on time."""


class Row(NamedTuple):
    """The counts at one time."""

    at: float
    values: Sequence[float]


class Span(NamedTuple):
    """How far back samples go, and how far apart they are, in seconds."""

    age_s: float
    step_s: float

    def chosen(self, rows: Iterable[Row]) -> list[Row]:
        """Return those within it, the newest first."""
        found: list[Row] = []
        for row in rows:
            if found and found[0].at - row.at > self.age_s:
                break
            if not found or found[-1].at - row.at >= self.step_s - EARLY_S:
                found.append(row)
        return found


class Spans(NamedTuple):
    """The samples that a request asks for, by parameter name; None: none of these."""

    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None


NO_SPANS = Spans()


class Samples:
    """Rows by column name; without a span there are none."""

    def __init__(
        self, span: Span | None, rows: Callable[[], Iterable[Row]], names: Sequence[str]
    ) -> None:
        self._asked = span is not None
        self._rows = span.chosen(rows()) if span is not None else []
        columns = zip(*[row.values for row in self._rows], strict=True)
        self._columns = dict(zip(names, columns, strict=False)) or dict.fromkeys(names, ())

    def add_to(self, fragment: Fragment, wall_ms: Callable[[float], int]) -> None:
        """Add samples, their average and their overall rate to the details with such a column."""
        if not self._asked:
            return
        rows, columns = self._rows, self._columns
        times = [wall_ms(row.at) for row in rows]
        for name in [one.removesuffix("_details") for one in fragment if one.endswith("_details")]:
            details = fragment[f"{name}_details"]
            parts = [columns[part] for part in SUMS.get(name, (name,)) if part in columns]
            if not parts or not isinstance(details, dict):
                continue
            column = [*map(sum, zip(*parts, strict=True))] if parts[1:] else parts[0]
            details["samples"] = [
                {"sample": value, "timestamp": at} for value, at in zip(column, times, strict=True)
            ]
            if len(rows) > 1:
                seconds = rows[0].at - rows[-1].at
                details["avg_rate"] = round((column[0] - column[-1]) / seconds, 3)
            if rows:
                details["avg"] = round(sum(column) / len(rows), 3)
