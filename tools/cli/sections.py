"""Help in sections, so that a reader of a long help finds options by subject."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import click

Records = list[tuple[str, str]]
LONGEST_NAME = 32
"""After a longer name the text begins on a separate line."""


class OptionsInSections(click.Command):
    """A command with options under headings; `sections`: each heading by its first option."""

    sections: ClassVar[Mapping[str, str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, with headings."""
        title = "Options"
        found: dict[str, Records] = {}
        for parameter in self.get_params(ctx):
            title = self.sections.get(parameter.name or "", title)
            if (record := parameter.get_help_record(ctx)) is not None:
                found.setdefault(title, []).append(record)
        _write(found, formatter)


class VerbsInSections(click.Group):
    """A command with verbs under headings: the first whose expression matches the name."""

    sections: ClassVar[Sequence[tuple[str, re.Pattern[str]]]] = ()

    def section_of(self, verb: str) -> str:
        """The heading of a verb."""
        return next((title for title, names in self.sections if names.fullmatch(verb)), "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, with headings, and each help in full."""
        found: dict[str, Records] = {title: [] for title, _ in self.sections}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                text = command.short_help or (command.help or "").partition("\n\n")[0]
                said = " ".join(text.split())
                found.setdefault(self.section_of(name), []).append((name, said))
        _write(found, formatter)


def _write(found: Mapping[str, Records], formatter: click.HelpFormatter) -> None:
    for title, records in found.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records, col_max=LONGEST_NAME)
