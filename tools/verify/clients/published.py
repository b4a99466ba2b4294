# mypy: disable-error-code="import-untyped"
"""G8, G9, G20: each publish that a client was answered for is a message, confirmed, with one end.

A confirmed publish is in the canonical history, in the queue it was for, and a member recorded that
it confirmed it (what that needs on disk, and of whom, is G9 over the members' own CONFIRMs).  It
may have reached no queue if its client was told so, or if there was no such queue.  A refused or
returned one is in no queue.  Rules over the rows of some bodies; `relations` has the verbs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tools.verify.clients.exchange import Tables
from tools.verify.clients.lookup import times
from tools.verify.clients.relations import add, distinct, group, join, numbered, where, zero
from tools.verify.format.moves import (
    AGAIN,
    CAUSE_SHIFT,
    DEAD_LETTERED,
    QUEUE_DELETED,
    REJECTED,
    Op,
)
from tools.verify.format.records import ClientOp
from tools.verify.input.moves import ORDINAL_BITS

_AGAIN = AGAIN >> CAUSE_SHIFT
_DISCARDED = REJECTED >> CAUSE_SHIFT
_DEAD_LETTERED = DEAD_LETTERED >> CAUSE_SHIFT
_DELETED = QUEUE_DELETED >> CAUSE_SHIFT
END_STATES = ("settled", "dropped", "dead-lettered", "purged", "still there", "unroutable")


class PublishOutcomes(NamedTuple):
    """How many publishes were confirmed, and how their copies in queues have ended."""

    told: int  # confirmed, according to clients
    confirmed: int  # those of them that are found
    ends: dict[str, int]  # by END_STATES; one publish may have entered several queues

    def __str__(self) -> str:
        listed = [f"{count:,} {end}" for end, count in self.ends.items() if count]
        missing = self.told - self.confirmed
        found = f"{missing:,} NOT accounted for" if missing else "all accounted for"
        return f"{self.told:,} confirmed by clients, {found}: {', '.join(listed) or 'nothing'}"


class Published(NamedTuple):
    """The publishes of some bodies, and the queues that each entered."""

    publishes: pa.Table  # numbered as `pub`; `queues`: how many it entered; `older`: not known
    entries: pa.Table  # pub, queue, content, body, name

    @classmethod
    def of(cls, tables: Tables, names: pa.Table, *, complete: bool) -> Published:
        """Join publishes with what they entered.

        `complete`: no position is missing. Else what came again may have entered at a missing one.
        """
        key = ["epoch", "position", "low"]
        publishes = numbered(tables["publishes"], "pub")
        entries = tables["entries"].drop_columns(["body"])
        entries = join(entries, publishes.select([*key, "pub", "body"]), key)
        entries = entries.select(["pub", "queue", "content", "body"])
        entries = join(_with_repeats(publishes, entries), names, ["queue"], "left outer")
        counted = group(distinct(entries, ["pub", "queue"]), ["pub"], queues=("queue", "count"))
        publishes = join(publishes, counted, ["pub"], "left outer")
        publishes = add(publishes, queues=zero(publishes["queues"]))
        again = pc.and_(pc.equal(publishes["cause"], _AGAIN), pc.greater(publishes["number"], 0))
        older = pc.and_(again, pc.and_(pc.equal(publishes["queues"], 0), not complete))
        return cls(add(publishes, older=older), entries)

    def of_clients(self) -> pa.Table:
        """Return what clients published outside of transactions, and want a confirm of."""
        rows = self.publishes
        own = pc.or_(pc.equal(rows["cause"], 0), pc.equal(rows["cause"], _AGAIN))
        mine = pc.and_(own, pc.greater(rows["publish_no"], 0))
        rows = rows.filter(mine)
        return rows.rename_columns(
            ["number" if one == "publish_no" else "message" if one == "number" else one
             for one in rows.column_names]
        )  # fmt: skip


def _with_repeats(publishes: pa.Table, entries: pa.Table) -> pa.Table:
    """Return what publishes entered; one whose number was sent again, what its message entered."""
    repeats = publishes.filter(pc.equal(publishes["cause"], _AGAIN))
    if not len(repeats):
        return entries
    firsts = publishes.filter(pc.equal(publishes["cause"], 0)).select(["low", "body", "pub"])
    firsts = firsts.rename_columns(["low", "body", "first"])
    repeats = join(repeats.select(["low", "body", "pub"]), firsts, ["low", "body"])
    same = entries.select(["pub", "queue", "content"]).rename_columns(["first", "queue", "content"])
    same = join(repeats.select(["pub", "first", "body"]), same, ["first"])
    return pa.concat_tables([entries, same.select(entries.column_names)]).combine_chunks()


class QueueTimes:
    """When a queue of a name was there; a name that is not `known` to be one queue's never was."""

    def __init__(self, whole: pa.Table, names: pa.Table, *, known: bool) -> None:
        name_of: dict[int, list[str]] = defaultdict(list)
        for number, name in zip(*names.to_pydict().values(), strict=True):
            name_of[number].append(name)
        self._changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row in whole.to_pylist() if known else ():
            deleted = row["op"] == Op.PURGED and row["cause"] == _DELETED
            if deleted or row["op"] == Op.DECLARED:
                time = (row["position"] << ORDINAL_BITS) | row["ordinal"]
                for name in name_of[row["queue"]]:
                    self._changes[name].append((time, int(not deleted)))
        for changes in self._changes.values():
            changes.sort()

    def there(self, name: str, position: int) -> bool:
        """Whether it was there before this position; what no move tells counts as not there."""
        changes = self._changes.get(name, [])
        at = bisect_right(changes, (position << ORDINAL_BITS, -1)) - 1
        return at >= 0 and bool(changes[at][1])


