"""Every command line on a page that calls one of our commands is valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from tests.manual_pages import ROOT, pages
from tools.cli.failures import ToolError
from tools.manual.__main__ import installed

READ = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *pages()[1:]]
LEADING = re.compile(r"^(?:\$|until|while|if|do|then|!|[A-Z_]+=.*)$")
LINES_MAX = 6
"""A command goes over so many lines at most: open quotes, or a backslash at the end."""


def lines_of(page: str) -> Iterator[str]:
    """The lines typed in indented blocks, with continued lines joined."""
    block = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    for number, first in enumerate(block):
        for count in range(1, LINES_MAX + 1):
            typed = "\n".join(block[number : number + count])
            try:
                shlex.split(typed, comments=True)
            except ValueError:
                continue
            if not typed.endswith("\\"):
                yield typed if count > 1 else first
                break


def calls(line: str, names: Sequence[str]) -> Iterator[list[str]]:
    """The simple commands of a line that are ours, without redirections."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words, skipped = list[str](), False
    for word in [*lexer, ";"]:
        if set(word) <= set("<>&") and set(word) & set("<>"):
            words = words[:-1] if words and words[-1] == "2" else words
            skipped = True
        elif set(word) <= set("();|&"):
            while words and LEADING.match(words[0]):
                words.pop(0)
            if words and words[0] in names:
                yield [one for one in words if one != "..."]
            words = []
        elif skipped:
            skipped = False
        else:
            words.append(word)


def refused(words: Sequence[str]) -> str:
    """Why the command would refuse these arguments; empty if it would not."""
    name, *arguments = words
    command: click.Command = installed()[name]
    try:
        context = command.make_context(name, arguments)
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            verb, found, rest = command.resolve_command(context, rest)
            assert found is not None
            found.make_context(verb, rest, parent=context)
    except click.exceptions.Exit:
        return ""  # --help
    except (click.UsageError, ToolError) as error:
        return f"{shlex.join(words)}: {error}"
    return ""


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_of_pages_are_valid(page: Path) -> None:
    names = list(installed())
    found = [
        why
        for line in lines_of(page.read_text(encoding="utf-8"))
        for words in calls(line, names)
        if (why := refused(words))
    ]
    assert not found, "\n".join(found)


def test_the_check_of_commands_finds_what_it_should() -> None:
    text = "    until qpid-cluster --no | grep x; do true; done\n    $ drain -q\n    qpidctl x_y\n"
    found = [w for line in lines_of(text) for w in calls(line, list(installed()))]
    assert [words[0] for words in found] == ["qpid-cluster", "drain", "qpidctl"]
    assert all(refused(words) for words in found)
    good = "    H=$(qpidctl hash_password) && qpid-cluster -k \\\n        2>> log  # all\n"
    found = [w for line in lines_of(good) for w in calls(line, list(installed()))]
    assert found == [["qpidctl", "hash_password"], ["qpid-cluster", "-k"]]
    assert not any(map(refused, found))
