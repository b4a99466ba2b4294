"""Reader of one segment: bytes in, records out, every fault told.  Pure; see docs/MEMBERLOG.md.

After damage reading goes on where the next whole record is.  Bytes at the end that are no whole
record, with nothing readable after them, are a torn tail: a crash leaves that, and it is no damage.
A whole record that is none of this format is damage anywhere: no crash writes its checksum.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import msgpack

from tools.verify.format.records import (
    BEGINNINGS,
    End,
    Header,
    Record,
    RecordKind,
    RecordMalformed,
    decode,
    decode_written,
)

VERSION = 1
HASH_ALG = "blake2b-16"
MAGIC = b"QPIDLOG1"
FRAME = struct.Struct("<II8s")  # length and crc32 of the payload, link
RECORD_BYTES_MAX = 1 << 30
ENDS_BYTES = 16 << 10  # END is within so many bytes of the end
_HEAD = FRAME.size
_LINK = blake2b(digest_size=8)  # of nothing yet: its copy is made sooner than a new one
_BEGINNING = re.compile(b"|".join(map(re.escape, BEGINNINGS)))


class LogError(Exception):
    """A file of which nothing can be read."""


class Fault(NamedTuple):
    """Damage in a segment, after the record `lsn` (-1: before any)."""

    what: str
    lsn: int
    torn_tail: bool = False


class Entry(NamedTuple):
    """A record, its number and link, and where it ends in the segment."""

    lsn: int
    link: bytes
    end: int
    record: Record
    size: int  # of the payload


class After(NamedTuple):
    """The record of the incarnation that comes before."""

    lsn: int = -1  # -1: none, or not known
    link: bytes = b""  # b"": not known


NOTHING_BEFORE = After()


class Ends(NamedTuple):
    """Both ends of a segment."""

    header: Header
    first_lsn: int
    end: End | None  # None: it was not closed
    last_lsn: int  # of the closing record; -1, b"" without one
    link: bytes


def read_segment(
    data: bytes, source: str, faults: list[Fault], after: After = NOTHING_BEFORE, *,
    begins: bool = True, decode: Callable[[bytes], tuple[int, Any]] = decode,
) -> Iterator[Entry]:  # fmt: skip
    """Yield the records of a segment, or, where it does not begin here, of a later part of one.

    Faults are added to the list before the record that follows them is yielded.  Raises `LogError`
    for what is no segment, or one of another version.
    """
    offset, (lsn, link) = len(MAGIC) if begins else 0, after
    if begins:
        if not _has_magic(data, source):
            faults.append(Fault("the segment has no beginning", lsn, torn_tail=True))
            return
        said = _link_before(data, source)
        link = link or said
    frame, size, new, begun = FRAME.unpack_from, len(data), tuple.__new__, _LINK.copy
    while offset < size:
        while link and offset + _HEAD < size:  # few calls over what follows: most of the cost
            length, checksum, own_link = frame(data, offset)
            end = offset + _HEAD + length
            payload = data[offset + _HEAD : end]
            if end > size or crc32(payload) != checksum:
                break
            try:
                number, record = decode(payload)
            except RecordMalformed:
                break
            linked = begun()
            linked.update(link + payload)
            if number != lsn + 1 != 0 or linked.digest() != own_link:
                break
            if begins and not isinstance(record, Header):
                break
            lsn, link, offset, begins = number, own_link, end, False
            yield new(Entry, (lsn, link, end, record, length))
        if offset == size:
            return
        whole = _payload_at(data, offset)
        if whole is None:
            if (begin := _next_whole(data, offset)) is None:
                faults.append(Fault("the last record is not complete", lsn, torn_tail=True))
                return
            faults.append(Fault("a record fails its checksum", lsn))
            offset, link = begin, b""
            continue
        payload, own_link = whole, data[offset + 8 : offset + _HEAD]
        offset += _HEAD + len(payload)
        try:
            number, record = decode(payload)
        except RecordMalformed as error:
            faults.append(Fault(str(error), lsn))
            link = b""
            continue
        if begins and not isinstance(record, Header):
            faults.append(Fault("the segment does not begin with its header", lsn))
        elif link and (what := _discontinuity(lsn, link, number, payload, own_link)):
            faults.append(Fault(what, lsn))
        lsn, link, begins = number, own_link, False
        yield Entry(lsn, link, offset, record, len(payload))


def read_kinds(data: bytes, *kinds: RecordKind) -> Iterator[tuple[int, Record]]:
    """Yield number and record of those of some kinds in a segment that was found whole: by lengths,
    all else unread, and moves as they are written.
    """
    beginnings = tuple(BEGINNINGS[kind - 1] for kind in kinds)
    offset, frame, size = len(MAGIC), FRAME.unpack_from, len(data)
    while offset + _HEAD < size:
        begin = offset + _HEAD
        offset = begin + frame(data, offset)[0]
        if data.startswith(beginnings, begin):
            with suppress(RecordMalformed):
                yield decode_written(data[begin:offset])


def _has_magic(data: bytes, source: str) -> bool:
    """Whether a segment begins as it should; raises `LogError` where it is none."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise LogError(f"{source}: this is not a member log")
    return len(data) >= len(MAGIC)


