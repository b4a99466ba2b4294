"""Where the leases of a shared store are written: as files or in a database.

Common to both: the directory of the generations, and the rule that no number is ever given twice,
because the newest token is the highest number of any lease and of any generation.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from broker.sharing.generations import newest_complete
from broker.sharing.lease import Found, LeaseRecord
from store.errors import NotWritable, StoreMissing, StoreUnreadable
from store.files.durable_files import sync_directory

MARK = "lease.database"
"""The file that says that the directory's lease is in a database, and in which row."""


class LeaseGone(Exception):
    """A lease to renew no longer exists, or another one is in its place."""


class StoreLeases(ABC):
    """The leases of one shared store. Every method blocks as the file system or database does.

    Their errors come as OSError, except at the first look.
    """

    medium: str
    """What an operator should check if a lease cannot be read or written."""

    def __init__(self, directory: Path, cluster: str) -> None:
        self._directory, self._cluster = directory, cluster
        self._highest = 0
        self.complete = 0
        """The newest complete generation seen."""

    def open(self) -> None:
        """Create the directory, without content, and check that it can be a shared store.

        Raises NotWritable, StoreUnreadable; changes nothing that exists.
        """
        directory = self._directory
        try:
            if not directory.exists():
                # Not created without its parent: a file system is not mounted, or a name is wrong.
                directory.mkdir(exist_ok=True)
                sync_directory(directory.parent)
            if (directory / "store").exists():
                raise StoreUnreadable(
                    f"--shared-store {directory} is the data directory of a broker that shares it "
                    "with nobody; give a directory of its own"
                )
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            self._look_at_first()
        except OSError as error:
            advice = "every broker that shares it needs the same rights there (give them one user)"
            if isinstance(error, FileNotFoundError):
                advice = f"is its file system mounted at this machine? Else make {directory.parent}"
            why = error.strerror or error
            raise NotWritable(
                f"--shared-store {directory} cannot be made or written: {why}; {advice}"
            ) from error

    @abstractmethod
    def _look_at_first(self) -> None:
        """Check that nothing in the directory is foreign. Raises OSError, StoreUnreadable."""

    def newest_token(self) -> int:
        """Return the newest token; 0: there is none.

        A generation shows that its token existed, even if somebody removed its lease: no number is
        given twice. Raises StoreMissing if the newest is lower than it was before.
        """
        # Twice: a listing interrupted in its middle may miss new entries and contain removed ones.
        found = self._highest_number()
        if found < self._highest and (found := self._highest_number()) < self._highest:
            raise StoreMissing(
                f"--shared-store {self._directory} has lost what was in it: token {self._highest} "
                f"was there, and the newest is {found or 'none'} now; is its file system mounted? "
                "Mount it, or bring back what is missing, and start this broker again"
            )
        self._highest = found
        return found

    @abstractmethod
    def _highest_number(self) -> int:
        """Return the highest number of any lease and any generation."""

    def newest(self) -> Found | None:
        """Read the newest lease. Raises StoreUnreadable if it is foreign, too."""
        self.complete = max(self.complete, self._complete())
        token = self.newest_token()
        return self.read(token) if token else None

    def _complete(self) -> int:
        return newest_complete(self._directory)

    @abstractmethod
    def read(self, token: int) -> Found:
        """Read one; of a lease that is gone, as of a torn one, only its existence is known.

        Raises StoreUnreadable if it is foreign, too.
        """

    @abstractmethod
    def claim(self, lease: LeaseRecord) -> bool:
        """Take the token of this record; False: another process has it, or the former one."""

    @abstractmethod
    def renew(self, lease: LeaseRecord) -> None:
        """Write this record, durably, over the same holder's previous one. Raises LeaseGone."""

    @abstractmethod
    def tidy(self, token: int) -> None:
        """Remove what nobody reads any more once this token leads."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open; the next call opens it again."""

    def _belongs_here(self, lease: LeaseRecord) -> None:
        if lease.cluster != self._cluster:
            raise StoreUnreadable(
                f"{self._directory} is shared by the brokers of {_named(lease.cluster)}, this "
                f"one was started for {_named(self._cluster)}; give that --cluster-name, or "
                "another --shared-store"
            )


def _named(cluster: str) -> str:
    return f"cluster '{cluster}'" if cluster else "no cluster name"
