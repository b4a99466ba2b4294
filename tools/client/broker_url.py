"""Broker URLs: one word that gives TLS, address, user and virtual host.

`[SCHEME][USER[:PASSWORD]@]HOST[:PORT][/VHOST]`, as in `amqps://ada:secret@10.0.0.1:5671/shop`. A
`/` may separate user and password, as in Qpid's commands. After a scheme that ends in `//` special
characters are percent-encoded: the virtual host `/` is `%2F`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from broker.options.client_ports import AMQP_PORT, AMQPS_PORT
from tools.cli.options import Address as Address
from tools.cli.options import parse_address as parse_address
from vsync.types import record


class Scheme(NamedTuple):
    """The meaning of a URL's scheme."""

    tls: bool
    port: int
    """The default port."""


Schemes = Mapping[str, Scheme]


def elsewhere(why: str) -> str:
    """Why a member is unreachable, and what to do next: the cluster may be fine without it."""
    end = "" if why.endswith("?") else "."
    return (
        f"{why}{end} Any other member answers as well: name one, or several, of which the first "
        "that runs is asked: HOST:PORT,HOST:PORT"
    )


DEFAULT_USER = "guest"
NEAR_ONLY = (
    f"; {DEFAULT_USER} is the user if none is named, and logs in over 127.0.0.1 only: name another "
    "one by --user, or by QPID_USER and QPID_PASSWORD"
)
"""Follows the refusal of a login of the default user."""
AMQP: Schemes = {
    "amqp://": Scheme(False, AMQP_PORT),
    "amqps://": Scheme(True, AMQPS_PORT),
    "amqp:tcp:": Scheme(False, AMQP_PORT),
    "amqp:ssl:": Scheme(True, AMQPS_PORT),
}
"""The last two are the form in which `qpid-cluster` shows members' addresses."""
HTTP: Schemes = {"http://": Scheme(False, 15672), "https://": Scheme(True, 15671)}


@record
class BrokerUrl:
    """The address of a broker; parts not given are None."""

    address: Address
    tls: bool = False
    user: str | None = None
    password: str | None = None
    vhost: str | None = None


def parse_url(text: str, schemes: Schemes) -> BrokerUrl:
    """Parse one word; without a scheme it is the first of `schemes`. ValueErrors are for operators.

    No error text quotes what precedes the `@`.
    """
    named = next((name for name in schemes if text.startswith(name)), "")
    scheme = schemes[named] if named else next(iter(schemes.values()))
    if text.startswith("failover:"):
        raise ValueError(
            "failover: is a list of brokers; here one is named: write "
            f"{next(iter(schemes))}HOST:PORT"
        )
    if not named and "://" in text:
        known = " or ".join(name for name in schemes if name.endswith("//"))
        raise ValueError(f"'{text.partition('://')[0]}://' is not spoken here: write {known}")
    credentials, at, place = text.removeprefix(named).rpartition("@")
    where, slash, path = place.partition("/")
    decoded = unquote if named.endswith("//") else str
    vhost = decoded(path) if slash and path else None
    if vhost is not None and len(vhost.encode()) > 255:
        raise ValueError("the name of a virtual host has at most 255 bytes")
    user, password = None, None
    if at:
        first = next((mark for mark in credentials if mark in ":/"), ":")
        given, separator, secret = credentials.partition(first)
        user = decoded(given) or None
        password = decoded(secret) if separator else None
    return BrokerUrl(
        parse_address(where or "localhost", scheme.port), scheme.tls, user, password, vhost
    )


def brokers(text: str, schemes: Schemes = AMQP) -> tuple[BrokerUrl, ...]:
    """Parse a list of brokers, in the order of attempts. ValueErrors are for operators.

    The first one's scheme applies to those after it without a scheme, and its user and virtual host
    apply to all.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError("give at least one HOST:PORT")
    named = next((name for name in schemes if parts[0].startswith(name)), "")
    found: list[BrokerUrl] = []
    for part in parts:
        plain = not any(part.startswith(name) for name in schemes) and "://" not in part
        try:
            found.append(parse_url(named + part if plain else part, schemes))
        except ValueError as problem:
            said = str(problem)
            if "@" in text and "@" not in part:  # it may be half of a password
                said = (
                    "a part is no HOST:PORT; is there a comma in a password? write it %2C with "
                    f"{next(iter(schemes))}"
                )
            raise ValueError(said) from None
    if len({one.tls for one in found}) > 1:
        secure = next(name for name, scheme in schemes.items() if scheme.tls)
        raise ValueError(f"some are asked over TLS, some in clear; write {secure} before all")
    first = found[0]
    for one in found[1:]:
        if (one.user, one.vhost) not in ((None, None), (first.user, first.vhost)):
            raise ValueError("all take the user and the virtual host of the first; name no others")
    return tuple(found)
