"""Runs scenario files: blocks of commands, `----`, and what the commands print.

The format of etcd's raft `testdata` (cockroachdb/datadriven).  A block is one or more command
lines, a line `----`, and the expected output, which ends at the next blank line.  An indented line
below a command is input to it.  Lines that begin with `#` say why, and stand anywhere but in an
output.  A file is run and compared as a whole, with its own text as it would be printed now.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from difflib import unified_diff
from inspect import signature
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

SEPARATOR = "----"


class ScenarioError(Exception):
    """A command that cannot run; the error names file, line and command."""


class Command(NamedTuple):
    """One command line with its input."""

    line: int
    verb: str
    args: list[str]
    input: list[str]


class Stage:
    """What the commands of one file act on; subclasses add a method `do_VERB` for each verb.

    The docstring of such a method is its help; it begins with the arguments, up to a colon. What
    members see (`saw`) is printed in groups: members that saw the same share one line.
    """

    subject = ""

    def __init__(self) -> None:
        self._printed: list[str] = []
        self._seen: dict[str, list[str]] = {}

    @classmethod
    def verbs(cls) -> dict[str, str]:
        """Return the help of each verb."""
        return {
            name.removeprefix("do_"): " ".join((getattr(cls, name).__doc__ or "").split())
            for name in sorted(dir(cls))
            if name.startswith("do_")
        }

    def print(self, *lines: str) -> None:
        """Add to the output of the block, after what was seen so far."""
        self._printed += self._groups()
        self._printed += lines

    def saw(self, name: str, line: str) -> None:
        """Record what member `name` saw."""
        self._seen.setdefault(name, []).append(line)

    def observe(self) -> None:
        """Record the effect of a command; called after each."""

    def output(self) -> list[str]:
        """Return what was printed since the last call."""
        self.print()
        printed, self._printed = self._printed, []
        return printed

    def _groups(self) -> list[str]:
        seen, self._seen = self._seen, {}
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in sorted(seen):
            groups.setdefault(tuple(seen[name]), []).append(name)
        printed = []
        for lines, names in groups.items():
            label = " ".join(names) + ":"
            if len(lines) == 1:
                printed.append(f"{label} {lines[0]}")
            else:
                printed += [label, *(f"  {line}" for line in lines)]
        return printed


class Block(NamedTuple):
    """Commands whose output is compared together."""

    source: list[str]
    commands: list[Command]


def parse(path: Path) -> list[str | Block]:
    """Read a file without its outputs: text lines and blocks."""
    items: list[str | Block] = []
    block: Block | None = None
    skipping = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            block, skipping = None, False
            items.append("")
        elif skipping:
            pass
        elif line == SEPARATOR:
            if block is None:
                raise ScenarioError(f"{path}:{number}: an output without a command")
            block, skipping = None, True
        elif line.startswith("#"):
            (items if block is None else block.source).append(line)
        elif line[0].isspace():
            if block is None:
                raise ScenarioError(f"{path}:{number}: input without a command")
            block.source.append(line)
            block.commands[-1].input.append(line.strip())
        else:
            if block is None:
                block = Block([], [])
                items.append(block)
            verb, *args = shlex.split(line)
            block.source.append(line)
            block.commands.append(Command(number, verb, args, []))
    return items


def run(path: Path, stage: Stage) -> str:
    """Run a file; return its text with the present outputs."""
    text: list[str] = []
    for item in parse(path):
        if isinstance(item, str):
            text.append(item)
            continue
        for command in item.commands:
            _carry_out(path, stage, command)
        text += [*item.source, SEPARATOR, *stage.output()]
    return "\n".join(text).rstrip("\n") + "\n"


def _carry_out(path: Path, stage: Stage, command: Command) -> None:
    place = f"{path}:{command.line}: {command.verb}"
    method: Callable[..., None] | None = getattr(stage, f"do_{command.verb}", None)
    if method is None:
        raise ScenarioError(f"{place}: unknown verb; there are {', '.join(stage.verbs())}")
    given = [*command.args, *([command.input] if command.input else [])]
    try:
        signature(method).bind(*given)
    except TypeError as err:
        usage = stage.verbs()[command.verb]
        raise ScenarioError(f"{place}: {err}; usage: {command.verb} {usage}") from err
    try:
        method(*given)
        stage.observe()
    except Exception as err:
        raise ScenarioError(f"{place}: {type(err).__name__}: {err}") from err


def compare(path: Path, stage: Stage, *, rewrite: bool) -> str:
    """Return how a file differs from its present output; with `rewrite`, write that
    output instead."""
    now = run(path, stage)
    before = path.read_text(encoding="utf-8")
    if rewrite:
        if now != before:
            path.write_text(now, encoding="utf-8")
        return ""
    name = str(path)
    difference = unified_diff(
        before.splitlines(keepends=True), now.splitlines(keepends=True), name, f"{name} as run now"
    )
    return "".join(difference)


def help_text(stages: Iterable[type[Stage]]) -> str:
    """Return the verbs of all stages, one paragraph each."""
    lines = []
    for stage in stages:
        lines += [f"{stage.subject}/*.txt: {(stage.__doc__ or '').splitlines()[0]}", ""]
        for verb, text in stage.verbs().items():
            lines.append(
                fill(f"{verb} {text}", 96, initial_indent="  ", subsequent_indent="      ")
            )
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"
