"""The options that bound what clients may take before and after they have logged in.

The names are Qpid's where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import number

CONNECTIONS_MAX = 1_000_000

DEFAULTS: Mapping[str, str] = {
    "max-connections": "auto",
    "connection-limit-per-ip": "0",
    "max-negotiating": "1000",
    "max-negotiate-time": "10000",
}


class ClientLimits(NamedTuple):
    """What clients may take of this member."""

    connections: int | None = None
    """At one time; None: what the open files of this process allow."""
    per_address: int = 0
    """Of one address; 0: no limit of its own."""
    negotiating: int = 1000
    """Of those that are not open yet (TLS, login), of which one address may have half."""
    negotiate_s: float = 10.0
    """From the accepted socket to an open connection."""


def read_client_limits(text: Mapping[str, str]) -> ClientLimits:
    """Read the options.  Raises OptionError."""
    connections = text["max-connections"].lower()
    return ClientLimits(
        None
        if connections == "auto"
        else number("max-connections", connections, 1, CONNECTIONS_MAX),
        number("connection-limit-per-ip", text["connection-limit-per-ip"], 0, CONNECTIONS_MAX),
        number("max-negotiating", text["max-negotiating"], 2, CONNECTIONS_MAX),
        number("max-negotiate-time", text["max-negotiate-time"], 100, 3_600_000) / 1000,
    )
