"""Credentials and TLS of a command: options, files and environment, and their precedence.

User and password are taken from the first of: the broker's URL, the option, the environment, guest.
A password on a command line is visible to everybody on that machine, so there are other ways. One
is to name a user and no password, which the command then asks for at the terminal.
"""

from __future__ import annotations

import os
import ssl
import stat
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import field
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError, os_reason
from tools.cli.shared_options import together
from tools.client.broker_url import DEFAULT_USER, BrokerUrl
from tools.client.tls import VERIFY, TlsFiles, client_context
from vsync.types import record

Command = TypeVar("Command", bound=Callable[..., Any])


@record
class Credentials:
    """The credentials given beside the broker's URL."""

    user: str | None = None
    password: str | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)

    def login(self, url: BrokerUrl) -> tuple[str, str]:
        """The user and the password for a broker. Raises ToolError."""
        user = url.user or self.user or DEFAULT_USER
        password = self.password if url.password is None else url.password
        if password is None:
            password = DEFAULT_USER if user == DEFAULT_USER else typed_password(user)
        return user, password

    def context(self, url: BrokerUrl) -> ssl.SSLContext | None:
        """The encryption of the connection; None: not encrypted. Raises ToolError."""
        if url.tls:
            return client_context(self.tls)
        if self.tls.are_given:
            raise ToolError(
                f"--ssl-...: {url.address} would be asked in clear; write amqps:// (qpidctl and "
                "those like it: https://) before it",
                Exit.USAGE,
            )
        return None


def from_environment(
    user: str | None = None,
    password: str | None = None,
    password_file: Path | None = None,
    tls: TlsFiles | None = None,
    environment: Mapping[str, str] | None = None,
) -> Credentials:
    """The options' values, completed from the environment."""
    found = os.environ if environment is None else environment
    if password is not None and password_file is not None:
        raise ToolError("give --password or --password-file, not both", Exit.USAGE)
    if password is None and password_file is None:
        password = found.get("QPID_PASSWORD")
        named = found.get("QPID_PASSWORD_FILE")
        password_file = Path(named) if named and password is None else None
    if password_file is not None:
        password = read_password(password_file)
    return Credentials(user or found.get("QPID_USER") or None, password, tls or TlsFiles())


def read_password(path: Path) -> str:
    """The first line of a file that only its owner, and perhaps a group, can read."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        mode = path.stat().st_mode
    except OSError as problem:
        raise ToolError(f"password file {path}: {os_reason(problem)}", Exit.CONFIG) from None
    except UnicodeDecodeError:
        raise ToolError(f"password file {path}: this is not UTF-8 text", Exit.CONFIG) from None
    if not lines:
        raise ToolError(
            f"password file {path} is empty: its first line is the password", Exit.CONFIG
        )
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise ToolError(
            f"password file {path}: everybody can read or write it; run: chmod o= {path}",
            Exit.CONFIG,
        )
    return lines[0]


def has_terminal() -> bool:
    """Whether there is somebody to ask; a shell may have closed standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


@cache
def typed_password(user: str) -> str:
    """The password typed at the terminal, once per command; it is not shown. Raises ToolError."""
    if not has_terminal():
        raise ToolError(
            f"there is no password of user '{user}', and no terminal to ask for it: give "
            "--password-file FILE, or set QPID_PASSWORD",
            Exit.USAGE,
        )
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))


_PATH = click.Path(path_type=Path)
OPTIONS = (
    click.option("--user", "login_user", help="User name. Default guest, or $QPID_USER."),
    click.option(
        "--password",
        help="Password. Default: $QPID_PASSWORD, or guest for the user guest; for any other user, "
        "ask at the terminal. Every user of this machine can see it here.",
    ),
    click.option(
        "--password-file", type=_PATH, metavar="FILE",
        help="Read the password from the first line of FILE. Default $QPID_PASSWORD_FILE.",
    ),
    click.option(
        "--ssl-ca", type=_PATH, metavar="FILE",
        help="Authorities (PEM) that may sign the broker's certificate. Default $SSL_CERT_FILE, "
        "else those of the system.",
    ),
    click.option(
        "--ssl-cert", type=_PATH, metavar="FILE",
        help="Your certificate (PEM), if the broker asks for one.",
    ),
    click.option(
        "--ssl-key", type=_PATH, metavar="FILE", help="Its private key, if in another file."
    ),
    click.option(
        "--ssl-verify", type=click.Choice(VERIFY),
        help="full: check the authority and the name of the broker's certificate; ca: the "
        "authority only; none: accept any certificate, and so any impostor. Default full.",
    ),
)  # fmt: skip
"""The options from which `taken` makes credentials."""


def taken(given: MutableMapping[str, Any]) -> Credentials:
    """Take the values of `OPTIONS` out of click's values for a command. Raises ToolError."""
    tls = TlsFiles(
        given.pop("ssl_ca"), given.pop("ssl_cert"), given.pop("ssl_key"),
        given.pop("ssl_verify") or VERIFY[0],
    )  # fmt: skip
    return from_environment(
        given.pop("login_user"), given.pop("password"), given.pop("password_file"), tls
    )


def with_credentials(command: Command) -> Command:
    """Add `OPTIONS` to a command, as `credentials`."""

    @wraps(command)
    def called(*args: Any, **given: Any) -> Any:  # noqa: ANN401  # as click has them
        return command(*args, credentials=taken(given), **given)

    return cast("Command", together(*OPTIONS)(called))
