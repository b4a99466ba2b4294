"""Writing a member log: one buffer, one write per loop turn, no fsync on the hot path.

A log that a crash cut short says less, never something wrong, so it may lag behind the disk; at
rotation and at the orderly end it is flushed.  Each life of a member writes files of its own; only
a log that is opened again for the same life is continued, after its torn tail was cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from broker.memberlog.closing import Tally
from broker.memberlog.coding import MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import TornTail, read_segment
from broker.memberlog.records import HASH_ALG, SUFFIX, VERSION, End, Header, Record

SEGMENT_BYTES = 64 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9.:@_-]")


class LogWriteFailed(Exception):
    """The log could not be written; what is missing from it cannot be proved later."""


class MemberLogWriter:
    """Appends to the log of one (member, incarnation)."""

    def __init__(
        self,
        directory: Path,
        cluster_name: str,
        cluster_id: str,
        member: str,
        incarnation: int,
        wall_us: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        self._cluster_name = cluster_name
        self._member = member
        self._incarnation = incarnation
        self._wall_us = wall_us
        self._segment_bytes = segment_bytes
        self.cluster_id = cluster_id  # may become known later; the next header says it
        self._buffer: list[bytes] = []
        self._lsn = 0
        self._link = NO_LINK
        self._segment = -1
        self._size = 0
        self._fd = -1
        self._failed = ""  # why nothing can be written any more
        self._tally = Tally()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not self._resume():
                self._begin_segment()
        except OSError as error:
            raise LogWriteFailed(f"{directory}: {error.strerror}") from error

    @property
    def path(self) -> Path:
        """The segment being written."""
        return self._path(self._segment)

    @property
    def next_lsn(self) -> int:
        """The number that the next record gets."""
        return self._lsn

    def append(self, record: Record) -> int:
        """Take one record; it is written by the next `flush`.  Returns its number."""
        lsn = self._lsn
        payload = encode(lsn, record)
        self._link = next_link(self._link, payload)
        self._buffer.append(frame(payload, self._link))
        self._lsn = lsn + 1
        self._tally.take(record)
        return lsn

    def flush(self) -> None:
        """Write what was appended, once per loop turn; rotate when the segment is full."""
        if self._failed:
            raise LogWriteFailed(self._failed)
        if not self._buffer:
            return
        try:
            self._write()
            if self._size >= self._segment_bytes:
                self._end_segment()
                self._begin_segment()
        except OSError as error:
            raise self._fails(error) from error

    def close(self) -> None:
        """Write, flush to the disk, and give the file up.  Append a Stop before an orderly end."""
        if self._fd < 0:
            return
        if self._failed:
            os.close(self._fd)
            self._fd = -1
            raise LogWriteFailed(self._failed)
        try:
            self._end_segment()
        except OSError as error:
            raise self._fails(error) from error

    def _fails(self, error: OSError) -> LogWriteFailed:
        """Nothing may follow a record that is perhaps only half there: it would read as damage."""
        self._failed = f"{self.path}: {error.strerror}"
        return LogWriteFailed(self._failed)

    def _write(self) -> None:
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._size += len(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def _begin_segment(self) -> None:
        self._segment += 1
        self._fd = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640
        )
        self._size = 0
        self._tally = Tally()
        self._buffer.append(MAGIC)
        self.append(
            Header(
                VERSION,
                self._cluster_name,
                self.cluster_id,
                self._member,
                self._incarnation,
                self._segment,
                self._link,
                HASH_ALG,
                self._wall_us(),
            )
        )
        self._write()

    def _end_segment(self) -> None:
        self.append(self._tally.end())
        self._write()
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, segment: int) -> Path:
        name = _UNSAFE.sub("_", self._member)
        return self._directory / f"{name}.{self._incarnation}.{segment:06d}{SUFFIX}"

    def _resume(self) -> bool:
        """Continue the last segment of this life that holds a record; False when there is none."""
        segment = 0
        while self._path(segment).exists():
            segment += 1
        while segment > 0:
            segment -= 1
            if self._resume_segment(segment):
                return True
            self._path(segment).unlink()  # a rotation that never wrote its header
        return False

    def _resume_segment(self, segment: int) -> bool:
        path = self._path(segment)
        data = path.read_bytes()
        end, torn, closed = 0, False, False
        self._tally = Tally()
        try:
            for entry in read_segment(data, str(path)):
                self._lsn, self._link, end = entry.lsn + 1, entry.link, entry.end
                self._tally.take(entry.record)
                closed = isinstance(entry.record, End)
        except TornTail:
            torn = True
        if end == 0:
            return False
        self._segment, self._size = segment, end
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if torn:
            os.ftruncate(self._fd, end)
        if closed:
            os.close(self._fd)
            self._begin_segment()
        return True
