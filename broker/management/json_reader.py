"""Reads large JSON texts in small steps, so that the loop turns in between.

The standard library reads a text in one call that lets no other thread run either: 24 MB of it take
a third of a second. Here a step reads some values or one piece of a long text. Both accept and
refuse the same texts (`broker/management/json_values.py`).
Decision: docs/decisions/0038-large-bodies-are-read-in-slices.md.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Sequence
from typing import NoReturn, cast

from broker.management.json_values import (
    DEPTH_MAX,
    BadJson,
    Json,
    check_depth,
    no_constant,
)

STEP_VALUES = 64
SMALL_CHARACTERS = 2048
"""A list or an object that ends within this length is read by the standard library."""
STEP_CHARACTERS = 1 << 16
SPACE_MAX = STEP_CHARACTERS
"""Consecutive spaces between two values."""
SPACE_LONG = 512
"""After this much space the next value begins another step."""
_SPACE = re.compile(r"[ \t\n\r]*+")
# Content of a text, up to the end of a piece; an escape is never cut in two.
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*+')
_ESCAPED = re.compile(r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_HIGH, _LOW = re.compile("[\ud800-\udbff]"), re.compile("[\udc00-\udfff]")

Steps = Generator[None, None, Json]
_DECODER = json.JSONDecoder(parse_constant=no_constant)


def _raw(text: str, start: int) -> tuple[Json, int]:
    """Read the value that begins here, and return where it ends."""
    return cast("tuple[Json, int]", _DECODER.raw_decode(text, start))


def read(parts: Sequence[bytes], values_max: int) -> Steps:
    """Read the text in these parts; yields after each step, and returns the value at the end.

    Raises BadJson.
    """
    text = yield from _decoded(parts)
    return (yield from _Reader(text, values_max).document())


def _decoded(parts: Sequence[bytes]) -> Generator[None, None, str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    found: list[str] = []
    try:
        for part in parts:
            for start in range(0, len(part), STEP_CHARACTERS):
                found.append(decoder.decode(part[start : start + STEP_CHARACTERS]))
                yield
        found.append(decoder.decode(b"", final=True))
    except UnicodeDecodeError:
        raise BadJson("the body is no UTF-8") from None
    return "".join(found)


class _Reader:
    """One text, and the position reached in it."""

    def __init__(self, text: str, values_max: int) -> None:
        self._text, self._at, self._left = text, 0, values_max
        self._values_max, self._pause_at = values_max, values_max

    def document(self) -> Steps:
        """Read all of it."""
        self._skip_space()
        found = yield from self._value(0)
        self._skip_space()
        if self._at < len(self._text):
            self._fail("there is more text after its end")
        return found

    def _value(self, depth: int) -> Steps:
        self._left -= 1
        if self._left < 0:
            raise BadJson(f"the body holds more than {self._values_max} values")
        if self._left <= self._pause_at:
            self._pause_at = self._left - STEP_VALUES
            yield
        mark = self._text[self._at : self._at + 1]
        if mark in ("{", "[") and depth:
            small = self._small(DEPTH_MAX - depth)
            if small is not None:
                return small
        match mark:
            case "{" | "[" if depth >= DEPTH_MAX:
                raise BadJson(f"the body is nested deeper than {DEPTH_MAX} levels")
            case "{":
                return (yield from self._object(depth))
            case "[":
                return (yield from self._array(depth))
            case '"':
                return (yield from self._string())
            case _:
                return self._plain()

    def _small(self, depth: int) -> Json:
        """A list or an object, if it ends soon; None: read it step by step."""
        text = self._text[self._at : self._at + SMALL_CHARACTERS]
        try:
            found, length = _raw(text, 0)
            if text.count("{", 0, length) + text.count("[", 0, length) > depth:
                check_depth(found, depth)
        except (ValueError, RecursionError):
            return None
        self._at += length
        self._left -= text.count(",", 0, length)  # some of them may be inside texts
        return found

    def _object(self, depth: int) -> Steps:
        found: dict[str, Json] = {}
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return found
        while True:
            if self._next() != '"':
                self._fail("a name is expected")
            name = yield from self._string()
            self._expect(":")
            self._skip_space()
            found[name] = yield from self._value(depth + 1)
            if self._ends("}"):
                return found

    def _array(self, depth: int) -> Steps:
        found: list[Json] = []
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return found
        while True:
            self._skip_space()
            found.append((yield from self._value(depth + 1)))
            if self._ends("]"):
                return found

    def _plain(self) -> Json:
        """A number or a word."""
        try:
            found, self._at = _raw(self._text, self._at)
        except ValueError:
            self._fail("a value is expected")
        return found

    def _string(self) -> Generator[None, None, str]:
        text, start = self._text, self._at + 1
        end = self._piece(_PLAIN, start)
        if text[end : end + 1] == '"':  # short, without escapes: nearly all are
            self._at = end + 1
            return text[start:end]
        pieces: list[str] = []
        while True:
            end = self._piece(_ESCAPED, start)
            piece: str = json.loads(f'"{text[start:end]}"')
            if pieces and _HIGH.match(pieces[-1][-1:]) and _LOW.match(piece):
                pair = pieces[-1][-1] + piece[0]  # one character made of two escapes
                pieces[-1] = pieces[-1][:-1]
                piece = pair.encode("utf-16", "surrogatepass").decode("utf-16") + piece[1:]
            pieces.append(piece)
            if text[end : end + 1] == '"':
                self._at = end + 1
                return "".join(pieces)
            if end == start:
                self._at = end
                self._fail("a text has no end, or a character that must be escaped")
            start = end
            yield

    def _piece(self, pattern: re.Pattern[str], start: int) -> int:
        found = pattern.match(self._text, start, start + STEP_CHARACTERS)
        assert found is not None  # it may be empty
        return found.end()

    # -- marks -----------------------------------------------------------------------------------

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at, self._at + SPACE_MAX + 1)
        assert found is not None
        passed = found.end() - self._at
        if passed > SPACE_LONG:
            self._pause_at = self._left
            if passed > SPACE_MAX:
                self._fail(f"there are more than {SPACE_MAX} spaces")
        self._at = found.end()

    def _next(self) -> str:
        self._skip_space()
        return self._text[self._at : self._at + 1]

    def _expect(self, mark: str) -> None:
        if self._next() != mark:
            self._fail(f"{mark!r} is expected")
        self._at += 1

    def _ends(self, mark: str) -> bool:
        """Whether a list or an object ends here; else another value follows."""
        found = self._next()
        if found == mark:
            self._at += 1
            return True
        if found != ",":
            self._fail(f"',' or {mark!r} is expected")
        self._at += 1
        return False

    def _fail(self, what: str) -> NoReturn:
        raise BadJson(f"the body is no JSON: {what} at character {self._at}")
