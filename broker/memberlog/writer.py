"""Writes a member log: one buffer, one write for each flush, no fsync on the hot path.

A log that a crash cut short holds less, never something wrong, so it may lag behind the disk; it is
flushed at rotation and at the orderly end. Each incarnation of a member writes its own files. Only
a log reopened for the same incarnation is continued, after its torn tail was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from broker.memberlog.codec import MAGIC, NO_LINK, encode, frame_head, next_link
from broker.memberlog.reader import TornTail, read_segment
from broker.memberlog.records import (
    HASH_ALG,
    ROLE_MEMBER,
    VERSION,
    End,
    Header,
    Record,
)
from broker.memberlog.segment_file import Begin, Finish, SegmentFile, Step
from broker.memberlog.segment_totals import SegmentTotals
from broker.memberlog.segments import (
    open_segment,
    plain_name,
    segment_name,
    segments_in,
)
from store.errors import NO_SPACE, number_of

SEGMENT_BYTES = 64 << 20
SEGMENT_US = 3600 * 1_000_000


class LogWriteFailed(Exception):
    """The log could not be written; missing records cannot be proved later."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.number = number or 0
        """Of the system's error, where there was one."""
        self.no_space = number in NO_SPACE
        """By the error number, if the system gave one."""


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
        role: str = ROLE_MEMBER,
        segment_us: int = SEGMENT_US,
    ) -> None:
        self._directory = directory
        self._cluster_name = cluster_name
        self._member = member
        self._incarnation = incarnation
        self._wall_us = wall_us
        self._segment_bytes, self._segment_us = segment_bytes, segment_us
        self._role = role
        self.cluster_id = cluster_id  # may become known later; the next header has it
        self.written = 0
        """All records with lower numbers are in the file."""
        self._file = SegmentFile(directory)
        self._buffer: list[bytes] = []
        self._steps: list[Step] = []
        self._lsn = 0
        self._link = NO_LINK
        self._segment = -1
        self._size = 0
        self._failed = ""  # why nothing can be written any more
        self._failed_by = 0  # the number of the system's error
        self._closed = False
        self._totals = SegmentTotals()
        self._begun_us, self._empty = 0, True
        self.begins_with: Callable[[], Iterable[Record] | None] = lambda: ()
        """The records after the header of each further segment, so that it can be read alone; None:
        not available now, and the present segment continues."""
        self.closed: Callable[[Path], None] | None = None
        """Called with each closed segment; must fsync it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not self._resume():
                self._begin_segment()
                try:
                    self._file.carry_out(self._take_steps())
                except OSError:
                    self._file.discard()
                    raise
        except OSError as error:
            raise LogWriteFailed(f"{directory}: {error.strerror}", error.errno) from error
        self.written = self._lsn

    @property
    def path(self) -> Path:
        """The segment being written."""
        return self._file.path

    @property
    def next_lsn(self) -> int:
        """The number of the next record."""
        return self._lsn

    def append(self, record: Record) -> int:
        """Take one record; the next `flush` writes it. Returns its number."""
        self._empty = False
        lsn = self._lsn
        payload = encode(lsn, record)
        self._link = link = next_link(self._link, payload)
        self._buffer += (frame_head(payload, link), payload)  # joined once, in `flush`
        self._lsn = lsn + 1
        self._totals.take(record)
        return lsn

    @property
    def unflushed(self) -> bool:
        """Whether anything was appended since the last `flush`."""
        return bool(self._buffer)

    def flush(self) -> int:
        """Have the appended records written; rotate when the segment is full or old.

        Returns the value of `written` after that, which here is reached at once. An old but empty
        segment is continued: an idle member leaves no trail of empty files.
        """
        if self._failed:
            raise LogWriteFailed(self._failed, self._failed_by)
        old = not self._empty and self._is_old()
        if self._buffer or old:
            self._cut()
            due = old or self._size >= self._segment_bytes
            if due and (beginning := self.begins_with()) is not None:
                self._end_segment(sync=self.closed is None)
                self._begin_segment(beginning)
            self._write(self._take_steps())
        return self._lsn

    def close(self) -> None:
        """Write, flush to the disk, and close the file. Append a Stop before an orderly end."""
        if self._closed:
            return
        self._closed = True
        if self._failed:
            self._file.give_up()
            raise LogWriteFailed(self._failed, self._failed_by)
        self._end_segment(sync=True)
        self._write(self._take_steps())

    def _write(self, steps: list[Step]) -> None:
        """Carry out the steps, and report the result."""
        try:
            finished = self._file.carry_out(steps)
        except OSError as error:
            raise self._fails(error) from error
        self.written = self._lsn
        if self.closed is not None and not self._closed:
            for path in finished:
                self.closed(path)

    def _fails(self, error: BaseException) -> LogWriteFailed:
        """Nothing may follow a record that may be half written: it would read as damage."""
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        self._failed = f"{self.path}: {reason}"
        self._failed_by = number_of(error)
        return LogWriteFailed(self._failed, self._failed_by)

    def _is_old(self) -> bool:
        now_us = self._wall_us()
        self._begun_us = min(self._begun_us, now_us)  # a clock that was set back starts again
        return now_us - self._begun_us >= self._segment_us

    def _take_steps(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def _cut(self) -> None:
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._size += len(data)
        self._steps.append(data)

    def _begin_segment(self, beginning: Iterable[Record] = ()) -> None:
        self._segment += 1
        name = segment_name(self._member, self._incarnation, self._segment)
        self._steps.append(Begin(self._directory / name))
        self._size = 0
        self._begun_us = self._wall_us()
        self._totals = SegmentTotals()
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
                self._begun_us,
                self._role,
            )
        )
        for record in beginning:
            self.append(record)
        self._cut()
        self._empty = True

    def _end_segment(self, *, sync: bool) -> None:
        self.append(self._totals.end())
        self._cut()
        self._steps.append(Finish(sync))

    def _resume(self) -> bool:
        """Continue the last segment of this incarnation that has a record; False: there is none."""
        before = segment_name(self._member, self._incarnation, 0).rsplit(".", 2)[0]
        for path in reversed(segments_in(self._directory)):  # older ones may have been dropped
            name, number = plain_name(path.name).rsplit(".", 2)[:2]
            if name != before:
                continue
            if self._resume_segment(int(number), path):
                return True
            path.unlink()  # a rotation that never wrote its header
        return False

    def _resume_segment(self, segment: int, path: Path) -> bool:
        data = open_segment(path)
        end, torn, closed = 0, False, False
        self._totals = SegmentTotals()
        try:
            for entry in read_segment(data, str(path)):
                self._lsn, self._link, end = entry.lsn + 1, entry.link, entry.end
                self._totals.take(entry.record)
                closed = isinstance(entry.record, End)
        except TornTail:
            torn = True
        if end == 0:
            return False
        self._segment, self._size = segment, end
        if closed:
            self._begin_segment()
            self._file.carry_out(self._take_steps())
            return True
        self._file.resume(path, end if torn else None)
        self._begun_us, self._empty = self._wall_us(), False
        return True
