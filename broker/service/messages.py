"""The log of this process, written by a thread to standard error or to a file.

Both may be on a hanging disk, or end in a pipe that nobody reads; neither may hold the loop up in
the middle of a turn. A file is reopened at SIGHUP, after it was moved away.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from broker.options.logs import LogOptions

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(cluster)s%(message)s"
WAITING_MAX = 10_000
"""Messages that may wait for a disk or a reader; further ones are dropped."""


class LogFileError(Exception):
    """The log file cannot be opened; the text names it."""


class _Json(logging.Formatter):
    """One object per line. The keys are a format that programs read."""

    def format(self, record: logging.LogRecord) -> str:
        where = str(getattr(record, "cluster", "")).strip()
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "member": where.removeprefix("cluster(").partition(" ")[0],
            "state": where.rstrip(")").rpartition(" ")[2],
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            found["exception"] = record.exc_text
        return json.dumps({name: value for name, value in found.items() if value})


_Switch = tuple[BinaryIO, LogOptions]
_Records = queue.SimpleQueue[logging.LogRecord | _Switch | None]


class _Hand(logging.handlers.QueueHandler):
    """Puts records into the queue, with their present prefix."""

    def __init__(self, records: _Records) -> None:
        super().__init__(records)
        self._records = records
        self.prefix: Callable[[], str] = lambda: ""

    def enqueue(self, record: logging.LogRecord) -> None:
        record.cluster = self.prefix()
        if self._records.qsize() < WAITING_MAX:
            self._records.put(record)


class Messages:
    """Handles everything that is logged from here on, until `end`. Raises LogFileError."""

    def __init__(self, options: LogOptions) -> None:
        self._queue: _Records = queue.SimpleQueue()
        self._hand = _Hand(self._queue)
        self._stream = _opened(options)
        self._format = _format(options)
        root = logging.getLogger()
        root.setLevel(options.level.upper())
        root.addHandler(self._hand)
        self._thread = threading.Thread(target=self._run, name="messages", daemon=True)
        self._thread.start()

    @property
    def prefix(self) -> Callable[[], str]:
        """The prefix of each message, computed when it is logged."""
        return self._hand.prefix

    @prefix.setter
    def prefix(self, prefix: Callable[[], str]) -> None:
        self._hand.prefix = prefix

    def reopen(self, options: LogOptions) -> Callable[[], None]:
        """Open the file again, or another one; blocks, so call it on a thread.

        Return the function that puts it in force, to be called on the loop. Raises LogFileError,
        and the open file stays in use.
        """
        stream = _opened(options)

        def switch() -> None:
            logging.getLogger().setLevel(options.level.upper())
            self._queue.put((stream, options))

        return switch

    def end(self, patience_s: float) -> None:
        """Write the waiting messages, for at most this long."""
        logging.getLogger().removeHandler(self._hand)
        self._queue.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            if isinstance(record, tuple):
                self._close()
                self._stream, self._format = record[0], _format(record[1])
                continue
            line = self._format.format(record) + "\n"
            # A full disk, or a reader that is gone: the broker continues.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line.encode(errors="backslashreplace"))
                self._stream.flush()
        self._close()

    def _close(self) -> None:
        if self._stream is not sys.stderr.buffer:
            self._stream.close()


def _opened(options: LogOptions) -> BinaryIO:
    if options.file is None:
        return sys.stderr.buffer
    return _open(options.file)


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "ab", buffering=0, opener=_make)  # nothing of a failed write is kept
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LogFileError(f"--log-file {path}: {why}") from None


def _make(path: str, flags: int) -> int:
    """Not readable by everybody: the log of a first start has the administrator's password."""
    return os.open(path, flags, 0o640)


def _format(options: LogOptions) -> logging.Formatter:
    return _Json() if options.format == "json" else logging.Formatter(FORMAT)
