"""Read offsets of live logs, per incarnation, in bytes of whole records; and what is new since.

Pure but for reading files.  An incomplete record at the end of the newest segment is still being
written, or was torn by a crash: it is left for later, and never read if its incarnation writes no
more.  A segment with a successor is read to its very end, and the parser reports a torn tail there.
Files may be rotated and compressed meanwhile: offsets count bytes of the log, whatever file holds
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.verify.findings import BadInput
from tools.verify.format.files import identity_of, one_of_each, open_segment
from tools.verify.format.reader import FRAME, MAGIC, RECORD_BYTES_MAX, LogError
from tools.verify.format.records import ROLE_CLIENT, SUFFIX
from tools.verify.input.parse import Parser
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import (
    HEADER_BYTES,
    Dropped,
    dropped_before,
    files_below,
    header_of,
    size_of,
)

STRETCH_BYTES = 8 << 20  # read of one incarnation at a time, unless one record is longer
LOOK_BYTES = 4 * STRETCH_BYTES


@dataclass(slots=True)
class LiveLog:
    """How far the log of one incarnation was read."""

    segment: int
    offset: int = 0  # of whole records
    parser: Parser | None = None  # None: nothing was read yet, or nothing is wanted of it


LogKey = tuple[Path, str, int]  # directory; member and incarnation as in the names of files
Offsets = dict[LogKey, LiveLog]


class LiveLogs:
    """The logs below some directories, and how far each was read.

    `saved`: rows of a saved checkpoint, whose segments need not be read.
    """

    def __init__(self, places: list[Path], saved: Iterable[Row] = ()) -> None:
        self.read: Offsets = {}
        self._places = places
        self._settled: dict[tuple[str, int], int] = {}  # the last segment of each incarnation
        self._dropped = Dropped({}, [])
        for row in saved:
            if row.kind == SEGMENT:
                member, incarnation, number = identity_of(Path(row.file))
                last = self._settled.get((member, incarnation), -1)
                self._settled[member, incarnation] = max(last, number)

    def advance(self) -> Iterator[list[Row]]:
        """Yield the rows of what is new, up to where there are whole records now, and the state of
        each log that has something new.

        A call reads at most STRETCH_BYTES of each incarnation, never beyond the end of one segment,
        and no more of others after LOOK_BYTES in all: those that were read least come first.  An
        incarnation without any file has no offset, once there is a later one of its member.
        """
        read, there = self.read, segments_by_incarnation(self._places)
        self._dropped = dropped_before(path for files in there.values() for path in files.values())
        newest = {key[:2]: key[2] for key in sorted(there)}
        for key in list(read):
            if key not in there and newest.get(key[:2], -1) >= key[2]:
                del read[key]
        size = 0
        read_of = {key: (log.segment, log.offset) for key, log in read.items()}
        for key in sorted(there, key=lambda key: (read_of.get(key, (-1, 0)), key)):
            log = read.get(key)
            first = max(self._settled.get(key[1:], -1) + 1, 0 if log is None else log.segment)
            segments = {number: path for number, path in there[key].items() if number >= first}
            if not segments or size >= LOOK_BYTES:
                continue
            log = log or LiveLog(min(segments))
            if log.segment not in segments:
                self._go_on(log, min(segments), segments)
            if data := self._further(log, segments):
                size += len(data)
                read[key] = log
                rows = self._rows(log, data, segments[log.segment])
                log.offset += len(data)
                yield rows

    def unread(self) -> int:
        """Return how many bytes there are in the files of all incarnations beyond what was read."""
        left = 0
        for key, segments in segments_by_incarnation(self._places).items():
            log = self.read.get(key)
            reached = self._settled.get(key[1:], -1) if log is None else log.segment
            for number, path in segments.items():
                if number > reached:
                    left += size_of(path)
                elif log is not None and number == reached and path.suffix == SUFFIX:
                    left += max(size_of(path) - log.offset, 0)
        return left

    def _rows(self, log: LiveLog, data: bytes, file: Path) -> list[Row]:
        """Return the rows of new bytes of a member, and how its log ends now."""
        begins = log.offset == 0
        if begins:
            header = header_of(data[:HEADER_BYTES], str(file))
            if header is not None and header.role == ROLE_CLIENT:
                return []
            if log.parser is None:
                log.parser = Parser(every_record=True)
                log.parser.ends.behind_dropped = self._dropped.reaches(file)
        if log.parser is None:
            return []
        rows = log.parser.take_bytes(data, str(file), begins=begins)
        return [*(row for row in rows if isinstance(row, Row)), *log.parser.finish()]

    def _go_on(self, log: LiveLog, segment: int, segments: dict[int, Path]) -> None:
        """Go on at the beginning of a later segment: as with a log of its own where the member
        dropped what was not read before.
        """
        whole = segment == log.segment + 1 and log.parser is not None and log.parser.ends.closed
        if not whole and self._dropped.reaches(segments[segment]):
            log.parser = None
        log.segment, log.offset = segment, 0

    def _further(self, log: LiveLog, segments: dict[int, Path]) -> bytes:
        """Return the whole records that follow; a segment that is read to its end, and has a
        successor, is left for that.
        """
        path, begins = segments[log.segment], log.offset == 0
        later = min((one for one in segments if one > log.segment), default=None)  # not read yet
        data = _read(path, log.offset, STRETCH_BYTES)
        if data is None:
            return b""  # deleted just now; the next look finds what is there instead
        if not data and later is not None:
            self._go_on(log, later, segments)
            return self._further(log, segments)
        whole = whole_records(data, begins)
        if whole == 0 and len(data) == STRETCH_BYTES:  # one record is longer, or damaged
            data = _read(path, log.offset, RECORD_BYTES_MAX + STRETCH_BYTES) or b""
            whole = whole_records(data, begins)
            if whole == 0 and later is not None:
                whole = len(data)
        elif len(data) < STRETCH_BYTES and later is not None:
            whole = len(data)
        return data[:whole]


def segments_by_incarnation(places: list[Path]) -> dict[LogKey, dict[int, Path]]:
    """Return the files of segments, by incarnation and number."""
    found: dict[LogKey, dict[int, Path]] = {}
    for place in places:
        for path in one_of_each(files_below(place)):
            member, incarnation, number = identity_of(path)
            if number >= 0:
                found.setdefault((path.parent, member, incarnation), {})[number] = path
    return found


def whole_records(data: bytes, first: bool) -> int:
    """Return how many bytes are whole records.

    Only lengths are read: whether a whole record is also right is for the parser to report.
    """
    end = begin = len(MAGIC) if first else 0
    while end + FRAME.size <= len(data):
        after = end + FRAME.size + int(FRAME.unpack_from(data, end)[0])
        if after > len(data):
            break
        end = after
    return end if end > begin else 0


def _read(path: Path, begin: int, size: int) -> bytes | None:
    """Return bytes of a segment, which may have been compressed meanwhile; None when it is gone."""
    try:
        if path.suffix == SUFFIX:
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(begin)
                return file.read(size)
        return open_segment(path)[begin : begin + size]  # closed, so it is read once or twice
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except LogError as error:
        raise BadInput(str(error)) from error
