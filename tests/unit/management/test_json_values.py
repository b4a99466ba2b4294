"""JSON in requests: a text that would take too long to parse is refused first."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from broker.management.call import Problem, number_field
from broker.management.json_reader import read
from broker.management.json_values import DEPTH_MAX, BadJson, parse


@pytest.mark.parametrize(
    "text",
    [b"[" + b",".join([b"{}"] * 200) + b"]", b'["' + b'","' * 200 + b'"]',
     b"[" * 200, b'{"a":1,' * 200],
)  # fmt: skip
def test_too_many_values_are_refused(text: bytes) -> None:
    with pytest.raises(BadJson, match="more than 100 values"):
        parse(text, 100)


def test_values_inside_a_string_count_as_one() -> None:
    body = {"payload": json.dumps([{"a": [1, 2], "b": '"'}] * 500)}
    assert parse(json.dumps(body).encode(), 100) == body


def test_an_unterminated_string_is_scanned_once() -> None:
    """Not again from each quotation mark on: that would take hours."""
    with pytest.raises(BadJson, match="no JSON"):
        parse(b",[" * 60 + b'"' + b'\\"' * 500_000, 200)


def test_a_number_may_be_a_string_of_digits_and_nothing_else() -> None:
    assert [number_field({"n": one}, "n") for one in (5, "5", "-5")] == [5, 5, -5]
    for wrong in ("\N{SUPERSCRIPT TWO}", "--5", "5-", "", " 5", "9" * 19, True, 1.5, None):
        with pytest.raises(Problem, match="n is not a number"):
            number_field({"n": wrong}, "n")


@pytest.mark.parametrize(("depth", "taken"), [(DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
def test_both_readers_take_the_same_depth(depth: int, taken: bool) -> None:
    def steps(body: bytes) -> None:
        for _ in read([body], 1000):
            pass

    for body in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        for reader in (parse, steps):
            with nullcontext() if taken else pytest.raises(BadJson, match="nested deeper"):
                reader(body)
