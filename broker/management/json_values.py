"""Converts JSON of requests to AMQP values, and the broker's values to JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import TypeAlias, cast

from broker.amqp.fields import Value

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Object: TypeAlias = dict[str, Json]

DEPTH_MAX = 32
INTEGER_MAX = 1 << 63
# A text without an end extends to the end of everything, so that nothing is scanned twice.
_MARK = re.compile(rb'[,\[{]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class BadJson(Exception):
    """A body that is not JSON, or JSON that is not accepted; the text is for the sender."""


def no_constant(name: str) -> float:
    """Refuse NaN and the infinities."""
    raise BadJson(f"{name} is no JSON")


def parse(text: bytes, values_max: int | None = None) -> Json:
    """Read JSON text, up to this many values: reading more would hold up the ring."""
    if values_max is not None and _has_more(text, values_max):
        raise BadJson(f"the body holds more than {values_max} values")
    try:
        found = cast("Json", json.loads(text.decode("utf-8-sig"), parse_constant=no_constant))
    except UnicodeDecodeError:
        raise BadJson("the body is no UTF-8") from None
    except RecursionError:
        raise BadJson("the body is nested too deeply") from None
    except ValueError as error:
        raise BadJson(f"the body is no JSON: {error}") from None
    check_depth(found, DEPTH_MAX)
    return found


def _has_more(text: bytes, most: int) -> bool:
    """Whether there are more commas, brackets and texts, before any object is built."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= most:
        return False  # most bodies; characters inside texts are counted too
    return next(islice(_MARK.finditer(text), most, None), None) is not None


def check_depth(value: Json, depth: int) -> None:
    """Refuse deeper nesting."""
    level: list[Json] = [value]
    for _ in range(depth):
        level = [
            item
            for one in level
            if isinstance(one, list | dict)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, list | dict)
        ]
        if not level:
            return
    raise BadJson(f"the body is nested deeper than {depth} levels")


def to_amqp(value: Json) -> Value:
    """Return a value for a field table."""
    match value:
        case dict():
            return {name: to_amqp(item) for name, item in value.items()}
        case list():
            return tuple(to_amqp(item) for item in value)
        case int() if not -INTEGER_MAX <= value < INTEGER_MAX:
            raise BadJson(f"{value} does not fit into 64 bits")
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise BadJson("a text holds half of a surrogate pair") from None
            return value
        case _:
            return value


def from_amqp(value: Value) -> Json:
    """Return the JSON form of a value of a field table."""
    match value:
        case dict():
            return {name: from_amqp(item) for name, item in value.items()}
        case tuple():
            return [from_amqp(item) for item in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else str(value)
        case bool() | str() | None:
            return value
        case int():
            return int(value)


def table(values: Mapping[str, Value]) -> Object:
    """Return a field table as a JSON object."""
    return {name: from_amqp(item) for name, item in values.items()}


def text_of(value: object) -> bytes:
    """Return JSON text; halves of surrogate pairs, which UTF-8 has not, are escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def figures(found: Mapping[str, object]) -> Object:
    """The statistics of an object, which are already JSON values."""
    return cast("Object", found)
