"""G1, G2, G7, G10, G14: at each position all members applied the same item, as one in the primary
did, and computed the same state.

One query over the batches of the ranges left by `difference_search`, and over the states recorded
by starts, snapshots, votes and stops, finds the first difference of each kind. Only the few rows of
those positions are then read, to name the members that differ, the difference, and the command.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.verify.checks.views_and_segments import incarnation_in, split_by_majority
from tools.verify.findings import Finding
from tools.verify.format.commands import Command
from tools.verify.format.records import RecordKind
from tools.verify.input.rows import Row
from tools.verify.sql.kept import Kept

if TYPE_CHECKING:
    import pyarrow as pa

ANCHORS = (RecordKind.START, RecordKind.SNAPSHOT, RecordKind.VOTE, RecordKind.STOP)
ITEM = ("position", "blob_hash", "order_hash", "kinds", "epoch", "origin")
_BATCH = int(RecordKind.BATCH)
_COMMANDS = frozenset(Command)
_REEXECUTED = f"{int(Command.REEXECUTED):02X}"  # as the only kind of a batch
_ANCHORS = ", ".join(str(int(kind)) for kind in ANCHORS)


Differences = dict[str, tuple[tuple[int, ...], int]]
"""By kind, the first place (position, superseded epoch or 0), and how many there are."""


class Compared(NamedTuple):
    """A kind of difference: the promise, and the columns that all members have alike."""

    promise: str
    columns: tuple[str, ...]
    of_states: bool = False  # other records contain them, too

    def differ(self) -> str:
        """Return, in SQL, whether the rows of one position differ."""
        value = "{}" if self.of_states else "CASE WHEN is_batch THEN {} END"
        columns = map(value.format, self.columns)
        return " OR ".join(f"COALESCE(MIN({one}) <> MAX({one}), FALSE)" for one in columns)


_COMPARED = {
    "item": Compared("G1", ITEM),
    "place": Compared("G2", ("ring_seq", "seq")),
    "outcomes": Compared("G14", ("outcomes",)),
    "moves": Compared("G14", ("moves_hash",)),
    "chain": Compared("G14", ("chain",), of_states=True),
    "root": Compared("G14", ("root",), of_states=True),
}
_ALONE = "alone"  # applied outside the primary, which is right if a member inside did the same
DIFFERENCES = (*_COMPARED, _ALONE)

# By the position where batches end, and the epoch of what a later primary superseded. Before
# position {begin} logs of some incarnations are missing, so other members that applied it are
# unknown.
_COMPARE = f"""
    WITH states AS (
        SELECT *, kind = {_BATCH} AS is_batch FROM ({{there}}) AS there
        WHERE kind = {_BATCH} OR last > 0
    ), compared AS (
        SELECT last, superseded, COUNT(*) FILTER (WHERE is_batch) AS n,
            MIN(CASE WHEN is_batch THEN position END) AS first,
            {", ".join(f"{one.differ()} AS {name}" for name, one in _COMPARED.items())},
            last >= {{begin}} AND COALESCE(
                NOT BOOL_OR(CASE WHEN is_batch THEN active END)
                OR NOT BOOL_AND(CASE WHEN is_batch THEN active END) AND MIN(chain) <> MAX(chain),
                FALSE
            ) AS {_ALONE},
            CONCAT(LPAD(CAST(last AS STRING), 20, '0'), ' ', superseded) AS at_epoch
        FROM states GROUP BY last, superseded
    )
    SELECT CAST(SUM(n) AS BIGINT) AS batches, CAST(SUM(last - first + 1) AS BIGINT) AS positions,
        {", ".join(
            f"MIN(at_epoch) FILTER (WHERE {name}) AS {name}, COUNT_IF({name}) AS n_{name}"
            for name in DIFFERENCES
        )}
    FROM compared"""  # fmt: skip


_NAMES_MAX = 20  # findings
_NAMES = f"""
    SELECT DISTINCT seq, decided, member, incarnation, CONCAT(origin, ' ', text) AS name
    FROM kept SEMI JOIN (
        SELECT seq, decided FROM kept WHERE kind = {int(RecordKind.QUEUES)}
        GROUP BY seq, decided
        HAVING MIN(CONCAT(origin, ' ', text)) <> MAX(CONCAT(origin, ' ', text))
    ) AS disputed USING (seq, decided)
    WHERE kind = {int(RecordKind.QUEUES)} ORDER BY seq, decided, member, incarnation, name"""


def _there(cutoffs: dict[int, int]) -> str:
    """Return the SELECT of batches and of records that state a state, with the epoch if a later
    primary superseded it, otherwise 0; and whether the member was in the primary, or was finding
    out who is wrong, during which it replies to nobody and stays in the order."""
    beyond = " ".join(f"WHEN {epoch} THEN {last}" for epoch, last in sorted(cutoffs.items()))
    superseded = f"CASE WHEN last > CASE decided {beyond} END THEN decided ELSE 0 END"
    return f"""
        SELECT kept.*, COALESCE(HEX(kinds) = '{_REEXECUTED}', FALSE)
            OR COALESCE(flag, begun IS NULL) AS active,
            {superseded if cutoffs else 0} AS superseded
        FROM kept LEFT JOIN begun_inactive USING (file)
        WHERE kind IN ({_BATCH}, {_ANCHORS})"""


def begun_inactive(files: list[str]) -> pa.Table:
    """Return the table of segments at whose beginning the member was in no primary.

    A batch that follows no other record about that was applied so, too.
    """
    from tools.verify.input.tables import table_of

    return table_of(((file, True) for file in files), "file string, begun boolean")


def compare_batches(
    records: Kept, begin_inactive: list[str], cutoffs: dict[int, int], begin: int
) -> tuple[int, int, list[Finding]]:
    """Compare batches by the position that they end at; return how many, of how many positions, and
    who differs from the others at the first position of each kind of difference.
    """
    there, inactive = _there(cutoffs), begun_inactive(begin_inactive)
    query = _COMPARE.format(there=there, begin=begin)
    row = records.ask(query, begun_inactive=inactive).to_pylist()[0]
    found: Differences = {
        name: (tuple(map(int, row[name].split())), row[f"n_{name}"])
        for name in DIFFERENCES
        if row[name] is not None
    }
    findings: list[Finding] = []
    if found:
        wanted = ", ".join(str(last) for (last, _), _ in found.values())
        query = f"SELECT * FROM ({there}) AS there WHERE last IN ({wanted}) LIMIT 1000"
        findings = _described_at(records.ask(query, begun_inactive=inactive).to_pylist(), found)
    return row["batches"] or 0, row["positions"] or 0, findings


def _described_at(rows: list[dict[str, Any]], differences: Differences) -> list[Finding]:
    at: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        one = Row(*(row[name] for name in Row._fields))
        at[one.last or 0, row["superseded"]].append(one._replace(flag=row["active"]))
    findings: list[Finding] = []
    for name, (place, count) in differences.items():
        here = sorted(at[place], key=lambda row: row[:6])
        batches = [row for row in here if row.kind == RecordKind.BATCH]
        if name == _ALONE:
            regular = [row.chain for row in batches if row.flag]
            said = "applied outside of the primary, and by no member in it"
            findings += [
                Finding("G7", *incarnation_in(row), row.position or 0, f"{_commands(row)} {said}")
                for row in batches if row.chain not in regular
            ]  # fmt: skip
        elif name == "chain" and differences.get("outcomes", ((), 0))[0] == place:
            continue  # the outcome explains it
        else:
            findings += _minority(here if _COMPARED[name].of_states else batches, name, count)
    return findings


def check_names(scan: Kept) -> list[Finding]:
    """G14: in the history of one epoch a number is one queue in all logs."""
    rows = scan.ask(_NAMES).to_pylist()
    findings = []
    for (number, _), named in groupby(rows, key=lambda row: (row["seq"], row["decided"])):
        reports = [(row["name"], (row["member"], row["incarnation"])) for row in named]
        (usual, _), others = split_by_majority(reports)
        for name, key in others:
            what = f"calls queue number {number} {name}, which is {usual} in other logs"
            findings.append(Finding("G14", *key, -1, what))
    return findings[:_NAMES_MAX]


def _minority(rows: list[Row], name: str, count: int) -> Iterator[Finding]:
    """Yield a finding for each incarnation that differs from the majority of those that applied it,
    however many claim to have another state."""
    columns = _COMPARED[name].columns
    reported = [(tuple(map(str, (getattr(row, one) for one in columns))), row) for row in rows]
    if name == "root":
        reported = [one for one in reported if one[1].root is not None]
    voting = [one for one in reported if one[1].kind == RecordKind.BATCH] or reported
    usual, votes = Counter(values for values, _ in voting).most_common(1)[0]
    reference = next(row for values, row in voting if values == usual)
    others = "at others" if votes > 1 else f"at {reference.member}"
    more = f" (so in {count} batches from here on)" if count > 1 else ""
    for values, row in reported:
        if values == usual:
            continue
        if row.kind != RecordKind.BATCH:
            proof = "G10" if row.kind == RecordKind.VOTE else "G14"
            what = f"{_ANCHOR_NAMES[row.kind]} has another {name} than what was applied"
            yield Finding(proof, *incarnation_in(row), row.last or 0, what)
        else:
            after, what = _described(name, row, reference)
            where = (row.last if name == "root" else row.position) or 0
            what = f"{what} than {others}, epoch {row.epoch}{more}"
            promise = _COMPARED[name].promise
            yield Finding(promise, *incarnation_in(row), where + after, what)


def _described(name: str, row: Row, other: Row) -> tuple[int, str]:
    """Return how far into a batch it differs from another one, and in words how."""
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
    listed = ", ".join(changed).replace("blob_hash", "hash").replace("order_hash", "order")
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
