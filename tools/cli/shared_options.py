"""Options that all commands share: --version, --timeout, the names of --broker, and the question
that --force leaves out."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
BROKER_VARIABLE = "QPID_BROKER"
"""Names the brokers to ask if the command line does not, for all commands alike. Without a port
each command uses its own: the clients', or the management API's."""
SECONDS_MAX = 1e9


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


class Seconds(click.FloatRange):
    """A time in seconds that a timer of the system can take, so neither `nan` nor `inf`."""

    def __init__(self, least: float = 0.0) -> None:
        super().__init__(least, SECONDS_MAX)

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; a refusal is a UsageError."""
        seconds = float(super().convert(value, param, ctx))
        return self.fail(f"{value} is not a number", param, ctx) if math.isnan(seconds) else seconds


def timeout_option(default_s: int) -> Callable[[Command], Command]:
    """Return a decorator that adds --timeout to a command: seconds, 0 for ever."""
    said = f"How long to wait for a connection and for an answer; 0: for ever. Default {default_s}."
    return click.option(
        "-t", "--timeout", metavar="SECS", type=Seconds(), default=float(default_s), help=said
    )


def agreed(prompt: str, *, to_stderr: bool = False) -> bool:
    """Ask; whether the answer starts with y. Nobody there, or no text, is no."""
    print(prompt, end="", flush=True, file=sys.stderr if to_stderr else sys.stdout)
    try:
        answer = sys.stdin.readline() if sys.stdin is not None else ""
    except UnicodeDecodeError:
        return False
    return answer.strip().lower().startswith("y")


class BrokerOption(click.Option):
    """An option --broker with the alias --brokers; --help shows it once."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401 - as click has it
        shown = self.opts
        self.opts = [*shown, "--brokers"]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown
