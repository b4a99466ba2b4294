"""Saved checkpoint of a consistent check (--save), from which the next one continues (--since).

A segment need not be read again when it is closed, no earlier segment of its incarnation need be
read, and every member has its content on disk: then no member can apply those positions again, and
everything applied there was compared. The control rows of such segments are kept; they grow with
views and segments. So views, primaries, carried states and confirmed positions are checked over the
whole history again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from tools.verify.checks.views_and_segments import segments_of
from tools.verify.findings import BadInput
from tools.verify.format import files as segment_files
from tools.verify.format.reader import Ends, LogError
from tools.verify.format.records import Header
from tools.verify.input.rows import SEGMENT, Row, ends_of

VERSION = 1
_HEX = ("chain", "blob_hash", "order_hash", "kinds", "outcomes")  # bytes, in the file as hex


def load(path: Path) -> list[Row]:
    """Return the rows of the segments that need not be read again."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["version"]
        if version != VERSION:
            raise BadInput(
                f"{path}: version {version}; this release reads version {VERSION}: check once "
                "without --since, and --save again"
            )
        return [_row(fields) for fields in document["rows"]]
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a verified point of --save: {error}") from error


def save(path: Path, rows: list[Row]) -> tuple[int, int]:
    """Write the checkpoint for `rows` of a consistent check; return (segments, position)."""
    kept, position = _settled(rows)
    settled = {row.file for row in kept}
    lines = [_fields(row) for row in rows if row.file in settled]
    try:
        path.write_text(
            json.dumps({"version": VERSION, "settled": _named(kept), "rows": lines}),
            encoding="utf-8",
        )
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
    return len(kept), position


def unread(segments: list[Path], saved: list[Row]) -> tuple[list[Path], list[Row]]:
    """Return the segments that the saved rows do not cover, and these rows with the present paths
    of their segments, if available; `BadInput` when one was changed."""
    known = {_written_by(row): row for row in saved if row.kind == SEGMENT}
    left: list[Path] = []
    present: dict[tuple[str, int, int], str] = {}
    for path in segments:
        ends = _ends(path)
        row = known.get(_written_by(ends.header)) if ends is not None else None
        if ends is None or row is None:
            left.append(path)
            continue
        there = ends_of(row)
        if (ends.link.hex(), ends.header.cluster_name) != (there.link, there.cluster[0]):
            raise BadInput(f"{path} is not the segment that was verified; check without --since")
        present[_written_by(row)] = str(path)
    return left, [row._replace(file=present.get(_written_by(row), row.file)) for row in saved]


def _ends(path: Path) -> Ends | None:
    """Return the ends of a segment; None for a damaged one, which the check reports."""
    try:
        return segment_files.ends_of(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except LogError:
        return None


def _written_by(of: Row | Header) -> tuple[str, int, int]:
    return of.member, of.incarnation, of.segment


def _named(kept: list[Row]) -> list[list[object]]:
    """Return these segments' names in the member's own retention."""
    return [[row.member, row.incarnation, row.segment, ends_of(row).link] for row in kept]


def _settled(rows: list[Row]) -> tuple[list[Row], int]:
    """Return the SEGMENT rows to leave out, and the position that all members have on disk."""
    by_incarnation = segments_of(rows)
    durable: dict[str, int] = defaultdict(lambda: -1)
    for (member, _), segments in by_incarnation.items():
        reached = max(ends_of(row).durable for row in segments)
        durable[member] = max(durable[member], reached)
    floor = min(durable.values(), default=-1)
    kept: list[Row] = []
    for segments in by_incarnation.values():
        for row in segments:
            if not ends_of(row).closed or row.reached > floor:
                break
            kept.append(row)
    return kept, floor


def _fields(row: Row) -> dict[str, object]:
    fields = {name: value for name, value in row._asdict().items() if value is not None}
    return fields | {name: bytes(fields[name]).hex() for name in _HEX if name in fields}


def _row(fields: dict[str, str]) -> Row:
    whole = {name: bytes.fromhex(fields[name]) for name in _HEX if name in fields}
    return Row(**{**fields, **whole})  # type: ignore[arg-type]
