"""Connections to the databases that may hold the lease of a shared store: PostgreSQL and SQLite.

A statement is one transaction; if it does not answer within the time limit its connection is cut.
Every exception of a driver comes as `DatabaseTrouble`, and the next statement begins with a new
connection: it is then unknown whether the failed statement had its effect.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.options.modes.shared_store import DatabaseLock

if TYPE_CHECKING:
    import psycopg

Value = str | int | float
CONNECT_S_MIN = 2
"""The shortest limit of a connection attempt that PostgreSQL's client library accepts."""
SQLITE_SECONDS = "((julianday('now') - 2440587.5) * 86400.0)"
POSTGRESQL_SECONDS = "extract(epoch FROM clock_timestamp())::double precision"
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)


class DatabaseTrouble(OSError):
    """The database does not answer, or not as it should."""


class Table(NamedTuple):
    """A table, and the statement that creates it."""

    name: str
    create: str


class Answer(NamedTuple):
    """The result of a statement: its rows, and how many it changed."""

    rows: list[tuple[Value, ...]]
    changed: int


class Database(ABC):
    """One connection, made on first use and again after each error. Blocks."""

    seconds: str
    """The time by the database's clock, as an SQL expression."""

    finds_table: str
    """A query that returns a row if a table of that name exists."""

    def __init__(self, shown: str, table: Table) -> None:
        """`shown` is for people; a missing table is created."""
        self.shown, self._table = shown, table
        self._lock = threading.Lock()
        self._connected = False

    def execute(
        self, statement: str, values: Sequence[Value] = (), *, durable: bool = True
    ) -> Answer:
        """Execute one statement; `%s` stands for each value. Raises DatabaseTrouble.

        `durable`: its change must survive a power loss.
        """
        with self._lock:
            try:
                if not self._connected:
                    self._connect()
                    # A user who may not create the table may use one that was created for it.
                    if not self._do(self.finds_table, [self._table.name]).rows:
                        self._do(self._table.create, ())
                    self._connected = True
                self._set_durable(durable)
                return self._do(statement, values)
            except self._errors() as error:
                self._drop()
                reason = " ".join(str(error).split()) or type(error).__name__
                raise DatabaseTrouble(f"{self.shown}: {reason}") from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._connected = False
        with contextlib.suppress(*self._errors()):
            self._disconnect()

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """Return the driver's exceptions."""

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...

    def _set_durable(self, durable: bool) -> None:  # noqa: B027
        """Set whether the next statement must be durable; a server need not be told."""

    @abstractmethod
    def _do(self, statement: str, values: Sequence[Value]) -> Answer: ...


class SQLite(Database):
    """A file of SQLite, for brokers of one machine: its clock is that machine's.

    With a write-ahead log readers make nobody wait. A writer holds the file's lock for as long as
    it takes to hand one page to the kernel, some 0.1 ms, plus a flush of the disk for a durable
    change. A process stopped at just that moment keeps all others from writing.
    """

    seconds = SQLITE_SECONDS
    finds_table = "SELECT 1 FROM sqlite_master WHERE name = %s"

    def __init__(self, path: Path, patience_s: float, table: Table) -> None:
        super().__init__(f"SQLite {path}", table)
        self._path, self._patience_s = path, patience_s
        self._connection: sqlite3.Connection | None = None
        self._has_log, self._synchronous = False, ""

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, OSError)

    def _connect(self) -> None:
        self._connection = sqlite3.connect(
            self._path, timeout=self._patience_s, isolation_level=None, check_same_thread=False
        )
        self._synchronous = ""
        # Refused while another process is doing the same, or is connected in the former mode.
        with contextlib.suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA journal_mode = WAL")
        mode = self._connection.execute("PRAGMA journal_mode").fetchone()
        self._has_log = mode == ("wal",)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _set_durable(self, durable: bool) -> None:
        assert self._connection is not None
        wanted = "EXTRA" if durable or not self._has_log else "NORMAL"
        if wanted != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted

    def _do(self, statement: str, values: Sequence[Value]) -> Answer:
        assert self._connection is not None
        cursor = self._connection.execute(statement.replace("%s", "?"), values)
        return Answer(cursor.fetchall(), cursor.rowcount)


class PostgreSQL(Database):
    """A PostgreSQL server, by psycopg and libpq, whose URLs and password files work here."""

    seconds = POSTGRESQL_SECONDS
    finds_table = "SELECT 1 WHERE to_regclass(%s) IS NOT NULL"

    def __init__(self, lock: DatabaseLock, patience_s: float, table: Table) -> None:
        super().__init__(lock.shown, table)
        import psycopg

        self._driver = psycopg
        self._url, self._patience_s = lock.url, patience_s
        self._connection: psycopg.Connection[psycopg.rows.TupleRow] | None = None
        self._socket: socket.socket | None = None

    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._driver.Error, OSError)

    def _connect(self) -> None:
        self._connection = connection = self._driver.connect(
            self._url, autocommit=True, prepare_threshold=None,
            connect_timeout=max(CONNECT_S_MIN, math.ceil(self._patience_s)),
            fallback_application_name="qpidd",
            client_encoding="utf8",  # from a server in SQL_ASCII texts would come as bytes
        )  # fmt: skip
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._do(
            "SELECT set_config('statement_timeout', %s, false)", [f"{1000 * self._patience_s:.0f}"]
        )
        self._do(_DURABLE, ())

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        cut, self._socket = self._socket, None
        if cut is not None:
            cut.close()
        if connection is not None:
            connection.close()

    def _do(self, statement: str, values: Sequence[Value]) -> Answer:
        assert self._connection is not None
        assert self._socket is not None
        with _limited(self._patience_s, self._socket) as is_cut:
            try:
                cursor = self._connection.execute(statement.encode(), values or None)
            except self._driver.OperationalError as error:
                if is_cut():
                    raise TimeoutError(f"no answer within {self._patience_s:g} s") from error
                raise
            rows = cursor.fetchall() if cursor.description is not None else []
            return Answer(rows, cursor.rowcount)


@contextlib.contextmanager
def _limited(seconds: float, connection: socket.socket) -> Iterator[Callable[[], bool]]:
    """Cut the connection after that time: a hanging server answers nothing, and the client library
    would wait for ever."""
    done = threading.Event()

    def cut() -> None:
        done.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield done.is_set
    finally:
        timer.cancel()


def database_for(lock: DatabaseLock, patience_s: float, table: Table) -> Database:
    """Return the database that an option names; nothing is connected yet."""
    if lock.file is not None:
        return SQLite(lock.file, patience_s, table)
    return PostgreSQL(lock, patience_s, table)
