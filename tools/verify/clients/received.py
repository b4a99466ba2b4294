# mypy: disable-error-code="import-untyped"
"""G11, G20: messages that clients received were delivered, with the same redelivered flag.

First against the canonical history; only what does not fit is looked up in the logs of all members,
as a superseded history may have delivered before it ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tools.verify.clients.lookup import times
from tools.verify.clients.published import Published, of_op
from tools.verify.clients.relations import add, distinct, group, join, numbered, zero
from tools.verify.format.records import ClientOp

SUSPECTS_MAX = 1000


def received(ops: pa.Table) -> pa.Table:
    """Return what clients received, by body and queue."""
    rows = ops.filter(of_op(ops, ClientOp.RECEIVED))
    rows = add(rows, plain=pc.invert(rows["flag"]))
    rows = group(
        rows, ["body", "queue"], plain=("plain", "sum"), again=("flag", "sum"),
        who=("row", "min"), until=("place", "max"), lives=("owner", "count_distinct"),
    )  # fmt: skip
    return numbered(rows, "receipt")


def compared(receipts: pa.Table, deliveries: pa.Table, published: Published) -> pa.Table:
    """Return, beside what was received, how often it was delivered, and entered that queue."""
    entered = published.entries.filter(pc.is_valid(published.entries["name"]))
    entered = distinct(entered, ["pub", "body", "name"])
    entered = group(entered, ["body", "name"], entered=("pub", "count"))
    theirs = join(
        receipts.select(["receipt", "body", "queue"]),
        _side_by_side(deliveries, entered), ["body"],
    )  # fmt: skip
    # A queue whose name is damaged may be any.
    fits = pc.or_(pc.equal(theirs["queue"], ""), pc.is_null(theirs["name"]))
    fits = pc.or_(fits, pc.fill_null(pc.equal(theirs["queue"], theirs["name"]), False))
    sums = group(
        theirs.filter(fits), ["receipt"], delivered_plain=("delivered_plain", "sum"),
        delivered_again=("delivered_again", "sum"), entered=("entered", "sum"),
        position=("position", "min"),
    )  # fmt: skip
    rows = join(receipts, sums, ["receipt"], "left outer")
    counts = ("delivered_plain", "delivered_again", "entered")
    return add(rows, **{name: zero(rows[name]) for name in counts})


def _side_by_side(deliveries: pa.Table, entered: pa.Table) -> pa.Table:
    both = {"name": pa.string(), "body": pa.int64()}
    sums = ("delivered_plain", "delivered_again", "entered", "position")
    schema = pa.schema([*both.items(), *((name, pa.int64()) for name in sums)])
    delivered = deliveries.rename_columns(
        ["name", "body", "delivered_plain", "delivered_again", "position"]
    )
    parts = []
    for part in (delivered, entered):
        columns = [
            part[field.name].combine_chunks() if field.name in part.column_names
            else pa.nulls(len(part), field.type)
            for field in schema
        ]  # fmt: skip
        parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts)


def is_suspect(rows: pa.Table) -> pa.Array:
    """Return what was received more often than it was delivered so, or than it entered."""
    return pc.or_(
        pc.or_(
            pc.greater(rows["plain"], rows["delivered_plain"]),
            pc.greater(rows["again"], rows["delivered_again"]),
        ),
        pc.greater(rows["plain"], rows["entered"]),
    )


def surely_found(receipts: pa.Table, deliveries: pa.Table) -> pa.Table:
    """Return what was received once, and delivered once."""
    once = receipts.filter(pc.equal(pc.add(receipts["plain"], receipts["again"]), 1))
    all_of = add(deliveries, n=pc.add(deliveries["plain"], deliveries["again"]))
    all_of = group(all_of, ["body"], n=("n", "sum"))
    rows = join(once, all_of, ["body"])
    return rows.filter(pc.equal(rows["n"], 1))


def judge(
    suspects: Iterable[dict[str, Any]], anywhere: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the suspects that no member delivered so either, and how often each was delivered.

    `anywhere` has deliveries by queue and body in the logs of all members.
    """
    of_body: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in anywhere:
        of_body[one["body"]].append(one)
    for row in suspects:
        queue, in_history = row["queue"], row["delivered_plain"]
        here = [one for one in of_body[row["body"]] if fits(queue, one["name"])]
        plain, again = sum(one["plain"] for one in here), sum(one["again"] for one in here)
        more = row["entered"] + plain - in_history
        if row["plain"] > plain or row["again"] > again or row["plain"] > more:
            position = min((one["position"] for one in here), default=-1)
            yield row | {
                "delivered_plain": plain, "delivered_again": again, "position": position,
            }  # fmt: skip


def fits(queue: str, name: str | None) -> bool:
    """Whether a client that named a queue may mean this one."""
    return not queue or name is None or name == queue


def receipt_sentence(row: dict[str, Any]) -> tuple[str, str]:
    """Return the promise that a receipt broke, and how."""
    plain, again = row["plain"], row["again"]
    delivered = row["delivered_plain"] + row["delivered_again"]
    if plain + again > delivered:
        return "G11" if delivered else "G20", (
            f"received it {times(plain + again)} (counting all clients), but it was delivered "
            f"{times(delivered)}, and entered {times(row['entered'])}"
        )
    if plain > row["delivered_plain"]:
        return "G11", (
            f"received it {times(plain)} without the redelivered flag (counting all clients), but "
            f"it was delivered so {times(row['delivered_plain'])}"
        )
    if again <= row["delivered_again"]:
        return "G11", (
            f"received it {times(plain)} without the redelivered flag (counting all clients), but "
            f"it entered {times(row['entered'])}"
        )
    return "G11", (
        f"received it {times(again)} with the redelivered flag (counting all clients), but it "
        f"was delivered so {times(row['delivered_again'])}"
    )
