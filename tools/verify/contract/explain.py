# mypy: disable-error-code="import-untyped"
"""Broken rules in words: which queue, which command, and the moves of the message around."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from broker.machine.move_log import Op
from broker.memberlog.records import Batch, Queues, Record, Snapshot, Start
from tools.verify.checks.total_order import command_name
from tools.verify.checks.views_and_segments import runs_of
from tools.verify.contract.rules import RULES, Breach
from tools.verify.findings import Finding
from tools.verify.input.moves import Moves, unpack
from tools.verify.input.ranges_of_file import Part, Place
from tools.verify.input.rows import SEGMENT, Row

LINES_MAX = 12
_BATCHES_MAX = 1024

CAUSES = {
    Op.PUBLISHED: ("by a client", "by a transaction", "dead-lettered"),
    Op.ENQUEUED: ("",),
    Op.DELIVERED: ("to a consumer", "to a get"),
    Op.SETTLED: ("acknowledged", "sent", "rejected", "of a deleted queue", "by a transaction"),
    Op.RETURNED: (
        "by a nack or reject", "by a recover", "as its channel closed", "as its member was lost",
        "by a transaction",
    ),
    Op.DROPPED: ("expired", "over the limit"),
    Op.PURGED: ("by a purge", "deleted", "by a cold start"),
    Op.DECLARED: ("",),
    Op.RECOVERED: ("by a cold start",),
}  # fmt: skip


class Line(NamedTuple):
    """Something that is found at a place in the logs about the n-th breach."""

    which: int
    kind: str  # "name", "command" or "move"
    position: int
    ordinal: int
    text: str


def look_around(
    records: Iterable[Record], parts: Iterable[Part], wanted: Sequence[Breach]
) -> Iterator[Line]:
    """Yield what one segment says about the breaches: names, commands, moves of the message."""
    numbers = {breach.queue for breach in wanted}
    names: dict[int, str] = {}
    batches: list[Batch] = []
    place = Place(parts)
    for record in records:
        if isinstance(record, Start | Snapshot):
            yield from _moves(batches, place, wanted)
            batches = []
        place.moves_on(record)
        match record:
            case Queues(queues):
                names |= {q[0]: f"{q[1]} {q[2]}" for q in queues if q[0] in numbers}
            case Batch():
                yield from _commands(record, place, wanted)
                batches.append(record)
                if len(batches) == _BATCHES_MAX:
                    yield from _moves(batches, place, wanted)
                    batches = []
            case _:
                pass
    yield from _moves(batches, place, wanted)
    for which, breach in enumerate(wanted):
        if breach.queue in names:
            yield Line(which, "name", breach.position, 0, names[breach.queue])


def _commands(batch: Batch, place: Place, wanted: Sequence[Breach]) -> Iterator[Line]:
    first, last = batch.first_position, batch.first_position + batch.commands - 1
    for which, breach in enumerate(wanted):
        at = breach.position
        if first <= at <= last and place.has(at):
            text = f"{command_name(batch.kinds[at - first])} from {batch.origin}"
            yield Line(which, "command", at, 0, text)


def _moves(batches: Sequence[Batch], place: Place, wanted: Sequence[Breach]) -> Iterator[Line]:
    moves = unpack([one.moves for one in batches], [one.first_position for one in batches])
    for which, breach in enumerate(wanted):
        of_it = (moves.op != Op.PUBLISHED) & (moves.queue == breach.queue)
        whole = np.isin(moves.op, (Op.PURGED, Op.DECLARED, Op.RECOVERED))
        of_it &= (moves.seq == breach.seq) | whole
        rows = np.flatnonzero(of_it | (moves.position == breach.position))
        rows = rows[np.argsort(np.abs(moves.position[rows] - breach.position), kind="stable")]
        for i in sorted(rows[:LINES_MAX].tolist()):
            position = int(moves.position[i])
            if place.has(position):
                yield Line(which, "move", position, int(moves.ordinal[i]), describe(moves, i))


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


def tell(
    breaches: Sequence[tuple[Breach, int]], lines: Iterable[Line], rows: Iterable[Row]
) -> list[Finding]:
    """Return the breaches as findings; `rows` say which members have a position."""
    about: dict[int, list[Line]] = {}
    for line in lines:
        about.setdefault(line.which, []).append(line)
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


def _finding(breach: Breach, n: int, lines: Sequence[Line], members: Sequence[str]) -> Finding:
    rule = RULES[breach.rule]
    told = {line.kind: line.text for line in lines if line.kind != "move"}
    queue = told.get("name", f"number {breach.queue}" if breach.queue >= 0 else "")
    subject = ""
    if breach.seq >= 0 and queue:
        subject = f"message at place {breach.seq} of queue {queue}: "
    elif queue:
        subject = f"queue {queue}: "
    details = [breach.more] if breach.more else []
    if "command" in told:
        details.append(f"by a {told['command']}")
    if breach.since >= 0:
        details.append(f"its move before is at position {breach.since}")
    if n > 1:
        details.append(f"{n} such cases, this is the first")
    if members:
        details.append("in the log of " + ", ".join(members))
    what = subject + rule.says + (f" ({'; '.join(details)})" if details else "")
    moves = sorted({(line.position, line.ordinal, line.text) for line in lines
                    if line.kind == "move"})  # fmt: skip
    near = sorted(moves, key=lambda move: abs(move[0] - breach.position))[:LINES_MAX]
    around = tuple(text for _, _, text in sorted(near))
    return Finding(
        rule.promise, members[0] if len(members) == 1 else "", 0, breach.position, what,
        queue=queue, around=around,
    )  # fmt: skip