def _link_of(before: bytes, payload: bytes) -> bytes:
    hashed = _LINK.copy()
    hashed.update(before + payload)
    return hashed.digest()


def _discontinuity(lsn: int, link: bytes, number: int, payload: bytes, own_link: bytes) -> str:
    """Return how a record does not continue the one before it, "" where it does."""
    if lsn >= 0 and number != lsn + 1:
        return f"lsn {number} follows lsn {lsn}"
    if _link_of(link, payload) != own_link:
        return f"the link of lsn {number} does not continue the one before"
    return ""


def read_ends(file: BinaryIO, size: int, source: str) -> Ends:
    """Return header and END of a segment, which has this size, without reading what is between;
    raises `LogError`.
    """
    head = file.read(min(ENDS_BYTES, size))
    if not _has_magic(head, source):
        raise LogError(f"{source}: this is not a member log")
    _link_before(head, source)
    first = _record_at(head, len(MAGIC))
    if first is None or not isinstance(first[1], Header):
        raise LogError(f"{source}: the segment does not begin with its header")
    begin = file.seek(max(size - ENDS_BYTES, 0))
    tail = file.read(size - begin)
    for offset in range(len(tail) - _HEAD, -1, -1):
        if offset + _HEAD + int(FRAME.unpack_from(tail, offset)[0]) != len(tail):
            continue
        found = _record_at(tail, offset)
        if found is None:
            continue
        lsn, record = found
        if not isinstance(record, End):
            break
        return Ends(first[1], first[0], record, lsn, tail[offset + 8 : offset + _HEAD])
    return Ends(first[1], first[0], None, -1, b"")


def _record_at(data: bytes, offset: int) -> tuple[int, Record] | None:
    """Return number and record at a place; None: there is none."""
    payload = _payload_at(data, offset)
    with suppress(RecordMalformed):
        return None if payload is None else decode(payload)
    return None


def _payload_at(data: bytes, offset: int) -> bytes | None:
    begin = offset + _HEAD
    if begin > len(data):
        return None
    length, checksum, _ = FRAME.unpack_from(data, offset)
    if not 0 < length <= min(RECORD_BYTES_MAX, len(data) - begin):
        return None
    payload = data[begin : begin + length]
    return payload if crc32(payload) == checksum else None


def _next_whole(data: bytes, offset: int) -> int | None:
    """Return where the next whole record begins after a bad one, however far that is.

    A loss of power leaves a hole where nothing was written, of any size.
    """
    for found in _BEGINNING.finditer(data, offset + 1 + _HEAD):
        if _record_at(data, begin := found.start() - _HEAD) is not None:
            return begin
    return None


def _link_before(data: bytes, source: str) -> bytes:
    """Return the link that a segment continues, b"" where its header cannot be read.

    Raises `LogError` for another version before anything else of it is read.
    """
    payload = _payload_at(data, len(MAGIC))
    try:
        fields = msgpack.unpackb(payload or b"", use_list=False)
        kind, version = fields[0], fields[2]
    except (ValueError, TypeError, LookupError, msgpack.UnpackException):
        return b""
    if kind == RecordKind.HEADER and version != VERSION:
        what = f"format version {version}; this release reads {VERSION}"
        raise LogError(f"{source}: {what}: check it with the release that wrote it")
    first = _record_at(data, len(MAGIC))
    if first is None or not isinstance(first[1], Header):
        return b""
    if first[1].hash_alg != HASH_ALG:
        what = f"hashes of kind {first[1].hash_alg}; this release knows {HASH_ALG}"
        raise LogError(f"{source}: {what}")
    return first[1].prev_link
