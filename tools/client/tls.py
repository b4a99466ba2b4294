"""TLS of a client: trusted authorities, its own certificate, and readable connection errors.

The authorities are those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`, as for every
program that uses OpenSSL, unless a file is named.
"""

from __future__ import annotations

import socket
import ssl
from enum import IntEnum
from pathlib import Path
from typing import Literal

from broker.exit_codes import Exit
from tools.cli.failures import ToolError, os_reason
from tools.client.broker_url import Address
from vsync.types import record

Verify = Literal["full", "ca", "none"]
"""What to verify in the broker's certificate: authority and host name, authority only, nothing."""
VERIFY: tuple[Verify, ...] = ("full", "ca", "none")


class Distrust(IntEnum):
    """Why a certificate is not accepted, by OpenSSL's numbers X509_V_ERR_..."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    OTHER_HOST = 62
    OTHER_ADDRESS = 64


NOT_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"))
"""OpenSSL's reports that the bytes received are not TLS."""


@record
class TlsFiles:
    """The values of --ssl-ca, --ssl-cert, --ssl-key and --ssl-verify."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: Verify = "full"

    @property
    def are_given(self) -> bool:
        """Whether any of them was used, so that an unencrypted connection would be a surprise."""
        return self != TlsFiles()


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Read the files; ToolError names the option and the fault of its file."""
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except OSError as problem:
        raise _unusable("--ssl-ca", files.ca, problem, "authorities") from None
    # As in Python before 3.13 and other programs: many companies' own authorities lack extensions
    # that RFC 5280 requires, and the answer must not depend on the interpreter.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if files.verify != "full":
        context.check_hostname = False
    if files.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    if files.certificate is None:
        if files.key is not None:
            raise ToolError("--ssl-key goes with --ssl-cert", Exit.USAGE)
        return context
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except (OSError, ValueError) as problem:
        what = "a certificate and, there or in --ssl-key, its key without a password"
        raise _unusable("--ssl-cert", files.certificate, problem, what) from None
    return context


def _refuse_password() -> str:
    raise ValueError("the key is under a password")


def _unusable(option: str, path: Path | None, problem: Exception, what: str) -> ToolError:
    if isinstance(problem, ssl.SSLError):
        return ToolError(f"{option} {path}: the file does not hold {what}, in PEM", Exit.CONFIG)
    reason = os_reason(problem) if isinstance(problem, OSError) else str(problem)
    return ToolError(f"{option} {path}: {reason}; it is to hold {what}", Exit.CONFIG)


def connect(
    address: Address, timeout_seconds: float | None, tls: ssl.SSLContext | None
) -> socket.socket:
    """Open a connection, with the handshake if it uses TLS. Raises OSError: see `reason`."""
    plain = socket.create_connection(address, timeout_seconds)
    if tls is None:
        return plain
    try:
        # A close without a goodbye must not look like the end of the data.
        return tls.wrap_socket(plain, server_hostname=address.host, suppress_ragged_eofs=False)
    except BaseException:
        plain.close()
        raise


def is_final(problem: OSError) -> bool:
    """Whether the same broker will fail again: it is not trusted, or it speaks no TLS."""
    return isinstance(problem, ssl.SSLError) and not isinstance(problem, ssl.SSLEOFError)


def reason(problem: OSError, address: Address | Path | str) -> str:
    """What went wrong and what to do, in words for a sentence that begins with the address."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _distrust(problem, address)
    if isinstance(problem, ssl.SSLEOFError):
        return "closed the connection within TLS; is this the port for TLS?"
    if not isinstance(problem, ssl.SSLError):
        return os_reason(problem)
    said = str(problem.reason or "")
    if said in NOT_TLS:
        return "speaks no TLS at this port: give the port for TLS, or amqp:// or http:// for none"
    if "CERTIFICATE_REQUIRED" in said or "HANDSHAKE_FAILURE" in said:
        return "asks for a certificate of yours: --ssl-cert and --ssl-key"
    if "UNKNOWN_CA" in said or "CERTIFICATE" in said:
        return (
            "refuses the certificate of --ssl-cert: is it signed by one of its --tls-ca, in time?"
        )
    return f"TLS failed: {said.lower().replace('_', ' ') or problem}"


def _distrust(problem: ssl.SSLCertVerificationError, address: Address | Path | str) -> str:
    host = address.host if isinstance(address, Address) else address
    match problem.verify_code:
        case Distrust.EXPIRED:
            return "its certificate has expired: renew it there"
        case Distrust.NOT_YET_VALID:
            return "its certificate is not valid yet: compare the clocks"
        case Distrust.OTHER_HOST | Distrust.OTHER_ADDRESS:
            return (
                f"its certificate is for another name than '{host}': connect by a name in it, or "
                "check no name by --ssl-verify ca"
            )
        case _:
            return (
                f"its certificate is not trusted ({problem.verify_message}): name its authority by "
                "--ssl-ca FILE, or by SSL_CERT_FILE"
            )
