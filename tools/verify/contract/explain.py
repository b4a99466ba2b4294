# mypy: disable-error-code="import-untyped"
"""Explanation of broken rules for people: queue, command, and the other moves of the message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tools.verify.checks.total_order import command_name
from tools.verify.checks.views_and_segments import runs_of
from tools.verify.contract.rules import RULES, Breach
from tools.verify.findings import Finding
from tools.verify.format.moves import Op
from tools.verify.format.records import Batch, Queues, Record, Snapshot, Start
from tools.verify.input.moves import Moves, unpack
from tools.verify.input.ranges_of_file import FileRange, RangeCursor
from tools.verify.input.rows import SEGMENT, Row

LINES_MAX = 12
_BATCHES_MAX = 1024

CAUSES = {
    Op.PUBLISHED: ("by a client", "by a transaction", "dead-lettered", "again, by its number"),
    Op.ENQUEUED: ("",),
    Op.DELIVERED: ("to a consumer", "to a get"),
    Op.SETTLED: ("acknowledged", "sent", "rejected", "of a deleted queue", "by a transaction",
                 "came back too often"),
    Op.RETURNED: (
        "by a nack or reject", "by a recover", "as its channel closed", "as its member was lost",
        "by a transaction",
    ),
    Op.DROPPED: ("expired", "over the limit"),
    Op.PURGED: ("by a purge", "deleted", "by a cold start"),
    Op.DECLARED: ("",),
    Op.RECOVERED: ("by a cold start",),
}  # fmt: skip


class ContextLine(NamedTuple):
    """Something found in the logs about the n-th breach."""

    which: int
    kind: str  # "name", "command" or "move"
    position: int
    ordinal: int
    text: str


def find_context(
    records: Iterable[Record], ranges: Iterable[FileRange], wanted: Sequence[Breach]
) -> Iterator[ContextLine]:
    """Yield what one segment holds about the breaches: names, commands, moves of the message."""
    numbers = {breach.queue for breach in wanted}
    names: dict[int, str] = {}
    batches: list[Batch] = []
    cursor = RangeCursor(ranges)
    for record in records:
        if isinstance(record, Start | Snapshot):
            yield from _moves(batches, cursor, wanted)
            batches = []
        cursor.advance(record)
        match record:
            case Queues(queues):
                names |= {q[0]: f"{q[1]} {q[2]}" for q in queues if q[0] in numbers}
            case Batch():
                yield from _commands(record, cursor, wanted)
                batches.append(record)
                if len(batches) == _BATCHES_MAX:
                    yield from _moves(batches, cursor, wanted)
                    batches = []
            case _:
                pass
    yield from _moves(batches, cursor, wanted)
    for which, breach in enumerate(wanted):
        if breach.queue in names:
            yield ContextLine(which, "name", breach.position, 0, names[breach.queue])


def _commands(batch: Batch, cursor: RangeCursor, wanted: Sequence[Breach]) -> Iterator[ContextLine]:
    first, last = batch.first_position, batch.first_position + batch.commands - 1
    for which, breach in enumerate(wanted):
        at = breach.position
        if first <= at <= last and cursor.covers(at):
            text = f"{command_name(batch.kinds[at - first])} from {batch.origin}"
            yield ContextLine(which, "command", at, 0, text)


def _moves(
    batches: Sequence[Batch], cursor: RangeCursor, wanted: Sequence[Breach]
) -> Iterator[ContextLine]:
    moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    for which, breach in enumerate(wanted):
        of_it = (moves.op != Op.PUBLISHED) & (moves.queue == breach.queue)
        whole = np.isin(moves.op, (Op.PURGED, Op.DECLARED, Op.RECOVERED))
        of_it &= (moves.seq == breach.seq) | whole
        rows = np.flatnonzero(of_it | (moves.position == breach.position))
        rows = rows[np.argsort(np.abs(moves.position[rows] - breach.position), kind="stable")]
        for i in sorted(rows[:LINES_MAX].tolist()):
            position = int(moves.position[i])
            if cursor.covers(position):
                yield ContextLine(
                    which, "move", position, int(moves.ordinal[i]), describe(moves, i)
                )


def describe(moves: Moves, i: int) -> str:
    """Return one move in words."""
    op = int(moves.op[i])
    name = Op(op).name if op in CAUSES else f"move {op}"
    causes = CAUSES.get(Op(op), ()) if op in CAUSES else ()
    cause = int(moves.cause[i])
    words = [name, causes[cause] if cause < len(causes) else f"for cause {cause}"]
    if op == Op.PUBLISHED:
        words += [f"message {int(moves.seq[i])}", f"channel {int(moves.of[i]):08x}"]
    elif op in (Op.PURGED, Op.RECOVERED):
        words += [f"queue {int(moves.queue[i])}", f"{int(moves.of[i])} messages"]
    else:
        words += [f"queue {int(moves.queue[i])}", f"place {int(moves.seq[i])}"]
        if op in (Op.DELIVERED, Op.SETTLED, Op.RETURNED):
            words.append(f"channel {int(moves.of[i]):08x}")
        if op in (Op.DELIVERED, Op.DROPPED) and moves.flag[i]:
            words.append("redelivered")
    return f"at {int(moves.position[i])}: " + ", ".join(word for word in words if word)


def describe_breaches(
    breaches: Sequence[tuple[Breach, int]], context: Iterable[ContextLine], rows: Iterable[Row]
) -> list[Finding]:
    """Return the breaches as findings; `rows` show which members have a position."""
    about: dict[int, list[ContextLine]] = {}
    for one in context:
        about.setdefault(one.which, []).append(one)
    spans = [
        (row.member, first, last)
        for row in rows
        if row.kind == SEGMENT
        for first, last, *_ in runs_of(row)
    ]
    findings: list[Finding] = []
    for which, (breach, n) in enumerate(breaches):
        at = breach.position
        members = sorted({member for member, first, last in spans if first <= at <= last})
        findings.append(_finding(breach, n, about.get(which, []), members))
    return findings


def _finding(
    breach: Breach, n: int, context: Sequence[ContextLine], members: Sequence[str]
) -> Finding:
    rule = RULES[breach.rule]
    facts = {one.kind: one.text for one in context if one.kind != "move"}
    queue = facts.get("name", f"number {breach.queue}" if breach.queue >= 0 else "")
    subject = ""
    if breach.seq >= 0 and queue:
        subject = f"message at place {breach.seq} of queue {queue}: "
    elif queue:
        subject = f"queue {queue}: "
    details = [breach.more] if breach.more else []
    if "command" in facts:
        details.append(f"by a {facts['command']}")
    if breach.since >= 0:
        details.append(f"its move before is at position {breach.since}")
    if n > 1:
        details.append(f"{n} such cases, this is the first")
    if members:
        details.append("in the log of " + ", ".join(members))
    what = subject + rule.sentence + (f" ({'; '.join(details)})" if details else "")
    moves = sorted({(one.position, one.ordinal, one.text) for one in context
                    if one.kind == "move"})  # fmt: skip
    near = sorted(moves, key=lambda move: abs(move[0] - breach.position))[:LINES_MAX]
    around = tuple(text for _, _, text in sorted(near))
    return Finding(
        rule.promise, members[0] if len(members) == 1 else "", 0, breach.position, what,
        queue=queue, around=around,
    )  # fmt: skip