def of_op(table: pa.Table, op: ClientOp) -> pa.Array:
    """Return which rows are this operation."""
    return pc.equal(table["op"], int(op))


def answers(ops: pa.Table) -> pa.Table:
    """Return publishes that clients were answered for, by body, number and queue."""
    confirmed, refused = of_op(ops, ClientOp.CONFIRMED), of_op(ops, ClientOp.REFUSED)
    told = add(
        ops, attempts=of_op(ops, ClientOp.PUBLISHED), confirmed=confirmed, refused=refused,
        who=where(pc.or_(confirmed, refused), ops["row"]),
    )  # fmt: skip
    told = group(
        told, ["body", "number", "queue"], attempts=("attempts", "sum"),
        confirmed=("confirmed", "sum"), refused=("refused", "sum"), who=("who", "min"),
    )  # fmt: skip
    return numbered(told.filter(pc.is_valid(told["who"])), "answer")


def looked_up(
    ops: pa.Table, published: Published, queue_times: QueueTimes, *, confirms: bool
) -> pa.Table:
    """Return the answers to clients with what members have of them, and a verdict.

    `confirms`: all that members confirmed is known.
    """
    told = answers(ops)
    found = join(
        told.select(["answer", "body", "number", "queue"]),
        published.of_clients(),
        ["body", "number"],
    )
    inside = join(
        found.select(["answer", "pub", "queue"]),
        published.entries.select(["pub", "name"]), ["pub"],
    )  # fmt: skip
    # A queue whose name is damaged may be any.
    fits = pc.or_(
        pc.fill_null(pc.equal(inside["name"], inside["queue"]), True), pc.is_null(inside["name"])
    )
    inside = distinct(inside.filter(fits), ["answer", "pub"])
    inside = group(inside, ["answer"], inside=("pub", "count"))
    nowhere = pc.equal(found["message"], 0)
    astray = [
        name != "" and lost and queue_times.there(name, position)
        for name, lost, position in zip(
            found["queue"].to_pylist(), nowhere.to_pylist(), found["position"].to_pylist(),
            strict=True,
        )
    ]  # fmt: skip
    found = add(
        found, nowhere=nowhere, astray=pa.array(astray, pa.bool_()),
        entered=pc.or_(pc.or_(nowhere, found["older"]), pc.greater(found["queues"], 0)),
    )  # fmt: skip
    there = group(
        found, ["answer"], there=("pub", "count"), nowhere=("nowhere", "sum"),
        astray=("astray", "sum"), entered=("entered", "sum"), answered=("answered", "sum"),
        older=("older", "sum"),
        channels=("channel", "count_distinct"), position=("position", "min"),
    )  # fmt: skip
    rows = join(join(told, there, ["answer"], "left outer"), inside, ["answer"], "left outer")
    rows = join(rows, _returned(ops), ["body", "number"], "left outer")
    rows = join(rows, _returned(ops, number=False), ["body"], "left outer")
    counts = (
        "there",
        "nowhere",
        "astray",
        "entered",
        "older",
        "answered",
        "channels",
        "inside",
        "returned",
        "unnumbered",
    )
    rows = add(rows, **{name: zero(rows[name]) for name in counts})
    return add(rows, verdict=_verdict(rows, confirms=confirms))


