# mypy: disable-error-code="import-untyped"
"""Explanations of broken rules for people: queue, command, and the other moves of the message."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.verify.checks.total_order import command_name
from tools.verify.contract.rules import Breach, Rule
from tools.verify.contract.segment import Part, SegmentParts, SegmentTask, records_of
from tools.verify.findings import Finding
from tools.verify.format.moves import CAUSES, Op
from tools.verify.input.rows import SEGMENT, Row, ends_of
from tools.verify.input.tables import table_of
from tools.verify.sql.exchange import Exchange, Step, Tables
from tools.verify.sql.statements import answer

# The nearest moves of the message, of its queue as a whole, and of the position.
_NEAREST = 12
_NEAR = {
    "moves": """
        SELECT which, logged.position, ordinal, op, flag, cause, logged.queue, logged.seq, of,
            ABS(logged.position - wanted.position) AS distance
        FROM logged JOIN wanted ON logged.position = wanted.position
            OR logged.queue = wanted.queue AND op <> 1
                AND (logged.seq = wanted.seq OR op IN (7, 8, 9))
        WHERE stretch >= 0""",
    "near": f"""
        SELECT * FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY which ORDER BY distance, position, ordinal) AS rank FROM moves
        ) AS ranked WHERE rank <= {_NEAREST}""",
}
_WANTED = "which bigint, position bigint, queue bigint, seq bigint"
_TOLD = "which bigint, kind string, text string, position bigint, ordinal bigint, distance bigint"
_TOGETHER = {
    "context": f"""
        SELECT which, kind, text, position, ordinal, distance FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY which, kind ORDER BY distance, position, ordinal, text) AS rank
            FROM told
        ) AS ranked WHERE rank <= {_NEAREST} ORDER BY which, position, ordinal""",
}


def exchange_of_context(bins: int) -> Exchange:
    """Return the step that combines what segments hold about the breaches."""
    together = Step({"told": ()}, _TOGETHER, ["context"], {})
    return Exchange({"told": _TOLD, "context": _TOLD}, [together], bins)


def describe_breaches(
    breaches: Sequence[Breach], rules: Mapping[str, Rule], context: Tables, rows: Sequence[Row]
) -> list[Finding]:
    """Return the breaches as findings; `rows` show which members have a position."""
    told: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in context["context"].to_pylist():
        told[row["which"]][row["kind"]].append(row["text"])
    spans = [
        (row.member, first, last)
        for row in rows
        if row.kind == SEGMENT
        for first, last, *_ in ends_of(row).runs
    ]
    findings = []
    for which, breach in enumerate(breaches):
        at = breach.position
        members = sorted({member for member, first, last in spans if first <= at <= last})
        findings.append(_finding(breach, rules[breach.rule], told[which], members))
    return findings


def read_context(task: SegmentTask, wanted: Sequence[Breach]) -> Iterator[Tables]:
    """Yield what one segment holds about the breaches: names, commands, moves of the message."""
    numbered = [(which, one.position, one.queue, one.seq) for which, one in enumerate(wanted)]
    given = {"wanted": table_of(numbered, _WANTED)}
    parts = SegmentParts(task.ranges)
    for part in parts.of(records_of(task)):
        near = answer(_NEAR, {**part.tables, **given}, ["near"])["near"].to_pylist()
        told = [
            (row["which"], "move", describe(row), row["position"], row["ordinal"], row["distance"])
            for row in near
        ]
        yield {"told": table_of([*told, *_commands(part, wanted)], _TOLD)}
    names = [
        (which, "name", parts.names[one.queue], -1, 0, 0)
        for which, one in enumerate(wanted)
        if one.queue in parts.names
    ]
    yield {"told": table_of(names, _TOLD)}


def _commands(
    part: Part, wanted: Sequence[Breach]
) -> Iterator[tuple[int, str, str, int, int, int]]:
    firsts = [batch.first_position for batch in part.batches]
    for which, breach in enumerate(wanted):
        batch = part.batches[max(bisect_right(firsts, breach.position) - 1, 0)]
        nth = breach.position - batch.first_position
        if 0 <= nth < batch.commands and part.tells(breach.position):
            text = f"{command_name(batch.kinds[nth])} from {batch.origin}"
            yield which, "command", text, breach.position, 0, 0


def describe(move: dict[str, Any]) -> str:
    op = move["op"]
    words = [Op(op).name, CAUSES[op][move["cause"]]]
    if op == Op.PUBLISHED:
        words += [f"message {move['seq']}", f"channel {move['of']:08x}"]
    elif op in (Op.PURGED, Op.RECOVERED):
        words += [f"queue {move['queue']}", f"{move['of']} messages"]
    else:
        words += [f"queue {move['queue']}", f"place {move['seq']}"]
        if op in (Op.DELIVERED, Op.SETTLED, Op.RETURNED, Op.READER, Op.READ, Op.READ_END):
            words.append(f"channel {move['of']:08x}")
        if op in (Op.DELIVERED, Op.DROPPED) and move["flag"]:
            words.append("redelivered")
    return f"at {move['position']}: " + ", ".join(word for word in words if word)


def _finding(
    breach: Breach, rule: Rule, told: Mapping[str, Sequence[str]], members: Sequence[str]
) -> Finding:
    unnamed = f"number {breach.queue}" if breach.queue >= 0 else ""
    queue = next(iter(told.get("name", ())), unnamed)
    subject = f"queue {queue}: " if queue else ""
    if breach.seq >= 0 and queue:
        subject = f"message at place {breach.seq} of {subject}"
    details = [breach.more] if breach.more else []
    details += [f"by a {command}" for command in told.get("command", ())[:1]]
    if breach.since >= 0:
        details.append(f"its move before is at position {breach.since}")
    if breach.n > 1:
        details.append(f"{breach.n} such cases, this is the first")
    if members:
        details.append("in the log of " + ", ".join(members))
    what = subject + rule.sentence + (f" ({'; '.join(details)})" if details else "")
    return Finding(
        rule.promise, members[0] if len(members) == 1 else "", 0, breach.position, what,
        queue=queue, around=tuple(told.get("move", ())),
    )  # fmt: skip
