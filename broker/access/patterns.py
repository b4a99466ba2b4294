# mypy: disable-error-code="import-untyped"
"""Regular expressions of operators, matched in linear time (re2): none can hold a member up."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20
_KEPT_MAX = 4096


def fault_of(pattern: str) -> str:
    """Return what is wrong with a pattern, in re2's words; empty: nothing."""
    try:
        re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        (text,) = error.args
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    except UnicodeEncodeError:
        return "it is no text"
    return ""


@lru_cache(_KEPT_MAX)
def _search(pattern: str) -> Callable[[str], object]:
    return cast("Callable[[str], object]", re2.compile(pattern, _OPTIONS).search)


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found in the name; an empty one is in no name but the empty one."""
    return _search(pattern or "^$")(name) is not None
