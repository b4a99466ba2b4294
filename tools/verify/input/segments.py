"""Segments on disk: which files there are, how tasks share them, and what can be read of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import NamedTuple

from tools.verify.findings import BadInput
from tools.verify.format import pins
from tools.verify.format.files import (
    DROPPED_NAME,
    dropped_in,
    ends_of,
    identity_of,
    is_segment,
    one_of_each,
    open_segment,
    plain_size,
)
from tools.verify.format.reader import Entry, LogError, read_kinds, read_segment
from tools.verify.format.records import (
    CLIENT_ROW,
    ROLE_CLIENT,
    SUFFIX,
    Header,
    Record,
    RecordKind,
    decode_written,
)
from tools.verify.input.rows import SEGMENT, Row, in_json
from tools.verify.input.rows import ends_of as ends_of_row

FEW_ROWS = 12_000_000
HEADER_BYTES = 4096  # a header is far shorter
_BYTES_OF_MOVE = 8  # packed, with its share of all else in a segment
_BYTES_OF_OTHERS = 32  # of a row that is no move and no command, or more


@contextmanager
def pinned_segments(places: list[Path]) -> Iterator[tuple[list[Path], Dropped]]:
    """Yield the segments of `find_segments`, which are read as they are now until this ends, and
    what was dropped before them.
    """
    while True:
        found = find_segments(places)
        dropped = dropped_before(found)
        with ExitStack() as held:
            try:
                held.enter_context(pins.pinned(found))
            except FileNotFoundError:
                continue  # compressed or dropped just now: the next list has what is there instead
            except OSError as error:
                raise BadInput(f"{error.filename}: {error.strerror}") from error
            if dropped_before(found) == dropped:
                found, copies = without_copies(found)
                dropped.notes.extend(copies)
                yield found, dropped
                return


def without_copies(found: list[Path]) -> tuple[list[Path], list[str]]:
    """Leave out what was collected twice: of a log, the same again or as it was sooner.

    Two that have one name and differ stay, as a fault of the log.
    """
    named: dict[tuple[str, int, int], list[Path]] = {}
    for path in found:
        named.setdefault(identity_of(path), []).append(path)
    left_out, notes = set(), []
    for paths in named.values():
        if len(paths) == 1:
            continue
        try:
            read = [(open_segment(path), path) for path in paths]
        except (OSError, LogError):
            continue  # the check says what is wrong with it
        (data, longest), *others = sorted(read, key=lambda one: len(one[0]), reverse=True)
        for other, path in others:
            if data.startswith(other):
                left_out.add(path)
                notes.append(f"{path} is a copy of {longest}, and was not read")
    return [path for path in found if path not in left_out], notes


def find_segments(places: list[Path]) -> list[Path]:
    """Return all segments at or below the places, each once; a place may be a glob."""
    found: set[Path] = set()
    for place in _expand(places):
        files = files_below(place) if place.is_dir() else [place]
        try:
            found.update(_readable(file).resolve() for file in files)
        except FileNotFoundError:  # compressed or dropped since its name was read
            return find_segments(places)
    if not found:
        listed = ", ".join(map(str, places))
        raise BadInput(f"there is no member log (*{SUFFIX}) in {listed}")
    return sorted(one_of_each(found))


def files_below(place: Path) -> Iterator[Path]:
    """Yield what has the name of a segment at any depth; linked directories are followed, once."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(place, onerror=_unreadable, followlinks=True):
        entered = os.stat(folder)
        if (entered.st_dev, entered.st_ino) in seen:
            folders.clear()
            continue
        seen.add((entered.st_dev, entered.st_ino))
        folders.sort()
        yield from (Path(folder, name) for name in names if is_segment(name))


def _unreadable(error: OSError) -> None:
    """Refuse a directory that cannot be looked through: logs in it would be left out in silence."""
    raise BadInput(f"{error.filename}: {error.strerror}")


def _readable(file: Path) -> Path:
    """Return a file that can be a segment; `BadInput` names any other."""
    shown = str(file).encode(errors="surrogateescape").decode(errors="backslashreplace")
    if shown != str(file):
        raise BadInput(f"the name of {shown} is not UTF-8: rename it, or its directory")
    if file.is_file():
        return file
    if not os.path.lexists(file):
        raise FileNotFoundError(shown)
    if file.is_symlink() and not file.exists():
        raise BadInput(f"{shown} is a link to {file.readlink()}, which is not there")
    raise BadInput(f"{shown} is no ordinary file: remove it, or name the logs one by one")


