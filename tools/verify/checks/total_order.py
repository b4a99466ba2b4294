"""G1, G2, G14, G10: at each position all members applied the same item and computed the same state.

One query over the batches of the ranges that `difference_search` left, and over the states that
starts, snapshots, votes and stops record, finds the first difference of each kind.  Only the few
rows of those positions are then read, to name who differs, in what, and at which command.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tools.verify.findings import Finding
from tools.verify.format.commands import Command
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ANCHORS = (RecordKind.START, RecordKind.SNAPSHOT, RecordKind.VOTE, RecordKind.STOP)
ITEM = ("position", "blob_hash", "order", "kinds", "epoch", "origin")
_BATCH = int(RecordKind.BATCH)
_COMMANDS = frozenset(Command)
_ANCHORS = ", ".join(str(int(kind)) for kind in ANCHORS)


class Differences(NamedTuple):
    """How much was compared; by kind of difference its first position, and at how many it is."""

    batches: int
    positions: int
    found: dict[str, tuple[tuple[int, int], int]]  # (position, superseded epoch or 0), count


class Compared(NamedTuple):
    """A kind of difference: the promise, and the columns that all members have alike."""

    promise: str
    columns: tuple[str, ...]
    of_states: bool = False  # other records have them, too

    def differ(self) -> str:
        """Return, in SQL, whether the rows of one position differ."""
        value = "`{}`" if self.of_states else "if(is_batch, `{}`, null)"
        columns = map(value.format, self.columns)
        return " or ".join(f"coalesce(min({one}) != max({one}), false)" for one in columns)


_COMPARED = {
    "item": Compared("G1", ITEM),
    "place": Compared("G2", ("ring_seq", "seq")),
    "outcomes": Compared("G14", ("outcomes",)),
    "moves": Compared("G14", ("moves_hash",)),
    "chain": Compared("G14", ("chain",), of_states=True),
    "root": Compared("G14", ("root",), of_states=True),
}
_ALONE = "alone"  # applied outside of the primary, which is right when a member inside did the same
DIFFERENCES = (*_COMPARED, _ALONE)

# By the position that batches end at, and the epoch of what a later primary superseded.  Before
# position {begin} logs of some incarnations are missing: who else applied it is not known.
_FIRST_DIFFERENCES = f"""
    with states as (
        select *, kind = {_BATCH} as is_batch, {{superseded}} as superseded
        from {{{{given}}}} where kind = {_BATCH} or (kind in ({_ANCHORS}) and `last` > 0)
    ), compared as (
        select `last`, superseded, count_if(is_batch) as n,
            min(if(is_batch, position, null)) as `first`,
            {", ".join(f"{one.differ()} as `{name}`" for name, one in _COMPARED.items())},
            `last` >= {{begin}} and coalesce(
                not bool_or(if(is_batch, active, null)) or (
                    not bool_and(if(is_batch, active, null)) and min(chain) != max(chain)
                ), false
            ) as `{_ALONE}`
        from states group by `last`, superseded
    )
    select sum(n) as batches, sum(`last` - `first` + 1) as positions,
        {
    ", ".join(
        f"min(if(`{n}`, struct(`last`, superseded), null)) as `{n}`, count_if(`{n}`) as `n_{n}`"
        for n in DIFFERENCES
    )
}
    from compared