def _returned(ops: pa.Table, *, number: bool = True) -> pa.Table:
    """Return how many publishes came back to their clients, by number, or those without."""
    rows = ops.filter(of_op(ops, ClientOp.UNROUTABLE))
    if number:
        return group(rows, ["body", "number"], returned=("op", "count"))
    rows = rows.filter(pc.equal(rows["number"], 0))
    return group(rows, ["body"], unnumbered=("op", "count"))


def _verdict(rows: pa.Table, *, confirms: bool) -> pa.Array:
    confirmed, refused, there = rows["confirmed"], rows["refused"], rows["there"]
    for_queue = pc.not_equal(rows["queue"], "")
    once = pc.and_(pc.equal(rows["attempts"], 1), pc.equal(confirmed, 1))
    outside = pc.subtract(there, rows["inside"])
    # What reached no queue is excused by its own return, or as there was no such queue; what came
    # again, as nobody knows which it entered when it came first.
    told = pc.add(rows["returned"], rows["unnumbered"])
    excused = pc.subtract(
        rows["nowhere"],
        pc.max_element_wise(pc.subtract(rows["astray"], told), 0),
    )
    excused = pc.add(excused, rows["older"])
    cases = [
        ("missing", pc.greater(pc.add(confirmed, refused), there)),
        ("nowhere", pc.greater(confirmed, rows["entered"])),
        ("elsewhere", pc.and_(for_queue, pc.greater(confirmed, pc.add(rows["inside"], excused)))),
        ("not refused", pc.and_(for_queue, pc.greater(refused, outside))),
        # One of them is this client's, so the channel of all of them is its own, too.
        ("doubled", pc.and_(pc.and_(once, pc.greater(there, 1)), pc.equal(rows["channels"], 1))),
    ]  # fmt: skip
    if confirms:
        cases.append(("not confirmed", pc.greater(confirmed, rows["answered"])))
    conditions = pa.StructArray.from_arrays(
        [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for _, one in cases],
        names=[verdict for verdict, _ in cases],
    )
    return pc.case_when(conditions, *(pa.scalar(verdict) for verdict, _ in cases))


def unroutable(ops: pa.Table, published: Published) -> Iterator[dict[str, Any]]:
    """Yield bodies that came back as unroutable more often than they reached no queue."""
    rows = ops.filter(of_op(ops, ClientOp.UNROUTABLE))
    told = group(rows, ["body"], returned=("row", "count"), who=("row", "min"))
    causes = published.publishes["cause"]
    there = published.publishes.filter(pc.not_equal(causes, _DEAD_LETTERED))
    there = add(there, nowhere=pc.equal(there["number"], 0))
    there = group(
        there, ["body"], there=("pub", "count"), nowhere=("nowhere", "sum"),
        position=("position", "min"),
    )  # fmt: skip
    rows = join(told, there, ["body"], "left outer")
    rows = add(rows, there=zero(rows["there"]), nowhere=zero(rows["nowhere"]))
    yield from rows.filter(pc.greater(rows["returned"], rows["nowhere"])).to_pylist()


