"""Read offsets of live logs, per incarnation, in bytes of whole records; and what is new since.

Pure but for reading files.  An incomplete record at the end of the newest segment is still being
written, or was torn by a crash: it is left for later, and never read if its incarnation writes no
more.  A segment with a successor is read to its very end, and the parser reports a torn tail there.
Files may be rotated and compressed meanwhile: offsets count bytes of the log, whatever file holds
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tools.verify.findings import BadInput
from tools.verify.format.files import one_of_each, open_segment, plain_name
from tools.verify.format.reader import FRAME, MAGIC, RECORD_BYTES_MAX, After, LogError
from tools.verify.format.records import ROLE_CLIENT, SUFFIX, Header, RecordMalformed, decode
from tools.verify.input.batch_summaries import Continuation
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import HEADER_BYTES, files_below, header_of

STRETCH_BYTES = 8 << 20  # read of one incarnation at a time, unless one record is longer
LOOK_BYTES = 4 * STRETCH_BYTES
_NAME = re.compile(r"(.+\.\d+)\.(\d+)" + re.escape(SUFFIX))


class ReadUpTo(NamedTuple):
    """How far one incarnation was read."""

    segment: int
    offset: int = 0  # of whole records
    lsn: int = -1  # of the last record; -1 = none was read
    link: bytes = b""  # of the last record; b"" = not known
    header: Header | None = None  # of the segment; None: nothing was read of it, or no header


Offsets = dict[str, ReadUpTo]  # by the beginning of the files' paths, DIR/member.incarnation


Settled = dict[str, int]  # by MEMBER.INCARNATION, the last segment that need not be read


class LogPart(NamedTuple):
    """New bytes of one segment, as the parser takes them."""

    data: bytes  # whole records, unless a later segment follows
    name: str  # the file, and where in it they begin
    continued: Continuation | None  # None: they are the beginning


def advance(read: Offsets, places: list[Path], settled: Settled | None = None) -> Iterator[LogPart]:
    """Yield what is new, up to where there are whole records now; `read` is kept up to date.

    A call yields at most STRETCH_BYTES of each incarnation, never beyond the end of one segment,
    and no more of others after LOOK_BYTES in all: those that were read least come first.  `settled`
    segments are skipped.  An incarnation without any file has no offset, once there is a later one
    of its member.
    """
    there = segments_by_incarnation(places)
    newest: dict[str, int] = {}
    for member, incarnation in map(_owner, there):
        newest[member] = max(incarnation, newest.get(member, -1))
    for key in list(read):
        if key not in there and newest.get(_owner(key)[0], -1) >= _owner(key)[1]:
            del read[key]
    size = 0
    for key in sorted(there, key=lambda key: (read.get(key, ReadUpTo(-1))[:2], key)):
        where = read.get(key)
        first = (settled or {}).get(Path(key).name, -1) + 1
        if where is not None:
            first = max(first, where.segment)
        segments = {number: path for number, path in there[key].items() if number >= first}
        if not segments or size >= LOOK_BYTES:
            continue
        if where is None or where.segment not in segments:
            where = ReadUpTo(min(segments))
        if (further := _further(where, segments)) is not None:
            read[key], part = further
            size += len(part.data)
            header = read[key].header
            if header is None or header.role != ROLE_CLIENT:
                yield part


def settled_in(rows: list[Row]) -> Settled:
    """Return the segments that the rows of a saved checkpoint make unnecessary to read."""
    found: Settled = {}
    for row in rows:
        fits = _NAME.fullmatch(plain_name(Path(row.file).name))
        if row.kind == SEGMENT and fits:
            found[fits[1]] = max(found.get(fits[1], -1), int(fits[2]))
    return found


def segments_by_incarnation(places: list[Path]) -> dict[str, dict[int, Path]]:
    """Return the files of segments, by incarnation and number."""
    found: dict[str, dict[int, Path]] = {}
    for place in places:
        for path in one_of_each(files_below(place)):
            if fits := _NAME.fullmatch(plain_name(path.name)):
                found.setdefault(str(path.parent / fits[1]), {})[int(fits[2])] = path
    return found


def _owner(key: str) -> tuple[str, int]:
    """Return directory and member, and the incarnation."""
    member, _, incarnation = key.rpartition(".")
    return member, int(incarnation)


def _further(where: ReadUpTo, segments: dict[int, Path]) -> tuple[ReadUpTo, LogPart] | None:
    """Return where the whole records of an incarnation end now, and the part up to there; None
    where nothing is new.
    """
    number, begin, lsn, link, _ = where
    path = segments[number]
    later = min((one for one in segments if one > number), default=None)  # before it is read
    data = _read(path, begin, STRETCH_BYTES)
    if data is None:
        return None  # deleted just now; the next look finds what is there instead
    if not data and later is not None:
        return _further(ReadUpTo(later), segments)
    whole, last = whole_records(data, begin == 0)
    if whole == 0 and len(data) == STRETCH_BYTES:  # one record is longer, or damage looks like it
        data = _read(path, begin, RECORD_BYTES_MAX + STRETCH_BYTES) or b""
        whole, last = whole_records(data, begin == 0)
        if whole == 0 and later is not None:
            whole = len(data)
    elif len(data) < STRETCH_BYTES and later is not None:
        whole = len(data)
    if whole == 0:
        return None
    after = After(lsn, b"") if last is None else last
    if begin == 0:  # the parser reports a broken header
        header = header_of(data[:HEADER_BYTES], str(path))
        continued = None
    elif (header := where.header) is None:
        raise BadInput(f"{path}: its header cannot be read")
    else:
        owner = header.member, header.incarnation, header.segment
        continued = Continuation(*owner, After(lsn, link))
    part = LogPart(data[:whole], f"{path}@{begin}" if begin else str(path), continued)
    return ReadUpTo(number, begin + whole, *after, header), part


def whole_records(data: bytes, first: bool) -> tuple[int, After | None]:
    """Return how many bytes are whole records, and number and link of the last of them.

    Only lengths are read: whether a whole record is also right is for the parser to report.
    """
    end = len(MAGIC) if first else 0
    last = -1
    while end + FRAME.size <= len(data):
        after = end + FRAME.size + int(FRAME.unpack_from(data, end)[0])
        if after > len(data):
            break
        last, end = end, after
    if last < 0:
        return 0, None
    try:
        lsn, _ = decode(data[last + FRAME.size : end])
    except RecordMalformed:
        return end, None
    return end, After(lsn, data[last + 8 : last + FRAME.size])


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
