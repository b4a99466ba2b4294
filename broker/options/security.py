"""The options of authentication on the ring: `--cluster-mechanism` and those that go with it.

The mechanism follows from the given options: keys mean CURVE, a user name means PLAIN. Without any,
a ring that only this machine can reach is open, and any other is refused: a ring open to a network
has to be requested, as ANONYMOUS. Nothing here touches the disk.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import Kind, Option, OptionError, defaults_of

OPTIONS: Mapping[str, Option] = {
    "cluster-mechanism": Option("", "WHICH",
        "How members prove who they are: CURVE (keys), PLAIN (user name and password, sent in "
        "clear) or ANONYMOUS (any process that reaches the ring's port takes part). Default: what "
        "the other options imply; if there are none, ANONYMOUS, and only if --cluster-bind is a "
        "loopback address.", Kind.EQUAL),
    "cluster-username": Option("", "NAME", "For PLAIN: the same on all members.", Kind.EQUAL),
    "cluster-password": Option("", "WORD",
        "For PLAIN. Other users can see the command line: set it in the environment or in the "
        "option file.", Kind.EQUAL),
    "cluster-key": Option("", "FILE",
        "This member's secret key: ring connections are encrypted, and only members whose keys "
        "are in --cluster-allow take part. Create keys with qpid-cluster-keys."),
    "cluster-allow": Option("", "DIR",
        "Directory with the public keys of all members, including this one. Read again when it "
        "changes."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)
MECHANISMS = ("ANONYMOUS", "PLAIN", "CURVE")
_NEEDS = {
    "ANONYMOUS": (),
    "PLAIN": ("cluster-username", "cluster-password"),
    "CURVE": ("cluster-key", "cluster-allow"),
}
CREDENTIAL_BYTES_MAX = 255


class SecurityOptions(NamedTuple):
    """How members prove to each other who they are."""

    mechanism: str
    """One of MECHANISMS."""
    username: str = ""
    password: str = ""
    key: Path | None = None
    """This member's secret key file."""
    allow: Path | None = None
    """The directory with the public keys of all members."""

    def __repr__(self) -> str:
        return f"SecurityOptions({self.mechanism}, {self.username!r}, {self.key}, {self.allow})"


OPEN = SecurityOptions("ANONYMOUS")


def read_security_options(text: Mapping[str, str], host: str, port: int) -> SecurityOptions:
    """Read the options of a ring socket at `host` and `port`.  Raises OptionError."""
    mechanism = text["cluster-mechanism"].upper() or _implied(text, host)
    if mechanism not in MECHANISMS:
        raise OptionError(
            "cluster-mechanism",
            f"'{text['cluster-mechanism']}' is not one of {', '.join(MECHANISMS)}",
        )
    for needed in _NEEDS[mechanism]:
        if not text[needed]:
            raise OptionError(needed, f"{mechanism} needs it: give --{needed}")
    for name in DEFAULTS:
        if text[name] and name != "cluster-mechanism" and name not in _NEEDS[mechanism]:
            raise OptionError(
                name, f"it means nothing to mechanism {mechanism}; drop it or --cluster-mechanism"
            )
        if len(text[name].encode()) > CREDENTIAL_BYTES_MAX and name in _NEEDS["PLAIN"]:
            raise OptionError(name, f"it has more than {CREDENTIAL_BYTES_MAX} bytes")
    if mechanism == "CURVE" and not port:
        raise OptionError(
            "cluster-bind",
            "with CURVE the ring port must be fixed: "
            "a key belongs to a member by name, and that is its --cluster-bind",
        )
    return SecurityOptions(
        mechanism,
        text["cluster-username"],
        text["cluster-password"],
        _path(text["cluster-key"]),
        _path(text["cluster-allow"]),
    )


def _implied(text: Mapping[str, str], host: str) -> str:
    if text["cluster-key"] or text["cluster-allow"]:
        return "CURVE"
    if text["cluster-username"] or text["cluster-password"]:
        return "PLAIN"
    if is_loopback(host):
        return "ANONYMOUS"
    raise OptionError(
        "cluster-bind",
        f"whoever reaches the ring at {host} could take part in it; give --cluster-key and "
        "--cluster-allow (qpid-cluster-keys makes them), or, on a network that is the members' "
        "own, --cluster-mechanism ANONYMOUS",
    )


def is_loopback(host: str) -> bool:
    """Whether a socket bound to `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean anything
        return False


def is_ip(host: str) -> bool:
    """Whether `host` is an address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _path(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None
