"""LOG, G7: segments follow each other; an epoch has one primary, a majority of the one before.

Over records that grow with views, not with traffic. Pure Python over collected rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, TypeVar

from tools.verify.findings import BadInput, Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import FAULT, SEGMENT, UNREADABLE, Row, Run, ends_of
from tools.verify.input.voters import Voters, read_voters

CONTROL_KINDS = (
    RecordKind.START, RecordKind.VIEW, RecordKind.ACTIVE, RecordKind.INACTIVE, RecordKind.SNAPSHOT,
    RecordKind.STOP, RecordKind.LEASE, SEGMENT, FAULT, UNREADABLE,
)  # fmt: skip
IncarnationId = tuple[str, int]
Ring = tuple[int, str, str]


class PrimaryView(NamedTuple):
    """Content of an ACTIVE record: the primary view of an epoch, the same at all its members."""

    epoch: int
    ring_seq: int
    ring_rep: str
    base: int
    base_chain: bytes
    members: tuple[str, ...]
    voters: tuple[str, ...]
    cold: bool

    def agrees(self, other: PrimaryView) -> bool:
        """Whether both describe one primary; a member that received its state records no base."""
        if 0 in (self.base, other.base):
            other = other._replace(base=self.base, base_chain=self.base_chain)
        return self == other

    def names(self) -> set[str]:
        """Return the members' names without incarnations."""
        return {name.rsplit("/", 1)[0] for name in self.members}

    def __str__(self) -> str:
        names = ", ".join(sorted(self.names()))
        ring = f"ring {self.ring_seq}.{self.ring_rep}"
        chain = self.base_chain.hex()[:8]
        return f"{ring} of {{{names}}} from position {self.base}, chain {chain}"


def check_input(rows: list[Row]) -> None:
    """Raise `BadInput` unless all files are logs of this version and of one cluster."""
    for row in rows:
        if row.kind == UNREADABLE:
            raise BadInput(row.text or row.file)
    seen: dict[tuple[str, str], str] = {}
    for row in rows:
        ends = ends_of(row) if row.kind == SEGMENT else None
        # A member without any state may have its cluster id from a first start that failed.
        if ends is not None and ends.records and (row.position or 0) > 0:
            name, cluster_id = ends.cluster
            seen.setdefault((name, cluster_id), row.file)
    named = {key: file for key, file in seen.items() if key[1]}
    for group in ({name: file for (name, _), file in seen.items()}, named):
        if len(group) > 1:
            listed = "; ".join(f"{file} is of {key}" for key, file in sorted(group.items()))
            raise BadInput(f"these logs are of more than one cluster: {listed}")


def check_segments(rows: list[Row]) -> Iterator[Finding | str]:
    """Yield faults of the logs themselves and, as text, what is merely unknown."""
    for row in rows:
        if row.kind == FAULT:
            until = -1 if row.last is None else row.last
            promise, what = row.origin or "LOG", row.text or ""
            yield Finding(promise, *incarnation_in(row), row.reached, what, until)
    stopped = stopped_in(rows)
    for _, after, what in false_joints(rows):
        yield Finding("LOG", *incarnation_in(after), after.reached, what)
    for key, segments in segments_of(rows).items():
        who, first_number = "{} (incarnation {})".format(*key), segments[0].segment
        if first_number > 0:
            yield (
                f"{who}: the log begins with segment {first_number}; what was before is not known"
            )
        if key not in stopped:
            torn = ", in the middle of a record" if ends_of(segments[-1]).torn_tail else ""
            yield f"{who}: the log ends without a stop{torn}; what came after is not known"
    for key, (first, *_) in records_by_incarnation(rows):
        if first.segment == 0 and first.kind != RecordKind.START:
            what = f"{first.file} does not begin with what recovery found"
            yield Finding("LOG", *key, -1, what)


def false_joints(rows: list[Row]) -> Iterator[tuple[Row | None, Row, str]]:
    """Yield segments that do not continue the previous ones (None: there is none), and how."""
    for segments in segments_of(rows).values():
        for before, after in zip([None, *segments], segments, strict=False):
            for what in _continues(before, after):
                yield before, after, what


