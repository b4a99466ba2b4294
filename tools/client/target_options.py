"""What the commands that ask a member have in common: two options, and one way to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from tools.cli.failures import ToolError
from tools.client.broker_url import elsewhere
from tools.client.management import Askable, Json, ManagementError, NotRunning

Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def answered(who: str = "") -> Iterator[None]:
    """End the command with one sentence on a failed request; `who` when several are asked."""
    try:
        yield
    except NotRunning as problem:
        text = f"{who}: {problem}" if who else elsewhere(str(problem))
        raise ToolError(f"Failed: {text}") from None
    except ManagementError as problem:
        raise ToolError(f"Failed: {f'{who}: ' if who else ''}{problem}") from None


def asked(target: Askable, op: str) -> dict[str, Json]:
    """One question; a problem ends the command with one sentence."""
    with answered():
        return target.ask(op=op)


def with_json(command: Command) -> Command:
    """Add --json to a command, as `as_json`."""
    text = "Print the answer as one JSON document."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def with_timeout(command: Command) -> Command:
    """Add --timeout to a command: seconds, 0 for ever."""
    return click.option(
        "-t", "--timeout", metavar="SECS", type=click.FloatRange(min=0), default=10.0,
        help="Longest wait for a connection and for an answer; 0 waits for ever. Default 10.",
    )(command)  # fmt: skip
