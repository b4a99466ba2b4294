"""Checks operators' regular expressions; matches those of permissions like those of policies."""

from __future__ import annotations

import re

from broker.machine.policies.pattern import POLICY_STEPS_MAX, PatternError, compiled


def fault_of(pattern: str) -> str:
    """Return what is wrong with a pattern, in re2's words; empty: nothing."""
    try:
        compiled(pattern)
    except PatternError as error:
        return str(error)
    return ""


def fault_of_policy(pattern: str) -> str:
    """The same for the pattern of a policy, which must also be small."""
    fault = fault_of(pattern) or _varying(pattern)
    if not fault and compiled(pattern).steps > POLICY_STEPS_MAX:
        return (
            f"more than {POLICY_STEPS_MAX} steps, too many for a policy: "
            "use no large counts such as {500}, or several policies"
        )
    return fault


def steps_of(*expressions: str) -> int:
    """Return their size together, leaving out invalid ones."""
    return sum(compiled(one).steps for one in expressions if not fault_of(one))


def _varying(pattern: str) -> str:
    """Constructs that may mean something else in another release of RE2: members may have different
    releases, and must choose the same policy for each queue.

    Decision: docs/decisions/0039-the-meaning-of-policies-patterns-is-fixed.md.
    """
    for found in _SPECIAL.finditer(pattern):
        word = found.group()
        if word[0] == "\\" and word[1:].isalpha() and word[1:] not in _ESCAPES:
            return f"'{word}' depends on the release of RE2: list the characters instead"
        if word[0] == "(" and not _GROUP.match(pattern, found.start()):
            return f"'{word}' depends on the release of RE2: use (?:...) or (?P<name>...)"
    if _FOLDING.search(pattern) and (not pattern.isascii() or "\\x" in pattern):
        return "upper and lower case beyond ASCII depends on the release of RE2: leave (?i) out"
    return ""


_SPECIAL = re.compile(r"\\.|\(\?.{0,2}", re.DOTALL)
_ESCAPES = frozenset("dDsSwWbBAzaftnrvxQE")
_GROUP = re.compile(r"\(\?(?:[imsU-]*[:)]|P<\w+>|[=!])")
_FOLDING = re.compile(r"\(\?[msU]*i")


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found in the name; an empty pattern matches only the empty name."""
    return compiled(pattern or "^$").matches(name)
