"""The messages of this process on its standard error, written by a thread.

Standard error is often a file or a pipe: a disk that stands still, or a reader that does, must not
hold the loop up in the middle of a turn.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Callable

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(cluster)s%(message)s"
WAITING_MAX = 10_000
"""So many messages may wait for a reader that does not read; those that follow are dropped."""


_Records = queue.SimpleQueue[logging.LogRecord | None]


class _Hand(logging.handlers.QueueHandler):
    def __init__(self, records: _Records) -> None:
        super().__init__(records)
        self._records = records
        self.prefix: Callable[[], str] = lambda: ""

    def enqueue(self, record: logging.LogRecord) -> None:
        record.cluster = self.prefix()
        if self._records.qsize() < WAITING_MAX:
            self._records.put(record)


class Messages:
    """Everything that is logged from here on, until `end`."""

    def __init__(self, level: str) -> None:
        self._queue: _Records = queue.SimpleQueue()
        self._out = logging.StreamHandler(sys.stderr)
        self._out.setFormatter(logging.Formatter(FORMAT))
        self._hand = _Hand(self._queue)
        root = logging.getLogger()
        root.setLevel(level)
        root.addHandler(self._hand)
        self._thread = threading.Thread(target=self._run, name="messages", daemon=True)
        self._thread.start()

    @property
    def prefix(self) -> Callable[[], str]:
        """What stands before each message, asked when it is logged."""
        return self._hand.prefix

    @prefix.setter
    def prefix(self, prefix: Callable[[], str]) -> None:
        self._hand.prefix = prefix

    def end(self, patience_s: float) -> None:
        """Write what waits, for so long at most."""
        logging.getLogger().removeHandler(self._hand)
        self._queue.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            self._out.handle(record)
