"""Lies about clients, in the logs of a simulated cluster whose clients keep histories.

That the check finds nothing in thousands of such clusters means something only if it would find a
lie.  Each lie concerns one message, is told by the client or by all members alike, and must be
found with that message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from xxhash import xxh3_64_intdigest

from broker.machine.move_log import FLAG, MOVE, Op
from broker.memberlog.codec import MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import read_segment
from broker.memberlog.records import (
    CLIENT_ROW,
    REDELIVERED,
    ROLE_CLIENT,
    Batch,
    Client,
    ClientOp,
    ConfirmRecord,
    End,
    Header,
    Record,
)
from broker.memberlog.segment_totals import SegmentTotals
from tests.sim.run.campaign import Options, run_seed

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from tools.verify.job import verify
from tools.verify.report.result import Report

SEED = 8900008
Operation = tuple[int, int, int]  # kind, body, number
Move = tuple[int, int, int, int, int, int]
RECEIVED, AGAIN = ClientOp.RECEIVED, ClientOp.RECEIVED | REDELIVERED


class SimulatedLogs:
    """The logs of one simulated cluster, with all records, in which lies can be told."""

    def __init__(self, directory: Path, seed: int) -> None:
        assert run_seed(seed, Options(stack="broker", memberlog=str(directory))).ok
        self._directory = directory
        self._logs = {path: list(_records(path)) for path in sorted(directory.rglob("*.qml"))}
        self._taken: set[int] = set()

    def operations(self) -> Iterator[Operation]:
        """Yield the clients' operations."""
        for record in self._of(ROLE_CLIENT):
            if isinstance(record, Client):
                yield from CLIENT_ROW.iter_unpack(record.ops)

    def body(self, what: int) -> int:
        """A message with this operation of a client, about which no lie was told yet: each once."""
        done = list(self.operations())
        for one, body, _ in done:
            same = [other for other, its, _ in done if its == body and other == one]
            if one == what and len(same) == 1 and body not in self._taken:
                self._taken.add(body)
                return body
        raise AssertionError(f"no client of this seed did {what}")

    def clients_say(self, body: int, what: int, *instead: int) -> None:
        """Replace clients' operations on a message."""

        def changed(record: Record) -> Record:
            if not isinstance(record, Client):
                return record
            ops = b""
            for one, its, number in CLIENT_ROW.iter_unpack(record.ops):
                said = instead if (one, its) == (what, body) else (one,)
                ops += b"".join(CLIENT_ROW.pack(other, its, number) for other in said)
            return record._replace(ops=ops)

        self._change(ROLE_CLIENT, changed)

    def clients_name(self, body: int, other: int) -> None:
        """Attribute clients' operations to another message."""

        def changed(record: Record) -> Record:
            if not isinstance(record, Client):
                return record
            rows = CLIENT_ROW.iter_unpack(record.ops)
            ops = [CLIENT_ROW.pack(w, other if b == body else b, n) for w, b, n in rows]
            return record._replace(ops=b"".join(ops))

        self._change(ROLE_CLIENT, changed)

    def members_say(self, change: Callable[[int, Move], Move | None]) -> None:
        """Change or drop the moves at a position in all members' logs."""

        def changed(record: Record) -> Record:
            if not isinstance(record, Batch):
                return record
            rows = [change(position, row) for position, row in _moves(record)]
            return record._replace(moves=b"".join(MOVE.pack(*row) for row in rows if row))

        self._change("member", changed)

    def moves(self) -> Iterator[tuple[int, Move]]:
        """Yield the moves that members logged, with their positions."""
        for record in self._of("member"):
            if isinstance(record, Batch):
                yield from _moves(record)

    def positions(self, body: int) -> set[int]:
        """The positions of a message's publishes."""
        return {at for at, row in self.moves() if row[0] & 15 == Op.PUBLISHED and row[5] == body}

    def contents(self, body: int) -> set[int]:
        """The message's names in its queues."""
        there = self.positions(body)
        return {row[5] for at, row in self.moves() if row[0] & 15 == Op.ENQUEUED and at in there}

    def nobody_confirms(self, positions: set[int]) -> None:
        """Drop all members' records of a confirm."""

        def changed(record: Record) -> Record:
            if not isinstance(record, ConfirmRecord):
                return record
            return record._replace(positions=tuple(set(record.positions) - positions))

        self._change("member", changed)

    def verdict(self) -> Report:
        """Write all logs with consistent numbers and links, and check them."""
        for path, records in self._logs.items():
            path.write_bytes(_written(records))
        return verify(None, [self._directory])

    def _of(self, role: str) -> Iterator[Record]:
        for records in self._logs.values():
            if _role(records) == role:
                yield from records

    def _change(self, role: str, change: Callable[[Record], Record]) -> None:
        for path, records in self._logs.items():
            if _role(records) == role:
                self._logs[path] = [change(one) for one in records]


def _records(path: Path) -> Iterator[Record]:
    for entry in read_segment(path.read_bytes(), path.name):
        yield entry.record


def _moves(batch: Batch) -> Iterator[tuple[int, Move]]:
    for row in MOVE.iter_unpack(batch.moves):
        yield batch.first_position + ((row[1] - batch.first_position) & 0xFFFF), row


def _role(records: list[Record]) -> str:
    assert isinstance(records[0], Header)
    return records[0].role


