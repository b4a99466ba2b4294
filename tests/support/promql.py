"""The part of PromQL that our dashboard and alerts use, evaluated over two scrapes.

A selector that finds no series is an error (`NoSeries`): an alert on a name that no member reports
stays silent for ever, and looks like health.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
Vector: TypeAlias = dict[Labels, float]
Scrape: TypeAlias = Mapping[tuple[str, Labels], float]

_TOKENS = re.compile(
    r'\s*(?:(?P<string>"[^"]*")|(?P<range>\[\d+[smh]\])|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<word>[a-zA-Z_:][\w:]*)|(?P<sign>==|!=|>=|<=|=~|[-+*/<>(){}=,]))"
)
_LEVELS: tuple[dict[str, Callable[[float, float], float]], ...] = (
    {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
     ">=": operator.ge, "<=": operator.le},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv},
)  # fmt: skip
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


class NoSeries(Exception):
    """A selector that matches nothing in any scrape."""


class Query:
    """One expression; `before` and `now` are scrapes, `seconds` apart, with all their labels."""

    def __init__(self, text: str, before: Scrape, now: Scrape, seconds: float) -> None:
        self._text = text
        self._before, self._now, self._seconds = before, now, seconds
        self._tokens: list[str] = []
        place = 0
        while place < len(text.rstrip()):
            found = _TOKENS.match(text, place)
            assert found is not None, f"{text[place:]!r} in {text!r}"
            self._tokens.append(found[0].strip())
            place = found.end()

    def value(self) -> Vector | float:
        """Evaluate it.  A filter that lets nothing through gives an empty vector."""
        found = self._logical()
        assert not self._tokens, f"{self._tokens} left of {self._text!r}"
        return found

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, expected: str = "") -> str:
        token = self._tokens.pop(0)
        assert not expected or token == expected, f"{token} for {expected} in {self._text!r}"
        return token

    def _logical(self) -> Vector | float:
        left = self._binary(0)
        while self._next() in ("and", "or"):
            word, right = self._take(), self._binary(0)
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            if word == "and":
                left = {labels: value for labels, value in left.items() if labels in right}
            else:
                left = right | left
        return left

    def _binary(self, level: int) -> Vector | float:
        if level == len(_LEVELS):
            return self._operand()
        left = self._binary(level + 1)
        while self._next() in _LEVELS[level]:
            sign = self._take()
            on = self._labels_of("on")
            extra = self._labels_of("group_left")
            right = self._binary(level + 1)
            left = _combined(left, right, _LEVELS[level][sign], level == 0, on, extra)
        return left

    def _labels_of(self, word: str) -> list[str] | None:
        if self._next() != word:
            return None
        self._take()
        self._take("(")
        found = []
        while (token := self._take()) != ")":
            if token != ",":
                found.append(token)
        return found

    def _operand(self) -> Vector | float:
        token = self._take()
        if token == "(":
            found = self._logical()
            self._take(")")
            return found
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return float(token)
        if token in _AGGREGATES:
            by = self._labels_of("by") or []
            return _aggregated(self._argument(), by, _AGGREGATES[token])
        if token in ("rate", "increase"):
            self._take("(")
            found = self._selected(self._take(), differences=True)
            self._take(")")
            per = self._seconds if token == "rate" else 1.0
            return {labels: value / per for labels, value in found.items()}
        if token == "histogram_quantile":
            self._take("(")
            share = float(self._take())
            self._take(",")
            buckets = self._logical()
            self._take(")")
            assert isinstance(buckets, dict)
            return _quantiles(share, buckets)
        return self._selected(token, differences=False)

    def _argument(self) -> Vector:
        self._take("(")
        found = self._logical()
        self._take(")")
        assert isinstance(found, dict)
        return found

    def _selected(self, name: str, *, differences: bool) -> Vector:
        wanted: dict[str, str] = {}
        if self._next() == "{":
            self._take()
            while self._next() != "}":
                label, _, value = self._take(), self._take("="), self._take()
                wanted[label] = value.strip('"')
                if self._next() == ",":
                    self._take()
            self._take("}")
        ranged = self._next().startswith("[")
        assert ranged == differences, f"a range belongs to rate and increase: {self._text!r}"
        if ranged:
            self._take()
        found = {
            labels: value - (self._before.get((one, labels), value) if differences else 0.0)
            for (one, labels), value in self._now.items()
            if one == name and all(dict(labels).get(k) == v for k, v in wanted.items())
        }
        if not found:
            raise NoSeries(f"{name} {wanted} in {self._text!r}")
        return found


def _combined(
    left: Vector | float, right: Vector | float, calculate: Callable[[float, float], float],
    is_filter: bool, on: list[str] | None, extra: list[str] | None,
) -> Vector | float:  # fmt: skip
    if isinstance(left, float):
        assert isinstance(right, float), "a number comes second here"
        return calculate(left, right)
    found: Vector = {}
    for labels, value in left.items():
        if isinstance(right, float):
            other, more = right, {}
        else:
            key = [(name, text) for name, text in labels if on is None or name in on]
            matches = [
                (other, dict(labels_)) for labels_, other in right.items()
                if [(name, text) for name, text in labels_ if on is None or name in on] == key
            ]  # fmt: skip
            if not matches:
                continue
            assert len(matches) == 1, f"many-to-many: {key}"
            other, theirs = matches[0]
            more = {name: theirs[name] for name in extra or ()}
        result = calculate(value, other)
        if not is_filter:
            found[tuple(sorted((dict(labels) | more).items()))] = result
        elif result:
            found[labels] = value
    return found


def _aggregated(vector: Vector, by: list[str], aggregate: Callable[[list[float]], float]) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        key = tuple((name, text) for name, text in labels if name in by)
        assert len(key) == len(by), f"a label of {by} is missing in {labels}"
        groups.setdefault(key, []).append(value)
    return {key: aggregate(values) for key, values in groups.items()}


def _quantiles(share: float, buckets: Vector) -> Vector:
    """The upper bound of the bucket of the quantile, which suffices to see that it works."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"])
        rest = tuple((name, text) for name, text in labels if name != "le")
        groups.setdefault(rest, []).append((bound, value))
    found: Vector = {}
    for labels, bounds in groups.items():
        bounds.sort()
        total = bounds[-1][1]
        assert math.isinf(bounds[-1][0])
        if total:
            found[labels] = next(bound for bound, value in bounds if value >= share * total)
    return found
