"""Regular expressions of permissions, with the matcher that policies have: linear in time."""

from __future__ import annotations

from broker.machine.policies.pattern import PatternError, compiled


def fault_of(pattern: str) -> str:
    """Return what is wrong with a pattern, in re2's words; empty: nothing."""
    try:
        compiled(pattern)
    except PatternError as error:
        return str(error)
    return ""


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern is found in the name; an empty one is in no name but the empty one."""
    return compiled(pattern or "^$").matches(name)
