"""`python -m tools.manual DIR`: write a manual page of each installed command into DIR, as *.1.

The pages have the text of `--help`, because they are made from it. A distribution package, or a
manual installation, runs this as a step of its build.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import click

from broker.exit_codes import Exit
from broker.release import version
from tools.cli.failures import ToolError, os_reason
from tools.cli.options import run_command

DISTRIBUTION = "qpid-cluster-py"
WIDTH = 10_000
"""No line is broken here; the program that shows the page does that."""


def installed() -> dict[str, click.Command]:
    """Our commands by their installed names."""
    return {
        point.name: _command(point)
        for point in distribution(DISTRIBUTION).entry_points
        if point.group == "console_scripts"
    }


def _command(point: EntryPoint) -> click.Command:
    module = import_module(point.module)
    module = import_module(getattr(module, "COMMAND", point.module))
    named = [one for one in vars(module).values() if isinstance(one, click.Command)]
    return next(one for one in named if one.name in (point.name, point.attr))


def page(name: str, command: click.Command) -> str:
    """One page, in the man macros of troff."""
    context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    text = command.help or ""
    lines = [
        f'.TH "{name.upper()}" 1 "" "{DISTRIBUTION} {version()}" "User Commands"',
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(text.partition('.')[0].strip())}",
        ".SH SYNOPSIS",
        *_usage(name, command, context),
        ".SH DESCRIPTION",
        *_paragraphs(text),
        ".SH OPTIONS",
        *_options(command, context),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for verb in command.list_commands(context):
            lines += _verb(command, verb, context)
    lines += [".SH NOTES", *_paragraphs(command.epilog or "")]
    return "\n".join(lines) + "\n"


def _verb(group: click.Group, verb: str, context: click.Context) -> Iterator[str]:
    """One command of a group; options shared by all of them are above."""
    found = group.get_command(context, verb)
    if found is None or found.hidden:
        return
    inner = click.Context(found, context, verb, terminal_width=WIDTH, max_content_width=WIDTH)
    yield f".SS {_plain(verb)}"
    yield from _usage(f"{context.info_name} {verb}", found, inner)
    yield ".PP"
    yield from _paragraphs(found.help or "")
    above = {name for one in group.params for name in one.opts}
    yield from _options(found, inner, without=above)


def _usage(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f".B {_plain(name)}"
    yield _plain(" ".join(command.collect_usage_pieces(context)))


def _options(
    command: click.Command, context: click.Context, without: set[str] | None = None
) -> Iterator[str]:
    for parameter in command.get_params(context):
        shown = parameter.get_help_record(context)
        if shown is None or (without and without & set(parameter.opts)):
            continue
        yield ".TP"
        yield f".B {_plain(shown[0])}"
        yield _plain(shown[1] or "(no text)")


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; text that click must not rewrap is not rewrapped here."""
    asis = False
    began = False
    for line in text.splitlines():
        if line.strip() in ("", "\b"):
            if asis:
                yield ".fi"
            asis = line.strip() == "\b"
            if began:
                yield ".PP"
            if asis:
                yield ".nf"
            began = False
            continue
        began = True
        yield _plain(line if asis else line.strip())
    if asis:
        yield ".fi"


def _plain(text: str) -> str:
    """One line of text that troff does not interpret."""
    shown = " ".join(text.split("\n")).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + shown if shown.startswith((".", "'")) else shown


@click.command(name="manual", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def manual(directory: Path) -> int:
    """Write a manual page of each installed command into DIR, for instance share/man/man1."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, command in sorted(installed().items()):
            (directory / f"{name}.1").write_text(page(name, command), encoding="utf-8")
    except OSError as problem:
        raise ToolError(f"{directory}: {os_reason(problem)}", Exit.CANNOT_CREATE) from None
    return Exit.OK


if __name__ == "__main__":
    run_command(manual, sys.argv[1:])
