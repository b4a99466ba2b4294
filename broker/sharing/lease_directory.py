"""Leases as files of a directory: lease.000007 is the record of token 7.

A token is taken by link(2): the file appears whole, and only once.  Its holder writes it in place,
durably.  The newest token is the highest number of a listing; a file of a lower one is never
looked at but by its own holder and by who took the next one.  On a network file system this needs
attributes and names that are not cached (docs/OPERATIONS.md names the mount options).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from broker.sharing.generations import newest_complete, newest_number
from broker.sharing.lease import RECORD_BYTES, ForeignLease, Found, LeaseRecord, decode
from store.errors import NotWritable, StoreMissing, StoreUnreadable
from store.files.durable_files import sync_directory

_NAME = re.compile(r"lease\.(\d{6,})")
_CLAIM = re.compile(r"lease\.[0-9a-f]{32}\.new")


class LeaseDirectory:
    """The leases of one shared store.  Every method blocks as the file system does.

    What the file system refuses comes as OSError, but for the first look.
    """

    def __init__(self, directory: Path, cluster: str) -> None:
        self._directory, self._cluster = directory, cluster
        self._highest = 0
        self.complete = 0
        """The newest complete generation that was seen."""

    def open(self) -> None:
        """Make the directory, not what it is in, and see that it can be one of ours.

        Raises NotWritable, StoreUnreadable; has changed nothing that was there.
        """
        directory = self._directory
        try:
            if not directory.exists():
                # Without its parent it is not made: a file system is not mounted, or a name wrong.
                directory.mkdir(exist_ok=True)
                sync_directory(directory.parent)
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
        """Return the newest token; 0: there is none.

        A generation shows that there was one, where somebody has removed its lease: no number is
        given twice.  Raises StoreMissing where there is a lower one than there was before.
        """
        # Twice: a listing that was stopped in its middle may miss what came and have what went.
        found = self._listed()
        if found < self._highest and (found := self._listed()) < self._highest:
            raise StoreMissing(
                f"--shared-store {self._directory} has lost what was in it: token {self._highest} "
                f"was there, and the newest is {found or 'none'} now; is its file system mounted? "
                "Mount it, or bring back what is missing, and start this broker again"
            )
        self._highest = max(self._highest, found)
        return found

    def _listed(self) -> int:
        names = os.listdir(self._directory)
        leases = (int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        return max(max(leases, default=0), newest_number(self._directory))

    def newest(self) -> Found | None:
        """Read the newest lease.  Raises StoreUnreadable where it is foreign, too."""
        self.complete = max(self.complete, newest_complete(self._directory))
        token = self.newest_token()
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
        """Write this record, durably, over what the same holder wrote before.

        Raises FileNotFoundError where that is gone, or another one's is in its place.
        """
        path = self._path(lease.token)
        try:
            there = decode(path.read_bytes())
        except ForeignLease:
            raise _not_ours(path) from None
        if there is not None and there.holder != lease.holder:
            raise _not_ours(path)
        _write(path, lease.encode(), 0)

    def tidy(self, token: int) -> None:
        """Remove the leases that nobody looks at any more: those before the last but one.

        And what is left of claims of former tokens; who still makes one tries again.
        """
        for path in list(self._directory.iterdir()):
            if match := _NAME.fullmatch(path.name):
                old = int(match[1]) < token - 1
            else:
                old = bool(_CLAIM.fullmatch(path.name)) and _claims_before(path, token)
            if old:
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


def _not_ours(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "this broker's lease is there no more", str(path))


def _claims_before(path: Path, token: int) -> bool:
    """Whether this is a claim of a former token, or one that was cut short."""
    try:
        lease = decode(path.read_bytes())
    except (ForeignLease, FileNotFoundError):
        return False
    return lease is None or lease.token < token


def _named(cluster: str) -> str:
    return f"cluster '{cluster}'" if cluster else "no cluster name"
