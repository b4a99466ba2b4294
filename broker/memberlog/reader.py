"""Reading one segment of a member log: bytes in, records out, every fault named.

Pure.  Faults are exceptions; a caller that must see as much as possible passes a list for them, and
reading then continues after the damage.  How a fault is judged:

- bytes at the end that are no whole record, with nothing readable after them: `TornTail`, which a
  crash leaves behind.  What followed is unknown, nothing is wrong;
- the same with records readable after it: `Damaged`, because a crash does not do that;
- a whole record whose number does not follow: `MissingRecords`;
- a whole record whose link does not follow: `BrokenLink`: it or the one before was altered.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from hashlib import blake2b
from os import SEEK_END
from typing import BinaryIO, NamedTuple
from zlib import crc32

import msgpack

from broker.memberlog.codec import (
    FRAME,
    MAGIC,
    RECORD_BYTES_MAX,
    RecordMalformed,
    decode,
    next_link,
)
from broker.memberlog.records import HASH_ALG, VERSION, VERSION_MIN, End, Header, Record, RecordKind

ENDS_BYTES = 16 << 10  # a closing record with all its marks is less than half of this
RESYNC_BYTES = 1 << 20  # hardly a record is longer, so a good one starts within


class LogError(Exception):
    """Base of the faults of a segment; `lsn` is the last good record's, -1 for none."""

    def __init__(self, source: str, offset: int, lsn: int, what: str) -> None:
        self.source, self.offset, self.lsn, self.what = source, offset, lsn, what
        super().__init__(f"{source}: {what} (byte {offset}, after lsn {lsn})")

    def __reduce__(self) -> tuple[type[LogError], tuple[str, int, int, str]]:
        return type(self), (self.source, self.offset, self.lsn, self.what)


class NotALog(LogError):
    """The file is not a member log."""


class OtherVersion(LogError):
    """The segment was written in a format that this release does not read."""


class TornTail(LogError):
    """The end of the segment was not written completely."""


class Damaged(LogError):
    """A record in the middle cannot be read."""


class MissingRecords(LogError):
    """Records between this one and the one before are not there."""


class BrokenLink(LogError):
    """The record does not continue the one before it."""


class Entry(NamedTuple):
    """One record with its number, its link, and where it ends in the segment."""

    lsn: int
    link: bytes
    end: int
    record: Record
    payload: bytes


def read_segment(data: bytes, source: str, faults: list[LogError] | None = None) -> Iterator[Entry]:
    """Yield the records of a segment, the header first.

    Without `faults` the first one is raised.  With it, faults are appended (each before the entry
    that comes after it) and reading continues where it can; `NotALog` and `OtherVersion` are raised
    in any case, as nothing could be read.
    """
    if data[: len(MAGIC)] != MAGIC:
        if MAGIC.startswith(data[: len(MAGIC)]):
            yield from _fault(TornTail(source, 0, -1, "the segment has no beginning"), faults)
            return
        raise NotALog(source, 0, -1, "this is not a member log")
    offset, lsn, link = len(MAGIC), -1, b""
    while offset < len(data):
        if link:
            lsn, link, offset = yield from _undamaged(data, offset, lsn, link)
            if offset == len(data):
                return
        found = _record_at(data, offset, source, first=lsn < 0)
        if isinstance(found, str):
            resumed = _resync(data, offset)
            if resumed is None:
                fault: LogError = TornTail(source, offset, lsn, "the last record is not complete")
                yield from _fault(fault, faults)
                return
            yield from _fault(Damaged(source, offset, lsn, found), faults)
            offset, link = resumed, b""
            continue
        if lsn < 0:
            if not isinstance(found.record, Header):
                what = "the segment does not begin with its header"
                yield from _fault(Damaged(source, offset, lsn, what), faults)
            link = _link_before(found.record, source, offset)
        # After damage there is no link to compare with, and the damage itself was reported.
        if link and lsn >= 0 and found.lsn != lsn + 1:
            what = f"lsn {found.lsn} follows lsn {lsn}"
            yield from _fault(MissingRecords(source, offset, lsn, what), faults)
        elif link and next_link(link, found.payload) != found.link:
            what = f"the link of lsn {found.lsn} does not continue the one before"
            yield from _fault(BrokenLink(source, offset, lsn, what), faults)
        offset += FRAME.size + len(found.payload)
        lsn, link = found.lsn, found.link
        yield Entry(lsn, link, offset, found.record, found.payload)


