"""The facts that TLS gives about one connection: its encryption, and the client's certificate.

Only a certificate verified against `--tls-ca` gets here, so a login by certificate (EXTERNAL) need
not check its signatures. Names follow RabbitMQ and RFC 4514: the subject is written from its last
part to its first, `CN=app,O=shop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
_ESCAPED = frozenset(',+"\\<>;=')

Name = tuple[tuple[tuple[str, str], ...], ...]
"""A distinguished name in the ssl module's form: parts, each of one or more (type, value)."""


class PeerCertificate(NamedTuple):
    """The client's certificate, verified."""

    subject: str
    """Its distinguished name, RFC 4514."""
    issuer: str
    common_name: str
    """Empty: it has none."""
    alternatives: tuple[tuple[str, str], ...]
    """Subject alternative names in its order: ("DNS", name), ("email", name), ("URI", name)..."""
    not_before: str
    not_after: str

    def alternative(self, kind: str, index: int = 0) -> str:
        """The alternative name of a kind at `index`, or empty."""
        found = [value for one, value in self.alternatives if one == kind]
        return found[index] if index < len(found) else ""


class Encryption(NamedTuple):
    """How a connection is encrypted."""

    protocol: str
    """TLSv1.2 or TLSv1.3."""
    cipher: str
    bits: int
    certificate: PeerCertificate | None
    """None: the client gave none, or was not asked for one (`--tls-verify none`)."""

    def describe(self) -> str:
        """Return a description for the log."""
        who = f", certificate {self.certificate.subject}" if self.certificate else ""
        return f"{self.protocol} {self.cipher}{who}"

    def details(self) -> dict[str, object]:
        """Return the details under RabbitMQ's management names."""
        found: dict[str, object] = {
            "ssl": True, "ssl_protocol": self.protocol.lower(), "ssl_cipher": self.cipher,
        }  # fmt: skip
        if (certificate := self.certificate) is not None:
            found |= {
                "peer_cert_subject": certificate.subject,
                "peer_cert_issuer": certificate.issuer,
                "peer_cert_validity": f"{certificate.not_before} - {certificate.not_after}",
            }
        return found


def peer_certificate(found: Mapping[str, object] | None) -> PeerCertificate | None:
    """Read the result of `SSLObject.getpeercert()`: empty or None if none was verified."""
    if not found:
        return None
    subject = cast("Name", found.get("subject", ()))
    return PeerCertificate(
        distinguished_name(subject),
        distinguished_name(cast("Name", found.get("issuer", ()))),
        next((value for part in subject for kind, value in part if kind == "commonName"), ""),
        cast("tuple[tuple[str, str], ...]", found.get("subjectAltName", ())),
        str(found.get("notBefore", "")),
        str(found.get("notAfter", "")),
    )


def distinguished_name(name: Name) -> str:
    """A name as RFC 4514 writes it, from its last part to its first."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(name)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{one}" if one in _ESCAPED else one for one in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text.replace("\0", "\\00")
