"""Options that `spout` and `drain` share, and how a lost broker ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.progress import Progress
from tools.client import history as histories
from tools.client.amqp_client import BrokerRefused, ConnectionLost

Command = TypeVar("Command", bound=Callable[..., Any])


def with_brokers(command: Command) -> Command:
    """Add --broker to a command, the list of brokers to try."""
    return click.option(
        "-b", "--broker", default="localhost:5672", metavar="HOST:PORT,...",
        help="Brokers of one cluster, tried in this order. Default localhost:5672.",
    )(command)  # fmt: skip


def with_connection(command: Command) -> Command:
    """Add --patience, --user, --password and --history, in this order."""
    for option in reversed(
        (
            click.option(
                "--patience", default=60.0, type=click.FloatRange(min=0), metavar="SECS",
                help="Give up when no broker can be reached for so long. Default 60.",
            ),
            click.option("--user", default="guest", help="Default guest."),
            click.option("--password", default="guest", help="Default guest."),
            click.option("--history", metavar="DIR", help=histories.HELP),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def client_errors(progress: Progress) -> Iterator[None]:
    """A lost connection or a refusal ends the command with one sentence."""
    try:
        yield
    except ConnectionLost as lost:
        raise ToolError(str(lost), Exit.UNAVAILABLE) from None
    except BrokerRefused as refusal:
        raise ToolError(str(refusal)) from None
    finally:
        progress.clear()