def _undamaged(
    data: bytes, offset: int, lsn: int, link: bytes
) -> Generator[Entry, None, tuple[int, bytes, int]]:
    """Yield the records that are whole and continue one another: all, but in a damaged segment.
    Return the number and the link of the last one, and where it ends.

    One loop with as few calls as possible: it is most of the cost of reading a log.
    """
    frame, head, size = FRAME.unpack_from, FRAME.size, len(data)
    while offset + head < size:
        length, checksum, own_link = frame(data, offset)
        start = offset + head
        end = start + length
        payload = data[start:end]
        if end > size or length > RECORD_BYTES_MAX or crc32(payload) != checksum:
            break
        try:
            number, record = decode(payload)
        except RecordMalformed:
            break
        if number != lsn + 1 or blake2b(link + payload, digest_size=8).digest() != own_link:
            break
        lsn, link, offset = number, own_link, end
        yield tuple.__new__(Entry, (lsn, link, end, record, payload))
    return lsn, link, offset


class Ends(NamedTuple):
    """The two ends of a segment, read without what is between them."""

    header: Header
    first_lsn: int
    end: End | None  # None: still open, or cut by a crash
    last_lsn: int  # of the closing record, -1 without one
    link: bytes  # of the closing record, b"" without one


def read_ends(file: BinaryIO, source: str) -> Ends:
    """Return the header and the closing record of a segment.

    Raises `NotALog`, `OtherVersion`, or `Damaged` for a header that cannot be read.
    """
    head = file.read(ENDS_BYTES)
    if head[: len(MAGIC)] != MAGIC:
        raise NotALog(source, 0, -1, "this is not a member log")
    first = _record_at(head, len(MAGIC), source, first=True)
    if isinstance(first, str) or not isinstance(first.record, Header):
        raise Damaged(source, len(MAGIC), -1, "the segment does not begin with its header")
    size = file.seek(0, SEEK_END)
    file.seek(max(size - ENDS_BYTES, 0))
    tail = file.read(ENDS_BYTES)
    for offset in range(len(tail) - FRAME.size, -1, -1):
        length = FRAME.unpack_from(tail, offset)[0]
        if offset + FRAME.size + length != len(tail):
            continue
        found = _record_at(tail, offset, source, first=False)
        if isinstance(found, str):
            continue
        if isinstance(found.record, End):
            return Ends(first.record, first.lsn, found.record, found.lsn, found.link)
        break
    return Ends(first.record, first.lsn, None, -1, b"")


class _Found(NamedTuple):
    lsn: int
    record: Record
    payload: bytes
    link: bytes


def _record_at(data: bytes, offset: int, source: str, first: bool) -> _Found | str:
    """Return the record at `offset`, or why there is none."""
    payload = _payload_at(data, offset)
    if payload is None:
        return "a record fails its checksum"
    if first:
        _check_version(payload, source, offset)
    try:
        lsn, record = decode(payload)
    except RecordMalformed as error:
        return str(error)
    return _Found(lsn, record, payload, data[offset + 8 : offset + FRAME.size])


def _fault(fault: LogError, faults: list[LogError] | None) -> Iterator[Entry]:
    if faults is None:
        raise fault
    faults.append(fault)
    yield from ()


def _payload_at(data: bytes, offset: int) -> bytes | None:
    """Return the payload of the record at `offset` if there is a whole one."""
    if offset + FRAME.size > len(data):
        return None
    length, checksum, _ = FRAME.unpack_from(data, offset)
    start = offset + FRAME.size
    if not 0 < length <= RECORD_BYTES_MAX or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32(payload) == checksum else None


def _resync(data: bytes, offset: int) -> int | None:
    """Return where the next whole record starts after a bad one, None when there is none."""
    if offset + FRAME.size <= len(data):
        after = offset + FRAME.size + int(FRAME.unpack_from(data, offset)[0])
        if after < len(data) and _is_record(data, after):
            return after
    for candidate in range(offset + 1, min(offset + RESYNC_BYTES, len(data) - FRAME.size)):
        if _is_record(data, candidate):
            return candidate
    return None


def _is_record(data: bytes, offset: int) -> bool:
    payload = _payload_at(data, offset)
    if payload is None:
        return False
    try:
        decode(payload)
    except RecordMalformed:
        return False
    return True


def _check_version(payload: bytes, source: str, offset: int) -> None:
    """Refuse another version before anything else is read from its header."""
    try:
        fields = msgpack.unpackb(payload, use_list=False)
        kind, _, version = fields[0], fields[1], fields[2]
    except (ValueError, TypeError, IndexError, msgpack.UnpackException):
        return
    if kind == RecordKind.HEADER and version not in range(VERSION_MIN, VERSION + 1):
        what = (
            f"format version {version}; this release reads {VERSION_MIN} to {VERSION}: "
            "check it with the release that wrote it"
        )
        raise OtherVersion(source, offset, -1, what)


def _link_before(record: Record, source: str, offset: int) -> bytes:
    """Return the link that the first record of a segment continues."""
    if not isinstance(record, Header):
        return b""
    if record.hash_alg != HASH_ALG:
        what = f"hashes of kind {record.hash_alg}; this release knows {HASH_ALG}"
        raise OtherVersion(source, offset, -1, what)
    return record.prev_link
