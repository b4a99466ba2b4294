"""The lease of a shared store as a row of a database: who leads, its token, and until when.

Each claim and each renewal is one conditional UPDATE. A claim takes the row only if it is as it was
read, so that no renewal can have come between (with files `lease.Contender` waits for such a
renewal), and only when the lease is over by the database's clock, or was given up. A renewal
changes only the row of its own token and holder, so a late one changes nothing.

The database's clock alone decides nothing either, because it may be set. Set forward, it does not
end a lease: the contender must also have seen no renewal for the lease and a fifth. Set back, it
keeps no lease alive: the row is then newer than the clock.

A random number identifies the row of a store; the file `lease.database` in the store's directory
holds it. It reveals another database, or one that has lost the row.
Decision: docs/decisions/0075-a-lease-may-be-a-row-of-a-database.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from broker.options.modes.shared_store import DatabaseLock
from broker.sharing.databases import Database, DatabaseTrouble, Table, Value, database_for
from broker.sharing.generations import newest_number
from broker.sharing.lease import Found, Held, LeaseRecord
from broker.sharing.leases import MARK, LeaseGone, StoreLeases
from store.errors import StoreMissing, StoreUnreadable
from store.files.durable_files import sync_directory

TABLE = "qpidd_store_lease"
CREATE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    store TEXT PRIMARY KEY, token BIGINT NOT NULL, holder TEXT NOT NULL, renewals BIGINT NOT NULL,
    held TEXT NOT NULL, lease_ms BIGINT NOT NULL, expires DOUBLE PRECISION NOT NULL,
    generation BIGINT NOT NULL, cluster TEXT NOT NULL, who TEXT NOT NULL, since TEXT NOT NULL
)"""
_INSERT = f"""INSERT INTO {TABLE} VALUES (%s, 0, '', 0, 'released', 0, 0, 0, '', '', '')
    ON CONFLICT (store) DO NOTHING"""
_READ = f"""SELECT token, holder, renewals, held, lease_ms, generation, cluster, who, since
    FROM {TABLE} WHERE store = %s"""
_CLAIM = f"""UPDATE {TABLE} SET token = %s, holder = %s, renewals = %s, held = %s, lease_ms = %s,
    expires = {{seconds}} + %s, generation = %s, cluster = %s, who = %s, since = %s
    WHERE store = %s AND token = %s AND holder = %s AND renewals = %s AND (
        held <> 'held' OR {{seconds}} >= expires OR {{seconds}} < expires - lease_ms / 1000.0
    )"""
_RENEW = f"""UPDATE {TABLE} SET renewals = %s, held = %s, lease_ms = %s,
    expires = {{seconds}} + %s, generation = %s
    WHERE store = %s AND token = %s AND holder = %s AND renewals < %s"""
_MAGIC = "qpidd-lease-database 1"
_MARK = re.compile(_MAGIC + r" ([0-9a-f]{32}) (.*)\n?")
_FILE = re.compile(r"lease\.\d{6,}")
PATIENCE_S_MIN = 2.0
"""How long a statement may take, if the lease is not longer: a later answer is of no use."""


