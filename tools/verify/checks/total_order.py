"""G1, G2, G14, G10: at each position all members applied the same item and computed the same state.

One aggregation over the batches of the ranges that `difference_search` left, and over the states
that starts, snapshots, votes and stops record, finds the first difference of each kind.  Only the
few rows of those positions are then read, to name who differs, in what, and at which command.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tools.verify.findings import Finding
from tools.verify.format.commands import Command
from tools.verify.format.records import RecordKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import Row as SparkRow

ANCHORS = (RecordKind.START, RecordKind.SNAPSHOT, RecordKind.VOTE, RecordKind.STOP)
ITEM = ("position", "blob_hash", "order", "kinds", "epoch", "origin")
PLACE = ("ring_seq", "seq")
_COMMANDS = frozenset(Command)
DIFFERENCES = ("item", "place", "outcomes", "moves", "chain", "root", "alone")


class Differences(NamedTuple):
    """How much was compared; by kind of difference its first position, and at how many it is."""

    batches: int
    positions: int
    found: dict[str, tuple[tuple[int, int], int]]  # (position, superseded epoch or 0), count


class AppliedAt(NamedTuple):
    """One member's batch, or other record of its state, at a position with a difference."""

    member: str
    incarnation: int
    kind: int
    position: int
    last: int
    epoch: int
    ring_seq: int
    seq: int
    origin: str
    kinds: bytes
    outcomes: bytes
    blob_hash: bytes
    order: bytes
    chain: bytes
    root: int | None
    moves_hash: int | None
    active: bool


def _superseded(cutoffs: dict[int, int]) -> Column:
    """Return the epoch of a superseded row, 0 for one of the canonical history."""
    from pyspark.sql import functions as f

    pairs = [f.lit(value) for pair in sorted(cutoffs.items()) for value in pair]
    if not pairs:
        return f.lit(0)
    cut = f.element_at(f.create_map(*pairs), f.col("decided"))
    return f.when(f.col("last") > cut, f.col("decided")).otherwise(0)


def find_differences(
    records: DataFrame, begin_inactive: list[str], cutoffs: dict[int, int], begin: int
) -> Differences:
    """Aggregate batches by the position that they end at, in one job.

    `begin_inactive` are the segments at whose beginning the member was in no primary.  Before
    position `begin` logs of some incarnations are missing: who else applied it is not known.
    """
    from pyspark.sql import functions as f

    # As SQL text: a column object for each part would be a call to Java each, some 200 in all.
    is_batch = f"kind = {int(RecordKind.BATCH)}"

    def differ(*columns: str) -> str:
        values = [f"if({is_batch}, `{column}`, null)" for column in columns]
        return " or ".join(f"coalesce(min({one}) != max({one}), false)" for one in values)

    anchors = ", ".join(str(int(kind)) for kind in ANCHORS)
    unequal = {
        "item": differ(*ITEM),
        "place": differ(*PLACE),
        "outcomes": differ("outcomes"),
        "moves": differ("moves_hash"),
        "chain": "coalesce(min(chain) != max(chain), false)",
        "root": "coalesce(min(root) != max(root), false)",
        # Applied outside of the primary is right when a member inside applied the same.
        "alone": f"`last` >= {begin} and coalesce(not max(active) or "
        "(not min(active) and min(chain) != max(chain)), false)",
    }
    per_position = (
        records.filter(f"{is_batch} or (kind in ({anchors}) and `last` > 0)")
        .withColumn("active", f.when(f.expr(is_batch), applied_while_active(begin_inactive)))
        .groupBy("last", _superseded(cutoffs).alias("superseded"))
        .agg(
            f.expr(f"count(if({is_batch}, 1, null)) as n"),
            f.expr(f"min(if({is_batch}, position, null)) as `first`"),
            *(f.expr(f"{words} as `{name}`") for name, words in unequal.items()),
        )
    )
    columns = ["sum(n)", "sum(`last` - `first` + 1)"]
    for name in DIFFERENCES:
        columns.append(f"min(if(`{name}`, struct(`last`, superseded), null))")
        columns.append(f"count(if(`{name}`, 1, null))")
    row = per_position.agg(*map(f.expr, columns)).collect()[0]
    found = {
        name: (tuple(row[2 + 2 * i]), row[3 + 2 * i])
        for i, name in enumerate(DIFFERENCES)
        if row[2 + 2 * i] is not None
    }
    return Differences(row[0] or 0, row[1] or 0, found)


def applied_while_active(begin_inactive: list[str]) -> Column:
    """Return whether a batch was applied while its member was in the primary."""
    from pyspark.sql import functions as f

    begun = f.col("file").isin(begin_inactive) if begin_inactive else f.lit(False)
    return f.coalesce(f.col("flag"), ~begun)


def describe_differences(
    records: DataFrame,
    differences: Differences,
    begin_inactive: list[str],
    cutoffs: dict[int, int],
) -> list[Finding]:
    """Return who differs from the others at the first position of each kind of difference."""
    from pyspark.sql import functions as f

    if not differences.found:
        return []
    wanted = [last for (last, _), _ in differences.found.values()]
    kinds = [int(kind) for kind in (RecordKind.BATCH, *ANCHORS)]
    rows = (
        records.filter(f.col("last").isin(wanted) & f.col("kind").isin(kinds))
        .withColumn("active", applied_while_active(begin_inactive))
        .select(*AppliedAt._fields, _superseded(cutoffs).alias("superseded"))
        .limit(1000)
        .collect()
    )
    at: dict[tuple[int, int], list[AppliedAt]] = {}
    for row in rows:
        at.setdefault((row.last, row.superseded), []).append(_applied(row))
    findings: list[Finding] = []
    for name, (place, count) in differences.found.items():
        here = sorted(at[place])
        batches = [row for row in here if row.kind == RecordKind.BATCH]
        if name == "alone":
            regular = {row.chain for row in batches if row.active}
            findings += [_outside_primary(row) for row in batches if row.chain not in regular]
        elif name == "chain" and "outcomes" in differences.found:
            if place != differences.found["outcomes"][0]:  # else the outcome explains it
                findings += _minority(here, name, count)
        else:
            findings += _minority(here if name in ("chain", "root") else batches, name, count)
    return findings


