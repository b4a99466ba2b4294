"""Read offsets of live logs, per incarnation, in bytes of whole records; and what is new since.

Pure but for reading files.  An incomplete record at the end of the newest segment is still being
written, or was torn by a crash: it is left for later, and never read if its incarnation writes no
more.  A segment with a successor is read to its very end, and the parser reports a torn tail there.
Files may be rotated and compressed meanwhile: offsets count bytes of the log, whatever file holds
them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tools.verify.findings import BadInput
from tools.verify.format.files import one_of_each, open_segment, plain_name
from tools.verify.format.reader import FRAME, MAGIC, RECORD_BYTES_MAX, After, LogError
from tools.verify.format.records import ROLE_CLIENT, SUFFIX, RecordMalformed, decode
from tools.verify.input.batch_summaries import Continuation
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import HEADER_BYTES, files_below, header_of

STRETCH_BYTES = 32 << 20  # read of one incarnation at a time, unless one record is longer
_NAME = re.compile(r"(.+\.\d+)\.(\d+)" + re.escape(SUFFIX))


class ReadUpTo(NamedTuple):
    """How far one incarnation was read."""

    segment: int
    offset: int = 0  # of whole records
    lsn: int = -1  # of the last record; -1 = none was read
    link: bytes = b""  # of the last record; b"" = not known


Offsets = dict[str, ReadUpTo]  # by the beginning of the files' paths, DIR/member.incarnation


Settled = dict[str, int]  # by MEMBER.INCARNATION, the last segment that need not be read


class LogPart(NamedTuple):
    """New bytes of one segment, and the record before them."""

    path: Path
    begin: int
    end: int
    after: After


def advance(
    read: Offsets, places: list[Path], settled: Settled | None = None
) -> tuple[Offsets, list[LogPart]]:
    """Return the offsets up to which there are whole records now, and the parts up to there.

    They advance by at most STRETCH_BYTES in each incarnation and never beyond the end of one
    segment; `settled` segments are skipped.  An incarnation without any file has no offset, once
    there is a later one of its member.
    """
    there = segments_by_incarnation(places)
    newest: dict[str, int] = {}
    for member, incarnation in map(_owner, there):
        newest[member] = max(incarnation, newest.get(member, -1))
    now: Offsets = {
        key: where
        for key, where in read.items()
        if key in there or newest.get(_owner(key)[0], -1) < _owner(key)[1]
    }
    parts: list[LogPart] = []
    for key, found in sorted(there.items()):
        where = read.get(key)
        first = (settled or {}).get(Path(key).name, -1) + 1
        if where is not None:
            first = max(first, where.segment)
        segments = {number: path for number, path in found.items() if number >= first}
        if not segments:
            continue
        if where is None or where.segment not in segments:
            where = ReadUpTo(min(segments))
        if (further := _further(where, segments)) is not None:
            now[key], part = further
            parts.append(part)
    return now, parts


def settled_in(rows: list[Row]) -> Settled:
    """Return the segments that the rows of a saved checkpoint make unnecessary to read."""
    found: Settled = {}
    for row in rows:
        fits = _NAME.fullmatch(plain_name(Path(row.file).name))
        if row.kind == SEGMENT and fits:
            found[fits[1]] = max(found.get(fits[1], -1), int(fits[2]))
    return found


def read_part(part: LogPart) -> tuple[bytes, str, Continuation | None] | None:
    """Return the bytes of a part, a name for it, and where it continues; None for a client's log.

    Raises `BadInput` when the file went away meanwhile.
    """
    path, begin, end, after = part
    data, head = _read(path, begin, end - begin), _read(path, 0, HEADER_BYTES)
    if data is None or head is None:
        raise BadInput(f"{path} went away before it was read")
    header = header_of(head, str(path))
    if header is not None and header.role == ROLE_CLIENT:
        return None
    name = f"{path}@{begin}"
    if begin == 0:
        return data, name, None  # the parser reports a broken header
    if header is None:
        raise BadInput(f"{path}: its header cannot be read")
    return data, name, Continuation(header.member, header.incarnation, header.segment, after)


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
    number, begin, lsn, link = where
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
    reached = ReadUpTo(number, begin + whole, *(After(lsn, b"") if last is None else last))
    return reached, LogPart(path, begin, begin + whole, After(lsn, link))


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
