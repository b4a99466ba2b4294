"""Options that `spout` and `drain` share, and how they end when a broker is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.progress import Progress
from tools.cli.shared_options import BROKER_VARIABLE, BrokerOption, Seconds
from tools.client import history as histories
from tools.client.amqp_client import BrokerRefused, ConnectionLost, Login
from tools.client.broker_url import AMQP, Address
from tools.client.credentials import Credentials, with_credentials
from tools.client.failover import Reconnect, read_brokers

Command = TypeVar("Command", bound=Callable[..., Any])


class Name(click.ParamType[str]):
    """Text of a field of AMQP that has a byte for its length."""

    name = "NAME"

    def __init__(self, least: int = 0, most: int = 255) -> None:
        self._least, self._most = least, most

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it unchanged; a refusal is a UsageError."""
        length = len(value.encode())
        if length < self._least:
            self.fail("it is empty", param, ctx)
        if length > self._most:
            self.fail(f"it has {length} bytes, and at most {self._most} fit", param, ctx)
        return value


QUEUE_NAME = Name(least=1)
"""Without a name spout would publish to no queue, and drain read one that nobody knows."""


def with_brokers(command: Command) -> Command:
    """Add --broker to a command, the list of brokers to try."""
    return click.option(
        "-b", "--broker", default="localhost:5672", envvar=BROKER_VARIABLE, metavar="BROKER,...",
        cls=BrokerOption,
        help="Brokers of one cluster, tried in this order, each "
        "[amqp[s]://][user:password@]host[:port][/vhost], or as ActiveMQ's clients write it: "
        "failover:(tcp://host:port,...)?randomize=false with initialReconnectDelay, "
        "maxReconnectDelay, timeout (milliseconds), maxReconnectAttempts. Default "
        "localhost:5672, or $QPID_BROKER.",
    )(command)  # fmt: skip


def with_connection(command: Command) -> Command:
    """Add --patience, those of `with_credentials`, and --history, in this order."""
    command = click.option("--history", metavar="DIR", help=histories.HELP)(command)
    return click.option(
        "--patience", default=60.0, type=Seconds(), metavar="SECS",
        help="Give up after this long without a reachable broker; a timeout in failover: takes "
        "precedence. Default 60.",
    )(with_credentials(command))  # fmt: skip


class Route(NamedTuple):
    """The brokers of a list, the login at each, and how they are tried."""

    addresses: tuple[Address, ...]
    login: Login
    reconnect: Reconnect


def route(text: str, credentials: Credentials, patience_s: float) -> Route:
    """Parse a list of brokers, plain or in ActiveMQ's form."""
    try:
        first, addresses, reconnect = read_brokers(text, AMQP, patience_s)
    except ValueError as problem:
        raise ToolError(f"--broker: {problem}", Exit.USAGE) from None
    user, password = credentials.login(first)
    login = Login(user, password, first.vhost or "/", tls=credentials.context(first))
    return Route(addresses, login, reconnect)


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
