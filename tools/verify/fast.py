"""Fast comparison of closed segments by their ends; nothing in between is read. No Spark.

It compares the chains at marks and ends that two members both recorded, and whether the segments of
an incarnation follow each other. Agreement is no proof: a closing record holds its writer's own
account, and most promises are not checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.verify.checks.views_and_segments import IncarnationId, check_input, false_joints
from tools.verify.findings import BadInput
from tools.verify.format.files import ends_of
from tools.verify.format.reader import Ends, LogError
from tools.verify.format.records import ROLE_CLIENT, marks_of
from tools.verify.input.rows import SEGMENT, Row, SegmentEnds, in_json
from tools.verify.input.segments import pinned_segments, size_of


class Closed(NamedTuple):
    """One segment by its ends."""

    file: Path
    size: int
    ends: Ends

    @property
    def key(self) -> IncarnationId:
        return self.ends.header.member, self.ends.header.incarnation


@dataclass(slots=True)
class FastReport:
    """Result of the fast comparison."""

    segments: int = 0
    bytes: int = 0
    records: int = 0  # according to the closing records
    moves: int = 0  # according to the closing records
    members: int = 0
    positions_compared: int = 0  # that at least two members recorded
    agreed_to: int = 0  # the last of them before the first difference
    differences: list[str] = field(default_factory=list)
    check_in_full: list[Path] = field(default_factory=list)
    not_closed: list[Path] = field(default_factory=list)  # open, or cut by a crash
    # Members that share no position with another:
    nothing_in_common: list[str] = field(default_factory=list)

    @property
    def agree(self) -> bool:
        return not self.differences

    def as_document(self) -> dict[str, object]:
        """Return the report as plain values for JSON; it claims no consistency."""
        ends_agree = self.agree if self.positions_compared else None
        document = {"fast": True, "ends_agree": ends_agree, **asdict(self)}
        for name in ("check_in_full", "not_closed"):
            document[name] = list(map(str, document[name]))
        return document


def compare_ends(places: list[Path]) -> FastReport:
    """Compare the closed segments at `places`; `BadInput` for a file that is not a log, or two
    clusters."""
    with pinned_segments(places) as (files, _):
        found = [_ends(path) for path in files if size_of(path)]  # else: it begins just now
    segments = [one for one in found if one.ends.header.role != ROLE_CLIENT]
    if not segments:
        raise BadInput("these are histories of clients only: name the members' logs as well")
    rows = [_row(one) for one in segments]
    check_input(rows)
    report = FastReport(
        segments=len(segments),
        bytes=sum(one.size for one in segments),
        records=sum(one.ends.end.records for one in segments if one.ends.end is not None),
        moves=sum(one.ends.end.moves for one in segments if one.ends.end is not None),
        members=len({one.ends.header.member for one in segments}),
        not_closed=[one.file for one in segments if one.ends.end is None],
    )
    suspects: set[Path] = set()
    for before, after, what in false_joints(rows):
        report.differences.append(f"{after.member} (incarnation {after.incarnation}): {what}")
        suspects.update(Path(one.file) for one in (before, after) if one is not None)
    suspects.update(_compare_chains(report, segments))
    report.check_in_full = sorted(suspects)
    return report


def _ends(path: Path) -> Closed:
    try:
        return Closed(path, size_of(path), ends_of(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except LogError as error:
        raise BadInput(str(error)) from error


def _row(one: Closed) -> Row:
    """Return the part of a SEGMENT row that the ends of a segment tell."""
    header, first_lsn, end, last_lsn, link = one.ends
    ends = SegmentEnds(
        (header.cluster_name, header.cluster_id), 1, first_lsn, header.prev_link.hex(), link.hex(),
        closed=end is not None,
    )  # fmt: skip
    row = Row(str(one.file), *one.key, header.segment, last_lsn, SEGMENT, text=in_json(ends))
    return row._replace(position=1 if end is None else end.position)


def _written_chains(segments: Iterable[Closed]) -> dict[int, dict[bytes, list[Closed]]]:
    """Return, by position and chain, the segments that recorded them."""
    written: dict[int, dict[bytes, list[Closed]]] = defaultdict(lambda: defaultdict(list))
    for one in segments:
        end = one.ends.end
        if end is not None:
            for position, chain in {*marks_of(end), (end.position, end.chain)}:
                if position > 0:
                    written[position][chain].append(one)
    return written


def _compare_chains(report: FastReport, segments: list[Closed]) -> set[Path]:
    """Compare the chains at positions that two members recorded; return the segments to check."""
    written = _written_chains(segments)
    shared: set[str] = set()
    first_bad = 0
    bad = 0
    for position, chains in sorted(written.items()):
        members = {one.ends.header.member for ones in chains.values() for one in ones}
        if len(members) < 2 and len(chains) < 2:
            continue
        shared |= members
        report.positions_compared += 1
        if len(chains) > 1:
            bad += 1
            first_bad = first_bad or position
        elif not first_bad:
            report.agreed_to = position
    report.nothing_in_common = sorted({one.ends.header.member for one in segments} - shared)
    if not first_bad:
        return set()
    groups = " and ".join(
        f"{chain.hex()[:8]} at {', '.join(sorted({one.ends.header.member for one in ones}))}"
        for chain, ones in sorted(written[first_bad].items(), key=lambda item: -len(item[1]))
    )
    report.differences.append(
        f"the chain at position {first_bad} is {groups}; it differs at {bad} of "
        f"{report.positions_compared} positions"
    )
    return {one.file for one in segments if _holds(one, report.agreed_to + 1, first_bad)}


def _holds(one: Closed, first: int, last: int) -> bool:
    """Whether a segment has, or may have, batches of positions `first` to `last`."""
    end = one.ends.end
    if end is None:
        return True
    return end.batches > 0 and end.first_position <= last and end.position >= first
