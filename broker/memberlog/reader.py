"""Reads one segment of a member log: bytes in, records out, every fault named.

Pure. Reading ends with the first fault, which is an exception. How a fault is judged:

- bytes at the end that are not a whole record, with nothing readable after them: `TornTail`, which
  a crash leaves behind. What followed is unknown; nothing is wrong;
- the same with records readable after it, or a whole record that is not of this format: `Damaged`,
  because a crash does not do that;
- a whole record whose number does not follow: `MissingRecords`;
- a whole record whose link does not follow: `BrokenLink`: it or the one before was altered.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from os import SEEK_END
from typing import BinaryIO, NamedTuple
from zlib import crc32

import msgpack

from broker.memberlog.codec import (
    FIRST_BYTES,
    FRAME,
    MAGIC,
    RECORD_BYTES_MAX,
    RecordMalformed,
    decode,
)
from broker.memberlog.records import HASH_ALG, VERSION, End, Header, Record, RecordKind

ENDS_BYTES = 16 << 10  # a closing record with all its marks is less than half of this
NO_HEADER = "the segment does not begin with its header"


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
    """The segment was written in a format that this release cannot read."""


class TornTail(LogError):
    """The end of the segment was not written completely."""


class Damaged(LogError):
    """A record in the middle cannot be read."""


class MissingRecords(LogError):
    """Records between this one and the previous one are missing."""


class BrokenLink(LogError):
    """The record does not continue the one before it."""


class Entry(NamedTuple):
    """One record with its number, its link, and where it ends in the segment."""

    lsn: int
    link: bytes
    end: int
    record: Record
    payload: bytes


def read_segment(data: bytes, source: str) -> Iterator[Entry]:
    """Yield the records of a segment, the header first; raises the first fault.

    Reading on behind damage is left to the check, which has its own reader.
    """
    if data[: len(MAGIC)] != MAGIC:
        if MAGIC.startswith(data[: len(MAGIC)]):
            raise TornTail(source, 0, -1, "the segment has no beginning")
        raise NotALog(source, 0, -1, "this is not a member log")
    offset, size = len(MAGIC), len(data)
    if offset == size:
        return
    number, header = _header(data, source)
    lsn, link = number - 1, header.prev_link
    frame, head = FRAME.unpack_from, FRAME.size
    # One loop with as few calls as possible: it is most of the cost of reading a log.
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
    if offset < size:
        # Of the first record nothing is known but its own content.
        raise _fault_at(data, source, offset, lsn if offset > len(MAGIC) else -1)


class Ends(NamedTuple):
    """The two ends of a segment, read without the records between them."""

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
    try:
        first_lsn, header = _header(head, source)
    except TornTail as error:  # in this case the segment has further records
        raise Damaged(source, len(MAGIC), -1, NO_HEADER) from error
    size = file.seek(0, SEEK_END)
    file.seek(max(size - ENDS_BYTES, 0))
    tail = file.read(ENDS_BYTES)
    for offset in range(len(tail) - FRAME.size, -1, -1):
        length = FRAME.unpack_from(tail, offset)[0]
        if offset + FRAME.size + length != len(tail):
            continue
        payload = _payload_at(tail, offset)
        if payload is None or not _is_record(payload):
            continue
        lsn, record = decode(payload)
        if isinstance(record, End):
            return Ends(header, first_lsn, record, lsn, tail[offset + 8 : offset + FRAME.size])
        break
    return Ends(header, first_lsn, None, -1, b"")


def _header(data: bytes, source: str) -> tuple[int, Header]:
    """Return the number of the first record, and its content."""
    offset = len(MAGIC)
    payload = _payload_at(data, offset)
    if payload is None:
        raise _fault_at(data, source, offset, -1)
    _check_version(payload, source, offset)
    try:
        lsn, record = decode(payload)
    except RecordMalformed as error:
        raise Damaged(source, offset, -1, str(error)) from error
    if not isinstance(record, Header):
        raise Damaged(source, offset, -1, NO_HEADER)
    if record.hash_alg != HASH_ALG:
        what = f"hashes of kind {record.hash_alg}; this release knows {HASH_ALG}"
        raise OtherVersion(source, offset, -1, what)
    return lsn, record


def _fault_at(data: bytes, source: str, offset: int, lsn: int) -> LogError:
    """Return what is wrong with the record at `offset`, which follows the record `lsn`."""
    payload = _payload_at(data, offset)
    if payload is None:
        if _has_record_after(data, offset):
            return Damaged(source, offset, lsn, "a record fails its checksum")
        return TornTail(source, offset, lsn, "the last record is not complete")
    try:
        number, _ = decode(payload)
    except RecordMalformed as error:
        return Damaged(source, offset, lsn, str(error))
    if lsn >= 0 and number != lsn + 1:
        return MissingRecords(source, offset, lsn, f"lsn {number} follows lsn {lsn}")
    what = f"the link of lsn {number} does not continue the one before"
    return BrokenLink(source, offset, lsn, what)


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


def _has_record_after(data: bytes, offset: int) -> bool:
    """Whether a whole record begins anywhere after `offset`.

    Only places that look like the beginning of a payload are tried: a power loss may leave a hole
    of any size.
    """
    for found in FIRST_BYTES.finditer(data, offset + 1 + FRAME.size):
        payload = _payload_at(data, found.start() - FRAME.size)
        if payload is not None and _is_record(payload):
            return True
    return False


def _is_record(payload: bytes) -> bool:
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
    if kind == RecordKind.HEADER and version != VERSION:
        what = f"format version {version}; this release reads {VERSION}"
        raise OtherVersion(source, offset, -1, f"{what}: check it with the release that wrote it")
