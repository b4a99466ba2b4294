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

from broker.options.active_passive import DatabaseLock

if TYPE_CHECKING:
    import psycopg

Value = str | int | float
CONNECT_S_MIN = 2
"""What PostgreSQL's client library takes as the shortest limit of a connection attempt."""
SQLITE_SECONDS = "((julianday('now') - 2440587.5) * 86400.0)"
POSTGRESQL_SECONDS = "extract(epoch FROM clock_timestamp())::double precision"
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)


class DatabaseTrouble(OSError):
    """The database does not answer, or not as it should."""


class Table(NamedTuple):
    """A table, and the statement that makes it."""

    name: str
    create: str


class Answer(NamedTuple):
    """What came of a statement: its rows, and how many it changed."""

    rows: list[tuple[Value, ...]]
    changed: int


class Database(ABC):
    """One connection, made when it is first needed and again after each error.  Blocks."""

    seconds: str
    """The time by the clock of the database, as an expression of its SQL."""

    finds_table: str
    """A query that has a row if there is a table of that name."""

    def __init__(self, shown: str, table: Table) -> None:
        """`shown` is for people; the table is made where it is missing."""
        self.shown, self._table = shown, table
        self._lock = threading.Lock()
        self._connected = False

    def execute(
        self, statement: str, values: Sequence[Value] = (), *, durable: bool = True
    ) -> Answer:
        """Have one statement done; `%s` stands for each value.  Raises DatabaseTrouble.

        `durable`: what it changes has to survive a loss of power.
        """
        with self._lock:
            try:
                if not self._connected:
                    self._connect()
                    # Who may not make it may use the one that somebody has made for him.
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
        """Give the connection up."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._connected = False
        with contextlib.suppress(*self._errors()):
            self._disconnect()

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """Return what the driver raises."""

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...

    def _set_durable(self, durable: bool) -> None:  # noqa: B027
        """Say of the next statement whether it has to be; a server need not be told."""

    @abstractmethod
    def _do(self, statement: str, values: Sequence[Value]) -> Answer: ...


class SQLite(Database):
    """A file of SQLite, for brokers of one machine: its clock is that machine's.

    With a write-ahead log nobody waits for who reads, and who writes holds the file's lock for as
    long as it takes to hand one page to the kernel, some 0.1 ms; what is durable for a flush of the
    disk besides.  Who is stopped in just that time keeps all others from writing.
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
        # Refused while another one is just doing that, or is connected in the former way.
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
    """A server of PostgreSQL, by psycopg and libpq, whose URLs and files of passwords count."""

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
            client_encoding="utf8",  # of a server in SQL_ASCII texts would come as bytes
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
    """Cut the connection after that time: a server that stands still answers nothing, and the
    client library waits for it without end."""
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
