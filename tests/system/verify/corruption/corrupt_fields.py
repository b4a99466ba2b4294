"""Generated corruptions: one field or record of one member's log is changed, and all links rebuilt.

Checksums, numbers and links hold, so a reader finds no damage: only a contradiction, in the same
log or with those of others, can reveal a corruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from broker.memberlog.codec import MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import read_segment
from broker.memberlog.records import MARK_BYTES, Batch, End, Header, Record, Vote
from broker.memberlog.segment_totals import SegmentTotals
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import IncarnationId, LogMaker
from tools.verify.checks.digest_votes import VERDICTS
from tools.verify.findings import BadInput, Finding
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import Row

NO_POSITIONS = range(-2, -2)
BEYOND = "+2^63"  # far beyond the numbers of any log
Segments = list[list[Record]]


class FieldCorruption(NamedTuple):
    """One change; `kind.field operator`, or `kind operator` for a whole record, is its key."""

    key: str
    incarnation: IncarnationId
    segment: int
    place: int  # in the segment; 0 is its header
    records: tuple[Record, ...]  # the replacement
    replaced: int  # how many records it replaces
    positions: range  # where it may be reported, if not by the member

    def __str__(self) -> str:
        name, incarnation = self.incarnation
        return f"{self.key} ({name}, life {incarnation}, record {self.segment}.{self.place})"

    def is_named(self, findings: list[Finding]) -> bool:
        """Whether a finding names the corrupted member, as the culprit or in its text, or the
        place.
        """
        names = {self.incarnation[0], *(r.member for r in self.records if isinstance(r, Header))}
        phrases = [way for name in names for way in (f" at {name}", f" {name} says ")]
        return any(
            f.member in names
            or f.position in self.positions
            or any(way in f.what for way in phrases)
            for f in findings
        )


class CorruptibleLogs:
    """Logs of a correct history, to which one corruption at a time is applied."""

    def __init__(self, maker: LogMaker, directory: Path, segment_bytes: int = 3000) -> None:
        self._directory = directory / "corrupted"
        self._directory.mkdir(parents=True)
        maker.write(directory / "correct", segment_bytes)
        self.logs: dict[IncarnationId, Segments] = {}
        self._paths: dict[IncarnationId, list[Path]] = {}
        self._rows: dict[IncarnationId, list[Row]] = {}
        for path in sorted((directory / "correct").rglob("*.qml")):
            records = [entry.record for entry in read_segment(path.read_bytes(), path.name)]
            header = records[0]
            assert isinstance(header, Header)
            incarnation = header.member, header.incarnation
            self.logs.setdefault(incarnation, []).append(records)
            self._paths.setdefault(incarnation, []).append(path)
            self._rows.setdefault(incarnation, []).extend(rows_in([path]))

    def uncorrupted(self) -> list[Finding]:
        """Return the findings without Spark in the uncorrupted logs."""
        return findings_without_spark([row for rows in self._rows.values() for row in rows])

    def without_spark(self, corruption: FieldCorruption) -> list[Finding] | None:
        """Return the findings before Spark compares members; None if the check refuses the logs."""
        others = [
            row
            for incarnation, rows in self._rows.items()
            if incarnation != corruption.incarnation
            for row in rows
        ]
        phrases: list[Row] = []
        for path, data in zip(
            self._paths[corruption.incarnation], self._written(corruption), strict=True
        ):
            phrases += parse_segment(data, str(path))
        try:
            return findings_without_spark(others + phrases)
        except BadInput:
            return None

    def write(self, corruption: FieldCorruption) -> list[Path]:
        """Write the corrupted log; return the segments of all members."""
        paths = [
            p
            for incarnation, others in self._paths.items()
            if incarnation != corruption.incarnation
            for p in others
        ]
        for path, data in zip(
            self._paths[corruption.incarnation], self._written(corruption), strict=True
        ):
            target = self._directory / path.name
            target.write_bytes(data)
            paths.append(target)
        return paths

    def corruptions(self) -> Iterator[FieldCorruption]:
        """Yield every corruption that an operator makes of any record of any incarnation; an
        impossible number once for each field.
        """
        beyond: set[str] = set()
        for incarnation, segments in self.logs.items():
            for number, records in enumerate(segments):
                for index, record in enumerate(records):
                    for what, changed, replaced in _corruptions_of(records, index):
                        key = f"{kind_name(type(record))}{what}"
                        if what.endswith(BEYOND):
                            if key in beyond:
                                continue
                            beyond.add(key)
                        yield FieldCorruption(
                            key, incarnation, number, index, changed, replaced,
                            _places(record, *changed),
                        )  # fmt: skip

    def _written(self, corruption: FieldCorruption) -> Iterator[bytes]:
        """Yield the bytes of the corrupted segments, with consistent numbers and links."""
        link, lsn = NO_LINK, count()
        for number, uncorrupted in enumerate(self.logs[corruption.incarnation]):
            records = list(uncorrupted)
            if number == corruption.segment:
                records[corruption.place : corruption.place + corruption.replaced] = (
                    corruption.records
                )
            out = bytearray(MAGIC)
            totals = SegmentTotals()
            for record in records:
                if isinstance(record, End) and not corruption.key.startswith("End"):
                    record = totals.end()  # a corrupted member keeps its totals consistent
                if isinstance(record, Header) and not corruption.key.startswith("Header.prev_link"):
                    record = record._replace(prev_link=link)
                payload = encode(next(lsn), record)
                # The link is of the header as written, so that even a wrong header is no damage
                # here.
                link = next_link(record.prev_link if isinstance(record, Header) else link, payload)
                out += frame(payload, link)
                totals.take(record)
            yield bytes(out)


def kind_name(kind: type[Record]) -> str:
    """Return the name of a kind of record in keys and documents."""
    return kind.__name__.removesuffix("Record")


def _corruptions_of(
    records: list[Record], index: int
) -> Iterator[tuple[str, tuple[Record, ...], int]]:
    """Yield (rest of the key, replacement records, how many they replace)."""
    record = records[index]
    for field, value in zip(record._fields, record, strict=True):
        for operator, changed in _others(value):
            if operator == BEYOND and field == "root":
                continue  # a hash may be any number: one more suffices
            yield f".{field} {operator}", (record._replace(**{field: changed}),), 1
    if isinstance(record, Header):
        return  # a segment without one, or with two, is damage
    if isinstance(record, Vote):
        for word in VERDICTS:
            if word != record.verdict:
                yield f".verdict {word}", (record._replace(verdict=word),), 1
    if isinstance(record, End) and not record.marks:
        yield ".marks made up", (record._replace(marks=bytes(MARK_BYTES)),), 1
    yield " dropped", (), 1
    yield " duplicated", (record, record), 1
    if isinstance(record, End):
        return
    if index + 1 < len(records) and records[index + 1] != record:
        yield f" after {kind_name(type(records[index + 1]))}", (records[index + 1], record), 2


def _others(value: object) -> Iterator[tuple[str, Any]]:
    """Yield other values for a field."""
    for kind, operator, change in _OPERATORS:
        if type(value) is kind:
            changed = change(value)
            if changed != value:
                yield operator, changed


def _flipped(data: bytes) -> bytes:
    """Flip one bit in the middle."""
    half = len(data) // 2
    return data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :] if data else data


_OPERATORS: list[tuple[type, str, Callable[..., object]]] = [
    (int, "+1", lambda value: value + 1),
    (int, BEYOND, lambda value: value % (1 << 63) + (1 << 63)),
    (bool, "negated", lambda value: not value),
    (str, "changed", lambda value: value + "x"),
    (bytes, "flipped", _flipped),
    (tuple, "without its first", lambda value: value[1:]),
    (tuple, "without its last", lambda value: value[:-1]),
]


def _places(*records: Record) -> range:
    """Return the positions that the records are about."""
    spans = [
        range(record.first_position, record.first_position + record.commands)
        for record in records
        if isinstance(record, Batch)
    ]
    if not spans:
        return NO_POSITIONS
    return range(min(span.start for span in spans), max(span.stop for span in spans))
