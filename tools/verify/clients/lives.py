# mypy: disable-error-code="import-untyped"
"""What became of each message in each queue: steps by place in the queue, and by content.

A message in a queue is identified by the hash of its content, which stays when a cold start
renumbers the queue.  Settled and dropped are moves of their own; a purge takes what is ready in its
queue: messages not delivered since they were enqueued or returned.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tools.verify.clients.exchange import Tables
from tools.verify.clients.lookup import WHOLE, Confirms
from tools.verify.clients.relations import add, distinct, group, join
from tools.verify.format.moves import CAUSE_SHIFT, FORGOTTEN, Op
from tools.verify.input.moves import ORDINAL_BITS, Bools, Ints

COLD_START = FORGOTTEN >> CAUSE_SHIFT


def by_place(tables: Tables, *, confirms: Confirms | None, once: bool = False) -> Tables:
    """Return a life of each place in a queue, and how often each content was delivered there.

    A publish is `answered` when a member recorded that it confirmed it, or may have.  `once`: the
    moves are those of several members, and the same move counts once.
    """
    moves, publishes = tables["moves"], tables["publishes"]
    if once:
        moves = distinct(moves, [*moves.column_names])
    answered = pc.is_in(publishes["position"], tables["confirms"]["position"].combine_chunks())
    for first, last in confirms.unsure if confirms is not None else ():
        inside = pc.and_(
            pc.greater_equal(publishes["position"], first),
            pc.less_equal(publishes["position"], last),
        )
        answered = pc.or_(answered, inside)
    delivered = moves.filter(pc.equal(moves["op"], int(Op.DELIVERED)))
    delivered = add(delivered, plain=pc.invert(delivered["flag"]), content=delivered["detail"])
    handed = group(
        delivered, ["queue", "content"],
        plain=("plain", "sum"), again=("flag", "sum"), position=("position", "min"),
    )  # fmt: skip
    return {
        "publishes": add(publishes, answered=answered),
        "handed": handed,
        "places": _places(moves, tables[WHOLE[0]]),
    }


def by_content(tables: Tables, names: pa.Table) -> Tables:
    """Return deliveries by queue and body, and lives with the body of their message."""
    entries = tables["entries"]
    known = entries.filter(pc.is_valid(entries["body"]))
    contents = distinct(known, ["content", "body"])
    handed = join(tables["handed"], contents, ["content"], "left outer")
    handed = join(handed, names, ["queue"], "left outer")
    unknown = handed.filter(pc.is_null(handed["body"]))
    unknown = add(unknown, n=pc.add(unknown["plain"], unknown["again"]))
    deliveries = group(
        handed.filter(pc.is_valid(handed["body"])), ["name", "body"],
        plain=("plain", "sum"), again=("again", "sum"), position=("position", "min"),
    )  # fmt: skip
    lives = _merged(tables["places"], tables[WHOLE[1]])
    return {
        "entries": known,
        "deliveries": deliveries,
        "unknown": group(unknown, ["name"], n=("n", "sum")),
        "lives": join(lives, contents, ["content"]),
    }


def _numbers(table: pa.Table, *columns: str) -> list[Ints]:
    return [table[one].to_numpy() for one in columns]


def _times(table: pa.Table) -> Ints:
    position, ordinal = _numbers(table, "position", "ordinal")
    times: Ints = (position << ORDINAL_BITS) | ordinal
    return times


def _last_of(begins: Ints, which: Bools) -> Ints:
    """Return the last row of each group in which this holds; -1: there is none."""
    rows = np.where(which, np.arange(len(which)), -1)
    last: Ints = np.maximum.reduceat(rows, begins)
    return last


def _begins(*keys: NDArray[np.int64]) -> Ints:
    """Return where groups of equal keys begin in sorted rows."""
    change = np.zeros(len(keys[0]), np.bool_)
    change[:1] = True
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(change)


def _places(moves: pa.Table, whole: pa.Table) -> pa.Table:
    queue, seq, op, cause, detail = _numbers(moves, "queue", "seq", "op", "cause", "detail")
    time = _times(moves)
    # A cold start renumbers messages: a place identifies one only between two cold starts.
    era = np.searchsorted(_cold_starts(whole), time, "right")
    order = np.lexsort((time, seq, era, queue))
    queue, seq, op, cause, detail, time, era = (
        column[order] for column in (queue, seq, op, cause, detail, time, era)
    )
    flag = moves["flag"].to_numpy()[order]
    begins = _begins(queue, era, seq)
    if not len(begins):
        return _table([np.empty(0, np.int64)] * 9)
    ended = (op == Op.SETTLED) | (op == Op.DROPPED)
    named = _last_of(begins, op != Op.SETTLED)
    end = _last_of(begins, ended)
    last = np.append(begins[1:], len(op)) - 1
    ends = np.add.reduceat(ended.astype(np.int64), begins)
    persistent = np.maximum.reduceat(((op == Op.ENQUEUED) & flag).astype(np.int64), begins)
    columns = [
        queue[begins], detail[named], ends, np.where(end >= 0, time[end], -1),
        np.where(end >= 0, op[end], 0), np.where(end >= 0, cause[end], 0), time[last], op[last],
        persistent,
    ]  # fmt: skip
    return _table([column[named >= 0] for column in columns])


def _cold_starts(whole: pa.Table) -> Ints:
    position, ordinal, op, cause = _numbers(whole, "position", "ordinal", "op", "cause")
    cold = ((op == Op.PURGED) & (cause == COLD_START)) | (op == Op.RECOVERED)
    first: dict[int, int] = {}
    for at, number in zip(position[cold].tolist(), ordinal[cold].tolist(), strict=True):
        first[at] = min(number, first.get(at, number))
    starts = sorted((at << ORDINAL_BITS) | number for at, number in first.items())
    return np.array(starts, np.int64)


def _merged(lives: pa.Table, whole: pa.Table) -> pa.Table:
    """Join the lives of a message before and after cold starts, and see whether it was purged."""
    columns = [column.to_numpy() for column in lives.columns]
    order = np.lexsort((lives["last_time"].to_numpy(), columns[1], columns[0]))
    columns = [column[order] for column in columns]
    queue, content, ends, end_time, end_op, end_cause, last_time, last_op, persistent = columns
    begins = _begins(queue, content)
    if not len(begins):
        return lives.append_column("purged", pa.array([], pa.bool_()))
    end = np.maximum(_last_of(begins, end_time >= 0), begins)
    last = np.append(begins[1:], len(queue)) - 1
    stays = np.maximum.reduceat(persistent.astype(np.int64), begins)
    merged = _table([
        queue[begins], content[begins], np.add.reduceat(ends, begins), end_time[end], end_op[end],
        end_cause[end], last_time[last], last_op[last], stays,
    ])  # fmt: skip
    purged = _purged(queue[begins], last_time[last], last_op[last], stays > 0, whole)
    return merged.append_column("purged", pa.array(purged))


def _purged(queue: Ints, last_time: Ints, last_op: Ints, stays: Bools, whole: pa.Table) -> Bools:
    """Whether a purge removed a message that has no end of its own."""
    by: dict[int, int] = {}
    cold: dict[int, int] = {}
    kept: dict[int, set[int]] = defaultdict(set)
    columns = _numbers(whole, "queue", "op", "cause", "position")
    for number, op, cause, position in zip(*(one.tolist() for one in columns), strict=True):
        if op == Op.RECOVERED:
            kept[number].add(position)
        elif op == Op.PURGED:
            of = cold if cause == COLD_START else by
            of[number] = max(position, of.get(number, -1))
    found = np.zeros(len(queue), np.bool_)
    last = last_time >> ORDINAL_BITS
    ready = (last_op == Op.ENQUEUED) | (last_op == Op.RETURNED)
    for number in by.keys() | cold.keys():
        here = queue == number
        found |= here & ready & (by.get(number, -1) >= last)
        # What is persistent survives a cold start where the queue does.
        survives = stays if cold.get(number, -1) in kept[number] else np.zeros_like(stays)
        found |= here & (cold.get(number, -1) >= last) & ~survives
    return found


_COLUMNS = (
    "queue", "content", "ends", "end_time", "end_op", "end_cause", "last_time", "last_op",
    "persistent",
)  # fmt: skip


def _table(columns: list[Ints]) -> pa.Table:
    made = pa.table(dict(zip(_COLUMNS, columns, strict=True)))
    return add(made, persistent=made["persistent"].cast(pa.bool_()))
