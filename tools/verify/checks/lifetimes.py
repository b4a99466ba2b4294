"""G1, G2, G7, G8, G9, G14: an incarnation applies each position once, from its state on, like the
members it moves with, and skips nothing confirmed; its segments, and the incarnations of a member,
follow each other.

Pure Python over SEGMENT rows and control records; `input.parse` states the assumptions at the
beginning of a segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.verify.checks.view_changes import incomplete
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    PrimaryView,
    incarnation_in,
    incarnation_of,
    is_fresh,
    records_by_incarnation,
    runs_of,
    segments_of,
    stopped_in,
    voters_of,
)
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.batch_summaries import breaches
from tools.verify.input.log_sequence import falls, foreign_batch, foreign_confirm, not_applied
from tools.verify.input.rows import SEGMENT, EpochSums, Row, SegmentEnds, ends_of


@dataclass(slots=True)
class Incarnation:
    """Totals of one process incarnation of a member, over all its segments."""

    member: str
    number: int
    epochs: dict[int, EpochSums] = field(default_factory=dict)
    durable: int = -1
    confirms: int = 0
    publishes: int = 0
    votes: int = 0
    records: int = 0
    unpaired: int = 0
    stopped: bool = False


_COUNTS = ("confirms", "publishes", "votes", "records", "unpaired")


def join_segments(rows: list[Row]) -> tuple[list[Incarnation], list[Finding], list[str]]:
    """Return the incarnations, faults between segments, and files that begin inactive."""
    stops = {incarnation_in(row): row for row in rows if row.kind == RecordKind.STOP}
    joined: list[Incarnation] = []
    findings: list[Finding] = []
    inactive: list[str] = []
    for key, segments in segments_of(rows).items():
        whole = Incarnation(*key, stopped=key in stops)
        number, before = -1, SegmentEnds(active=False)
        for row in segments:
            ends = ends_of(row)
            follows = row.segment == number + 1
            if follows:
                for promise, position, until, what in _false_assumptions(before, ends):
                    findings.append(Finding(promise, *key, position, what, until))
                if before.active is False:
                    inactive.append(row.file)
            for epoch, sums in ends.epochs.items():
                whole.epochs.setdefault(epoch, EpochSums()).add(sums)
            whole.durable = max(whole.durable, ends.durable)
            for name in _COUNTS:
                setattr(whole, name, getattr(whole, name) + getattr(ends, name))
            ends.whole &= follows
            _carry_over(before, ends)
            number, before = row.segment, ends
        reached = _reached(before)
        if whole.stopped and 0 <= reached != stops[key].reached:
            what = f"stops there, but applied up to position {reached}"
            findings.append(Finding("G14", *key, stops[key].reached, what))
        joined.append(whole)
    return joined, findings, inactive


BEYOND_ALL = 1 << 62  # beyond any position


def first_positions(rows: list[Row]) -> dict[IncarnationId, int]:
    """Return the first position of each incarnation that was not read from segment 0 on, after its
    last dropped segment."""
    found: dict[IncarnationId, int] = {}
    for key, segments in segments_of(rows).items():
        behind = [at for at, row in enumerate(segments) if ends_of(row).behind_dropped]
        if segments[0].segment > 0 or behind:
            held = segments[max(behind, default=0) :]
            sums = [epoch for row in held for epoch in ends_of(row).epochs.values()]
            firsts = [one.first for one in sums if one.first >= 0]
            found[key] = min(firsts, default=BEYOND_ALL)
    return found


def _carry_over(before: SegmentEnds, ends: SegmentEnds) -> None:
    """Complete the state at the end of a segment with that in which it began, where it is known."""
    if not ends.whole:
        return
    ends.whole = before.whole
    ends.last_batch = ends.last_batch or before.last_batch
    ends.on_disk = before.on_disk if ends.on_disk < 0 else ends.on_disk
    ends.primary = ends.primary or before.primary
    if ends.active is None:
        ends.active, ends.deciding = before.active, before.deciding


def _reached(ends: SegmentEnds) -> int:
    return -1 if ends.last_batch is None else ends.last_batch.last


def _false_assumptions(
    before: SegmentEnds, ends: SegmentEnds
) -> Iterator[tuple[str, int, int, str]]:
    """Yield what was wrongly assumed at the beginning of a segment, after the one before it."""
    if ends.first_batch is not None and before.last_batch is not None:
        yield from breaches(before.last_batch, ends.first_batch)
    reached = _reached(before)
    for promise, does, position in ends.claims:
        if 0 <= reached < position:
            yield promise, position, -1, not_applied(does, reached)
    if 0 < ends.entry_durable < before.on_disk:
        yield "G9", ends.entry_durable, -1, falls(before.on_disk)
    for epoch, ring, position in ends.entry_primary:
        if before.deciding is not None and epoch <= before.deciding:
            continue
        if before.primary is None and not before.whole:
            continue
        if (epoch, ring) != before.primary:
            yield "G7", position, -1, foreign_batch((epoch, ring), before.primary)
    for epoch, position in ends.entry_confirms:
        if what := foreign_confirm(epoch, before.active, before.deciding, before.primary):
            yield "G7", position, -1, what


def check_starts(rows: list[Row]) -> Iterator[Finding | str]:
    """G14: after an orderly stop a member begins with no more than it had then.

    After a crash its log may be behind its store, so nothing is known. Yields as text what is
    unknown because views name an incarnation in between without an available log.
    """
    stops: dict[str, tuple[int, int]] = {}  # incarnation and position of each member's last one
    met = {
        incarnation_of(name) for row in rows if row.kind == RecordKind.VIEW
        for name in row.names or ()
    }  # fmt: skip
    for (member, incarnation), records in records_by_incarnation(rows):
        stopped, stopped_at = stops.get(member, (-1, -1))
        first = records[0]
        if first.kind == RecordKind.START and 0 <= stopped_at < (first.position or 0):
            lost = [n for name, n in met if name == member and stopped < n < incarnation]
            if lost:
                yield (
                    f"{member} (incarnation {incarnation}): begins with a state at position "
                    f"{first.position}, and the log of its incarnation {max(lost)}, which was in "
                    "a view, is not here: where the state is from is not known"
                )
                continue
            what = (
                f"begins with this state, but its incarnation {stopped} stopped in order at "
                f"position {stopped_at}: where the state is from, no log tells"
            )
            yield Finding("G14", member, incarnation, first.position or 0, what)
        if records[-1].kind == RecordKind.STOP:
            stops[member] = incarnation, records[-1].position or 0
        else:
            stops.pop(member, None)


def check_unfounded_states(
    rows: list[Row], primaries: dict[int, PrimaryView]
) -> Iterator[Finding | str]:
    """G14: a state comes from the store of this member, or by a SNAPSHOT from another that had it.

    A START holds nothing that no earlier incarnation of the member recorded, of epochs in whose
    primaries none was, and of which none met a member; a SNAPSHOT holds nothing that no log
    reached. Yields as text what is unknown.
    """
    was_in = _epochs_within_reach(rows, primaries)
    had: dict[str, list[tuple[int, int]]] = defaultdict(list)  # incarnation, position, by name
    for row in rows:
        if row.kind == SEGMENT:
            had[row.member].append((row.incarnation, row.position or 0))
    reached = [row.position or 0 for row in rows if row.kind == RecordKind.START]
    for row, run in runs_of(rows):
        had[row.member].append((row.incarnation, run.last))
        reached.append(run.last)
    yield from _check_received(rows, max(reached, default=0))
    for (member, incarnation), (first, *_) in records_by_incarnation(rows):
        if first.kind != RecordKind.START or not first.position:
            continue
        position = first.position
        known = [last for number, last in had[member] if number < incarnation]
        if max(known, default=0) >= position:
            continue
        last_in = max((of for number, of in was_in[member] if number < incarnation), default=-1)
        later = [one for epoch, one in primaries.items() if epoch > max(last_in, 0)]
        # Of the last epoch that it was in, it may have more on disk than its log, or than the state
        # that a later epoch began with; of the next epoch the beginning must be known.
        beyond = later[0] if later and later[0].base > 0 else None
        own = (first.epoch or 0) <= max(last_in, 0)
        who = f"{member} (incarnation {incarnation})"
        if beyond is not None and (first.epoch or 0) < beyond.epoch and not own:
            what = f"a state of epoch {first.epoch}, and no log tells of that epoch"
            yield f"{who}: begins with {what} (position {position})"
        elif last_in >= 0 and not own and beyond is not None and position > beyond.base:
            what = (
                f"begins with this state, of epoch {beyond.epoch} or a later one, and no earlier "
                "incarnation of it was in their primaries: where the state is from, no log tells"
            )
            yield Finding("G14", member, incarnation, position, what)
        elif not known:
            what = f"begins with a state at position {position}, and no earlier log of it is here"
            yield f"{who}: {what}: where it is from is not known"


def _check_received(rows: list[Row], reached: int) -> Iterator[Finding | str]:
    """Yield received states beyond what any log `reached` by itself; as text where a log may lack
    its end."""
    ended = all_ended(rows)
    for key, snapshots in records_by_incarnation(rows, RecordKind.SNAPSHOT):
        for row in snapshots:
            position = row.position or 0
            what = f"received a state from {row.text} that no log here reaches"
            if position > reached and ended:
                yield Finding("G14", *key, position, what)
            elif position > reached:
                who = "{} (incarnation {})".format(*key)
                doubt = "some logs end without a stop, so it may have been there"
                yield f"{who}: {what} (position {position}); {doubt}"


def _epochs_within_reach(
    rows: list[Row], primaries: dict[int, PrimaryView]
) -> dict[str, set[tuple[int, int]]]:
    """Return, by member, the incarnations and epochs of which these may have a state.

    They were in the primary, or applied its commands, or were in a view with such a member: a crash
    may lose the record of what they took from it, because a log may be behind the store.
    """
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for epoch, primary in primaries.items():
        for member, incarnation in map(incarnation_of, primary.members):
            found[member].add((incarnation, epoch))
    for row, run in runs_of(rows):
        found[row.member].add((row.incarnation, run.decided))
    for _, records in records_by_incarnation(rows):
        newest, met = 0, list[IncarnationId]()
        for row in records:
            if row.kind == RecordKind.VIEW:
                met = [incarnation_of(name) for name in row.names or ()]
            newest = max(newest, row.epoch or 0)  # of START, SNAPSHOT, DECIDED, ACTIVE
            for member, incarnation in met:
                found[member].add((incarnation, newest))
    return found


def all_ended(rows: Sequence[Row]) -> bool:
    """Whether the newest incarnation of each member stopped in order: then no log lacks its end."""
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.member] = max(row.incarnation, newest.get(row.member, row.incarnation))
    return newest.items() <= stopped_in(rows)


def check_synchrony(rows: list[Row], incarnations: list[Incarnation]) -> Iterator[Finding]:
    """G2: incarnations that move together from one primary view to the next applied the same in it.

    Positions are contiguous in each incarnation (G1), and `total_order` compares (ring, seq) at
    each of them; so the sets are equal if they end alike. An incarnation that received a state on
    its way, which includes what it lacks, did not move with the others.
    """
    reached = {(one.member, one.number): one.epochs for one in incarnations}
    broken = incomplete(rows)  # what is missing may be such a state
    groups: dict[tuple[int, int], list[tuple[int, int, IncarnationId]]] = defaultdict(list)
    for key, records in records_by_incarnation(rows):
        if key in broken:
            continue
        actives = [row for row in records if row.kind == RecordKind.ACTIVE]
        jumps = [row for row in records if row.kind == RecordKind.SNAPSHOT]
        for before, after, later in zip(actives, actives[1:], [*actives[2:], None], strict=False):
            if is_fresh(after):
                continue  # it may crash before it receives the state
            until = later.lsn if later is not None else records[-1].lsn + 1
            given = [j.position or 0 for j in jumps if before.lsn < j.lsn < until]
            sums = reached[key].get(before.epoch or 0)
            last = sums.last if sums is not None else -1
            went = last, max(given, default=-1), key
            groups[before.epoch or 0, after.epoch or 0].append(went)
    for (epoch, next_epoch), ends in sorted(groups.items()):
        most, _, reference = max(ends)
        for last, given_to, key in ends:
            if last != most and given_to < most:
                what = (
                    f"applied epoch {epoch} up to position {last}, {reference[0]} up to {most}, "
                    f"and both went on to epoch {next_epoch}"
                )
                yield Finding("G2", *key, last + 1, what)


def check_next_primary(
    incarnations: list[Incarnation], primaries: dict[int, PrimaryView], bases: dict[int, int]
) -> Iterator[Finding]:
    """G8: each epoch starts at or beyond everything that earlier ones confirmed."""
    confirmed = _highest_confirmed(incarnations)
    for epoch, base in bases.items():
        earlier = [(position, of, key) for of, (position, key) in confirmed.items() if of < epoch]
        position, of, key = max(earlier, default=(-1, 0, ("", 0)))
        if base < position:
            primary = primaries.get(epoch)
            words = f" ({primary})" if primary is not None else ""
            what = (
                f"confirmed in epoch {of}, but the primary of epoch {epoch}{words} starts before it"
            )
            yield Finding("G8", *key, position, what)


def check_majority(
    incarnations: list[Incarnation], primaries: dict[int, PrimaryView]
) -> Iterator[Finding]:
    """G9: a majority of voters recorded it as durable, or their logs end too early to know."""
    durable: dict[str, int] = {}
    open_ended: dict[str, bool] = {}
    for one in incarnations:  # in their order: a later START tells what an earlier incarnation kept
        durable[one.member] = max(one.durable, durable.get(one.member, -1))
        open_ended[one.member] = not one.stopped
    for epoch, (position, key) in _highest_confirmed(incarnations).items():
        sets = voters_of(epoch, primaries)
        have = {name for name, reached in durable.items() if reached >= position}
        unknown = {n for one in sets for n in one.names if open_ended.get(n, True)}
        if sets and not any(one.is_majority(have | unknown) for one in sets):
            on_disks = len(have.intersection(sets[0].data_names))
            what = (
                f"confirmed in epoch {epoch}, but on the disks of only {on_disks} "
                f"of {len(sets[0].data_names)} voters"
            )
            yield Finding("G9", *key, position, what)


def _highest_confirmed(incarnations: list[Incarnation]) -> dict[int, tuple[int, IncarnationId]]:
    """Return, by epoch, the highest confirmed position and the incarnation that confirmed it."""
    highest: dict[int, tuple[int, IncarnationId]] = {}
    for one in incarnations:
        for epoch, sums in one.epochs.items():
            if sums.confirmed >= 0:
                claim = (sums.confirmed, (one.member, one.number))
                highest[epoch] = max(highest.get(epoch, claim), claim)
    return highest
