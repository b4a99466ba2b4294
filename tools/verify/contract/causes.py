"""LOG, G11, G13, G20, G29, G30: a message moves only for a command that may move it by AMQP, and in
its place.

Each move names a command of its batch, in their order, and a queue that the log has named; the
command's kind and outcome must be able to cause it. Closing a channel in any way returns the
messages it held, which may then be delivered, dropped by limits or dead-lettered. An ACTIVATE
closes the channels of lost members; a TICK expires messages and routes delayed ones. Work too large
for one position continues at the next ones, whatever is ordered there.
"""

from __future__ import annotations

import numpy as np

from tools.verify.contract.rules import Rule
from tools.verify.format.commands import Command
from tools.verify.format.moves import CAUSES, Op

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
"""The kinds of commands that cause a move by this cause; if none is named, any kind may."""

OWN = 2
BY_KIND = np.zeros((16, 8, 256), np.int8)
"""By move, cause, and kind of command: 0: it does not cause the move; 1: it may; `OWN`: it may, and
only named kinds do, so the move is not continued from an earlier position."""
for _op, _words in CAUSES.items():
    for _cause in range(len(_words)):
        _kinds = _CAUSED_BY.get((Op(_op), _cause))
        BY_KIND[_op, _cause, list(_kinds or Command)] = OWN if _kinds else 1

# Commands: 2 CONNECTION_CLOSE, 4 CHANNEL_CLOSE, 64 ACTIVATE, 66 TICK.  Outcomes: 1 to 3 came too
# late, from 300 on replies that close.  `kind` is -1 where its index is outside of its batch, and
# `caused` is of BY_KIND.  `durable` and `max_priority` are the queue's, NULL where it has no name.
CAUSED = {
    # Returns that only an end explains, which may be that of an earlier position: of a channel,
    # which may be reopened under its number, or of its connection or session, which are over.
    "acts": """
        SELECT of, MAX(nth) AS last_act FROM logged
        WHERE op IN (1, 4, 5) AND caused <> 1 OR op IN (3, 12) GROUP BY of""",
    # A command that closes a single channel says which one.
    "closed": """
        SELECT position, of AS channel, time, gaps, stretch
        FROM logged WHERE op = 14 AND cause = 7""",
    "closings": """
        SELECT channel, gaps, MAX(time) AS time FROM closed WHERE stretch >= 0 GROUP BY ALL""",
    # What a command did itself. It acts for one channel, and takes or makes one thing.
    "of_command": """
        SELECT position, MIN(ordinal) AS ordinal, -1 AS queue, -1 AS seq, MIN(of) AS of,
            MAX(of) AS other, COUNT(*) FILTER (WHERE op IN (3, 8)) AS taken
        FROM logged WHERE caused = 2 AND op NOT IN (6, 7, 9, 10, 14)
        GROUP BY position HAVING MIN(of) <> MAX(of) OR COUNT(*) FILTER (WHERE op IN (3, 8)) > 1""",
    "ended": """
        SELECT logged.*, last_act
        FROM logged JOIN acts USING (of) LEFT JOIN closed ON closed.position = logged.position
        WHERE (op = 5 AND cause = 2 OR op = 13 AND cause = 3) AND channel IS DISTINCT FROM of
            OR op = 5 AND cause = 3 OR op = 13 AND cause = 4""",
}

RULES = {
    "foreign command": Rule("LOG", "a move names a command that is not in its batch",
        "logged", "kind < 0"),
    "stray": Rule("LOG", "a move says something that moves of its kind never say",
        "logged", """op IN (4, 5, 9) AND flag AND NOT (op = 4 AND cause = 5)
            OR op = 7 AND flag AND cause <> 0
            OR op = 1 AND cause IN (2, 4, 5) AND of <> 0
            OR op = 6 AND cause = 0 AND of <> 0
            OR op IN (7, 8) AND detail <> 0 OR op = 8 AND seq <> 0
            OR op IN (12, 13) AND flag
            OR op = 14 AND (flag AND cause NOT IN (0, 5) OR cause < 3 AND of <> 0
                OR cause > 1 AND seq <> 0 OR cause IN (2, 6, 7) AND queue <> 0
                OR cause = 3 AND queue = 0 OR cause IN (3, 7) AND detail <> 0)"""),
    "disorder": Rule("LOG", "moves are not in the order of their commands",
        "logged", "position < before"),
    "unnamed queue": Rule("LOG", "a move of a queue that the log has not named",
        "logged", "max_priority IS NULL AND op <> 1 AND NOT (op = 14 AND queue = 0)"),
    "other queue": Rule("LOG", "the queue was declared otherwise than the log names it",
        "logged", """op = 8 AND (flag <> durable OR of - 1 <> max_priority
            OR (cause = 1) <> (max_priority = 256))"""),
    "left otherwise": Rule("G20",
        "left a queue of delayed ones otherwise than as due, or another one so",
        "logged", """op IN (3, 5, 10) AND max_priority = 256
            OR op = 6 AND (max_priority = 256) <> (cause = 2)"""),
    "consumed stream": Rule("G29",
        "was consumed, or purged, from a stream, or read where nobody may",
        "logged", """op BETWEEN 11 AND 13 AND max_priority BETWEEN 0 AND 256
            OR (op IN (3, 4, 5, 9, 10) OR op = 7 AND cause <> 1) AND max_priority = 257"""),
    "replaced elsewhere": Rule("G30",
        "was replaced or superseded in a queue that keeps no last values",
        "logged", "(op = 6 AND cause = 4 OR op = 4 AND cause = 6) AND max_priority <> 258"),
    "late command": Rule("G20", "a command that came too late, or was refused, moved a message",
        "logged", "(outcome BETWEEN 1 AND 199 OR outcome >= 300) AND kind <> 66 AND caused <> 1"),
    "wrong cause": Rule("G20", "a command of this kind cannot cause this move",
        "logged", "caused = 0"),
    "two channels": Rule("G13", "one command acted for two channels",
        "of_command", "of <> other AND taken = 0"),
    "taken twice": Rule("G20", "one command took two messages, or declared two queues",
        "of_command", "taken > 1"),
    "return without cause": Rule("G11",
        "messages came back, but nothing was closed, refused or returned",
        "ended", "last_act > nth"),
}  # fmt: skip