def _continues(before: Row | None, after: Row) -> Iterator[str]:
    """Yield how a segment fails to continue the one before it."""
    ends = ends_of(after)
    if before is None:
        if not ends.records:
            return
        if after.segment == 0 and ends.first_lsn > 0:
            yield f"{after.file} begins with lsn {ends.first_lsn}"
        elif after.segment == 0 and ends.prev_link.strip("0"):
            yield f"{after.file} is the first segment, but says that it continues another"
        elif after.segment > 0 and ends.first_lsn == 0:
            yield f"{after.file} is segment {after.segment}, but begins with lsn 0"
        return
    prior = ends_of(before)
    if after.segment == before.segment:
        yield f"{before.file} and {after.file} both claim to be segment {after.segment}"
        return
    if ends.behind_dropped and after.segment > before.segment:
        return
    if after.segment != before.segment + 1:
        yield f"segment {before.segment + 1} is missing between {before.file} and {after.file}"
        return
    if prior.torn_tail:
        yield f"{before.file} ends in the middle of a record, but {after.file} follows it"
        return
    if not prior.closed:
        yield f"{before.file} has no closing record, but {after.file} follows it"
    if not ends.records or before.lsn < 0:
        return
    if ends.first_lsn != before.lsn + 1:
        yield f"{after.file} begins with lsn {ends.first_lsn} after lsn {before.lsn}"
    elif ends.prev_link != prior.link:
        yield f"{after.file} does not continue the last record of {before.file}"


def check_closing_records(rows: list[Row]) -> Iterator[Finding]:
    """LOG: the segment of an orderly stop is closed, as STOP and END are one write, and nothing is
    done in a later one.
    """
    segments = segments_of(rows)
    for row in rows:
        if row.kind != RecordKind.STOP:
            continue
        for one in segments[incarnation_in(row)]:
            ends = ends_of(one)
            if one.segment > row.segment and ends.epochs:
                what = f"stopped in order, but goes on in {one.file}"
            elif one.segment == row.segment and not (ends.closed or ends.torn_tail):
                what = f"stopped in order, but {one.file} has no closing record"
            else:
                continue
            yield Finding("LOG", *incarnation_in(row), row.reached, what)
            break


V = TypeVar("V", bound=Hashable)
W = TypeVar("W")


def split_by_majority(reports: list[tuple[V, W]]) -> tuple[tuple[V, W], list[tuple[V, W]]]:
    """Return the majority's version with its first reporter, and the reports that differ.

    Of equally frequent versions, the one reported first counts as the majority's.
    """
    most = Counter(version for version, _ in reports).most_common(1)[0][0]
    usual = next(report for report in reports if report[0] == most)
    return usual, [report for report in reports if report[0] != most]


def ring_of(row: Row) -> Ring:
    """Return the unique id of a ring: its number, and the incarnation of its representative.

    The number alone, or with the name, is reused when all members start anew.
    """
    rep = row.ring_rep or ""
    found = [name.rstrip("+") for name in row.names or [] if name.rsplit("/", 1)[0] == rep]
    return row.ring_seq or 0, rep, found[0] if found else ""


def position_at(rows: list[Row], view: Row) -> int:
    """Return the position applied before a view; its segment may have begun with the view."""
    if view.reached >= 0:
        return view.reached
    before = (
        (row.lsn, row.reached)
        for row in rows
        if row.kind == SEGMENT and incarnation_in(row) == incarnation_in(view)
        if row.lsn < view.lsn and row.reached >= 0
    )
    return max(before, default=(0, -1))[1]


def primaries(rows: Iterable[Row]) -> dict[int, PrimaryView]:
    """Return the primary view of each epoch as most logs have it, with its base if it is known."""
    return {epoch: _split_primaries(of)[0][0] for epoch, of in _reported(list(rows)).items()}


def _reported(rows: list[Row]) -> dict[int, list[tuple[PrimaryView, Row]]]:
    reports = [
        (_primary(row), row)
        for _, actives in records_by_incarnation(rows, RecordKind.ACTIVE)
        for row in actives
    ]
    found: dict[int, list[tuple[PrimaryView, Row]]] = defaultdict(list)
    for primary, row in sorted(reports, key=lambda report: report[0].epoch):
        found[primary.epoch].append((primary, row))
    return found


def voters_of(epoch: int, primaries: dict[int, PrimaryView]) -> list[Voters]:
    """Return the voters of an epoch and of the next one: they may have changed in the first."""
    after = [later for later in sorted(primaries) if later > epoch][:1]
    return [read_voters(primaries[one].voters) for one in (epoch, *after) if one in primaries]


def check_primaries(rows: list[Row]) -> Iterator[Finding]:
    """G7: one primary per epoch, rising epochs, majorities, and a shared voter between them."""
    for key, actives in records_by_incarnation(rows, RecordKind.ACTIVE):
        highest = 0
        for primary in map(_primary, actives):
            for what in _contradicts_itself(key, primary, highest):
                yield Finding("G7", *key, primary.base, what)
            highest = max(highest, primary.epoch)
    before: PrimaryView | None = None
    for epoch, reports in _reported(rows).items():
        (primary, first), others = _split_primaries(reports)
        for other, row in others:
            what = f"a second primary in epoch {epoch}: {other}; {first.member} says {primary}"
            yield Finding("G7", *incarnation_in(row), other.base, what)
        for what in _succeeds(before, primary):
            yield Finding("G7", *incarnation_in(first), primary.base, what)
        before = primary


