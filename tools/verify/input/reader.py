"""What is in a segment, for those who leave it to others to judge the log itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker.memberlog.reader import LogError, NotALog, OtherVersion, read_segment
from broker.memberlog.records import Header, Record
from tools.verify.input.segments import read_bytes

HEADER_BYTES = 4096  # a header is far shorter


def records_of(data: bytes, file: str) -> Iterator[Record]:
    """Yield what can be read of a segment; what cannot is reported where the log is judged."""
    faults: list[LogError] = []
    try:
        for _, _, _, record, _ in read_segment(data, file, faults):
            yield record
    except (NotALog, OtherVersion):
        return


def records_in(file: str) -> Iterator[Record]:
    """Yield what can be read of the segment in a file."""
    return records_of(read_bytes(Path(file)), file)


def header_of(head: bytes, file: str) -> Header | None:
    """Return the header from the first bytes of a segment; None: it cannot be read."""
    try:
        first = next(read_segment(head, file, []), None)
    except LogError:
        return None
    return first.record if first is not None and isinstance(first.record, Header) else None
