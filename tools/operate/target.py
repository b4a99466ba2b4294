"""Code shared by commands over the management API: the members to ask, and how a command fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.shared_options import BROKER_VARIABLE, BrokerOption, timeout_option, together
from tools.cli.streams import complain
from tools.client.broker_url import elsewhere
from tools.client.credentials import Credentials, with_credentials
from tools.client.http_api import Api, ApiError, NoAnswer, NotRunning, parse_api

BROKER_HELP = (
    "Management API of any member, [http[s]://][user/password@]host[:port], or a list "
    "host:port,host:port or failover:(tcp://host:port,...), of which the first reachable one is "
    "asked. Default localhost:15672, or $QPID_BROKER; give no port there: other commands take it "
    "for the AMQP port."
)
COMPLETION = """\b
Completion of verbs and options:
  bash:  eval "$(_{0}_COMPLETE=bash_source {1})"   in ~/.bashrc
  zsh:   eval "$(_{0}_COMPLETE=zsh_source {1})"    in ~/.zshrc

Every user of this machine can see a password on the command line: use --password-file or
$QPID_PASSWORD. With --user alone, the command asks for it at the terminal. For TLS use
https://host:port, and --ssl-ca or $SSL_CERT_FILE.

Exit codes: 0 done, 64 wrong usage or no such object, 65 wrong password or data,
69 no answer or a check failed, 70 the broker refused for another reason.
"""


def epilog(command: str) -> str:
    """The end of a command's --help."""
    return "\n" + COMPLETION.format(command.upper().replace("-", "_"), command)


with_broker = click.option(
    "--broker", envvar=BROKER_VARIABLE, metavar="BROKER", cls=BrokerOption,
    help=BROKER_HELP,
)  # fmt: skip


with_timeout = timeout_option(60)
with_target = together(with_broker, with_credentials, with_timeout)


def api_of(broker: str | None, credentials: Credentials, timeout: float) -> Api:
    """The API that these options name."""
    try:
        return parse_api(broker or "localhost", timeout or None, credentials)
    except ValueError as problem:
        raise click.UsageError(f"--broker: {problem}") from None


@contextmanager
def answered() -> Iterator[None]:
    """End the command with one sentence and a code when a request fails."""
    try:
        yield
    except NotRunning as problem:
        raise ToolError(elsewhere(str(problem)), Exit.UNAVAILABLE) from None
    except NoAnswer as problem:
        raise ToolError(str(problem), Exit.UNAVAILABLE) from None
    except ApiError as problem:
        raise ToolError(str(problem), code_of(problem.status)) from None


def code_of(status: int) -> Exit:
    """The exit code that scripts for rabbitmqctl expect for an HTTP status."""
    match status:
        case 401 | 403:
            return Exit.DATA
        case 400:
            return Exit.DATA
        case 404 | 405:
            return Exit.USAGE
        case 503:
            return Exit.UNAVAILABLE
        case _:
            return Exit.INTERNAL


def note(text: str, *, quiet: bool) -> None:
    """Print the action on stderr, so that stdout has only the answer."""
    if not quiet:
        complain(text)
