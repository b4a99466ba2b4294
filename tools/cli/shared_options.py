"""Options that all commands share: --version, --timeout, and the names of --broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
BROKER_VARIABLE = "QPID_BROKER"
"""Names the brokers to ask if the command line does not, for all commands alike. Without a port
each command uses its own: the clients', or the management API's."""


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds all of these to a command, in the order of --help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def with_version(command: Command) -> Command:
    """Add --version to a command."""
    return click.version_option(
        package_name="qpid-cluster-py", message="%(prog)s %(version)s", help="Show the release."
    )(command)  # the result keeps the name of its first command


def timeout_option(default_s: int) -> Callable[[Command], Command]:
    """Return a decorator that adds --timeout to a command: seconds, 0 for ever."""
    said = f"How long to wait for a connection and for an answer; 0: for ever. Default {default_s}."
    seconds = click.FloatRange(min=0)
    return click.option(
        "-t", "--timeout", metavar="SECS", type=seconds, default=float(default_s), help=said
    )


class BrokerOption(click.Option):
    """An option --broker with the alias --brokers; --help shows it once."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401 - as click has it
        shown = self.opts
        self.opts = [*shown, "--brokers"]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown
