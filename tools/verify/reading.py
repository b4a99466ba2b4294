"""The records of a segment, for checks that leave it to others to judge the log itself."""

from __future__ import annotations

from collections.abc import Iterator

from broker.memberlog.reader import LogError, NotALog, OtherVersion, read_segment
from broker.memberlog.records import Record


def records_of(data: bytes, file: str) -> Iterator[Record]:
    """Yield what can be read of a segment; what cannot is reported where the log is judged."""
    faults: list[LogError] = []
    try:
        for _, _, _, record, _ in read_segment(data, file, faults):
            yield record
    except (NotALog, OtherVersion):
        return
