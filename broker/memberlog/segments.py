"""Segment files: their names, plain and compressed forms, and reading.

A compressed segment is an ordinary gzip file of two members: everything but the last few KiB, then
these. An extra field in the first header says where the second member begins, so that the closing
record can be read alone. While a segment is being compressed both forms exist; they hold the same,
and the plain one is read.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from broker.memberlog.reader import ENDS_BYTES, Damaged, Ends, read_ends
from broker.memberlog.records import SUFFIX

PACKED = ".gz"
LEVEL = 1  # higher ones make it no smaller: half of it is hashes
_HEAD = struct.Struct("<4sIBB")  # magic, method and flags; time; extra flags; system
_EXTRA = struct.Struct("<H2sHQQ")  # bytes of the field, its name and length, raw size, tail's place
_TRAILER = struct.Struct("<II")
_GZIP = 16 + zlib.MAX_WBITS
_UNREADABLE = "the compressed file cannot be read"
_NAME, _FLAG_EXTRA = b"QM", 4
_UNSAFE = re.compile(r"[^A-Za-z0-9.:@_-]")


def segment_name(member: str, incarnation: int, segment: int) -> str:
    """Return the file name of a segment."""
    return f"{_UNSAFE.sub('_', member)}.{incarnation}.{segment:06d}{SUFFIX}"


def plain_name(name: str) -> str:
    """Return the name of a segment before compression."""
    return name.removesuffix(PACKED)


def is_segment(name: str) -> bool:
    """Whether a file of this name is a segment, in either form."""
    return plain_name(name).endswith(SUFFIX)


def segments_in(directory: Path) -> list[Path]:
    """Return the segments in a directory, each in one form, by incarnation and number."""
    return one_of_each(path for path in directory.iterdir() if is_segment(path.name))


def one_of_each(paths: Iterable[Path]) -> list[Path]:
    """Return each segment once, the plain form if both exist, by incarnation and number."""
    found: dict[Path, Path] = {}
    for path in sorted(paths):  # the plain form comes first
        found.setdefault(path.with_name(plain_name(path.name)), path)
    return [path for _, path in sorted(found.items(), key=lambda item: _order(item[0]))]


def _order(path: Path) -> tuple[Path, str, int, int]:
    """Incarnations as numbers, not as text."""
    name, *numbers = path.name.removesuffix(SUFFIX).rsplit(".", 2)
    if len(numbers) == 2 and all(number.isdigit() for number in numbers):
        return path.parent, name, int(numbers[0]), int(numbers[1])
    return path.parent, path.name, -1, -1


def open_segment(path: Path) -> bytes:
    """Return the bytes of a segment. A plain one may be compressed between its listing and now.

    Raises OSError, and `Damaged` for an incomplete compressed file.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if path.name.endswith(PACKED):
            raise
        path = path.with_name(path.name + PACKED)
        data = path.read_bytes()
    return unpack(data, str(path)) if path.name.endswith(PACKED) else data


def ends_of(path: Path) -> Ends:
    """Return header and closing record of a segment without reading the records between.

    Raises OSError, and the `LogError`s of `read_ends`.
    """
    try:
        with path.open("rb") as file:
            if not path.name.endswith(PACKED):
                return read_ends(file, str(path))
            return read_ends(BytesIO(_packed_ends(file, str(path))), str(path))
    except FileNotFoundError:
        if path.name.endswith(PACKED):
            raise
        return ends_of(path.with_name(path.name + PACKED))


def pack(data: bytes) -> bytes:
    """Return a segment compressed."""
    body, tail = data[:-ENDS_BYTES], data[-ENDS_BYTES:]
    first = _deflate(body)
    place = _HEAD.size + _EXTRA.size + len(first)
    head = _HEAD.pack(b"\x1f\x8b\x08" + bytes([_FLAG_EXTRA]), 0, 0, 255)
    extra = _EXTRA.pack(_EXTRA.size - 2, _NAME, _EXTRA.size - 6, len(data), place)
    return head + extra + first + gzip.compress(tail, LEVEL, mtime=0)


def unpack(data: bytes, source: str) -> bytes:
    """Return the segment in a file made by `pack`, or by any gzip."""
    try:
        whole = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(source, 0, -1, f"{_UNREADABLE}: {error}") from error
    declared = _declared(data)
    if not data or (declared is not None and declared[0] != len(whole)):  # cut between its members
        raise Damaged(source, 0, -1, f"{_UNREADABLE}: its end is missing")
    return whole


def _deflate(data: bytes) -> bytes:
    """Return the body and the trailer of a gzip member."""
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    return body + _TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFF_FFFF)


def _packed_ends(file: BinaryIO, source: str) -> bytes:
    """Return the first and the last bytes of a compressed segment, or all of it."""
    head = file.read(2 * ENDS_BYTES)
    declared = _declared(head)
    if declared is None or declared[0] <= 2 * ENDS_BYTES:
        return unpack(head + file.read(), source)
    try:
        first = zlib.decompressobj(_GZIP).decompress(head, ENDS_BYTES)
    except zlib.error as error:
        raise Damaged(source, 0, -1, f"{_UNREADABLE}: {error}") from error
    file.seek(declared[1])
    return first + unpack(file.read(), source)


def _declared(data: bytes) -> tuple[int, int] | None:
    """Return the extra field written by `pack`: the uncompressed size, and where the second member
    begins. None: another program compressed it."""
    if len(data) < _HEAD.size + _EXTRA.size or not data[3] & _FLAG_EXTRA:
        return None
    _, name, _, size, place = _EXTRA.unpack_from(data, _HEAD.size)
    return (size, place) if name == _NAME else None
