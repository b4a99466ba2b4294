"""Certificates for tests, made with trustme: an authority, a server's and clients' files."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    """Paths as options name them."""

    certificate: Path
    key: Path
    ca: Path

    def options(self) -> list[str]:
        """For a command line, without --tls-ca."""
        return ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)]


class Authority:
    """One authority and its directory."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._ca = folder, trustme.CA()
        self.path = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def issue(
        self,
        name: str,
        *identities: str,
        common_name: str | None = None,
        not_after: datetime.datetime | None = None,
    ) -> Files:
        """A certificate and its key, in two files named after `name`."""
        leaf = self._ca.issue_cert(*identities, common_name=common_name, not_after=not_after)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.unlink(missing_ok=True)
        key.unlink(missing_ok=True)
        for blob in leaf.cert_chain_pems:
            blob.write_to_path(str(certificate), append=True)
        leaf.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return Files(certificate, key, self.path)