def _outside_primary(row: AppliedAt) -> Finding:
    what = f"{_commands(row)} applied outside of the primary, and by no member in it"
    return Finding("G7", row.member, row.incarnation, row.position, what)


def _minority(rows: list[AppliedAt], name: str, count: int) -> Iterator[Finding]:
    """Yield a finding for each incarnation that differs from the majority."""
    key, describe, promise = _COMPARED[name]
    rows = [row for row in rows if name != "root" or row.root is not None]
    usual, votes = Counter(map(key, rows)).most_common(1)[0]
    reference = next(row for row in rows if key(row) == usual)
    others = "at others" if votes > 1 else f"at {reference.member}"
    more = f" (so in {count} batches from here on)" if count > 1 else ""
    for row in rows:
        if key(row) == usual:
            continue
        if row.kind != RecordKind.BATCH:
            proof = "G10" if row.kind == RecordKind.VOTE else "G14"
            what = f"{_ANCHOR_NAMES[row.kind]} has another {name} than what was applied"
            yield Finding(proof, row.member, row.incarnation, row.last, what)
        elif reference.kind == RecordKind.BATCH:
            where, what = describe(row, reference)
            what = f"{what} than {others}, epoch {row.epoch}{more}"
            yield Finding(promise, row.member, row.incarnation, where, what)


def _item(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    if row.position != reference.position:
        return row.position, f"a batch that begins at another position ({_commands(row)})"
    for i, (mine, theirs) in enumerate(zip(row.kinds, reference.kinds, strict=False)):
        if mine != theirs:
            names = f"{command_name(mine)}, not {command_name(theirs)}"
            return row.position + i, f"another command ({names})"
    changed = [name for name in ITEM if getattr(row, name) != getattr(reference, name)]
    listed = ", ".join(changed).replace("blob_hash", "hash")
    return row.position, f"another item ({_commands(row)}; by its {listed})"


def _place(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    mine, theirs = (f"{r.ring_seq}/{r.seq}" for r in (row, reference))
    return row.position, f"delivered at another place of the ring ({mine}, not {theirs})"


def _outcome(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    mine = struct.unpack(f"<{len(row.outcomes) // 2}H", row.outcomes)
    theirs = struct.unpack(f"<{len(reference.outcomes) // 2}H", reference.outcomes)
    for i, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            name = command_name(row.kinds[i])
            return row.position + i, f"{name} has another outcome ({one}, not {other})"
    return row.position, "another number of outcomes"


def _moves(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    del reference
    return row.position, f"other things happened to messages by {_commands(row)}"


def _chain(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    mine, theirs = row.chain.hex()[:8], reference.chain.hex()[:8]
    return row.position, f"another chain after {_commands(row)} ({mine}, not {theirs})"


def _root(row: AppliedAt, reference: AppliedAt) -> tuple[int, str]:
    mine, theirs = (f"{(r.root or 0) % (1 << 64):016x}" for r in (row, reference))
    return row.last, f"another state root after {_commands(row)} ({mine}, not {theirs})"


def command_name(kind: int) -> str:
    """Return the name of a command kind, for people."""
    return Command(kind).name if kind in _COMMANDS else f"command {kind}"


def _commands(row: AppliedAt) -> str:
    more = f" and {len(row.kinds) - 1} more" if len(row.kinds) > 1 else ""
    return command_name(row.kinds[0]) + more


Key = Callable[[AppliedAt], tuple[object, ...]]
Describe = Callable[[AppliedAt, AppliedAt], tuple[int, str]]
_ANCHOR_NAMES = {
    int(RecordKind.START): "the recovered state",
    int(RecordKind.SNAPSHOT): "the transferred state",
    int(RecordKind.VOTE): "the vote",
    int(RecordKind.STOP): "the state at the stop",
}
_COMPARED: dict[str, tuple[Key, Describe, str]] = {
    "item": (lambda row: tuple(getattr(row, name) for name in ITEM), _item, "G1"),
    "place": (lambda row: (row.ring_seq, row.seq), _place, "G2"),
    "outcomes": (lambda row: (row.outcomes,), _outcome, "G14"),
    "moves": (lambda row: (row.moves_hash,), _moves, "G14"),
    "chain": (lambda row: (row.chain,), _chain, "G14"),
    "root": (lambda row: (row.root,), _root, "G14"),
}


def _applied(row: SparkRow) -> AppliedAt:
    return AppliedAt(
        row.member,
        row.incarnation,
        row.kind,
        row.position,
        row.last,
        row.epoch or 0,
        row.ring_seq or 0,
        row.seq or 0,
        row.origin or "",
        bytes(row.kinds or b""),
        bytes(row.outcomes or b""),
        bytes(row.blob_hash or b""),
        bytes(row.order or b""),
        bytes(row.chain or b""),
        row.root,
        row.moves_hash,
        row.active,
    )
