"""The journal of a store: small commits that are durable but not in LMDB yet, in one file.

A commit of LMDB is two flushes of the disk, one after the other; a record here is one write that
returns when it is durable. Opening a store moves the journal's remaining records into LMDB, and
creates the file anew before writing there. From then on the file has its full length, and is
written from its beginning again whenever LMDB durably holds everything in it. So behind the newest
record there may be older ones, and the rest of one that a crash cut off. Positions only grow within
the life of a file. The valid records are those that follow, one after the other, the last position
in LMDB.

    file    head, record*; each begins at a multiple of 4096, so no write touches what is durable
    head    "QJ01" | bytes of the file u64 | salt 16 | store's id: its length u32, and itself
            | checksum 8
    record  "QJ02" | value length u32 | meta length u32 | first u64 | last u64 | value | meta
            | checksum 8

Integers are big-endian; value and meta are the same bytes as LMDB's for an entry (`store.schema`).
Checksums are xxh3-64. That of a record also covers the salt of its file and is seeded with its
first position, so neither a client's message nor data from another life of the file passes for a
record.
Decision: docs/decisions/0071-small-commits-go-to-a-journal.md.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_digest

from store.errors import NO_SPACE
from store.files.durable_files import sync_directory
from store.files.space import has_room_for

JOURNAL_NAME = "journal"
JOURNAL_BYTES = 1 << 20
ENTRY_BYTES_MAX = 64 << 10
"""A larger entry goes directly to LMDB: writing it twice costs more than a flush."""
BLOCK_BYTES = 4096

_HEAD_MAGIC, _MAGIC = b"QJ01", b"QJ02"
_FILE_HEAD = struct.Struct(">4sQ16sI")
_SALT_BYTES = 16
_HEAD = struct.Struct(">4sIIQQ")
_CHECKSUM_BYTES = 8


class Record(NamedTuple):
    """An entry as LMDB holds it, with the meta record that follows it."""

    first: int
    last: int
    value: bytes
    meta: bytes


class Journal:
    """The journal of one open store, for its writer; closed until the first small commit."""

    def __init__(self, directory: Path, size: int) -> None:
        """`size` 0: no journal."""
        self.path, self._size = directory / JOURNAL_NAME, size
        self._id = self._salt = b""
        self._fd, self._end = -1, 0
        self._file_id: tuple[int, int] | None = None
        self.waiting: list[Record] = []
        """The records that LMDB does not hold yet. Replaced by a new list once it does: readers may
        hold this one."""
        self.waiting_bytes = 0

    def open(self, store_id: str) -> bool:
        """Create the file, unless that was done already; False: there is no space for it.

        LMDB must hold everything that an earlier process left in the journal (or, if the store got
        another id meanwhile, everything in the journal now). Raises OSError.
        """
        if self._fd >= 0 and store_id.encode() == self._id:
            return True
        assert not self.waiting
        self.close()
        if not self._size or not has_room_for(self.path.parent, self._size):
            return False  # the remaining space keeps the member running
        self._id, self._salt = store_id.encode(), secrets.token_bytes(_SALT_BYTES)
        try:
            self._create()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._size = 0  # a quota, say: do not try with each commit
            return False
        self._fd = os.open(self.path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        self._file_id = _file_id(os.fstat(self._fd))
        self._end = BLOCK_BYTES
        return True

    def _create(self) -> None:
        """Create the file with all blocks written before they count, so that no append allocates.

        Blocks are written one by one: the system would make one large piece of its cache of a
        single write, and look at all blocks of that piece with each later append.
        Decision: docs/decisions/0146-what-one-small-message-takes.md.
        """
        fresh = _unfinished(self.path)
        content = _head(self._size, self._salt, self._id).ljust(self._size, b"\0")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            for at in range(0, self._size, BLOCK_BYTES):
                block = content[at : at + BLOCK_BYTES]
                if os.pwrite(fd, block, at) != len(block):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        fresh.rename(self.path)
        sync_directory(self.path.parent)

    def has_room(self, record: Record) -> bool:
        """Whether the record may be appended."""
        return self._end + _blocks(record) <= self._size

    def append(self, record: Record) -> None:
        """Make the record durable. After an OSError it is unknown whether it is there."""
        content = _encode(record, self._salt)
        if os.pwrite(self._fd, content, self._end) != len(content):
            raise OSError(errno.EIO, "the journal was not written whole")
        self._end += len(content)
        self.waiting.append(record)
        self.waiting_bytes += len(record.value)

    def restart(self) -> None:
        """LMDB durably holds all records: write from the beginning again."""
        self._end = BLOCK_BYTES
        if self.waiting:
            self.waiting, self.waiting_bytes = [], 0

    def misplaced(self) -> str:
        """Return why a restart would not find what is written here, or nothing. Asks the disk."""
        opened = self._file_id
        try:
            if opened is not None and _file_id(self.path.stat()) != opened:
                return f"{self.path} is not the file that this broker has open"
        except OSError as error:
            return f"{self.path}: {error.strerror} ({errno.errorcode[error.errno or 0]})"
        return ""

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._file_id = -1, None


def discard_half_made(directory: Path) -> None:
    """Remove the file of a process that was killed while creating it."""
    with suppress(OSError):  # it counts for nothing
        _unfinished(directory / JOURNAL_NAME).unlink()


def _unfinished(path: Path) -> Path:
    return path.with_suffix(".new")


def content(directory: Path) -> bytes:
    """Return the journal of a store that another process may have open; empty: there is none.

    Read it before LMDB: records that leave the journal afterwards are there. Raises OSError.
    """
    try:
        return (directory / JOURNAL_NAME).read_bytes()
    except FileNotFoundError:
        return b""


def records_after(data: bytes, store_id: str, position: int) -> tuple[list[Record], str]:
    """Return the journal's records after `position`, and a fault that no crash explains ("": none).

    Each record was written when the previous one was durable. So a whole record behind a broken one
    means damage, or that the store restarted the journal during the read. Records that LMDB holds
    too are skipped: its last commit may be there although the flush failed.
    """
    found: list[Record] = []
    if wrong := _wrong_head(data, store_id):
        return found, wrong
    at, salt = BLOCK_BYTES, _FILE_HEAD.unpack_from(data)[2]
    while (record := _decode(data, at, salt)) is not None:
        if record.first == position + 1:
            found.append(record)
            position = record.last
        elif record.last > position:
            break
        at += _blocks(record)
    for behind in range(at, len(data), BLOCK_BYTES):
        record = _decode(data, behind, salt)
        if record is not None and record.last > position:
            return found, f"a record is damaged before the one of position {record.first}"
    return found, ""


def _head(size: int, salt: bytes, key: bytes) -> bytes:
    body = _FILE_HEAD.pack(_HEAD_MAGIC, size, salt, len(key)) + key
    return body + xxh3_64_digest(body)


def _wrong_head(data: bytes, store_id: str) -> str:
    if not data:
        return "the journal is missing, and with it what was committed last"
    if len(data) < _FILE_HEAD.size:
        return "the journal is cut short"
    _, size, salt, length = _FILE_HEAD.unpack_from(data)
    end = _FILE_HEAD.size + length
    key = data[_FILE_HEAD.size : end]
    if data[: end + _CHECKSUM_BYTES] != _head(size, salt, key):
        return "the head of the journal is damaged"
    if key != store_id.encode():
        return "the journal is that of another store"
    return "" if len(data) >= size else "the journal is cut short"


def _encode(record: Record, salt: bytes) -> bytes:
    """Return the record as stored in the file, with padding to the end of its last block."""
    first, last, value, meta = record
    head = _HEAD.pack(_MAGIC, len(value), len(meta), first, last)
    checksum = xxh3_64(salt, seed=first)
    for part in (head, value, meta):
        checksum.update(part)
    size = _HEAD.size + len(value) + len(meta) + _CHECKSUM_BYTES
    return b"".join((head, value, meta, checksum.digest(), bytes(-size % BLOCK_BYTES)))


def _blocks(record: Record) -> int:
    """Return the bytes that the record takes in the file."""
    size = _HEAD.size + len(record.value) + len(record.meta) + _CHECKSUM_BYTES
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _decode(data: bytes, at: int, salt: bytes) -> Record | None:
    """Return the record at `at`; None if there is no whole record."""
    start = at + _HEAD.size
    if start > len(data):
        return None
    magic, value_size, meta_size, first, last = _HEAD.unpack_from(data, at)
    end = start + value_size + meta_size
    if magic != _MAGIC or end + _CHECKSUM_BYTES > len(data):
        return None
    if xxh3_64_digest(salt + data[at:end], seed=first) != data[end : end + _CHECKSUM_BYTES]:
        return None
    return Record(first, last, data[start : start + value_size], data[start + value_size : end])


def _file_id(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
