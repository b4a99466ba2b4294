"""The options of the management API: where it listens, and what it loads at the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.addresses import is_host
from broker.options.values import Option, OptionError, defaults_of, number

OPTIONS: Mapping[str, Option] = {
    "management-port": Option("auto", "PORT",
        "Port of the management API (HTTP); 0 takes any free port, off disables it. Default: the "
        "client port + 10000, so 15672."),
    "management-tls-port": Option("off", "PORT",
        "Port of the management API over TLS; needs --tls-cert. RabbitMQ uses 15671. Default off. "
        "With --management-port off it is the only way to the API."),
    "management-interface": Option("", "ADDRESS",
        "The address to listen on for the management API. Default: that of --interface."),
    "load-definitions": Option("", "FILE",
        "Definitions (users, queues, policies ...) to load when this member begins to serve, in "
        "the form that the management API exports. Existing objects are kept or updated."),
    "prometheus-port": Option("off", "PORT",
        "Port that serves Prometheus metrics without a login, at the address of "
        "--management-interface: /metrics, /metrics/per-object, /metrics/detailed. RabbitMQ uses "
        "15692. Default off: the management port serves them, to users who log in."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)
OFFSET = 10_000
"""The API listens this far above the client port unless told otherwise: 15672 beside 5672."""
PORT_MAX = 65_535


class ManagementOptions(NamedTuple):
    """Where the management API listens."""

    interface: str
    port: int | None
    """0: any free one, logged at start.  None: there is no API."""
    chosen: bool
    """Whether the operator chose the port: then a taken port ends the start, else it only warns."""
    definitions: Path | None
    """Loaded once this member serves, before the API reports ready."""
    tls_port: int | None
    """The same over TLS, with the certificate for clients; 0: any free one.  None: not over TLS."""
    prometheus: int | None
    """A port for metrics alone, without a login; 0: any free one.  None: there is none."""


def read_management_options(
    text: Mapping[str, str], interface: str, client_port: int, tls_client_port: int | None = None
) -> ManagementOptions:
    """Read the options; those of the clients' ports are read already.  Raises OptionError."""
    host = text["management-interface"].removeprefix("[").removesuffix("]") or interface
    if not is_host(host):
        raise OptionError("management-interface", f"{host!r} is not a host name or an IP address")
    given = text["management-port"].lower()
    port: int | None
    if given in ("off", "no"):
        port = None
    elif given == "auto":
        port = client_port + OFFSET if client_port else 0
        if port > PORT_MAX:
            port = client_port - OFFSET
    else:
        port = number("management-port", given, 0, PORT_MAX)
    if port and port in (client_port, tls_client_port) and host == interface:
        raise OptionError("management-port", f"{port} is a client port; take another one")
    file = text["load-definitions"]
    path = Path(file).expanduser().absolute() if file else None
    metrics = text["prometheus-port"].lower()
    prometheus = None
    if metrics not in ("off", "no"):
        prometheus = number("prometheus-port", metrics, 0, PORT_MAX)
    if prometheus and prometheus in (port, client_port, tls_client_port):
        raise OptionError("prometheus-port", f"{prometheus} is taken by another option")
    tls_port = _tls_port(text, (port, client_port, tls_client_port, prometheus))
    return ManagementOptions(host, port, given != "auto", path, tls_port, prometheus)


def _tls_port(text: Mapping[str, str], others: tuple[int | None, ...]) -> int | None:
    given = text["management-tls-port"].lower()
    if given in ("off", "no"):
        return None
    if not text["tls-cert"]:
        raise OptionError(
            "management-tls-port", "TLS needs a certificate: give --tls-cert, and --tls-key"
        )
    port = number("management-tls-port", given, 0, PORT_MAX)
    if port and port in others:
        raise OptionError("management-tls-port", f"{port} is taken by another option")
    return port
