"""G10: the recorded verdict of a digest vote follows from the states in the logs.

Members of one primary count the same votes in the same order, so they record the same verdicts
about a position, as far as each of them got. A verdict other than "agreed" needs two states at that
position. `total_order` compares a vote's chain and root with the applied state.

Votes grow with traffic, so the driver collects only those of disputed positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tools.verify.checks.view_changes import incomplete
from tools.verify.checks.views_and_segments import (
    IncarnationId,
    PrimaryView,
    incarnation_in,
    is_fresh,
    records_by_incarnation,
    split_by_majority,
)
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import Row

AGREED, UNDECIDED = "agreed", "undecided"
VERDICTS = (AGREED, "divergent", UNDECIDED)
DISPUTED_MAX = 1000
"""Disputed positions that are checked; more add nothing."""

NotedVerdict = tuple[str, bytes, int]  # verdict; winning chain and root, or empty
VotePlace = tuple[int, int]  # epoch, position


class NotedVotes(NamedTuple):
    """Votes that one incarnation recorded about a position while it was in a primary."""

    votes: list[Row]
    whole: bool  # it applied all that this primary ordered, so it counted all votes

    def verdicts(self) -> list[NotedVerdict]:
        """Return the verdicts in order; without the state of a split vote, which is its own."""
        return [
            (row.text or "", b"", 0)
            if row.text == UNDECIDED
            else (row.text or "", bytes(row.chain or b""), row.root or 0)
            for row in self.votes
        ]


def disputed_positions(rows: Iterable[Row]) -> list[int]:
    """Return the positions of votes with another verdict than "agreed"."""
    disputed = {
        row.position or 0 for row in rows if row.kind == RecordKind.VOTE and row.text != AGREED
    }
    return sorted(disputed)[:DISPUTED_MAX]


def check_verdicts(rows: list[Row], primaries: dict[int, PrimaryView]) -> Iterator[Finding]:
    """G10: verdicts are known ones, the same everywhere, and follow from the states."""
    wanted = set(disputed_positions(rows))
    if not wanted:
        return
    for row in rows:
        if row.kind == RecordKind.VOTE and row.text not in VERDICTS:
            what = f"notes the verdict '{row.text}', which there is not"
            yield Finding("G10", *incarnation_in(row), row.position or 0, what)
    noted = _votes_by_place(rows, wanted, primaries)
    for (epoch, position), by_incarnation in sorted(noted.items()):
        yield from _dissenting(position, by_incarnation)
        yield from _unfounded(primaries.get(epoch), position, by_incarnation)


def _votes_by_place(
    rows: list[Row], wanted: set[int], primaries: dict[int, PrimaryView]
) -> dict[VotePlace, dict[IncarnationId, NotedVotes]]:
    """Return the votes of each primary; those decided between two of them are left out."""
    noted: dict[VotePlace, dict[IncarnationId, NotedVotes]] = defaultdict(dict)
    broken = incomplete(rows)
    for key, records in records_by_incarnation(rows):
        epoch, whole = 0, False
        for row in records:
            if row.kind == RecordKind.ACTIVE:
                epoch, primary = row.epoch or 0, primaries.get(row.epoch or 0)
                based = primary is not None and row.position == primary.base
                whole = based and not is_fresh(row) and key not in broken
            elif row.kind in (RecordKind.INACTIVE, RecordKind.START):
                epoch = 0
            elif row.kind == RecordKind.SNAPSHOT:
                whole = False
            elif row.kind == RecordKind.VOTE and epoch and row.position in wanted:
                place = epoch, row.position or 0
                noted[place].setdefault(key, NotedVotes([], whole)).votes.append(row)
    return noted


def _dissenting(
    position: int, by_incarnation: dict[IncarnationId, NotedVotes]
) -> Iterator[Finding]:
    """Yield incarnations with another verdict than most of those that counted the same votes.

    An incarnation may have ended before the others, and so lack their last verdicts.
    """
    counted = sorted((key, one.verdicts()) for key, one in by_incarnation.items() if one.whole)
    for nth in range(max((len(verdicts) for _, verdicts in counted), default=0)):
        here = [(verdicts[nth], key) for key, verdicts in counted if len(verdicts) > nth]
        (usual, reference), others = split_by_majority(here)
        for verdict, key in others:
            other = f"{reference[0]} says {_verdict_text(usual)}"
            what = f"notes the verdict {_verdict_text(verdict)}; {other}"
            yield Finding("G10", *key, position, what)
        if others:
            return


def _unfounded(
    primary: PrimaryView | None, position: int, by_incarnation: dict[IncarnationId, NotedVotes]
) -> Iterator[Finding]:
    """Yield incarnations that record a difference where all members had the same state."""
    if primary is None:
        return
    members = {name.rstrip("+") for name in primary.members}
    held: dict[str, tuple[bytes, int]] = {}
    for (member, incarnation), noted in by_incarnation.items():
        own = {state for row in noted.votes if (state := _own_state(row)) is not None}
        if len(own) == 1:
            held[f"{member}/{incarnation}"] = own.pop()
    if held.keys() != members or len(set(held.values())) > 1:
        return
    for key, noted in by_incarnation.items():
        for row in noted.votes:
            if row.text in VERDICTS and row.text != AGREED:
                what = f"notes the verdict '{row.text}', but all members held the same state there"
                yield Finding("G10", *key, position, what)
                break


def _own_state(row: Row) -> tuple[bytes, int] | None:
    """Return the chain and root of an incarnation at a verdict; None: unknown."""
    if row.text != UNDECIDED and row.flag is not True:
        return None
    return None if row.chain is None else (bytes(row.chain), row.root or 0)


def _verdict_text(verdict: NotedVerdict) -> str:
    word, chain, root = verdict
    if word == UNDECIDED:
        return f"'{word}'"
    return f"'{word}' for chain {chain.hex()[:8]}, root {root % (1 << 64):016x}"
