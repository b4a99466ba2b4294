# mypy: disable-error-code="import-untyped"
"""The last step, by body: all rules about what clients published and received, as rows of results.

| kind | name | what it is |
| --- | --- | --- |
| finding | promise | a broken one; `n`: WITHIN, ROUTED, or 0 where it always counts |
| suspect | | what was received otherwise than delivered, as JSON |
| span | publish, receipt | the first and the last operation of a client that is surely found |
| routed | | a connection that surely published to a queue: it is in the virtual host of queues |
| did | operation | how often a client did this |
| outcome | END_STATES, told, found | how many publishes |
| unknown | queue | deliveries of messages whose body is in no log |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.verify.clients.exchange import Tables
from tools.verify.clients.lookup import (
    FINDINGS_MAX,
    SCHEMAS,
    U64,
    WHOLE,
    HistoryExtent,
    by_client,
    times,
)
from tools.verify.clients.published import (
    Published,
    QueueTimes,
    looked_up,
    outcomes,
    publish_sentence,
    unroutable,
)
from tools.verify.clients.received import (
    SUSPECTS_MAX,
    compared,
    is_suspect,
    received,
    surely_found,
)
from tools.verify.clients.relations import add, distinct, group, numbered
from tools.verify.input.moves import Ints
from tools.verify.input.tables import arrow_schema

Result = dict[str, Any]
WITHIN = 1  # a finding counts only within the span of its client
ROUTED = 2  # only of a connection that is known to be in the virtual host of the queues


class Judgement:
    """The rules over the rows of some bodies."""

    def __init__(self, tables: Tables, names: pa.Table, extent: HistoryExtent) -> None:
        self.tables, self.names, self.extent = tables, names, extent
        ops = tables["ops"]
        by_place = [("client", "ascending"), ("life", "ascending"), ("place", "ascending")]
        ops = numbered(ops.take(pc.sort_indices(ops, sort_keys=by_place)), "row")
        self.ops = add(ops, owner=pa.array(_owners(ops)))
        self.published = Published.of(tables, names, complete=extent.begin and extent.whole)
        self.results: list[Result] = []

    def run(self) -> Tables:
        """Apply all rules that the extent of the history allows; return the results."""
        self._pass_on()
        self._publishes()
        if self.extent.whole:
            self._receipts()
        if self.extent.begin and self.extent.whole:
            self._unroutable()
            self._outcomes()
        return {"results": as_table(self.results)}

    def _pass_on(self) -> None:
        for row in self.tables["did"].to_pylist():
            self._add("did", str(row["op"]), row, n=row["n"])
        for row in self.tables["unknown"].to_pylist():
            self._add("unknown", "", {"queue": row["name"] or ""}, n=row["n"])
        for row in self.tables["damage"].to_pylist():
            self._add("finding", "LOG", row, more=row["what"], n=0)

    def _add(self, kind: str, name: str, of: Result, **more: object) -> None:
        columns = {
            key: of[key]
            for key in ("client", "life", "session", "queue", "place", "until")
            if key in of
        }
        self.results.append({"kind": kind, "name": name} | columns | more)

    def _who(self, row: int) -> Result:
        who: Result = self.ops.slice(row, 1).to_pylist()[0]
        return who

    def _accuse(self, row: Result, promise: str, what: str, queue: str, *, only: int = 0) -> None:
        who = self._who(row["who"])
        position = -1 if row["position"] is None else row["position"]
        self._add(
            "finding", promise, who | {"queue": queue, "until": who["place"]},
            more=by_client(who["client"], who["session"], row["body"], what),
            position=position, n=only,
        )  # fmt: skip

    def _span(self, name: str, rows: pa.Table) -> None:
        """Tell of each client the first and the last of its operations in the rows."""
        places = self.ops.take(rows["who"])
        for row in group(
            places, ["client", "life"], place=("place", "min"), until=("place", "max")
        ).to_pylist():
            self._add("span", name, row)

    def _publishes(self) -> None:
        queues = QueueTimes(self.tables[WHOLE[2]], self.names, known=self.extent.routes)
        confirms = self.extent.confirms is not None
        rows = looked_up(self.ops, self.published, queues, confirms=confirms)
        right = pc.is_null(rows["verdict"])
        once = pc.and_(pc.equal(rows["attempts"], 1), pc.equal(rows["confirmed"], 1))
        found = rows.filter(pc.and_(pc.and_(right, once), pc.equal(rows["there"], 1)))
        self._span("publish", found)
        routed = self.ops.take(found.filter(pc.equal(found["nowhere"], 0))["who"])
        for row in distinct(routed, ["client", "life", "session"]).to_pylist():
            self._add("routed", "", row)
        for row in rows.filter(pc.invert(right)).to_pylist():
            missing = row["verdict"] == "missing"
            if self.extent.whole or not missing:
                promise, what = publish_sentence(row)
                only = WITHIN if missing else ROUTED * _by_absence(row)
                self._accuse(row, promise, what, row["queue"], only=only)

    def _unroutable(self) -> None:
        for row in unroutable(self.ops, self.published):
            if self.extent.end or row["there"] >= row["returned"]:
                what = (
                    f"was told {times(row['returned'])} that it is unroutable, but "
                    f"{row['nowhere']} of {row['there']} publishes of it reached no queue"
                )
                self._accuse(row, "G20", what, "")

    def _receipts(self) -> None:
        receipts = received(self.ops)
        rows = compared(receipts, self.tables["deliveries"], self.published)
        self._span("receipt", surely_found(receipts, self.tables["deliveries"]))
        for row in rows.filter(is_suspect(rows)).to_pylist():
            who = self._who(row["who"])
            row["session"] = who["session"]
            self._add("suspect", "", who | {"queue": row["queue"], "until": row["until"]},
                      more=json.dumps(row))  # fmt: skip

    def _outcomes(self) -> None:
        counts, twice = outcomes(self.ops, self.published, self.tables["lives"])
        for name, n in counts.items():
            self._add("outcome", name, {}, n=n)
        names = dict(zip(*self.names.to_pydict().values(), strict=True))
        for row in twice.to_pylist():
            client = self._who(row["who"])["client"]
            queue = names.get(row["queue"]) or ""
            what = (
                f"client {client}, body {row['body'] & U64:016x}: a confirmed message ended "
                f"{row['ends']} times in {queue}"
            )
            self._add("finding", "G20", {"queue": queue}, more=what, position=row["until"], n=0)


def _by_absence(row: Result) -> bool:
    """Whether a publish is only missed in its queue as that queue was there, and none was reached.

    A client of another virtual host, in which there never was a queue, means another one.
    """
    is_excused: bool = row["confirmed"] <= row["inside"] + row["nowhere"]
    return row["verdict"] == "elsewhere" and is_excused


def _owners(ops: pa.Table) -> Ints:
    """Number the incarnations of clients in sorted rows."""
    client = ops["client"].combine_chunks().dictionary_encode().indices.to_numpy()
    life = ops["life"].to_numpy()
    change = (client[1:] != client[:-1]) | (life[1:] != life[:-1])
    return np.cumsum(np.concatenate([[0], change]).astype(np.int64))[: len(ops)]


def summed(tables: Tables, extent: HistoryExtent) -> Tables:
    """Return the results of all bins together: sums, spans, and the first findings.

    Where the logs begin late or may end early, what a client did counts between the first and the
    last operation of it that is surely found.
    """
    rows = tables["results"].to_pylist()
    sums: dict[tuple[object, ...], Result] = {}
    spans: dict[tuple[object, ...], Result] = {}
    routed: set[tuple[object, ...]] = set()
    for row in rows:
        key = tuple(row[name] for name in ("kind", "name", "queue", "client", "life"))
        if row["kind"] == "span":
            known = spans.setdefault(key, row)
            known |= {
                "place": min(row["place"], known["place"]),
                "until": max(row["until"], known["until"]),
            }
        elif row["kind"] == "routed":
            routed.add(_connection(row))
        elif row["kind"] not in ("finding", "suspect"):
            sums[key] = row | {"n": row["n"] + sums[key]["n"] if key in sums else row["n"]}
    kept = [row for row in rows if row["kind"] == "suspect"][:SUSPECTS_MAX]
    told: Counter[str] = Counter()
    findings = (row for row in rows if row["kind"] == "finding")
    for row in sorted(findings, key=_in_order):
        if row["n"] == WITHIN and not in_span(row, spans, "publish", extent):
            continue
        if row["n"] == ROUTED and _connection(row) not in routed:
            continue
        told[row["name"]] += 1
        if told[row["name"]] <= FINDINGS_MAX:
            kept.append(row)
    return {"results": as_table([*sums.values(), *spans.values(), *kept])}


def _connection(row: Result) -> tuple[object, ...]:
    return row["client"], row["life"], row["session"]


def in_span(
    row: Result, spans: dict[tuple[object, ...], Result], name: str, extent: HistoryExtent
) -> bool:
    """Whether what a client did from `place` to `until` is surely within the logs."""
    span = spans.get(("span", name, None, row["client"], row["life"]))
    after = span is not None and row["place"] > span["place"]
    before = span is not None and row["until"] < span["until"]
    return (after or extent.begin) and (before or extent.end)


def _in_order(row: Result) -> tuple[str, int, str]:
    return row["client"] or "", row["place"] or 0, row["more"] or ""


def as_table(rows: Iterable[Result]) -> pa.Table:
    """Return rows of results; what a row lacks is null."""
    schema = arrow_schema(SCHEMAS["results"])
    return pa.Table.from_pylist(list(rows), schema=schema)
