"""TLS of the client port: files into a context, errors into sentences that name the file.

Only TLS 1.2 and 1.3, and with 1.2 only ciphers with forward secrecy and authenticated encryption.
Reading files blocks: it is done at the start, and at SIGHUP on a thread.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker.frontend.encryption import Encryption, Name, distinguished_name, peer_certificate
from broker.options.client_ports import TlsOptions

CIPHERS_OF_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
PEM_BYTES_MAX = 1 << 20
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL."""
_VERIFY_MODES = {
    "none": ssl.CERT_NONE,
    "peer": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


class TlsFileError(Exception):
    """A file is unusable; the text names the option, the file, and the fault."""


class ServerTls(NamedTuple):
    """The encryption of new connections, until other files are read."""

    context: ssl.SSLContext
    subject: str
    """Subject of the server's own certificate; empty if it could not be read back."""
    not_after: str
    warning: str
    """What clients will find wrong with the certificate; empty: nothing visible from here."""

    @property
    def ends_at(self) -> float | None:
        """The last second of the certificate, since 1970; None: it could not be read back."""
        return ssl.cert_time_to_seconds(self.not_after) if self.not_after else None

    def describe(self) -> str:
        """A description for the log."""
        return f"certificate {self.subject or '(unknown)'}, good until {self.not_after or '?'}"


def server_tls(options: TlsOptions) -> ServerTls:
    """Read the files. Raises TlsFileError; what was read before stays in force."""
    _check(options.certificate, "--tls-cert", "BEGIN CERTIFICATE", "a certificate")
    _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), options.certificate, "--tls-cert")
    _check(options.key, "--tls-key", "PRIVATE KEY", "a private key", secret=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_1_2)
    # A client that keeps asking for new keys would cost us computation for nothing.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(options.certificate, options.key, _no_password(options.key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"the key does not belong to the certificate in {options.certificate}"
        else:
            why = f"it cannot be used: {_words(error)}"
        raise TlsFileError(f"--tls-key {options.key}: {why}") from None
    if options.ca is not None:
        _check(options.ca, "--tls-ca", "BEGIN CERTIFICATE", "a certificate")
        _load_authorities(context, options.ca, "--tls-ca")
    context.verify_mode = _VERIFY_MODES[options.verify]
    subject, not_after, warning = _as_clients_see_it(options)
    return ServerTls(context, subject, not_after, warning)


def authorities(path: Path | None, option: str) -> ssl.SSLContext:
    """Return the context that verifies the certificate of a server that we ask; None: this
    machine's own authorities. Raises TlsFileError."""
    if path is None:
        context = ssl.create_default_context()
    else:
        _check(path, option, "BEGIN CERTIFICATE", "a certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, path, option)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as in Python before 3.13
    return context


def encryption_of(connection: ssl.SSLObject) -> Encryption:
    """The outcome of a finished handshake."""
    cipher = connection.cipher()
    name, bits = (cipher[0], cipher[2]) if cipher else ("", 0)
    certificate = peer_certificate(connection.getpeercert())
    return Encryption(connection.version() or "", name, bits or 0, certificate)


_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNKNOWN_PROTOCOL": "it does not speak TLS",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "it offers no version of TLS from 1.2 on",
    "NO_SHARED_CIPHER": "it offers no cipher that is accepted here",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it gave no certificate, and --tls-verify is require",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "for it our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the socket",
}


def tls_reason(error: ssl.SSLError) -> str:
    """Why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason, reason.replace("_", " ").lower() or str(error))


def _load_authorities(context: ssl.SSLContext, path: Path, option: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsFileError(f"{option} {path}: it cannot be used: {_words(error)}") from None


def _words(error: ssl.SSLError) -> str:
    return (error.reason or "it is torn, or not PEM").replace("_", " ").lower()


def _no_password(key: Path) -> Callable[[], str]:
    def refuse() -> str:
        why = "it is encrypted; give one without a password, that only the broker's user can read"
        raise TlsFileError(f"--tls-key {key}: {why}")

    return refuse


def _check(path: Path, option: str, mark: str, what: str, *, secret: bool = False) -> None:
    """Whether the file is readable and holds something of the kind."""
    try:
        with path.open("rb") as file:
            text = file.read(PEM_BYTES_MAX)
            mode = path.stat().st_mode
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise TlsFileError(f"{option} {path}: {why}") from None
    if mark.encode() not in text:
        raise TlsFileError(f"{option} {path}: there is not {what} in it (PEM is needed)")
    if secret and mode & stat.S_IRWXO:
        raise TlsFileError(f"{option} {path}: everybody can read or write it; run: chmod o= {path}")


def _as_clients_see_it(options: TlsOptions) -> tuple[str, str, str]:
    """Shake hands with ourselves: subject and end of the certificate, and what is wrong with it.

    The ssl module shows only certificates that a handshake verified. Here the certificate itself is
    trusted, so only its dates can be wrong.
    """
    try:
        found, warning = _verified(options), ""
    except ssl.SSLCertVerificationError as error:
        warning = f"clients will not take the certificate: {error.verify_message}"
        try:  # its begin or end is still to be reported
            found = _verified(options, _NO_CHECK_TIME)
        except ssl.SSLError:
            return "", "", warning
    except ssl.SSLError as error:
        return "", "", f"clients will not take the certificate: {error.reason or error}"
    subject = found.get("subject", ())
    return distinguished_name(_name(subject)), str(found.get("notAfter", "")), warning


def _verified(options: TlsOptions, more: int = 0) -> dict[str, object]:
    """Return the certificate as read by a client that trusts it. Raises ssl.SSLError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(more)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.load_verify_locations(options.certificate)
    server.load_cert_chain(options.certificate, options.key)
    return _shake(client, server)


def _name(found: object) -> Name:
    return found if isinstance(found, tuple) else ()


def _shake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, object]:
    """Return what the client verified."""
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(here, there, server_side=False),
        server.wrap_bio(there, here, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(8):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    certificate = ends[0].getpeercert()
    return dict(certificate) if certificate else {}
