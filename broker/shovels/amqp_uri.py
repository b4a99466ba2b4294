"""AMQP URIs of a shovel's ends, in RabbitMQ's form: `amqp://USER:PASSWORD@HOST:PORT/VHOST?...`.

Without a host the URI means this cluster: `amqp://` the shovel's own virtual host, `amqp:///VHOST`
another one, and `amqp://USER@/VHOST` another user than the cluster itself. Error texts quote
nothing of a URI, because the faulty part may be part of the password; lists and logs show it
`obfuscated`.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from broker.options.addresses import Address, parse_address
from broker.options.client_ports import AMQP_PORT, AMQPS_PORT
from vsync.types import record

HIDDEN = "***"
"""Replaces passwords in lists."""
HEARTBEAT_S, CONNECT_S = 10, 30.0
HEARTBEAT_MAX_S, CONNECT_MAX_MS = 3600, 300_000
_SCHEMES = {"amqp": (False, AMQP_PORT), "amqps": (True, AMQPS_PORT)}
_MECHANISMS = {"plain": "PLAIN", "amqplain": "PLAIN", "external": "EXTERNAL"}
_VERIFY = {"verify_peer": True, "verify_none": False}
_FILES = ("cacertfile", "certfile", "keyfile")
_TLS_ONLY = (*_FILES, "verify")
PARAMETERS = ("heartbeat", "connection_timeout", "auth_mechanism", *_TLS_ONLY)
_CREDENTIALS = re.compile(r"^([a-z]+://)?(.*)@", re.DOTALL)


class BadUri(ValueError):
    """A URI is invalid; the text says why, without secrets."""


@record
class AmqpUri:
    """The address of one end of a shovel, and how it is reached."""

    address: Address | None
    """None: this cluster."""
    vhost: str | None
    """None: the shovel's own if it is this cluster, otherwise `/`."""
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True
    mechanism: str = "PLAIN"
    heartbeat_s: int = HEARTBEAT_S
    connect_s: float = CONNECT_S


def parse_uri(text: str) -> AmqpUri:
    """Parse a URI. Raises BadUri."""
    scheme, separator, rest = text.partition("://")
    if text.startswith("failover:"):
        raise BadUri('brokers to try in turn are a list of URIs, ["amqp://a", "amqp://b"]')
    if not separator or scheme not in _SCHEMES:
        raise BadUri("it does not begin with amqp:// or amqps://")
    if "#" in rest:
        raise BadUri("it has a '#'; in a password write %23")
    if not text.isprintable():
        raise BadUri("it has a character that cannot be printed: write it as %XX")
    if "@" in rest[len(re.split(r"[/?]", rest, maxsplit=1)[0]) :]:
        raise BadUri("it has a '@' behind a '/' or '?': write %2F or %3F in a password, else %40")
    tls, port = _SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    credentials, at, place = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    if unquote(password) == HIDDEN:
        raise BadUri("its password is what lists show in the place of one: give the password")
    if "/" in path:
        raise BadUri("its virtual host has a '/': write %2F")
    if not place and tls:
        raise BadUri("amqps:// needs a host: connections within the cluster are not encrypted")
    if place and at and not user:
        raise BadUri("there is no user name before the @")
    vhost = unquote(path) if slash and path else None
    try:
        address = parse_address(place, port) if place else None
    except ValueError:
        raise BadUri(
            "between // (or @) and the next / is neither HOST, HOST:PORT nor [HOST]:PORT, with a "
            "port number; a password goes with a user before an @"
        ) from None
    given = _query(query, tls=tls, local=address is None)
    if not at and address is not None and given.get("auth_mechanism") != "external":
        user, password = "guest", "guest"  # RabbitMQ's default
    return AmqpUri(
        address, vhost if vhost is not None or address is None else "/",
        unquote(user), unquote(password), tls,
        given.get("cacertfile", ""), given.get("certfile", ""), given.get("keyfile", ""),
        _VERIFY[given.get("verify", "verify_peer")],
        _MECHANISMS[given.get("auth_mechanism", "plain")],
        int(given.get("heartbeat", HEARTBEAT_S)),
        int(given.get("connection_timeout", CONNECT_S * 1000)) / 1000,
    )  # fmt: skip


def _query(query: str, *, tls: bool, local: bool) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in PARAMETERS:
            raise BadUri(f"it has another parameter than {', '.join(PARAMETERS)}")
        if name in given:
            raise BadUri(f"'{name}' is given twice")
        if local:
            raise BadUri(f"'{name}' is for another broker; without a host the URI is this cluster")
        if name in _TLS_ONLY and not tls:
            raise BadUri(f"'{name}' needs amqps://")
        given[name] = value
    _one_of(given, "verify", _VERIFY)
    _one_of(given, "auth_mechanism", _MECHANISMS)
    _number(given, "heartbeat", HEARTBEAT_MAX_S)
    _number(given, "connection_timeout", CONNECT_MAX_MS)
    for name in _FILES:
        if name in given and not given[name].startswith("/"):
            raise BadUri(f"'{name}' is no absolute path of a file, which each member is to have")
    if "keyfile" in given and "certfile" not in given:
        raise BadUri("'keyfile' needs 'certfile'")
    if given.get("auth_mechanism") == "external" and "certfile" not in given:
        raise BadUri("'auth_mechanism=external' needs 'certfile'")
    return given


def _one_of(given: dict[str, str], name: str, known: dict[str, bool] | dict[str, str]) -> None:
    if name in given and given[name] not in known:
        raise BadUri(f"'{name}' is none of {', '.join(known)}")


def _number(given: dict[str, str], name: str, most: int) -> None:
    text = given.get(name, "1")
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not 1 <= int(text) <= most:
        raise BadUri(f"'{name}' is no whole number from 1 to {most}")


def obfuscated(text: str) -> str:
    """The URI without its password, for lists."""
    found = _CREDENTIALS.match(text)
    if found is None:
        return text
    user, colon, _ = found[2].partition(":")
    return f"{found[1] or ''}{user}{f':{HIDDEN}' if colon else ''}@{text[found.end() :]}"


def bare(text: str) -> str:
    """The URI without user, password and parameters: the form in status rows and headers."""
    found = _CREDENTIALS.match(text)
    rest = text if found is None else f"{found[1] or ''}{text[found.end() :]}"
    return rest.partition("?")[0]
