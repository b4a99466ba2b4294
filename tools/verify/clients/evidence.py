# mypy: disable-error-code="import-untyped"
"""The data of members' and clients' segments for the checks of clients, as Arrow tables.

Also the extent of the members' logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tools.verify.format.reader import read_kinds
from tools.verify.format.records import ConfirmRecord, RecordKind
from tools.verify.input.parse import scan_segment
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import FAULT, Row
from tools.verify.input.segments import read_bytes
from tools.verify.input.tables import (
    ALL_SURE,
    EVERYWHERE,
    Unsure,
    arrow_schema,
    clients_of,
    moves_of,
)
from tools.verify.sql.exchange import Tables
from tools.verify.sql.statements import answer

SCHEMAS = {
    # Members' records; `time` is the order of moves. `low` is the low half of a message's number,
    # by which moves name it; `number` is that of the publish, 0: no confirm was requested.
    "moves": "position bigint, time bigint, op bigint, flag boolean, cause bigint, queue bigint, "
    "seq bigint, detail bigint",
    "queue_moves": "position bigint, time bigint, op bigint, cause bigint, queue bigint",
    "publishes": "epoch bigint, position bigint, low bigint, message bigint, number bigint, "
    "body bigint, cause bigint, channel bigint",
    "entries": "epoch bigint, position bigint, low bigint, queue bigint, content bigint, "
    "body bigint, repeat boolean",
    "confirms": "position bigint",  # confirms that members recorded, or may have sent
    # Clients' operations: `place` ascends within a client, `life` is an incarnation of it.
    "operations": "client string, life bigint, session bigint, place bigint, queue string, "
    "op bigint, flag boolean, body bigint, number bigint",
    "did": "client string, life bigint, op bigint, n bigint",
    "acks": "body bigint, queue string, n bigint",
    "lost": "client string, life bigint, session bigint",
    "damage": "client string, life bigint, what string",
}

# Moves: 1 PUBLISHED, 2 ENQUEUED, 3 DELIVERED, 4 SETTLED, 5 RETURNED, 6 DROPPED, 7 PURGED,
# 8 DECLARED, 9 RECOVERED, 10 REPEATED: the queue took another one by the same key before, 12 READ.
# A publish and its entries in queues are moves of one command, so they are in the same part of a
# segment.
# Forged numbers that do not fit into a time, or a place, count as the highest that does: a product
# beyond 64 bits would be an error.
_MEMBERS = {
    "timed": """
        SELECT epoch, position,
            LEAST(position, 8796093022207) * 1048576 + LEAST(ordinal, 1048575) AS time, op, flag,
            cause, queue, seq, of, detail
        FROM logged""",
    "publishes": """
        SELECT epoch, position, seq & 4294967295 AS low, seq AS message, queue AS number,
            detail AS body, cause, of AS channel
        FROM timed WHERE op = 1""",
    "entries": """
        SELECT epoch, position, of AS low, queue, detail AS content, body, op = 10 AS repeat
        FROM timed LEFT JOIN (
            SELECT epoch, position, low AS of, MAX(body) AS body FROM publishes GROUP BY ALL
        ) AS published USING (epoch, position, of)
        WHERE op IN (2, 10)""",
    "moves": """
        SELECT position, time, op, flag, cause, queue, seq, detail
        FROM timed WHERE op BETWEEN 2 AND 6 OR op = 12""",
    "queue_moves": "SELECT position, time, op, cause, queue FROM timed WHERE op BETWEEN 7 AND 9",
}

# Operations: 1 PUBLISHED, 2 CONFIRMED, 3 REFUSED, 4 UNROUTABLE, 5 RECEIVED, 6 ACKED, 7 LOST.
# Members log the low half of the number of a publish.
_CLIENTS = {
    "operations": """
        SELECT client, life, session, LEAST(lsn, 4398046511103) * 2097152 + ordinal AS place, queue,
            op, flag, body, CASE WHEN op <= 3 THEN aux & 4294967295 ELSE aux END AS number
        FROM logged WHERE op <= 5""",
    "did": "SELECT client, life, op, COUNT(*) AS n FROM logged GROUP BY client, life, op",
    "acks": "SELECT body, queue, COUNT(*) AS n FROM logged WHERE op = 6 GROUP BY body, queue",
    "lost": "SELECT DISTINCT client, life, session FROM logged WHERE op = 7",
}


class HistoryExtent(NamedTuple):
    """How much of the canonical history the members' logs hold: the one row of "extent"."""

    from_start: bool  # it begins at position 1
    to_end: bool  # every named member stopped in order: there is nothing after it
    complete: bool  # no position in between is missing
    confirms: bool = False  # the logs hold all confirms of members, except unsure ones
    routes: bool = False  # all queues are of one virtual host, so a name is at most one queue
    sole: bool = False  # no log has anything superseded by a later primary
    lost_ends: bool = False  # members may have sent superseded messages that are in no log


class EvidenceFile(NamedTuple):
    """A segment to read: of a client, or of a member in these ranges; None: in all."""

    file: str
    of_client: bool
    ranges: list[FileRange] | None = None
    unsure: Unsure = ALL_SURE


def read_evidence(one: EvidenceFile) -> Iterator[Tables]:
    """Yield the tables of a segment, in parts."""
    data = read_bytes(Path(one.file))
    if one.of_client:
        yield from map(tables_of_operations, clients_of(data, one.file))
        yield {"damage": _damage(data, one.file)}
        return
    confirmed: list[int] = []
    if one.ranges == []:  # of most members: no other record matters, and damage affects no confirm
        for _, told in read_kinds(data, RecordKind.CONFIRM):
            confirmed += told.positions if isinstance(told, ConfirmRecord) else ()
    else:
        ranges = EVERYWHERE if one.ranges is None else one.ranges
        yield from map(tables_of_moves, moves_of(data, one.file, ranges, confirmed, one.unsure))
    yield {"confirms": pa.table({"position": pa.array(confirmed, pa.int64())})}


def tables_of_operations(logged: pa.Table) -> Tables:
    """Return the operations to look up, and the number of each kind."""
    return answer(_CLIENTS, {"logged": logged}, _CLIENTS)


def tables_of_moves(logged: pa.Table) -> Tables:
    """Return publishes, enqueued messages with the body they were published with, and moves."""
    return answer(_MEMBERS, {"logged": logged}, [name for name in _MEMBERS if name in SCHEMAS])


def _damage(data: bytes, file: str) -> pa.Table:
    rows = [
        {"client": row.member, "life": row.incarnation, "what": row.text}
        for row in scan_segment(data, file)
        if isinstance(row, Row) and row.kind == FAULT
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(SCHEMAS["damage"]))
