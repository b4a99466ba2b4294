"""The options of a store shared by several brokers, as with ActiveMQ: one leads, without a ring.

The lease on the store is in files of its directory, or in a row of a database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from broker.options.values import (
    Option,
    OptionError,
    defaults_of,
    number,
    without_password,
    yes,
)
from vsync.types import record

LEASE_DEFAULT, LEASE_MS = "800", (200, 60_000)
NO_RING = (
    "--shared-store is for brokers of which one leads and the others wait, without a ring; drop "
    "it, or give each member a --data-dir of its own"
)
OPTIONS: Mapping[str, Option] = {
    "shared-store": Option("", "DIR",
        "Share one store with the other brokers that are started with the same DIR, on a file "
        "system that all of them reach: one leads and serves, the others wait and take over."),
    "shared-store-lease": Option(LEASE_DEFAULT, "MS",
        "How long the leader may continue without renewing its lease; it renews four times as "
        "often. Increase it on slow file systems. Default 800."),
    "shared-store-lock": Option("", "URL",
        "Keep the lease on DIR in a database instead of in DIR: postgresql://USER@HOST/DATABASE "
        "(password: PGPASSFILE), or sqlite:///FILE for brokers of one machine. The messages stay "
        "in DIR. The same at all brokers of DIR."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)

_POSTGRESQL = ("postgresql://", "postgres://")
_SQLITE = "sqlite://"
_INSTALL = "pip install 'qpid-cluster-py[postgresql]'"
_USER = re.compile(r"\w+://[^@/]*@", re.ASCII)
"""As libpq takes it from a URL."""
_QUOTED = re.compile(r'"([^"]*)"')
"""Texts that libpq quotes from a URL may be part of its password."""


@record
class DatabaseLock:
    """The database that keeps the lease."""

    url: str
    shown: str
    """For people: without a password."""
    file: Path | None = None
    """The file of SQLite; None: the database is PostgreSQL."""


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
        raise OptionError(option, f"a lease in PostgreSQL needs the package psycopg: {_INSTALL}")
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            option, f"the package psycopg cannot be loaded ({reason}): {_INSTALL} has all of it"
        ) from error

    found = _USER.match(url)
    if "@" in url[found.end() if found else 0 :].partition("?")[0]:
        raise OptionError(
            option,
            f"'{shown}' has an @ where no user ends: in a user or a password write %40 for @, %2F "
            "for / and %25 for %",
        )
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        reason = _QUOTED.sub(
            lambda found: found[0] if found[1] in shown else '"***"', " ".join(str(error).split())
        )
        raise OptionError(option, f"'{shown}': {reason}") from error
    return DatabaseLock(url, shown)
