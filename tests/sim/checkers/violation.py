"""A broken promise, as a value that names the promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Violation(NamedTuple):
    """`promise` is the numbered guarantee, `rule` the property of the model that it rests on."""

    promise: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}/{self.rule}: {self.text}"


Violations = Iterator[Violation]
