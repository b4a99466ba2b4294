"""Files of segments: their names, plain or compressed, and the note of what was dropped."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterable
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from tools.verify.format import pins
from tools.verify.format.reader import ENDS_BYTES, Ends, LogError, read_ends
from tools.verify.format.records import SUFFIX

PACKED = ".gz"
DROPPED_NAME = "dropped"
_EXTRA = struct.Struct("<2sHQQ")  # name and length of the field, size, place of the second member
_EXTRA_AT = 12  # after the ten bytes of a gzip header and the length of all its extra fields
_FLAG_EXTRA = 4


def plain_name(name: str) -> str:
    return name.removesuffix(PACKED)


def is_segment(name: str) -> bool:
    return plain_name(name).endswith(SUFFIX)


def one_of_each(paths: Iterable[Path]) -> list[Path]:
    """Return each segment once, the plain file where both are there, by incarnation and number."""
    found: dict[Path, Path] = {}
    for path in sorted(paths):  # the plain one comes first
        found.setdefault(path.with_name(plain_name(path.name)), path)
    return [found[one] for one in sorted(found, key=lambda one: (one.parent, *identity_of(one)))]


def identity_of(path: Path) -> tuple[str, int, int]:
    """Return member, incarnation and segment as the name of a file has them, where it does: else
    -1.  The member's name is in letters that file systems have.
    """
    name = plain_name(path.name).removesuffix(SUFFIX)
    member, *numbers = name.rsplit(".", 2)
    if len(numbers) == 2 and all(one.isdecimal() for one in numbers):
        return member, int(numbers[0]), int(numbers[1])
    return name, -1, -1


def open_segment(path: Path) -> bytes:
    """Return the bytes of a segment, also where it has been compressed since it was listed.

    Raises OSError, and `LogError` for a compressed file that is not whole.
    """
    try:
        data = pins.bytes_of(path)
    except FileNotFoundError:
        if path.name.endswith(PACKED):
            raise
        path = path.with_name(path.name + PACKED)
        data = pins.bytes_of(path)
    return _unpack(data, str(path)) if path.name.endswith(PACKED) else data


def first_bytes(path: Path, most: int) -> bytes:
    """Return the first bytes of a segment; raises OSError, EOFError and zlib.error."""
    with pins.opened(path) as file:
        if path.name.endswith(PACKED):
            return gzip.open(file).read(most)
        return file.read(min(most, pins.size_of(path)))


def plain_size(path: Path) -> int:
    """Return the size that a segment has without compression, as far as its file says so."""
    with pins.opened(path) as file:
        declared = _declared(file.read(_EXTRA_AT + _EXTRA.size))
    return pins.size_of(path) if declared is None else declared[0]


def ends_of(path: Path) -> Ends:
    """Return header and END of a segment, read without what is between.

    Raises OSError and `LogError`.
    """
    try:
        with pins.opened(path) as file:
            if not path.name.endswith(PACKED):
                return read_ends(file, pins.size_of(path), str(path))
            ends = _packed_ends(file, str(path))
            return read_ends(BytesIO(ends), len(ends), str(path))
    except FileNotFoundError:
        if path.name.endswith(PACKED):
            raise
        return ends_of(path.with_name(path.name + PACKED))


def dropped_in(path: Path) -> dict[str, tuple[int, int]]:
    """Return, by MEMBER.INCARNATION, the last segment that its member dropped, and how many nobody
    had verified.  Raises ValueError.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): (int(last), int(count)) for name, (last, count) in rows.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not say what was dropped: {error!r}") from error


def _unpack(data: bytes, source: str) -> bytes:
    try:
        whole = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(source, str(error)) from error
    declared = _declared(data)
    if not data or (declared is not None and declared[0] != len(whole)):
        raise _unreadable(source, "its end is missing")
    return whole


def _packed_ends(file: BinaryIO, source: str) -> bytes:
    """Return the first and the last bytes of a compressed segment, or all of a short one."""
    head = file.read(2 * ENDS_BYTES)
    declared = _declared(head)
    if declared is None or declared[0] <= 2 * ENDS_BYTES:
        return _unpack(head + file.read(), source)
    try:
        first = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, ENDS_BYTES)
    except zlib.error as error:
        raise _unreadable(source, str(error)) from error
    if declared[1] > file.seek(0, SEEK_END):
        raise _unreadable(source, "its end is missing")
    file.seek(declared[1])
    return first + _unpack(file.read(), source)


def _declared(data: bytes) -> tuple[int, int] | None:
    """Return the field QM: the size of the segment, and where the last part of it begins in the
    file.  None: another program compressed it.
    """
    if len(data) < _EXTRA_AT + _EXTRA.size or not data[3] & _FLAG_EXTRA:
        return None
    name, _, size, place = _EXTRA.unpack_from(data, _EXTRA_AT)
    return (size, place) if name == b"QM" else None


def _unreadable(source: str, why: str) -> LogError:
    return LogError(f"{source}: the compressed file cannot be read: {why}")
