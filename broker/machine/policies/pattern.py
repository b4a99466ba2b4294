# mypy: disable-error-code="import-untyped"
r"""Operators' regular expressions, matched in time linear in the name.

The expressions are RE2's: permission to set a policy must not be enough to stop all members. RE2
has no look-ahead, but most patterns of mirrored queues begin with one (`^(?!amq\.).*`, "all but the
broker's own"). Look-aheads at the very beginning, behind `^`, need no backtracking: each is a
condition on the whole name, so they are matched separately.

All members must decide alike. Constructs that may differ between releases of RE2 are refused for
policies when an operator defines one (broker/access/patterns.py). Should two members differ
nevertheless, their digests differ from the position on at which a policy was chosen
(choice.policies_element).
"""

from functools import lru_cache
from typing import NamedTuple, Protocol

import re2

PATTERN_CHARS_MAX = 4096
POLICY_STEPS_MAX = 1_000
"""Steps of the compiled expression of a policy, which each position may match thousands of times.
Beyond this RE2 has too little memory for an automaton, and one name takes up to 0.1 s instead of
0.1 ms."""
POLICIES_STEPS_MAX = 10_000
"""Steps of all policies of a virtual host, and of its operator policies, together."""
_MEMORY_BYTES_MAX = 1 << 20  # of one compiled expression: a larger one is refused
_CACHED = 4096


class _Expression(Protocol):
    @property
    def programsize(self) -> int: ...

    def search(self, text: str) -> object | None: ...


class PatternError(ValueError):
    """This text is not a regular expression; the message says where it goes wrong."""


class Pattern(NamedTuple):
    """The part that must match, and the look-aheads, each with whether it must match."""

    rest: _Expression
    conditions: tuple[tuple[bool, _Expression], ...]

    @property
    def steps(self) -> int:
        """Its compiled size: counted repetitions are written out."""
        return self.rest.programsize + sum(one.programsize for _, one in self.conditions)

    def matches(self, name: str) -> bool:
        """Search semantics: a match anywhere in the name, unless the expression is anchored."""
        for wanted, condition in self.conditions:
            if (condition.search(name) is not None) != wanted:
                return False
        return self.rest.search(name) is not None


@lru_cache(maxsize=_CACHED)
def compiled(text: str) -> Pattern:
    """Compile an expression. Raises PatternError for a wrong one, every time."""
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
    """A prefix would not apply to an alternative outside all parentheses."""
    return any(char == "|" and depth == 0 for _, depth, char in _outside_classes(text, 0))


def _outside_classes(text: str, start: int) -> list[tuple[int, int, str]]:
    """Each character with a meaning of its own: its place, the number of open parentheses around
    it, and the character. Escaped characters, and those in brackets, are left out."""
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