class LeaseDatabase(StoreLeases):
    """The lease of one shared store, as a row of a database."""

    medium = "the database"

    def __init__(self, directory: Path, cluster: str, database: Database) -> None:
        super().__init__(directory, cluster)
        self._database = database
        self._store = ""
        self._drawn = ""  # the row to make if the store has none: the same one each time
        self._row: LeaseRecord | None = None  # as `newest` read it
        self._newest: Found | None = None  # the result of `newest`
        self._replaced: Found | None = None  # by our claim

    def _look_at_first(self) -> None:
        self._highest_generation()
        self._read_mark()

    # -- what is in the directory ----------------------------------------------------------------

    def _highest_generation(self) -> int:
        """Return the highest number of a generation; there must be no lease files beside them."""
        for name in os.listdir(self._directory):
            if _FILE.fullmatch(name):
                raise StoreUnreadable(
                    f"the lease on {self._directory} is in its files ({name}): drop "
                    "--shared-store-lock, or end all brokers that share it and remove them"
                )
        return newest_number(self._directory)

    def _read_mark(self) -> str:
        path = self._directory / MARK
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        match = _MARK.fullmatch(text)
        if match is None:
            raise StoreUnreadable(
                f"{path} is none that this release can read; start the release that wrote it"
            )
        return match[1]

    def _write_mark(self, store: str) -> str:
        """Name the row in the directory; return the row that is named there afterwards."""
        path, fresh = self._directory / MARK, self._directory / f"{MARK}.{store}"
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(f"{_MAGIC} {store} {self._database.shown}\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
        sync_directory(self._directory)
        return self._read_mark()

    # -- the row ---------------------------------------------------------------------------------

    def _identify(self) -> str:
        """Return the number of the store's row; create it if there never was one."""
        self._store = self._store or self._read_mark()
        if not self._store:
            self._drawn = drawn = self._drawn or uuid.uuid4().hex
            self._database.execute(_INSERT, [drawn])  # before it is named: a named row exists
            self._store = self._write_mark(drawn)
            if self._store != drawn:
                self._database.execute(f"DELETE FROM {TABLE} WHERE store = %s", [drawn])
        return self._store

    def _read_row(self) -> LeaseRecord:
        store = self._identify()
        rows = self._database.execute(_READ, [store]).rows
        if not rows:
            raise StoreMissing(
                f"the lease on {self._directory} is row {store} of {TABLE}, and "
                f"{self._database.shown} has no such row: give the database of the other brokers, "
                f"or bring it back; if it is lost, end all of them, then remove "
                f"{self._directory / MARK}"
            )
        try:
            lease = _record(rows[0])
        except ValueError as error:
            raise StoreUnreadable(
                f"row {store} of {TABLE} in {self._database.shown} is none that this release can "
                f"read ({error}); start the release that wrote it"
            ) from error
        if lease.token:
            self._belongs_here(lease)
        return lease

    def _highest_number(self) -> int:
        return max(self._read_row().token, self._highest_generation())

    def newest(self) -> Found | None:
        self.complete = max(self.complete, self._complete())
        row = self._read_row()
        token = max(row.token, self.newest_token())
        self._row = row
        self._newest = self._found(row, token) if token else None
        return self._newest

    def read(self, token: int) -> Found:
        if self._replaced is not None and self._replaced.token == token:
            return self._replaced
        return self._found(self._read_row(), token)

    def _found(self, row: LeaseRecord, token: int) -> Found:
        """If the row is older than its generations, or gone, only that is known."""
        return Found(token, row.encode(), row) if row.token == token else Found(token, b"", None)

    def claim(self, lease: LeaseRecord) -> bool:
        former = self._row
        assert former is not None, "who claims has looked"
        values: list[Value] = [
            lease.token, lease.holder, lease.count, lease.held.value, lease.lease_ms,
            lease.lease_ms / 1000, lease.generation, lease.cluster, lease.who, lease.since,
            self._store, former.token, former.holder, former.count,
        ]  # fmt: skip
        try:
            got = self._change(_CLAIM, values)
        except DatabaseTrouble:  # the outcome is unknown: the row says it
            row = self._read_row()
            got = (row.token, row.holder) == (lease.token, lease.holder)
            if not got:
                raise
        if got:
            self._replaced = self._newest
        return got

    def renew(self, lease: LeaseRecord) -> None:
        values: list[Value] = [
            lease.count, lease.held.value, lease.lease_ms, lease.lease_ms / 1000, lease.generation,
            self._store, lease.token, lease.holder, lease.count,
        ]  # fmt: skip
        # Not durable: a power loss also ends the holder, and with it the renewed lease.
        if not self._change(_RENEW, values, durable=False):
            raise LeaseGone(f"row {self._store} of {TABLE} is this broker's no more")

    def _change(self, statement: str, values: list[Value], *, durable: bool = True) -> bool:
        timed = statement.format(seconds=self._database.seconds)
        return self._database.execute(timed, values, durable=durable).changed == 1

    def tidy(self, token: int) -> None:
        """Nothing to do: there is only one row."""

    def close(self) -> None:
        self._database.close()


def _record(row: Sequence[Value]) -> LeaseRecord:
    token, holder, renewals, held, lease_ms, generation, cluster, who, since = row
    return LeaseRecord(
        int(token), str(cluster), str(holder), str(who), str(since), int(lease_ms),
        int(generation), int(renewals), Held(held),
    )  # fmt: skip


def lease_in(directory: Path, cluster: str, lock: DatabaseLock, lease_ms: int) -> LeaseDatabase:
    """Return the lease of this directory in that database; nothing is connected yet."""
    patience_s = max(PATIENCE_S_MIN, lease_ms / 1000)
    return LeaseDatabase(directory, cluster, database_for(lock, patience_s, Table(TABLE, CREATE)))
