"""The options of the ports that clients connect to: TLS, and limits for clients.

The names of limits are Qpid's where it has them. Nothing here touches the disk: certificates are
read by `broker.listener.tls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import Kind, Option, OptionError, choice, defaults_of, number, size

AMQP_PORT = 5672
AMQPS_PORT = 5671
VERIFY = ("none", "peer", "require")
PORT_MAX = 65_535
CONNECTIONS_MAX = 1_000_000
MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX = 1024, 512 << 20
CONSUMER_TIMEOUT_MS_MAX = 1 << 40
HEARTBEAT_S_MAX = 65_535

OPTIONS: Mapping[str, Option] = {
    "tls-cert": Option("", "FILE",
        "Also listen for TLS, with this certificate (PEM, followed by its intermediate "
        "certificates). Read again at SIGHUP."),
    "tls-key": Option("", "FILE",
        "Private key of the certificate (PEM, without a password). Default: in the same file."),
    "tls-port": Option("", "PORT", "Port for TLS clients. Default 5671."),
    "tls-ca": Option("", "FILE",
        "Certificates (PEM) of the authorities that may sign client certificates."),
    "tls-verify": Option("", "WHOM",
        "none: ask clients for no certificate; peer: a certificate is optional but must be valid; "
        "require: it must be there. Default peer with --tls-ca, else none."),
    "max-connections": Option("auto", "N",
        "How many clients may be connected. Default auto: as many as the process may open files "
        "for."),
    "connection-limit-per-ip": Option("0", "N",
        "How many clients may connect from one address (for IPv6: from one /64 network). Default "
        "0: no limit."),
    "max-negotiating": Option("1000", "N",
        "How many connections may be waiting for their login, at most half of them from one "
        "address. Default 1000."),
    "max-negotiate-time": Option("10000", "MS",
        "How long a client may take from connecting to its login, TLS included. Default 10000."),
    "max-message-size": Option("128MiB", "SIZE",
        "Largest message body. Default 128MiB; at most 512MiB.", Kind.ALIKE),
    "consumer-timeout": Option("1800000", "MS",
        "How long a consumer may hold a delivery without acknowledging it before its channel is "
        "closed; a queue's x-consumer-timeout takes precedence. 0: for ever. Default 1800000.",
        Kind.ALIKE),
    "heartbeat": Option("60", "SECONDS",
        "Heartbeat interval that is suggested to clients; a client may choose another one. 0: "
        "none. Default 60."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)


class TlsOptions(NamedTuple):
    """How clients are served over TLS."""

    port: int
    """0: any free one, logged at start."""
    certificate: Path
    """PEM: the server's certificate, then those between it and its root."""
    key: Path
    """PEM; may be the file of the certificate."""
    ca: Path | None
    """PEM: the authorities for clients' certificates."""
    verify: str
    """One of VERIFY: no certificate is asked for; one that is given must be good; one is needed."""


def read_tls_options(text: Mapping[str, str]) -> TlsOptions | None:
    """Read the options; None where none of them is given.  Raises OptionError."""
    given = [name for name in DEFAULTS if name.startswith("tls-") and text[name]]
    if not given:
        return None
    if not text["tls-cert"]:
        raise OptionError(given[0], "TLS needs a certificate: give --tls-cert, and --tls-key")
    verify = choice(
        "tls-verify", text["tls-verify"].lower() or ("peer" if text["tls-ca"] else "none"), VERIFY
    )
    if verify != "none" and not text["tls-ca"]:
        raise OptionError(
            "tls-verify", f"'{verify}' needs --tls-ca: the certificates that clients' are signed by"
        )
    if verify == "none" and text["tls-ca"]:
        raise OptionError("tls-ca", "--tls-verify is none, so nobody would be verified by it")
    certificate = _path(text["tls-cert"])
    return TlsOptions(
        number("tls-port", text["tls-port"] or str(AMQPS_PORT), 0, PORT_MAX),
        certificate,
        _path(text["tls-key"]) if text["tls-key"] else certificate,
        _path(text["tls-ca"]) if text["tls-ca"] else None,
        verify,
    )


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


class ClientLimits(NamedTuple):
    """The limits for clients of this member."""

    connections: int | None = None
    """Open at one time; None: as many as the open files of this process allow."""
    per_address: int = 0
    """Open from one address; 0: no separate limit."""
    negotiating: int = 1000
    """Connections that are not open yet (TLS, login); one address may have half of them."""
    negotiate_s: float = 10.0
    """From the accepted socket to an open connection."""
    message_bytes: int = 128 << 20
    """The largest body of one message."""
    consumer_timeout_s: float = 1800.0
    """How long a consumer may hold a delivery if its queue does not say; 0: for ever."""
    heartbeat_s: int = 60
    """Suggested to clients, which may agree on another interval; 0: none."""


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
        size("max-message-size", text["max-message-size"], MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX),
        number("consumer-timeout", text["consumer-timeout"], 0, CONSUMER_TIMEOUT_MS_MAX) / 1000,
        number("heartbeat", text["heartbeat"], 0, HEARTBEAT_S_MAX),
    )
