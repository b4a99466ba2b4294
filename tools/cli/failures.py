"""How a command ends when it cannot do its work: exit codes and error texts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from broker.exit_codes import Exit


class ToolError(Exception):
    """Ends a command with one sentence on stderr and its own exit code."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(sentence)
        self.code = code


def os_reason(problem: OSError) -> str:
    """The system's error, in words for a sentence."""
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    return (problem.strerror or str(problem) or type(problem).__name__).lower()


def meant(name: str, known: Iterable[str], before: str = "") -> str:
    """A question, if a known name is similar to this one; `before` precedes it."""
    near = get_close_matches(name, [*known], 1, 0.75)
    return f"; is {before}{near[0]} meant?" if near else ""
