# mypy: disable-error-code="import-untyped"
"""G20, G11: a message moves only for a command that may do that by AMQP.  The table of these."""

from __future__ import annotations

import numpy as np

from tools.verify.format.commands import Command
from tools.verify.format.moves import CAUSE_SHIFT, Op
from tools.verify.input.moves import Bools

ERRORS_FROM = 300  # outcomes from here on are reply codes that close a channel or connection

_CLOSES = (Command.CONNECTION_CLOSE, Command.CHANNEL_CLOSE)
_ANY = tuple(Command)
"""Whatever closes a channel returns what it held, which may then be delivered, dropped by limits or
dead-lettered. An ACTIVATE closes the channels of lost members, a TICK expires messages. And what is
too much for one position goes on at the next ones, whatever is ordered there."""

_CAUSED_BY: dict[tuple[Op, int], tuple[int, ...]] = {
    (Op.PUBLISHED, 0): (Command.PUBLISH,),
    (Op.PUBLISHED, 1): (Command.TX_COMMIT,),
    (Op.PUBLISHED, 2): _ANY,
    (Op.PUBLISHED, 3): (Command.PUBLISH,),
    (Op.ENQUEUED, 0): _ANY,
    (Op.DELIVERED, 0): _ANY,
    (Op.DELIVERED, 1): (Command.GET,),
    (Op.SETTLED, 0): (Command.ACK,),
    (Op.SETTLED, 1): (Command.SENT,),
    (Op.SETTLED, 2): (Command.NACK, Command.TX_COMMIT),
    (Op.SETTLED, 3): _ANY,
    (Op.SETTLED, 4): (Command.TX_COMMIT,),
    (Op.SETTLED, 5): _ANY,
    (Op.RETURNED, 0): (Command.NACK,),
    (Op.RETURNED, 1): (Command.RECOVER,),
    (Op.RETURNED, 2): _ANY,
    (Op.RETURNED, 3): _ANY,
    (Op.RETURNED, 4): (Command.TX_COMMIT,),
    (Op.DROPPED, 0): _ANY,  # also what has no time to live, at once where it enters or returns
    (Op.DROPPED, 1): _ANY,
    (Op.PURGED, 0): (Command.QUEUE_PURGE,),
    (Op.PURGED, 1): _ANY,
    (Op.PURGED, 2): (Command.ACTIVATE,),
    (Op.DECLARED, 0): (Command.QUEUE_DECLARE,),
    (Op.RECOVERED, 0): (Command.ACTIVATE,),
}


def _allowed() -> Bools:
    """Return the table, by command kind, and by op with the cause in the bits above it."""
    table = np.zeros((256, 128), np.bool_)
    for (op, cause), kinds in _CAUSED_BY.items():
        table[list(kinds), op | cause << CAUSE_SHIFT] = True
    return table


def _of_any() -> Bools:
    table = np.zeros(128, np.bool_)
    for (op, cause), kinds in _CAUSED_BY.items():
        table[op | cause << CAUSE_SHIFT] = kinds is _ANY
    return table


ALLOWED = _allowed()
OF_ANY = _of_any()
"""The moves, by op and cause, that may go on from an earlier position, whatever is ordered."""
CLOSES = np.isin(np.arange(256), _CLOSES)
