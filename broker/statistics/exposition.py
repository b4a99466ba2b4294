"""Metrics in the text format that Prometheus scrapes, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from broker.histogram import BOUNDS_S, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Labels: TypeAlias = str
"""Labels in the form of a line, braces included; empty: none."""
Row: TypeAlias = tuple[Labels, float]


def labels(**values: str) -> Labels:
    """Return labels in the form of a line."""
    inside = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items()])
    return f"{{{inside}}}"


def lines(name: str, kind: str, text: str, rows: Iterable[Row]) -> Iterator[str]:
    """Return the lines of one metric, whose samples stay together; none if it has no samples.

    `kind`: gauge, or counter, whose name ends in `_total`; `text`: its meaning.
    """
    for place, (found, value) in enumerate(rows):
        if not place:
            yield f"# TYPE {name} {kind}\n# HELP {name} {text}\n"
        yield f"{name}{found} {_number(value)}\n"


def histogram_lines(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    """Return the lines of a histogram of durations."""
    yield f"# TYPE {name} histogram\n# HELP {name} {text}\n"
    total = 0
    bounds: Mapping[int, str] = {place: repr(bound) for place, bound in enumerate(BOUNDS_S)}
    for place, count in enumerate(histogram.counts):
        total += count
        yield f'{name}_bucket{{le="{bounds.get(place, "+Inf")}"}} {total}\n'
    yield f"{name}_sum {histogram.sum_s!r}\n{name}_count {total}\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
