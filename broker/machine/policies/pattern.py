# mypy: disable-error-code="import-untyped"
"""Regular expressions that operators write, matched in a time linear in the name.

The expressions are RE2's: whoever may set a policy must not be able to stop all members with one.
RE2 has no look-ahead, but most patterns of mirrored queues begin with one (`^(?!amq\\.).*`, "all
but the broker's own"). Look-aheads at the very beginning, behind `^`, need no backtracking: each
is a condition on the whole name, so they are matched by themselves.

All members must decide alike: what may differ from one release of RE2 to the next is refused for
policies where it is asked for (broker/access/patterns.py). Should two of them differ nevertheless,
the digests differ from the position on at which a policy was chosen (choice.policies_element).
"""

from functools import lru_cache
from typing import NamedTuple, Protocol

import re2

PATTERN_CHARS_MAX = 4096
POLICY_STEPS_MAX = 1_000
"""Of the compiled expression of a policy, which each position may match thousands of times. Beyond
it RE2 has too little memory for an automaton, and one name takes up to 0.1 s instead of 0.1 ms."""
POLICIES_STEPS_MAX = 10_000
"""Of all policies of a virtual host and of the operator there together."""
_MEMORY_BYTES_MAX = 1 << 20  # of one compiled expression: more is refused as too large
_CACHED = 4096


class _Expression(Protocol):
    @property
    def programsize(self) -> int: ...

    def search(self, text: str) -> object | None: ...


class PatternError(ValueError):
    """These characters are no regular expression; the message says where they go wrong."""


class Pattern(NamedTuple):
    """What must match, and the look-aheads with whether they must."""

    rest: _Expression
    conditions: tuple[tuple[bool, _Expression], ...]

    @property
    def steps(self) -> int:
        """How large it is, compiled: repetitions that are counted are written out."""
        return self.rest.programsize + sum(one.programsize for _, one in self.conditions)

    def matches(self, name: str) -> bool:
        """As `search` has it: anywhere in the name, unless the expression says where."""
        for wanted, condition in self.conditions:
            if (condition.search(name) is not None) != wanted:
                return False
        return self.rest.search(name) is not None


@lru_cache(maxsize=_CACHED)
def compiled(text: str) -> Pattern:
    """Raises PatternError, and then always."""
    if len(text) > PATTERN_CHARS_MAX:
        msg = f"longer than {PATTERN_CHARS_MAX} characters"
        raise PatternError(msg)
    conditions: list[tuple[bool, _Expression]] = []
    rest = text
    while rest.startswith(("^(?!", "^(?=")):
        end = _closing(rest, 1)
        if end < 0 or _has_alternatives(rest[end + 1 :]):
            break  # RE2 refuses it, in its own words
        conditions.append((rest[3] == "=", _expression(f"^(?:{rest[4:end]})")))
        rest = "^" + rest[end + 1 :]
    return Pattern(_expression(rest), tuple(conditions))


def _expression(text: str) -> _Expression:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        expression: _Expression = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        raise PatternError(
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        ) from error
    except UnicodeEncodeError as error:
        raise PatternError("not text") from error
    return expression


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` closes; -1: nowhere."""
    for at, depth, char in _outside_classes(text, start):
        if char == ")" and depth == 0:
            return at
    return -1


def _has_alternatives(text: str) -> bool:
    """An alternative outside all parentheses would not be bound by what stands before it."""
    return any(char == "|" and depth == 0 for _, depth, char in _outside_classes(text, 0))


def _outside_classes(text: str, start: int) -> list[tuple[int, int, str]]:
    """Each character that has a meaning of its own: its place, how many parentheses are open
    around it, and the character. What is escaped or stands in brackets is left out."""
    found: list[tuple[int, int, str]] = []
    depth, at, in_class = 0, start, -1
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif in_class >= 0:
            if char == "]" and at > in_class:
                in_class = -1
        elif char == "[":
            in_class = at + (2 if text[at + 1 : at + 2] == "^" else 1)  # a `]` there is literal
        else:
            depth -= char == ")"
            found.append((at, depth, char))
            depth += char == "("
        at += 1
    return found
