"""A large body is parsed in steps, with the same value and the same errors as in one go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.management import json_reader
from broker.management.json_reader import SMALL_CHARACTERS, SPACE_MAX, STEP_CHARACTERS
from broker.management.json_values import BadJson, Json, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)  # fmt: skip


def read(text: bytes, part: int = 1 << 16, values_max: int = 1 << 30) -> tuple[Json, int]:
    """The value, and the number of steps."""
    reading = json_reader.read(
        [text[start : start + part] for start in range(0, len(text), part)], values_max
    )
    for step in range(1 << 30):
        try:
            next(reading)
        except StopIteration as end:
            value: Json = end.value
            return value, step
    raise AssertionError


@settings(max_examples=60)
@given(VALUES, st.booleans(), st.integers(1, 7))
def test_any_value_is_read_as_in_one_go(value: object, ascii_only: bool, part: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=part % 2 or None)
    found, _ = read(text.encode("utf-8", "surrogatepass"), part)
    assert found == value


@settings(max_examples=60)
@given(VALUES, st.integers(0, 200), st.sampled_from(b'{}[]",:\\0x -'))
def test_broken_texts_are_refused_as_in_one_go(value: object, at: int, mark: int) -> None:
    text = bytearray(json.dumps([value, {"a": value}]).encode())
    text[at % len(text)] = mark
    try:
        wanted: Json = parse(bytes(text))
    except BadJson:
        with pytest.raises(BadJson, match=r"the body is no|deeper"):
            read(bytes(text))
    else:
        assert read(bytes(text))[0] == wanted


@pytest.mark.parametrize("letter", ["a", "é", "\n", '"', "\\", "😀", "\ud83d", "a\n😀é"])
@pytest.mark.parametrize("shift", range(3))
def test_a_long_text_is_read_in_pieces(letter: str, shift: int) -> None:
    """Wherever a piece ends: within an escape, or between the two escapes of one character."""
    value = {"payload": "b" * shift + letter * STEP_CHARACTERS}
    found, steps = read(json.dumps(value).encode())
    assert found == value
    assert steps >= len(json.dumps(value)) // STEP_CHARACTERS


def test_white_space_makes_no_long_step() -> None:
    """No client sends twenty megabytes of it on purpose; it was one step of 80 ms."""
    for text in (b" " * (SPACE_MAX + 1) + b"[]", b"[1," + b"\n" * (SPACE_MAX + 1) + b"2]"):
        with pytest.raises(BadJson, match="more than 65536 spaces at character"):
            read(text)
    some = b" " * SPACE_MAX
    found, steps = read(b"[" + b",".join(some + b"1" + some for _ in range(10)) + b"]")
    assert found == [1] * 10
    assert steps >= 30  # of which 20 decode the bytes


def test_many_values_take_many_steps() -> None:
    value = {"queues": [{"name": f"q{number}", "arguments": {}} for number in range(10_000)]}
    found, steps = read(json.dumps(value).encode())
    assert found == value
    assert steps > 20


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"[" * 100, "nested deeper"), (b'{"a":' * 100, "nested deeper"),
     (b"[" * SMALL_CHARACTERS + b"]" * SMALL_CHARACTERS, "nested deeper"),
     (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper"),
     (b"[" + b"1," * 200 + b"1]", "more than 100 values"),
     (b"[" + b"[1,2]," * 60 + b"1]", "more than 100 values"),
     (b'{"a": NaN}', "NaN is no JSON"), (b'[{"a": Infinity}]', "Infinity is no JSON"),
     (b'"\xff"', "no UTF-8"), (b'"' + b"a" * 200_000, "no end"), (b"[1] 2", "after its end"),
     (b'{"a" 1}', "':' is expected"), (b"[1 2]", "',' or ']' is expected"),
     (b"[" + b"9" * 5000 + b"]", "a value is expected"), (b"", "a value is expected")],
)  # fmt: skip
def test_invalid_json_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(BadJson, match=said):
        read(text, values_max=100)


@pytest.mark.parametrize("part", [1, 2, 1 << 16])
def test_a_byte_order_mark_at_the_begin_is_no_character(part: int) -> None:
    """Some editors write it."""
    text = b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}'
    assert read(text, part)[0] == parse(text) == {"a": "\ufeff"}
