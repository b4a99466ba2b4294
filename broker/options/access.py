"""The options of logins: who may come from this machine only, and who a certificate names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import OptionError

DEFAULTS: Mapping[str, str] = {
    "loopback-users": "guest",
    "cert-login-from": "distinguished-name",
    "anonymous-user": "",
}
SOURCES = ("distinguished-name", "common-name", "dns", "email", "uri")


class AccessOptions(NamedTuple):
    """How clients of this member log in."""

    loopback_users: frozenset[str] = frozenset(("guest",))
    """Who may log in from this machine only."""
    cert_login_from: str = SOURCES[0]
    """Which name of a verified certificate is the user, with EXTERNAL: one of SOURCES."""
    anonymous_user: str = ""
    """Who clients are that name nobody, with ANONYMOUS; empty: they are refused."""


def read_access_options(text: Mapping[str, str]) -> AccessOptions:
    """Read the options.  Raises OptionError."""
    given = text["loopback-users"]
    users = [user.strip() for user in given.split(",")] if given.lower() != "none" else []
    if not all(users):
        raise OptionError("loopback-users", f"'{given}' is no list of users, as guest,test is")
    source = text["cert-login-from"].lower().replace("_", "-")
    if source not in SOURCES:
        raise OptionError("cert-login-from", f"'{source}' is none of {', '.join(SOURCES)}")
    return AccessOptions(frozenset(users), source, text["anonymous-user"])