class Dropped(NamedTuple):
    """What members dropped of their logs, by their own account: it was not lost, and is not proven
    either.
    """

    last: dict[tuple[Path, str], int]  # by directory and MEMBER.INCARNATION, the last segment
    notes: list[str]  # a sentence for each

    def reaches(self, segment: Path) -> bool:
        """Whether nothing is missing before this segment but what was dropped."""
        member, incarnation, number = identity_of(segment)
        last = self.last.get((segment.parent, f"{member}.{incarnation}"), -1)
        return 0 < number <= last + 1


def dropped_before(segments: Iterable[Path]) -> Dropped:
    """Return what was dropped of these logs."""
    found = Dropped({}, [])
    for directory in sorted({segment.parent for segment in segments}):
        try:
            dropped = dropped_in(directory / DROPPED_NAME)
        except ValueError as error:
            found.notes.append(str(error))
            continue
        for name, (last, unverified) in dropped.items():
            found.last[directory, name] = last
            member, _, incarnation = name.rpartition(".")
            what = "all of them verified before"
            if unverified:
                what = f"{unverified} of them never verified: what they held is not known"
            found.notes.append(
                f"{member} (incarnation {incarnation}): segments up to {last} were dropped by "
                f"their member as its options say, {what}"
            )
    return found


def mark_dropped(rows: Iterable[Row], dropped: Dropped) -> Iterator[Row]:
    """Yield rows; those of segments say whether what is missing before them was dropped."""
    for row in rows:
        if row.kind == SEGMENT and dropped.reaches(Path(row.file)):
            ends = ends_of_row(row)
            ends.behind_dropped = True
            row = row._replace(text=in_json(ends))
        yield row


def _expand(places: list[Path]) -> Iterator[Path]:
    for place in places:
        if place.exists():
            yield place
            continue
        fitting = glob(str(place), recursive=True) if has_magic(str(place)) else []
        if not fitting:
            raise BadInput(f"{place} does not exist")
        yield from map(Path, fitting)


def read_bytes(segment: Path) -> bytes:
    """Return the bytes of a segment; none of a compressed one that is damaged, which the parser
    reports.  Raises OSError.
    """
    try:
        return open_segment(segment)
    except LogError:
        return b""


def size_of(segment: Path) -> int:
    """Return the size of a file, 0 when it is no longer there: it is being compressed."""
    try:
        return pins.size_of(segment)
    except OSError:
        return 0


def count_rows(segments: Iterable[Path | str]) -> int:
    """Return about how many rows the check makes of segments: moves, commands, and what clients
    did, by their closing records where they have one.  Bytes say little: moves are packed.
    """
    return sum(_rows_of(Path(one)) for one in segments)


def _rows_of(segment: Path) -> int:
    try:
        size, ends = plain_size(segment), ends_of(segment)
    except (OSError, LogError):
        return size_of(segment) // _BYTES_OF_MOVE
    if ends.header.role == ROLE_CLIENT:
        return size // CLIENT_ROW.size
    if ends.end is None:
        return size // _BYTES_OF_MOVE
    return ends.end.moves + ends.end.commands + size // _BYTES_OF_OTHERS


def is_few(segments: list[Path]) -> bool:
    """Return whether this process checks them sooner than Spark, in a memory that all have."""
    return count_rows(segments) < FEW_ROWS


def sound_entries(data: bytes, file: str) -> Iterator[Entry]:
    """Yield what is sound of a segment, moves as they were written; the parser reports damage."""
    try:
        yield from read_segment(data, file, [], decode=decode_written)
    except LogError:
        return


def records_in(file: str) -> Iterator[Record]:
    """Yield the readable records of the segment in a file."""
    for entry in sound_entries(read_bytes(Path(file)), file):
        yield entry.record


def records_of_kinds(file: str, *kinds: RecordKind) -> Iterator[Record]:
    """Yield the records of these kinds in a segment that was found whole."""
    for _, record in read_kinds(read_bytes(Path(file)), *kinds):
        yield record


def header_of(head: bytes, file: str) -> Header | None:
    """Return the header from the first bytes of a segment; None: it cannot be read."""
    first = next(sound_entries(head, file), None)
    return first.record if first is not None and isinstance(first.record, Header) else None
