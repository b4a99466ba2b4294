"""The option --version, alike at every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def with_version(command: Command) -> Command:
    """Add --version to a command."""
    return click.version_option(
        package_name="qpid-cluster-py", message="%(prog)s %(version)s", help="Show the release."
    )(command)  # what it returns keeps the name of its first command