def _contradicts_itself(own: IncarnationId, primary: PrimaryView, highest: int) -> Iterator[str]:
    """Yield what an incarnation cannot say of a primary after one of the epoch `highest`."""
    if primary.epoch <= highest:
        yield f"epoch {primary.epoch} follows epoch {highest}"
    if own not in map(incarnation_of, primary.members):
        yield f"the primary of epoch {primary.epoch} does not contain the member itself"
    if own[0] in read_voters(primary.voters).arbitrators:
        yield f"{own[0]} is an arbitrator of epoch {primary.epoch}, and has data"


def _split_primaries(
    reports: list[tuple[PrimaryView, Row]],
) -> tuple[tuple[PrimaryView, Row], list[tuple[PrimaryView, Row]]]:
    """Return the majority's record of an epoch, and the records that contradict it.

    The record of a member that received its state has no base, and agrees with any.
    """
    knowing = [report for report in reports if report[0].base > 0] or reports
    usual, _ = split_by_majority(knowing)
    most = Counter(primary._replace(base=0, base_chain=b"") for primary, _ in reports)
    if usual[0]._replace(base=0, base_chain=b"") != most.most_common(1)[0][0]:
        usual, _ = split_by_majority(reports)  # outvoted by members that received their state
    return usual, [report for report in reports if not usual[0].agrees(report[0])]


def _succeeds(before: PrimaryView | None, primary: PrimaryView) -> Iterator[str]:
    present = primary.names()
    voters = read_voters(primary.voters)
    if not voters.is_majority(present):
        yield (
            f"the primary of epoch {primary.epoch} has no majority of its voters: "
            f"{voters.describe(present)}"
        )
    if before is None:
        return
    # The voters may have changed in the earlier epoch: voters of either set count.
    voting = voters.names | read_voters(before.voters).names
    if not present & before.names() & voting:
        yield f"the primaries of epochs {before.epoch} and {primary.epoch} share no voter"


def _primary(row: Row) -> PrimaryView:
    return PrimaryView(
        row.epoch or 0, row.ring_seq or 0, row.ring_rep or "", row.position or 0,
        bytes(row.chain or b""), tuple(sorted(row.names or [])), tuple(row.voters or []),
        bool(row.flag),
    )  # fmt: skip


def incarnation_of(name: str) -> IncarnationId:
    """Return both parts of "name/incarnation", with or without the "+" of a fresh one."""
    member, _, incarnation = name.rstrip("+").rpartition("/")
    return member, int(incarnation)


def incarnation_in(row: Row) -> IncarnationId:
    return row.member, row.incarnation


def is_fresh(active: Row) -> bool:
    """Whether a member was to receive a state in the primary that it records here."""
    return "{}/{}+".format(*incarnation_in(active)) in (active.names or ())


def stopped_in(rows: Iterable[Row]) -> set[IncarnationId]:
    """Return the incarnations that stopped in order."""
    return {incarnation_in(row) for row in rows if row.kind == RecordKind.STOP}


def segments_of(rows: Iterable[Row]) -> dict[IncarnationId, list[Row]]:
    """Return the SEGMENT rows of each incarnation, in their order."""
    found: dict[IncarnationId, list[Row]] = defaultdict(list)
    segments = (row for row in rows if row.kind == SEGMENT)
    for row in sorted(segments, key=attrgetter("member", "incarnation", "segment", "file")):
        found[incarnation_in(row)].append(row)
    return found


def runs_of(rows: Iterable[Row]) -> Iterator[tuple[Row, Run]]:
    """Yield the runs of batches that segments have, each with the row of its segment."""
    return ((row, run) for row in rows if row.kind == SEGMENT for run in ends_of(row).runs)


def records_by_incarnation(
    rows: Iterable[Row], *kinds: RecordKind
) -> Iterator[tuple[IncarnationId, list[Row]]]:
    """Yield the numbered records of each incarnation in the order in which they were written; of
    these kinds, if any are named."""
    wanted = kinds or range(SEGMENT)
    by_incarnation: dict[IncarnationId, list[Row]] = defaultdict(list)
    for row in rows:
        if row.kind in wanted:
            by_incarnation[incarnation_in(row)].append(row)
    for key, records in sorted(by_incarnation.items()):
        yield key, sorted(records, key=lambda row: row.lsn)


def covers(runs: list[Run], first: int, last: int) -> bool:
    """Return whether each of these positions is in one of the runs."""
    for run in sorted(runs):
        if run.first > first:
            break
        first = max(first, run.last + 1)
    return first > last
