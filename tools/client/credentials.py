"""As whom a command comes, and by which TLS: options, files and environment, and which one wins.

For the user and the password, in this order: the broker's URL, the option, the environment, guest.
A password on a command line is seen by everybody on that machine, so there are two more ways.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError, os_reason
from tools.client.broker_url import BrokerUrl
from tools.client.tls import VERIFY, TlsFiles, client_context
from vsync.types import record

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT = "guest"


@record
class Credentials:
    """What was given beside the URL of the broker."""

    user: str | None = None
    password: str | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)

    def login(self, url: BrokerUrl) -> tuple[str, str]:
        """The user and the password for a broker."""
        user = url.user or self.user or DEFAULT
        password = self.password if url.password is None else url.password
        return user, DEFAULT if password is None else password

    def context(self, url: BrokerUrl) -> ssl.SSLContext | None:
        """How the connection is encrypted, None when it is not.  Raises ToolError."""
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
    """What the options say, and the environment where they say nothing."""
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
        lines = path.read_text(encoding="utf-8").splitlines()
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


def with_credentials(command: Command) -> Command:
    """Add --user, --password, --password-file and --ssl-... to a command, as `credentials`."""

    @wraps(command)
    def called(*args: Any, **given: Any) -> Any:  # noqa: ANN401  # as click has them
        tls = TlsFiles(
            given.pop("ssl_ca"), given.pop("ssl_cert"), given.pop("ssl_key"),
            given.pop("ssl_verify"),
        )  # fmt: skip
        credentials = from_environment(
            given.pop("user"), given.pop("password"), given.pop("password_file"), tls
        )
        return command(*args, credentials=credentials, **given)

    path = click.Path(path_type=Path)
    for option in reversed(
        (
            click.option("--user", help="Default guest, or $QPID_USER."),
            click.option(
                "--password",
                help="Default guest, or $QPID_PASSWORD; here everybody on this machine sees it.",
            ),
            click.option(
                "--password-file", type=path, metavar="FILE",
                help="Its first line is the password; or $QPID_PASSWORD_FILE.",
            ),
            click.option(
                "--ssl-ca", type=path, metavar="FILE",
                help="Who may have signed the broker's certificate. Default $SSL_CERT_FILE, else "
                "the authorities of the system.",
            ),
            click.option("--ssl-cert", type=path, metavar="FILE", help="A certificate of yours."),
            click.option(
                "--ssl-key", type=path, metavar="FILE", help="Its key, if in another file."
            ),
            click.option(
                "--ssl-verify", type=click.Choice(VERIFY), default="full",
                help="full: authority and name of the broker's certificate; ca: not the name; "
                "none: any certificate, so anybody may answer in the broker's place.",
            ),
        )
    ):  # fmt: skip
        called = option(called)
    return cast("Command", called)
