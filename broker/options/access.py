"""The options of logins: where users are looked for, and who may come how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import OptionError

DEFAULTS: Mapping[str, str] = {
    "loopback-users": "guest",
    "cert-login-from": "distinguished-name",
    "anonymous-user": "",
    "auth-backends": "internal",
    "auth-file": "",
    "acl-file": "",
}
BACKENDS = ("internal", "file")
SOURCES = ("distinguished-name", "common-name", "dns", "email", "uri")


class AccessOptions(NamedTuple):
    """How clients of this member log in."""

    loopback_users: frozenset[str] = frozenset(("guest",))
    """Who may log in from this machine only."""
    cert_login_from: str = SOURCES[0]
    """Which name of a verified certificate is the user, with EXTERNAL: one of SOURCES."""
    anonymous_user: str = ""
    """Who clients are that name nobody, with ANONYMOUS; empty: they are refused."""
    backends: tuple[str, ...] = ("internal",)
    """Where users are looked for, in this order: some of BACKENDS."""
    user_file: Path | None = None
    """The users of the back end `file`."""
    acl_file: Path | None = None
    """Qpid's rules, in place of permissions."""


def read_access_options(text: Mapping[str, str]) -> AccessOptions:
    """Read the options.  Raises OptionError."""
    given = text["loopback-users"]
    users = [user.strip() for user in given.split(",")] if given.lower() != "none" else []
    if not all(users):
        raise OptionError("loopback-users", f"'{given}' is no list of users, as guest,test is")
    source = text["cert-login-from"].lower().replace("_", "-")
    if source not in SOURCES:
        raise OptionError("cert-login-from", f"'{source}' is none of {', '.join(SOURCES)}")
    backends, file = _backends(text["auth-backends"]), text["auth-file"]
    if file and "file" not in backends:
        raise OptionError("auth-file", "nobody looks there: name file in --auth-backends, too")
    if "file" in backends and not file:
        raise OptionError("auth-backends", "file needs the file of users: give --auth-file")
    paths = [Path(text[name]).expanduser().absolute() if text[name] else None
             for name in ("auth-file", "acl-file")]  # fmt: skip
    return AccessOptions(frozenset(users), source, text["anonymous-user"], backends, *paths)


def _backends(given: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in given.split(","))
    for name in names:
        if name not in BACKENDS:
            raise OptionError("auth-backends", f"'{name}' is none of {', '.join(BACKENDS)}")
    if len(set(names)) < len(names):
        raise OptionError("auth-backends", f"'{given}' names one twice")
    return names
