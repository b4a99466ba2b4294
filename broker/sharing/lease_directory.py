"""Leases as files of a directory: lease.000007 is the record of token 7.

A token is taken by link(2): the file appears whole, and only once.  Its holder writes it in place,
durably.  The newest token is the highest number of a listing; a file of a lower one is never
looked at but by its own holder and by who took the next one.  On a network file system this needs
attributes and names that are not cached (docs/OPERATIONS.md names the mount options).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from broker.sharing.generations import newest_complete
from broker.sharing.lease import RECORD_BYTES, ForeignLease, Found, LeaseRecord, decode
from store.directory_lock import sync_directory
from store.errors import NotWritable, StoreUnreadable

_NAME = re.compile(r"lease\.(\d{6,})")


class LeaseDirectory:
    """The leases of one shared store.  Every method blocks as the file system does.

    What the file system refuses comes as OSError, but for the first look.
    """

    def __init__(self, directory: Path, cluster: str) -> None:
        self._directory, self._cluster = directory, cluster

    def open(self) -> None:
        """Make the directory, and see that it can be one of ours.

        Raises NotWritable, StoreUnreadable; has changed nothing that was there.
        """
        directory = self._directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if (directory / "store").exists():
                raise StoreUnreadable(
                    f"--shared-store {directory} is the data directory of a broker that shares it "
                    "with nobody; give a directory of its own"
                )
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            self.newest()
        except OSError as error:
            raise NotWritable(
                f"--shared-store {directory} cannot be made or written: {error.strerror or error}; "
                "every broker that shares it needs the same rights there (give them one user)"
            ) from error

    def newest_token(self) -> int:
        """Return the newest token; 0: there is none."""
        with os.scandir(self._directory) as entries:
            return max(
                (int(match[1]) for one in entries if (match := _NAME.fullmatch(one.name))),
                default=0,
            )

    def newest(self) -> Found | None:
        """Read the newest lease.  Raises StoreUnreadable where it is foreign, too.

        Where somebody has removed the files, a generation shows that there was one.
        """
        token = self.newest_token() or newest_complete(self._directory)
        return self.read(token) if token else None

    def read(self, token: int) -> Found:
        """Read one; of one that is gone it is known that there was one, as of a torn one.

        Raises StoreUnreadable where it is foreign, too.
        """
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
        if lease is not None and lease.cluster != self._cluster:
            raise StoreUnreadable(
                f"{self._directory} is shared by the brokers of {_named(lease.cluster)}, this "
                f"one was started for {_named(self._cluster)}; give that --cluster-name, or "
                "another --shared-store"
            )
        return Found(token, raw, lease)

    def claim(self, lease: LeaseRecord) -> bool:
        """Take the token of this record; False: somebody else has it."""
        path = self._path(lease.token)
        fresh = self._directory / f"lease.{lease.holder}.new"
        try:
            _write(fresh, lease.encode(), os.O_CREAT | os.O_TRUNC)
            with contextlib.suppress(OSError):  # NFS may lose the answer: what came of it counts
                os.link(fresh, path)
            got = fresh.stat().st_nlink == 2
            if not got and not path.exists():
                os.link(fresh, path)  # raises what the file system has against it
                got = True
            if got:
                sync_directory(self._directory)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
        return got

    def renew(self, lease: LeaseRecord) -> None:
        """Write this record, durably, over what the same holder wrote before."""
        _write(self._path(lease.token), lease.encode(), 0)

    def tidy(self, token: int) -> None:
        """Remove the leases that nobody looks at any more: those before the last but one."""
        for path in self._directory.iterdir():
            if (match := _NAME.fullmatch(path.name)) and int(match[1]) < token - 1:
                path.unlink(missing_ok=True)

    def _path(self, token: int) -> Path:
        return self._directory / f"lease.{token:06d}"


def _write(path: Path, data: bytes, flags: int) -> None:
    """In place and durably; a reader sees the old bytes, the new ones, or a wrong checksum."""
    assert len(data) == RECORD_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o640)
    try:
        os.pwrite(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _named(cluster: str) -> str:
    return f"cluster '{cluster}'" if cluster else "no cluster name"
