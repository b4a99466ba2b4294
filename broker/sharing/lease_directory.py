"""Leases as files of a directory: lease.000007 is the record of token 7.

A token is taken by link(2): the file appears whole, and only once. Its holder then writes it in
place, durably. The newest token is the highest number in a listing; a file with a lower number is
read only by its own holder and by the contender that took the next one. On a network file system
this needs attributes and names that are not cached (docs/operations/shared-store.md names the mount
options).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from broker.sharing.generations import newest_number
from broker.sharing.lease import RECORD_BYTES, ForeignLease, Found, LeaseRecord, decode
from broker.sharing.leases import MARK, LeaseGone, StoreLeases
from store.errors import StoreUnreadable
from store.files.durable_files import sync_directory

_NAME = re.compile(r"lease\.(\d{6,})")
_CLAIM = re.compile(r"lease\.[0-9a-f]{32}\.new")


class LeaseDirectory(StoreLeases):
    """The leases of one shared store, as files beside its generations."""

    medium = "the file system"

    def _look_at_first(self) -> None:
        self.newest()

    def _highest_number(self) -> int:
        names = os.listdir(self._directory)
        if MARK in names:
            raise StoreUnreadable(
                f"the lease on {self._directory} is in a database, as {MARK} there says: give this "
                "broker the --shared-store-lock of the others"
            )
        leases = (int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        return max(max(leases, default=0), newest_number(self._directory))

    def read(self, token: int) -> Found:
        path = self._path(token)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raw = b""
        try:
            lease = decode(raw)
        except ForeignLease:
            raise StoreUnreadable(
                f"{path} is no lease that this release can read; if no broker uses {path.parent}, "
                "remove the file, else start the release that wrote it"
            ) from None
        if lease is not None:
            self._belongs_here(lease)
        return Found(token, raw, lease)

    def claim(self, lease: LeaseRecord) -> bool:
        path = self._path(lease.token)
        fresh = self._directory / f"lease.{lease.holder}.new"
        try:
            _write(fresh, lease.encode(), os.O_CREAT | os.O_TRUNC)
            with contextlib.suppress(OSError):  # NFS may lose the answer: the result counts
                os.link(fresh, path)
            got = fresh.stat().st_nlink == 2
            if not got and not path.exists():
                os.link(fresh, path)  # raises the file system's error
                got = True
            if got:
                sync_directory(self._directory)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
        return got

    def renew(self, lease: LeaseRecord) -> None:
        path = self._path(lease.token)
        gone = LeaseGone(f"{path} is this broker's lease no more")
        try:
            there = decode(path.read_bytes())
            if there is not None and there.holder != lease.holder:
                raise gone
            _write(path, lease.encode(), 0)
        except (FileNotFoundError, ForeignLease):
            raise gone from None

    def tidy(self, token: int) -> None:
        """Remove the leases before the last but one, and remains of claims of former tokens.

        A process that is still making such a claim tries again.
        """
        for path in list(self._directory.iterdir()):
            if match := _NAME.fullmatch(path.name):
                old = int(match[1]) < token - 1
            else:
                old = bool(_CLAIM.fullmatch(path.name)) and _claims_before(path, token)
            if old:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing stays open."""

    def _path(self, token: int) -> Path:
        return self._directory / f"lease.{token:06d}"


def _write(path: Path, data: bytes, flags: int) -> None:
    """Write in place and durably; a reader sees old bytes, new ones, or a wrong checksum."""
    assert len(data) == RECORD_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o640)
    try:
        os.pwrite(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _claims_before(path: Path, token: int) -> bool:
    """Whether this is a claim of a former token, or one that was cut short."""
    try:
        lease = decode(path.read_bytes())
    except (ForeignLease, FileNotFoundError):
        return False
    return lease is None or lease.token < token
