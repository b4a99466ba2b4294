"""G1 and G14: at each position all members applied the same item and computed the same.

One aggregation over all batches finds the first position of each kind of difference; only the few
rows of that position are then looked at, to say who differs, in what, and at which command.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from broker.machine import commands
from broker.memberlog.records import Kind
from tools.verify.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

COMMAND_NAMES = {
    value: name
    for name, value in vars(commands).items()
    if name.isupper() and type(value) is int and 0 < value < commands.KINDS_MAX
    if name not in ("MALFORMED", "OUT_OF_SEQUENCE", "IGNORED", "MANDATORY", "IMMEDIATE")
}
ITEM = ("last", "blob_hash", "order", "kinds", "epoch", "origin")
RESULT = ("outcomes", "chain")


class Differences(NamedTuple):
    """First position of each kind of difference, and at how many positions there is one."""

    batches: int
    positions: int
    item_at: int | None
    items: int
    result_at: int | None
    results: int
    root_at: int | None
    roots: int


class Applied(NamedTuple):
    """One member's batch at a position in question."""

    member: str
    incarnation: int
    last: int
    epoch: int
    origin: str
    kinds: bytes
    outcomes: bytes
    blob_hash: bytes
    order: bytes
    chain: bytes
    root: int


def find_differences(records: DataFrame) -> Differences:
    """Aggregate all batches by position, in one job."""
    from pyspark.sql import functions as f

    def differ(*columns: str) -> Column:
        unequal: Column = f.lit(False)
        for column in columns:
            unequal = unequal | (f.min(column) != f.max(column))
        return unequal

    batches = records.filter(f.col("kind") == int(Kind.BATCH))
    per_position = batches.groupBy("position").agg(
        f.count("*").alias("n"),
        f.max("last").alias("last"),
        differ(*ITEM).alias("item"),
        differ(*RESULT).alias("result"),
        differ("root").alias("root"),
    )
    columns = [f.sum("n").alias("batches"), f.sum(f.col("last") - f.col("position") + 1)]
    for kind in ("item", "result", "root"):
        columns += [f.min(f.when(f.col(kind), f.col("position"))), f.count(f.when(f.col(kind), 1))]
    row = per_position.agg(*columns).collect()[0]
    return Differences(*(row[0] or 0, row[1] or 0, *row[2:]))


def describe_differences(records: DataFrame, found: Differences) -> list[Finding]:
    """Say who differs from the others at the first position of each kind of difference."""
    from pyspark.sql import functions as f

    wanted = [at for at in (found.item_at, found.result_at, found.root_at) if at is not None]
    if not wanted:
        return []
    rows = (
        records.filter(f.col("kind") == int(Kind.BATCH))
        .filter(f.col("position").isin(wanted))
        .select("position", *Applied._fields)
        .limit(1000)
        .collect()
    )
    at: dict[int, list[Applied]] = {}
    for row in rows:
        at.setdefault(row.position, []).append(_applied(row))
    findings: list[Finding] = []
    if found.item_at is not None:
        findings += _odd(at[found.item_at], found.item_at, "G1", _item, found.items)
    if found.result_at is not None:
        findings += _odd(at[found.result_at], found.result_at, "G14", _result, found.results)
    if found.root_at is not None:
        findings += _odd(at[found.root_at], found.root_at, "G14", _root, found.roots)
    return findings


Key = Callable[[Applied], tuple[object, ...]]


def _odd(
    rows: list[Applied],
    position: int,
    proof: str,
    describe: Callable[[Applied, Applied, int], tuple[int, str] | None],
    count: int,
) -> Iterator[Finding]:
    """Yield a finding for each life that differs from what most have."""
    keys = Counter(_KEYS[describe](row) for row in sorted(rows))
    usual, votes = keys.most_common(1)[0]
    reference = next(row for row in sorted(rows) if _KEYS[describe](row) == usual)
    for row in sorted(rows):
        said = describe(row, reference, position)
        if said is None:
            continue
        where, what = said
        others = "others" if votes > 1 else reference.member
        more = f"; in all {count} batches differ so" if count > 1 else ""
        what = f"{what} than at {others}, epoch {row.epoch}{more}"
        yield Finding(proof, row.member, row.incarnation, where, what)


def _item(row: Applied, reference: Applied, position: int) -> tuple[int, str] | None:
    if _item_key(row) == _item_key(reference):
        return None
    for i, (mine, theirs) in enumerate(zip(row.kinds, reference.kinds, strict=False)):
        if mine != theirs:
            names = f"{command_name(mine)} instead of {command_name(theirs)}"
            return position + i, f"another command is applied ({names})"
    if row.last != reference.last:
        return position, f"a batch of {len(row.kinds)} commands, not {len(reference.kinds)}, rather"
    changed = [name for name in ITEM if getattr(row, name) != getattr(reference, name)]
    listed = ", ".join(changed).replace("blob_hash", "hash")
    return position, f"another item ({_first_command(row)}; its {listed}) is applied"


def _result(row: Applied, reference: Applied, position: int) -> tuple[int, str] | None:
    if _result_key(row) == _result_key(reference):
        return None
    mine = struct.unpack(f"<{len(row.outcomes) // 2}H", row.outcomes)
    theirs = struct.unpack(f"<{len(reference.outcomes) // 2}H", reference.outcomes)
    for i, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            name = command_name(row.kinds[i])
            return position + i, f"{name} has another outcome ({one} instead of {other})"
    return position, f"another chain after {_first_command(row)}"


def _root(row: Applied, reference: Applied, position: int) -> tuple[int, str] | None:
    if row.root == reference.root:
        return None
    mine, theirs = (f"{root % (1 << 64):016x}" for root in (row.root, reference.root))
    return row.last, f"another state root after {_first_command(row)} ({mine}, not {theirs})"


def command_name(kind: int) -> str:
    """Return the name of a command kind, for people."""
    return COMMAND_NAMES.get(kind, f"command {kind}")


def _first_command(row: Applied) -> str:
    more = f" and {len(row.kinds) - 1} more" if len(row.kinds) > 1 else ""
    return command_name(row.kinds[0]) + more


def _item_key(row: Applied) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in ITEM)


def _result_key(row: Applied) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in RESULT)


_KEYS: dict[Callable[[Applied, Applied, int], tuple[int, str] | None], Key] = {
    _item: _item_key,
    _result: _result_key,
    _root: lambda row: (row.root,),
}


def _applied(row: Row) -> Applied:
    return Applied(
        row.member,
        row.incarnation,
        row.last,
        row.epoch,
        row.origin,
        bytes(row.kinds),
        bytes(row.outcomes),
        bytes(row.blob_hash),
        bytes(row.order),
        bytes(row.chain),
        row.root,
    )
