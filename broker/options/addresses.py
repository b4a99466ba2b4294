"""Addresses in options: of the ring's sockets, and URLs of client ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.options.client_ports import AMQP_PORT, AMQPS_PORT, PORT_MAX, TlsOptions
from broker.options.values import OptionError

RING_PORT_OFFSET = 20_000
"""The ring listens this far above the client port unless --cluster-bind says otherwise."""
WILDCARDS = ("0.0.0.0", "::")
"""The addresses that stand for all interfaces of a machine."""


class Address(NamedTuple):
    """A host and a port to listen on. Prints as it is typed, with IPv6 hosts in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Read HOST:PORT or [HOST]:PORT; the text of a ValueError is for the operator."""
    host, port_text = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"'{text}' is not of the form [HOST]:PORT")
        port_text = rest[1:]
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    elif ":" in text:
        raise ValueError(f"'{text}' has several colons; write an IPv6 address as [HOST]:PORT")
    if not is_host(host):
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    if not port_text:
        if default_port is None or text.endswith(":"):
            raise ValueError(f"'{text}' has no port; write HOST:PORT")
        return Address(host, default_port)
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > PORT_MAX:
        raise ValueError(f"'{port_text}' in '{text}' is not a port number (0 to {PORT_MAX})")
    return Address(host, int(port_text))


def ring_addresses(text: str, interface: str, port: int) -> tuple[Address, ...]:
    """Read one address for each network; the first is the member's name."""
    if text:
        first, _, further = text.partition(",")
        return (
            read_address("cluster-bind", first.strip()),
            *read_addresses("cluster-bind", further),
        )
    return (ring_address(Address(interface, port)),)


def ring_address(client: Address) -> Address:
    """Return the default ring address of the member with this client address."""
    if client.port == 0:
        return client
    above = client.port + RING_PORT_OFFSET
    return Address(client.host, above if above <= PORT_MAX else client.port - RING_PORT_OFFSET)


def own_url(
    interface: str, binds: Iterable[Address], port: int | None, tls: TlsOptions | None
) -> str:
    """Return where clients connect, without and with TLS: at the interface, or, if that is all of
    them, at the hosts of the ring."""
    hosts = [one.host for one in binds] if interface in WILDCARDS else [interface]
    ports = (("tcp", port), ("ssl", tls.port if tls else None))
    return "amqp:" + ",".join(
        f"{scheme}:{Address(host, number)}"
        for scheme, number in ports
        if number is not None
        for host in dict.fromkeys(hosts)
    )


def shown(option: str, url: str) -> str:
    """Return an address in the complete form that others are told."""
    parts = (f"{scheme}:{address}" for scheme, address in url_addresses(option, url))
    return "amqp:" + ",".join(parts)


def url_addresses(option: str, text: str) -> list[tuple[str, Address]]:
    """Read `[amqp:][USER[/PASSWORD]@]ADDRESS,...`, an ADDRESS being `[tcp:|ssl:]HOST[:PORT]`.

    User and password are dropped: those who are shown the address have to log in with their own.
    Error messages quote nothing from before the `@`.
    """
    rest = text.removeprefix("amqp:").removeprefix("//")
    credentials, at, addresses = rest.rpartition("@")
    if at and not credentials.partition("/")[0]:
        raise OptionError(option, "there is no user name before the @")
    parsed = []
    for part in addresses.split(","):
        if part.strip().startswith("rdma:"):
            raise OptionError(option, f"'{part}': this broker listens on tcp and ssl only")
        scheme = "ssl" if part.strip().startswith("ssl:") else "tcp"
        address = part.strip().removeprefix(f"{scheme}:").rstrip("/")
        if not address or "://" in part:
            raise OptionError(option, f"'{part}' is not of the form amqp:tcp:HOST:PORT,...")
        default_port = AMQPS_PORT if scheme == "ssl" else AMQP_PORT
        parsed.append((scheme, read_address(option, address, default_port)))
    return parsed


def read_address(option: str, text: str, default_port: int | None = None) -> Address:
    try:
        return parse_address(text, default_port)
    except ValueError as problem:
        raise OptionError(option, str(problem)) from None


def read_addresses(option: str, text: str) -> tuple[Address, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    addresses = tuple(read_address(option, part) for part in parts)
    for address in addresses:
        if address.port == 0:
            raise OptionError(option, f"'{address}' has port 0, which nobody can connect to")
        if addresses.count(address) > 1:
            raise OptionError(option, f"'{address}' is listed twice")
    return addresses


def is_host(text: str) -> bool:
    """Whether a name can be looked up, or is an address: each of its parts has 1 to 63 bytes."""
    if not text.isprintable() or any(c.isspace() or c in ",/@" for c in text):
        return False
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False
