"""G1, G7, G20: an epoch begins with its activation, where its ACTIVE says, orders only its own
members' submissions, and forgets messages only in a cold start.

The first command of an epoch is its ACTIVATE, behind the state that the primary names as its base,
and there is no other; its ordered commands come from its members. All logs may agree on something
else. Pure Python over ACTIVE and SEGMENT rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tools.verify.checks.views_and_segments import PrimaryView, incarnation_in, runs_of
from tools.verify.findings import Finding
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Activated, Row, Run, ends_of

Activations = list[tuple[Row, Activated]]


def check_epoch_beginnings(rows: list[Row], primaries: dict[int, PrimaryView]) -> Iterator[Finding]:
    """Yield contradictions to the activations of epochs; of logs that are alike one is named."""
    activated: dict[int, Activations] = defaultdict(list)
    recorded = [run for _, run in runs_of(rows)]
    claims: dict[int, dict[tuple[int, bytes], Row]] = defaultdict(dict)  # by base and its chain
    for row in rows:
        if row.kind == RecordKind.ACTIVE and row.position:
            claims[row.epoch or 0].setdefault((row.position, bytes(row.chain or b"")), row)
        elif row.kind == SEGMENT:
            for one in ends_of(row).activations:
                activated[one.epoch].append((row, one))
    yield from _check_origins(rows, primaries)
    for epoch, primary in primaries.items():
        found = sorted(activated[epoch], key=lambda pair: (pair[1].position, pair[0].member))
        yield from _check_one(epoch, primary, found)
        for (base, chain), row in claims[epoch].items():
            what = _contradicted(epoch, base, chain.hex(), found, recorded)
            if what:
                yield Finding("G7", *incarnation_in(row), base + 1, what)


def _check_origins(rows: list[Row], primaries: dict[int, PrimaryView]) -> Iterator[Finding]:
    """G1: commands ordered by a primary were submitted by its members."""
    foreign: dict[tuple[int, str], tuple[int, Row]] = {}
    for row in (row for row in rows if row.kind == SEGMENT):
        for epoch, origins in ends_of(row).origins.items():
            named = primaries[epoch].names() if epoch in primaries else origins.keys()
            for origin in sorted(origins.keys() - named):
                known = foreign.setdefault((epoch, origin), (origins[origin], row))
                if origins[origin] < known[0]:
                    foreign[epoch, origin] = origins[origin], row
    for (epoch, origin), (position, row) in sorted(foreign.items()):
        what = f"an item of {origin}, which is not in the primary of epoch {epoch} that ordered it"
        yield Finding("G1", *incarnation_in(row), position, what)


def _check_one(epoch: int, primary: PrimaryView, activated: Activations) -> Iterator[Finding]:
    """G7: an epoch has one activation.  G20: it forgets messages in a cold start only."""
    if not activated:
        return
    row, first = activated[0]
    if first.forgot and not primary.cold:
        what = "messages were forgotten as in a cold start, but the primary of epoch"
        yield Finding("G20", *incarnation_in(row), first.position, f"{what} {epoch} is none")
    for row, one in activated:
        if one.position != first.position:
            what = f"a second activation of epoch {epoch}, which began at {first.position}"
            yield Finding("G7", *incarnation_in(row), one.position, what)
            return


def _contradicted(
    epoch: int, base: int, chain: str, activated: Activations, recorded: list[Run]
) -> str:
    """Return how the applied commands contradict the beginning that an ACTIVE claims, or ""."""
    if not activated:
        if any(run.first <= base + 1 <= run.last and run.decided == epoch for run in recorded):
            return f"epoch {epoch} began here, and the command at {base + 1} is no activation"
        return ""
    here = [one for _, one in activated if one.position == base + 1]
    if not here:
        where = activated[0][1].position
        return f"says that epoch {epoch} began here, and its activation is at {where}"
    known = [one.chain_before for one in here if one.chain_before]
    if known and chain not in known:
        says = f"says that it follows a state with chain {chain[:8]}"
        return f"the primary of epoch {epoch} {says}, and what it follows has {known[0][:8]}"
    return ""
