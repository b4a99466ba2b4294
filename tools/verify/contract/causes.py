"""LOG, G11, G20, G29, G30: a message moves only for a command that may do that by AMQP, and in its
place.

Each move names a command of its batch, in their order, and a queue that the log has named; and the
command's kind and outcome can cause it.  Whatever closes a channel returns what it held, which may
then be delivered, dropped by limits or dead-lettered.  An ACTIVATE closes the channels of lost
members, a TICK expires messages and routes those that were delayed.  And what is too much for one
position goes on at the next ones, whatever is ordered there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.verify.contract.rules import Rule
from tools.verify.format.commands import Command
from tools.verify.format.moves import CAUSES, Op
from tools.verify.input.tables import table_of

if TYPE_CHECKING:
    import pyarrow as pa

_CAUSED_BY: dict[tuple[Op, int], tuple[Command, ...]] = {
    (Op.PUBLISHED, 0): (Command.PUBLISH,),
    (Op.PUBLISHED, 1): (Command.TX_COMMIT,),
    (Op.PUBLISHED, 3): (Command.PUBLISH,),
    (Op.PUBLISHED, 4): (Command.TICK,),
    (Op.PUBLISHED, 5): (Command.TICK,),
    (Op.DELIVERED, 1): (Command.GET,),
    (Op.SETTLED, 0): (Command.ACK,),
    (Op.SETTLED, 1): (Command.SENT,),
    (Op.SETTLED, 2): (Command.NACK, Command.TX_COMMIT),
    (Op.SETTLED, 4): (Command.TX_COMMIT,),
    (Op.RETURNED, 0): (Command.NACK,),
    (Op.RETURNED, 1): (Command.RECOVER,),
    (Op.RETURNED, 4): (Command.TX_COMMIT,),
    (Op.DROPPED, 2): (Command.TICK,),
    (Op.DROPPED, 3): (Command.TICK,),
    (Op.PURGED, 0): (Command.QUEUE_PURGE,),
    (Op.PURGED, 2): (Command.ACTIVATE,),
    (Op.DECLARED, 0): (Command.QUEUE_DECLARE,),
    (Op.DECLARED, 1): (Command.EXCHANGE_DECLARE,),
    (Op.RECOVERED, 0): (Command.ACTIVATE,),
    (Op.REPEATED, 0): (Command.PUBLISH, Command.TX_COMMIT, Command.TICK),
    (Op.READER, 0): (Command.CONSUME,),
    (Op.READ_END, 0): (Command.ACK,),
    (Op.READ_END, 1): (Command.NACK, Command.TX_COMMIT),
    (Op.READ_END, 2): (Command.RECOVER,),
    (Op.READ_END, 5): (Command.TX_COMMIT,),
    (Op.READ_END, 7): (Command.SENT,),
    (Op.NOTED, 4): (Command.QUEUE_BIND,),
    (Op.NOTED, 6): (Command.PUBLISH,),
}
"""The kinds of commands that cause a move by this cause; where none is named, each kind may."""


def causes() -> pa.Table:
    """Return the table: which kinds of commands cause a move; `own`: no other kinds do, so the move
    does not go on from an earlier position.
    """
    rows = [
        (op, cause, kind, (op, cause) in _CAUSED_BY)
        for op, words in CAUSES.items()
        for cause in range(len(words))
        for kind in _CAUSED_BY.get((Op(op), cause), tuple(Command))
    ]
    return table_of(rows, "op bigint, cause bigint, kind bigint, own boolean")


# Commands: 2 CONNECTION_CLOSE, 4 CHANNEL_CLOSE, 64 ACTIVATE, 66 TICK.  Outcomes: 1 to 3 came too
# late, from 300 on replies that close.  `kind` is -1 where its index is outside of its batch.
CAUSED = {
    "caused": """
        SELECT logged.*, kind < 0 AS beyond, own IS NOT NULL AS allowed, own
        FROM logged LEFT JOIN causes USING (op, cause, kind)""",
    # Returns that only an end explains, which may be one of an earlier position: that of a channel,
    # which may be opened anew under its number, or of its connection or session, which are over.
    "acts": """
        SELECT of, MAX(nth) AS last_act FROM logged LEFT JOIN causes USING (op, cause, kind)
        WHERE op IN (1, 3, 4, 5, 12) AND (own IS NOT FALSE OR op IN (3, 12)) GROUP BY of""",
    # What closes a channel alone says which.
    "closed": "SELECT position, of AS channel FROM logged WHERE op = 14 AND cause = 7",
    "ended": """
        SELECT logged.*, last_act
        FROM logged JOIN causes USING (op, cause, kind) JOIN acts USING (of)
        LEFT JOIN closed USING (position)
        WHERE (op = 5 AND cause = 2 OR op = 13 AND cause = 3)
                AND channel IS DISTINCT FROM of
            OR op = 5 AND cause = 3 OR op = 13 AND cause = 4""",
    "of_queues": """
        SELECT logged.*, named.queue IS NULL AS nameless,
            op = 8 AND (flag <> durable OR of - 1 <> max_priority
                OR (cause = 1) <> (max_priority = 256)) AS otherwise,
            op IN (3, 5) AND max_priority = 256
                OR op = 6 AND (max_priority = 256) <> (cause = 2)
                OR op = 10 AND max_priority = 256 AS misled,
            op BETWEEN 11 AND 13 AND max_priority BETWEEN 0 AND 256
                OR (op IN (3, 4, 5, 9, 10) OR op = 7 AND cause <> 1) AND max_priority = 257
                AS misread,
            (op = 6 AND cause = 4 OR op = 4 AND cause = 6) AND max_priority <> 258 AS misplaced
        FROM logged LEFT JOIN named USING (queue) WHERE op <> 1 AND NOT (op = 14 AND queue = 0)""",
}

RULES = {
    "foreign command": Rule("LOG", "a move names a command that is not in its batch",
        "caused", "beyond"),
    "stray": Rule("LOG", "a move says something that moves of its kind never say",
        "caused", """op IN (4, 5, 9) AND flag AND NOT (op = 4 AND cause = 5)
            OR op = 7 AND flag AND cause <> 0
            OR op = 1 AND cause IN (2, 4, 5) AND of <> 0
            OR op = 6 AND cause = 0 AND of <> 0
            OR op IN (7, 8) AND detail <> 0 OR op = 8 AND seq <> 0
            OR op IN (12, 13) AND flag
            OR op = 14 AND (flag AND cause NOT IN (0, 5) OR cause < 3 AND of <> 0
                OR cause > 1 AND seq <> 0 OR cause IN (2, 6, 7) AND queue <> 0
                OR cause = 3 AND queue = 0 OR cause IN (3, 7) AND detail <> 0)"""),
    "disorder": Rule("LOG", "moves are not in the order of their commands",
        "caused", "position < before AND NOT beyond"),
    "unnamed queue": Rule("LOG", "a move of a queue that the log has not named",
        "of_queues", "nameless"),
    "other queue": Rule("LOG", "the queue was declared otherwise than the log names it",
        "of_queues", "otherwise"),
    "left otherwise": Rule("G20",
        "left a queue of delayed ones otherwise than as due, or another one so",
        "of_queues", "misled"),
    "consumed stream": Rule("G29",
        "was consumed, or purged, from a stream, or read where nobody may",
        "of_queues", "misread"),
    "replaced elsewhere": Rule("G30",
        "was replaced or superseded in a queue that keeps no last values",
        "of_queues", "misplaced"),
    "late command": Rule("G20", "a command that came too late moved a message",
        "caused", "outcome BETWEEN 1 AND 199 AND kind <> 66 AND own IS NOT FALSE AND NOT beyond"),
    "wrong cause": Rule("G20", "a command of this kind cannot cause this move",
        "caused", "NOT allowed AND NOT beyond"),
    "return without cause": Rule("G11",
        "messages came back, but nothing was closed, refused or returned",
        "ended", "last_act > nth"),
}  # fmt: skip
