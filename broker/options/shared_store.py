"""The options of a store that several brokers share: where it is, its lease, and who keeps that.

As ActiveMQ's shared file system and JDBC master/slave: the lease on the store is in files of its
directory, or in a row of a database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from broker.options.values import OptionError, number, yes
from vsync.types import record

LEASE_DEFAULT, LEASE_MS = "800", (200, 60_000)
NO_RING = (
    "--shared-store is for brokers of which one leads and the others wait, without a ring; drop "
    "it, or give each member a --data-dir of its own"
)
DEFAULTS: Mapping[str, str] = {
    "shared-store": "",
    "shared-store-lease": LEASE_DEFAULT,
    "shared-store-lock": "",
}
HELP: Mapping[str, tuple[str, str]] = {
    "shared-store": (
        "DIR",
        "Share one store with other brokers that are started with the same DIR, on a file system "
        "that they all reach: one leads and serves, the others wait and take over.",
    ),
    "shared-store-lease": (
        "MS",
        "How long the leader may go on without renewing its lease, a fourth of which is "
        "the time between renewals; longer for slow file systems. Default 800.",
    ),
    "shared-store-lock": (
        "URL",
        "Keep the lease on DIR in a database, not in DIR: postgresql://USER@HOST/DATABASE "
        "(password: PGPASSFILE), or sqlite:///FILE for brokers of one machine. The messages stay "
        "in DIR. The same at all brokers of DIR.",
    ),
}
_POSTGRESQL = ("postgresql://", "postgres://")
_SQLITE = "sqlite://"
_PASSWORD = re.compile(r"(?<=//)([^/@?]*?):[^/@?]*(?=@)")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&])(password|sslpassword)=[^&]*")


@record
class DatabaseLock:
    """The database that keeps the lease."""

    url: str
    shown: str
    """For people: without a password."""
    file: Path | None = None
    """Of SQLite; None: it is PostgreSQL."""


class SharedStoreOptions(NamedTuple):
    """Where a shared store is, and how long its leader may act after each renewal of its lease."""

    directory: Path
    """Absolute."""
    lease_ms: int
    lock: DatabaseLock | None = None
    """Where the lease is kept; None: in files of the directory."""


def read_shared_store(
    text: Mapping[str, str], of_rings: Sequence[str]
) -> SharedStoreOptions | None:
    """Read the options; None: the store is this broker's.  Raises OptionError.

    `of_rings`: options that were given and that only a ring has.
    """
    lease_ms = number("shared-store-lease", text["shared-store-lease"], *LEASE_MS)
    if not text["shared-store"]:
        for option in ("shared-store-lease", "shared-store-lock"):
            if text[option] != DEFAULTS[option]:
                raise OptionError(option, "it needs --shared-store")
        return None
    of_rings = [*(["ha-cluster"] if yes("ha-cluster", text["ha-cluster"]) else []), *of_rings]
    if of_rings:
        raise OptionError(of_rings[0], NO_RING)
    if text["data-dir"]:
        raise OptionError("data-dir", "who leads has it in --shared-store; drop one of the two")
    if text["no-data-dir"].lower() == "yes":
        raise OptionError("no-data-dir", "it contradicts --shared-store; drop one of the two")
    directory = Path(text["shared-store"]).expanduser().absolute()
    lock = _lock("shared-store-lock", text["shared-store-lock"])
    return SharedStoreOptions(directory, lease_ms, lock)


def _lock(option: str, url: str) -> DatabaseLock | None:
    if not url:
        return None
    shown = without_password(url)
    if url.startswith(_SQLITE):
        path = unquote(url.removeprefix(_SQLITE))
        if not path.startswith("/") or not path.strip("/") or "?" in url:
            raise OptionError(option, f"'{shown}' is not of the form sqlite:///DIR/FILE")
        return DatabaseLock(url, shown, Path("/" + path.lstrip("/")))
    if not url.startswith(_POSTGRESQL):
        raise OptionError(
            option, f"'{shown}' begins neither with postgresql:// nor with sqlite:///"
        )
    if find_spec("psycopg") is None:
        raise OptionError(
            option,
            "a lease in PostgreSQL needs the package psycopg: pip install "
            "'qpid-cluster-py[postgresql]'",
        )
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise OptionError(option, f"'{shown}': {' '.join(str(error).split())}") from error
    return DatabaseLock(url, shown)


def without_password(url: str) -> str:
    """Return a URL of a database as it may be shown."""
    return _PASSWORD_PARAMETER.sub(r"\1=***", _PASSWORD.sub(r"\1:***", url))
