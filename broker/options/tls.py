"""The options of TLS for clients: where it listens, with which files, and whom it verifies.

Nothing here touches the disk: `broker.listener.tls` reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import OptionError, choice, number

AMQPS_PORT = 5671
VERIFY = ("none", "peer", "require")
PORT_MAX = 65_535

DEFAULTS: Mapping[str, str] = {
    "tls-port": "",
    "tls-cert": "",
    "tls-key": "",
    "tls-ca": "",
    "tls-verify": "",
}


class TlsOptions(NamedTuple):
    """How clients are served over TLS."""

    port: int
    """0: any free one, logged at start."""
    certificate: Path
    """PEM: the server's certificate, then those between it and its root."""
    key: Path
    """PEM; may be the file of the certificate."""
    ca: Path | None
    """PEM: who may have signed a client's certificate."""
    verify: str
    """One of VERIFY: no certificate is asked for; one that is given must be good; one is needed."""


def read_tls_options(text: Mapping[str, str]) -> TlsOptions | None:
    """Read the options; None where none of them is given.  Raises OptionError."""
    given = [name for name in DEFAULTS if text[name]]
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