def publish_sentence(row: dict[str, Any]) -> tuple[str, str]:
    """Return the promise that an answer to a client broke, and how."""
    number, queue = row["number"], row["queue"]
    match row["verdict"]:
        case "missing":
            told = f"{row['confirmed']} confirmed"
            told += f", {row['refused']} refused" if row["refused"] else ""
            return "G8", (
                f"was answered for its publish {number} ({told}, counting all clients), but the "
                f"members' logs have it {times(row['there'])}"
            )
        case "nowhere":
            return "G8", f"its publish {number} was confirmed, but entered no queue"
        case "elsewhere":
            return "G8", f"its publish {number} was confirmed, but did not enter {queue}"
        case "doubled":
            return "G20", (
                f"its publish {number} was sent once, but became {row['there']} messages"
            )
        case "not confirmed":
            return "G9", (
                f"its publish {number} was confirmed, but no member recorded that it confirmed it"
            )
        case _:
            return "G20", f"its publish {number} was refused, but it entered {queue}"


def outcomes(
    ops: pa.Table, published: Published, lives: pa.Table
) -> tuple[dict[str, int], pa.Table]:
    """C2: return how many confirmed publishes there are, how they ended, and those that did twice.

    Of publishes with the same body and number as many count as were confirmed, the earliest that
    entered a queue first.
    """
    claimed = ops.filter(of_op(ops, ClientOp.CONFIRMED))
    told = group(claimed, ["body", "number"], confirmed=("op", "count"), who=("row", "min"))
    found = join(published.of_clients(), told, ["body", "number"])
    found = add(found, lost=pc.equal(found["queues"], 0))
    keys = ["body", "number", "lost", "position"]
    found = found.take(pc.sort_indices(found, sort_keys=[(key, "ascending") for key in keys]))
    nth, before = [], None
    for key in zip(found["body"].to_pylist(), found["number"].to_pylist(), strict=True):
        nth.append(1 if key != before else nth[-1] + 1)
        before = key
    mine = found.filter(pc.less_equal(pa.array(nth, pa.int64()), found["confirmed"]))
    entered = join(mine.select(["pub", "body", "who", "position"]),
                   distinct(published.entries, ["pub", "queue", "content"]), ["pub"])  # fmt: skip
    rows = join(entered, lives, ["queue", "content", "body"], "left outer")
    rows = add(rows, until=pc.shift_right(rows["end_time"], ORDINAL_BITS))
    dead = published.publishes.filter(pc.equal(published.publishes["cause"], _DEAD_LETTERED))
    dead = distinct(dead, ["position", "body"])
    dead = add(dead, dead_lettered=pa.array([True] * len(dead), pa.bool_()))
    rows = join(rows, dead, {"until": "position", "body": "body"}, "left outer")
    rows = add(rows, end=_end(rows))
    counts = dict.fromkeys(END_STATES, 0)
    counts |= {row["end"]: row["n"] for row in group(rows, ["end"], n=("pub", "count")).to_pylist()}
    counts["unroutable"] = pc.sum(pc.equal(mine["message"], 0)).as_py() or 0
    counts |= {"told": len(claimed), "found": len(mine)}
    return counts, rows.filter(pc.greater(zero(rows["ends"]), 1))


def _end(rows: pa.Table) -> pa.Array:
    def yes(condition: pa.Array) -> pa.Array:
        return pc.fill_null(condition, False)

    ended = yes(pc.greater(rows["ends"], 0))
    dropped = yes(pc.equal(rows["end_op"], int(Op.DROPPED)))
    settled = pc.equal(rows["end_op"], int(Op.SETTLED))
    discarded = yes(pc.and_(settled, pc.equal(rows["end_cause"], _DISCARDED)))
    dead = pc.and_(pc.or_(dropped, discarded), yes(rows["dead_lettered"]))
    of_end = pc.if_else(dead, "dead-lettered", pc.if_else(dropped, "dropped", "settled"))
    of_rest = pc.if_else(yes(rows["purged"]), "purged", "still there")
    return pc.if_else(ended, of_end, of_rest)