"""


def _superseded(cutoffs: dict[int, int]) -> str:
    """Return, in SQL, the epoch of a superseded row, 0 for one of the canonical history."""
    if not cutoffs:
        return "0"
    pairs = ", ".join(f"{epoch}L, {last}L" for epoch, last in sorted(cutoffs.items()))
    return f"if(`last` > element_at(map({pairs}), decided), decided, 0)"


def applied_while_active(begin_inactive: list[str]) -> Column:
    """Return whether a batch was applied while its member was in the primary.

    `begin_inactive` are the segments at whose beginning the member was in none.
    """
    from pyspark.sql import functions as f

    begun = f.col("file").isin(begin_inactive) if begin_inactive else f.lit(False)
    return f.coalesce(f.col("flag"), ~begun)


def find_differences(
    records: DataFrame, begin_inactive: list[str], cutoffs: dict[int, int], begin: int
) -> Differences:
    """Compare batches by the position that they end at, in one job."""
    query = _FIRST_DIFFERENCES.format(superseded=_superseded(cutoffs), begin=begin)
    given = records.withColumn("active", applied_while_active(begin_inactive))
    row = records.sparkSession.sql(query, given=given).collect()[0]
    found = {
        name: (tuple(row[name]), row[f"n_{name}"]) for name in DIFFERENCES if row[name] is not None
    }
    return Differences(row.batches or 0, row.positions or 0, found)


def describe_differences(
    records: DataFrame,
    differences: Differences,
    begin_inactive: list[str],
    cutoffs: dict[int, int],
) -> list[Finding]:
    """Return who differs from the others at the first position of each kind of difference."""
    if not differences.found:
        return []
    wanted = ", ".join(str(last) for (last, _), _ in differences.found.values())
    there = records.filter(f"`last` in ({wanted}) and kind in ({_BATCH}, {_ANCHORS})")
    rows = there.withColumn("flag", applied_while_active(begin_inactive)).selectExpr(
        *(f"`{name}`" for name in Row._fields), f"{_superseded(cutoffs)} as superseded"
    )
    at: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for found in rows.limit(1000).collect():
        at[found.last, found.superseded].append(Row(*found[:-1]))
    findings: list[Finding] = []
    for name, (place, count) in differences.found.items():
        here = sorted(at[place], key=lambda row: row[:6])
        batches = [row for row in here if row.kind == RecordKind.BATCH]
        if name == _ALONE:
            regular = [row.chain for row in batches if row.flag]
            findings += [_outside_primary(row) for row in batches if row.chain not in regular]
        elif name == "chain" and differences.found.get("outcomes", ((), 0))[0] == place:
            continue  # the outcome explains it
        else:
            findings += _minority(here if _COMPARED[name].of_states else batches, name, count)
    return findings


def _outside_primary(row: Row) -> Finding:
    what = f"{_commands(row)} applied outside of the primary, and by no member in it"
    return Finding("G7", row.member, row.incarnation, row.position or 0, what)


def _minority(rows: list[Row], name: str, count: int) -> Iterator[Finding]:
    """Yield a finding for each incarnation that differs from the majority."""
    columns = _COMPARED[name].columns
    reported = [(tuple(map(str, (getattr(row, one) for one in columns))), row) for row in rows]
    if name == "root":
        reported = [one for one in reported if one[1].root is not None]
    usual, votes = Counter(values for values, _ in reported).most_common(1)[0]
    reference = next(row for values, row in reported if values == usual)
    others = "at others" if votes > 1 else f"at {reference.member}"
    more = f" (so in {count} batches from here on)" if count > 1 else ""
    for values, row in reported:
        if values == usual:
            continue
        if row.kind != RecordKind.BATCH:
            proof = "G10" if row.kind == RecordKind.VOTE else "G14"
            what = f"{_ANCHOR_NAMES[row.kind]} has another {name} than what was applied"
            yield Finding(proof, row.member, row.incarnation, row.last or 0, what)
        elif reference.kind == RecordKind.BATCH:
            after, what = _described(name, row, reference)
            where = (row.last if name == "root" else row.position) or 0
            what = f"{what} than {others}, epoch {row.epoch}{more}"
            promise = _COMPARED[name].promise
            yield Finding(promise, row.member, row.incarnation, where + after, what)


def _described(name: str, row: Row, other: Row) -> tuple[int, str]:
    """Return how far into a batch it differs from another one, and in which words."""
    match name:
        case "item":
            return _item(row, other)
        case "place":
            mine, theirs = (f"{one.ring_seq}/{one.seq}" for one in (row, other))
            return 0, f"delivered at another place of the ring ({mine}, not {theirs})"
        case "outcomes":
            return _outcome(row, other)
        case "moves":
            return 0, f"other things happened to messages by {_commands(row)}"
        case "chain":
            mine, theirs = ((one.chain or b"").hex()[:8] for one in (row, other))
            return 0, f"another chain after {_commands(row)} ({mine}, not {theirs})"
        case _:
            mine, theirs = (f"{(one.root or 0) % (1 << 64):016x}" for one in (row, other))
            return 0, f"another state root after {_commands(row)} ({mine}, not {theirs})"


def _item(row: Row, other: Row) -> tuple[int, str]:
    if row.position != other.position:
        return 0, f"a batch that begins at another position ({_commands(row)})"
    for i, (mine, theirs) in enumerate(zip(row.kinds or b"", other.kinds or b"", strict=False)):
        if mine != theirs:
            return i, f"another command ({command_name(mine)}, not {command_name(theirs)})"
    changed = [name for name in ITEM if getattr(row, name) != getattr(other, name)]
    listed = ", ".join(changed).replace("blob_hash", "hash")
    return 0, f"another item ({_commands(row)}; by its {listed})"


def _outcome(row: Row, other: Row) -> tuple[int, str]:
    mine, theirs = (
        struct.unpack(f"<{len(one) // 2}H", one)
        for one in (row.outcomes or b"", other.outcomes or b"")
    )
    for i, (one, its) in enumerate(zip(mine, theirs, strict=False)):
        if one != its:
            name = command_name((row.kinds or b"")[i])
            return i, f"{name} has another outcome ({one}, not {its})"
    return 0, "another number of outcomes"


def command_name(kind: int) -> str:
    """Return the name of a command kind, for people."""
    return Command(kind).name if kind in _COMMANDS else f"command {kind}"


def _commands(row: Row) -> str:
    kinds = row.kinds or b""
    more = f" and {len(kinds) - 1} more" if len(kinds) > 1 else ""
    return command_name(kinds[0]) + more


_ANCHOR_NAMES = {
    int(RecordKind.START): "the recovered state",
    int(RecordKind.SNAPSHOT): "the transferred state",
    int(RecordKind.VOTE): "the vote",
    int(RecordKind.STOP): "the state at the stop",
}
