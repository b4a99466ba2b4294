"""Read offsets of live logs, per incarnation, in bytes of whole records; and what is new since.

Pure but for reading files.  An incomplete record at the end of the newest segment is still being
written, or was torn by a crash: it is left for later, and never read if its incarnation writes no
more.  A segment with a successor is read to its very end, and the parser reports a torn tail there.
Files may be rotated and compressed meanwhile: offsets count bytes of the log, whatever file holds
them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, TypedDict

from tools.verify.findings import BadInput
from tools.verify.format.files import one_of_each, open_segment, plain_name
from tools.verify.format.reader import FRAME, MAGIC, RECORD_BYTES_MAX, After, LogError
from tools.verify.format.records import ROLE_CLIENT, SUFFIX, RecordMalformed, decode
from tools.verify.input.batch_summaries import Continuation
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.segments import HEADER_BYTES, files_below, header_of

STRETCH_BYTES = 32 << 20  # read of one incarnation at a time, unless one record is longer
_NAME = re.compile(r"(.+\.\d+)\.(\d+)" + re.escape(SUFFIX))


class ReadUpTo(TypedDict):
    """How far one incarnation was read; JSON, as Spark keeps it."""

    segment: int
    bytes: int
    lsn: int  # of the last record; -1 = none was read
    link: str  # of the last record, in hex; "" = not known


Offsets = dict[str, ReadUpTo]  # by the beginning of the files' paths, DIR/member.incarnation


Settled = dict[str, int]  # by MEMBER.INCARNATION, the last segment that need not be read


class LogPart(NamedTuple):
    """New bytes of one segment."""

    key: str
    segment: int
    begin: int
    end: int
    lsn: int
    link: str


def advance(read: Offsets, places: list[Path], settled: Settled | None = None) -> Offsets:
    """Return the offsets up to which there are whole records now.

    They advance by at most STRETCH_BYTES in each incarnation and never beyond the end of one
    segment; `settled` segments are skipped.  An incarnation without any file has no offset, once
    there is a later one of its member.
    """
    there = segments_by_incarnation(places)
    newest: dict[str, int] = {}
    for key in there:
        member, incarnation = _owner(key)
        newest[member] = max(incarnation, newest.get(member, -1))
    now: Offsets = {
        key: where
        for key, where in read.items()
        if key in there or newest.get(_owner(key)[0], -1) < _owner(key)[1]
    }
    for key, found in sorted(there.items()):
        until = (settled or {}).get(Path(key).name, -1)
        segments = {number: path for number, path in found.items() if number > until}
        if not segments:
            continue
        where = read.get(key)
        if where is None:
            where = ReadUpTo(segment=min(segments), bytes=0, lsn=-1, link="")
        elif where["segment"] not in segments:
            later = [number for number in segments if number > where["segment"]]
            if not later:
                continue
            where = ReadUpTo(segment=min(later), bytes=0, lsn=-1, link="")
        further = _further(where, segments)
        if further is not None:
            now[key] = further
    return now


def settled_in(rows: list[Row]) -> Settled:
    """Return the segments that the rows of a saved checkpoint make unnecessary to read."""
    found: Settled = {}
    for row in rows:
        fits = _NAME.fullmatch(plain_name(Path(row.file).name))
        if row.kind == SEGMENT and fits:
            found[fits[1]] = max(found.get(fits[1], -1), int(fits[2]))
    return found


def unread_parts(read: Offsets, now: Offsets) -> list[LogPart]:
    """Return the parts of segments between two offsets."""
    found: list[LogPart] = []
    for key, where in sorted(now.items()):
        before = read.get(key)
        if before == where:
            continue
        if before is not None and before["segment"] == where["segment"]:
            begin, lsn, link = before["bytes"], before["lsn"], before["link"]
        else:
            begin, lsn, link = 0, -1, ""
        found.append(LogPart(key, where["segment"], begin, where["bytes"], lsn, link))
    return found


def read_part(part: LogPart) -> tuple[bytes, str, Continuation | None] | None:
    """Return the bytes of a part, a name for it, and where it continues; None for a client's log.

    Raises `BadInput` when the file went away meanwhile.
    """
    for _ in range(2):  # it may be compressed between looking and opening
        path = segments_by_incarnation([Path(part.key).parent]).get(part.key, {}).get(part.segment)
        if path is None:
            break
        head = _read(path, 0, HEADER_BYTES)
        data = _read(path, part.begin, part.end - part.begin)
        if head is None or data is None:
            continue
        header = header_of(head, str(path))
        if header is not None and header.role == ROLE_CLIENT:
            return None
        name = f"{path}@{part.begin}"
        if part.begin == 0:
            return data, name, None  # the parser reports a broken header
        if header is None:
            raise BadInput(f"{path}: its header cannot be read")
        after = After(part.lsn, bytes.fromhex(part.link))
        return data, name, Continuation(header.member, header.incarnation, header.segment, after)
    raise BadInput(f"segment {part.segment} of {part.key} went away before it was read")


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


def _further(where: ReadUpTo, segments: dict[int, Path]) -> ReadUpTo | None:
    """Return where the whole records of an incarnation end now; None where nothing is new."""
    number, begin = where["segment"], where["bytes"]
    later = [one for one in segments if one > number]  # looked up before the file is read
    data = _read(segments[number], begin, STRETCH_BYTES)
    if data == b"" and later:
        number, begin = min(later), 0
        where = ReadUpTo(segment=number, bytes=0, lsn=-1, link="")
        later = [one for one in segments if one > number]
        data = _read(segments[number], begin, STRETCH_BYTES)
    if data is None:
        return None  # compressed or deleted just now; the next look finds what is there instead
    whole, last = whole_records(data, begin == 0)
    if whole == 0 and len(data) == STRETCH_BYTES:  # one record is longer, or damage looks like it
        data = _read(segments[number], begin, RECORD_BYTES_MAX + STRETCH_BYTES) or b""
        whole, last = whole_records(data, begin == 0)
        if whole == 0 and later:
            whole = len(data)
    elif len(data) < STRETCH_BYTES and later:
        whole = len(data)
    if whole == 0:
        return None
    lsn, link = (where["lsn"], "") if last is None else last
    return ReadUpTo(segment=number, bytes=begin + whole, lsn=lsn, link=link)


def whole_records(data: bytes, first: bool) -> tuple[int, tuple[int, str] | None]:
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
    return end, (lsn, data[last + 8 : last + FRAME.size].hex())


def _read(path: Path, begin: int, size: int) -> bytes | None:
    """Return bytes of a segment; None when its file is gone."""
    try:
        if path.suffix != SUFFIX:
            return open_segment(path)[begin : begin + size]  # closed, so it is read once or twice
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except LogError as error:
        raise BadInput(str(error)) from error
