"""Code shared by commands that ask a member: two options, and one way to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from tools.cli.failures import ToolError
from tools.cli.shared_options import BROKER_VARIABLE, BrokerOption, timeout_option
from tools.client.broker_url import elsewhere
from tools.client.management import Askable, Json, ManagementError, NotRunning

Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def answered(who: str = "") -> Iterator[None]:
    """End the command with one sentence if a request fails; `who` if several members are asked."""
    try:
        yield
    except NotRunning as problem:
        text = f"{who}: {problem}" if who else elsewhere(str(problem))
        raise ToolError(f"Failed: {text}") from None
    except ManagementError as problem:
        raise ToolError(f"Failed: {f'{who}: ' if who else ''}{problem}") from None


def asked(target: Askable, op: str) -> dict[str, Json]:
    """Ask one question; a problem ends the command with one sentence."""
    with answered():
        return target.ask(op=op)


def with_broker_argument(
    name: str = "broker",
    kind: type[click.Option] = BrokerOption,
) -> Callable[[Command], Command]:
    """Add the broker to ask to a command, as its argument `name` or as --broker, of this `kind`."""

    def add(command: Command) -> Command:
        @wraps(command)
        def merged(*args: Any, named_broker: str | None, **given: Any) -> Any:  # noqa: ANN401
            source = click.get_current_context().get_parameter_source(name)
            if named_broker is not None and source is ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"the broker is named twice: {given[name]}, and --broker {named_broker}"
                )
            given[name] = given[name] if named_broker is None else named_broker
            return command(*args, **given)

        said = f"The same as {name.upper()}, the last argument."
        option = click.option("--broker", "named_broker", metavar=name.upper(), cls=kind, help=said)
        argument = click.argument(name, default="localhost", envvar=BROKER_VARIABLE)
        return cast("Command", option(argument(merged)))

    return add


def with_json(command: Command) -> Command:
    """Add --json to a command, as `as_json`."""
    text = "Print the answer as one JSON document."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


with_timeout = timeout_option(10)