def _written(records: list[Record]) -> bytes:
    link, lsn, totals, out = NO_LINK, count(), SegmentTotals(), bytearray(MAGIC)
    for record in records:
        one = totals.end() if isinstance(record, End) else record
        payload = encode(next(lsn), one)
        link = next_link(link, payload)
        out += frame(payload, link)
        totals.take(one)
    return bytes(out)


# -- the lies; each returns the message that it is about -------------------------------------------


def removed_by_all(logs: SimulatedLogs) -> int:
    """All members forget a confirmed message."""
    body = logs.body(ClientOp.CONFIRMED)
    there, contents = logs.positions(body), logs.contents(body)
    logs.members_say(lambda at, row: None if at in there or row[5] in contents else row)
    return body


def delivered_without_the_flag(logs: SimulatedLogs) -> int:
    """All members say that a second delivery had no flag."""
    body = logs.body(AGAIN)
    contents = logs.contents(body)

    def change(_: int, row: Move) -> Move:
        is_it = row[0] & 15 == Op.DELIVERED and row[5] in contents
        return (row[0] & ~FLAG, *row[1:]) if is_it else row

    logs.members_say(change)
    return body


def published_as_something_else(logs: SimulatedLogs) -> int:
    """All members log a confirmed message with other bytes."""
    body = logs.body(ClientOp.CONFIRMED)

    def change(_: int, row: Move) -> Move:
        is_it = row[0] & 15 == Op.PUBLISHED and row[5] == body
        return (*row[:5], body ^ 1) if is_it else row

    logs.members_say(change)
    return body


def refused_what_entered(logs: SimulatedLogs) -> int:
    """A client was refused a message that is in its queue."""
    body = logs.body(ClientOp.CONFIRMED)
    logs.clients_say(body, ClientOp.CONFIRMED, ClientOp.REFUSED)
    return body


def confirmed_by_nobody(logs: SimulatedLogs) -> int:
    """No member recorded its confirm."""
    body = logs.body(ClientOp.CONFIRMED)
    logs.nobody_confirms(logs.positions(body))
    return body


def received_without_the_flag(logs: SimulatedLogs) -> int:
    """A second delivery arrived without its flag."""
    body = logs.body(AGAIN)
    logs.clients_say(body, AGAIN, RECEIVED)
    return body


def received_with_a_flag(logs: SimulatedLogs) -> int:
    """A first delivery arrived with the flag."""
    body = logs.body(RECEIVED)
    logs.clients_say(body, RECEIVED, AGAIN)
    return body


def received_twice(logs: SimulatedLogs) -> int:
    """A message was received twice, and delivered once."""
    body = logs.body(RECEIVED)
    logs.clients_say(body, RECEIVED, RECEIVED, RECEIVED)
    return body


def received_what_nobody_delivered(logs: SimulatedLogs) -> int:
    """A client received a message that was never delivered."""
    body = logs.body(RECEIVED)
    other = xxh3_64_intdigest(b"nobody delivered this")
    logs.clients_name(body, other)
    return other


def settled_though_nobody_acked_it(logs: SimulatedLogs) -> int:
    """Members say that a client acked the messages that it held when its connection was lost."""
    body = logs.body(ClientOp.ACKED)
    logs.clients_say(body, ClientOp.ACKED)
    return body


Lie = Callable[[SimulatedLogs], int]
LIES: dict[Lie, str] = {
    removed_by_all: "G8",
    delivered_without_the_flag: "G11",
    published_as_something_else: "G8",
    refused_what_entered: "G20",
    confirmed_by_nobody: "G9",
    received_without_the_flag: "G11",
    received_with_a_flag: "G11",
    received_twice: "G11",
    received_what_nobody_delivered: "G20",
    settled_though_nobody_acked_it: "G20",
}


# Other clusters: there the submitter of the publish continued while others crashed; members did not
# all stop cleanly, and two clients received the message.
ELSEWHERE: dict[int, tuple[Lie, ...]] = {
    8900003: (confirmed_by_nobody,),
    8900066: (received_without_the_flag, delivered_without_the_flag),
}


@cache
def told(seed: int) -> tuple[set[str], dict[str, set[str]]]:
    """Return the findings before any lie, and for each lie the promises that name its message."""
    with TemporaryDirectory() as directory:
        logs = SimulatedLogs(Path(directory), seed)
        before = {str(one) for one in logs.verdict().findings}
        bodies = {lie.__name__: lie(logs) for lie in ELSEWHERE.get(seed, LIES)}
        found = logs.verdict().findings
        return before, {
            name: {one.property for one in found if f"body {body:016x}" in one.what}
            for name, body in bodies.items()
        }


@pytest.mark.slow
@pytest.mark.turns(5)
@pytest.mark.parametrize(
    ("lie", "seed"),
    [
        *((lie, SEED) for lie in LIES),
        *((lie, seed) for seed, lies in ELSEWHERE.items() for lie in lies),
    ],
    ids=lambda of: getattr(of, "__name__", str(of)),
)
def test_lies_about_clients_are_found_in_simulated_logs(lie: Lie, seed: int) -> None:
    """G8, G9, G11, G20."""
    before, found = told(seed)
    assert before == set()
    assert LIES[lie] in found[lie.__name__]
