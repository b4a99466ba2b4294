# mypy: disable-error-code="import-untyped"
"""Table of which command may cause which move, by AMQP; any other move is a fault."""

from __future__ import annotations

import numpy as np

from broker.machine import commands as c
from broker.machine.move_log import CAUSE_SHIFT, Op
from tools.verify.input.moves import Bools

ERRORS_FROM = 300  # outcomes from here on are reply codes that close a channel or connection

_CLOSES = (c.CONNECTION_CLOSE, c.CHANNEL_CLOSE)
_ANY = tuple(c.CLASSES)
"""Whatever closes a channel returns what it held, which may then be delivered, dropped by limits or
dead-lettered. An ACTIVATE closes the channels of lost members, a TICK expires messages. And what is
too much for one position goes on at the next ones, whatever is ordered there."""

_CAUSED_BY: dict[tuple[Op, int], tuple[int, ...]] = {
    (Op.PUBLISHED, 0): (c.PUBLISH,),
    (Op.PUBLISHED, 1): (c.TX_COMMIT,),
    (Op.PUBLISHED, 2): _ANY,
    (Op.ENQUEUED, 0): _ANY,
    (Op.DELIVERED, 0): _ANY,
    (Op.DELIVERED, 1): (c.GET,),
    (Op.SETTLED, 0): (c.ACK,),
    (Op.SETTLED, 1): (c.SENT,),
    (Op.SETTLED, 2): (c.NACK, c.TX_COMMIT),
    (Op.SETTLED, 3): _ANY,
    (Op.SETTLED, 4): (c.TX_COMMIT,),
    (Op.SETTLED, 5): _ANY,
    (Op.RETURNED, 0): (c.NACK,),
    (Op.RETURNED, 1): (c.RECOVER,),
    (Op.RETURNED, 2): _ANY,
    (Op.RETURNED, 3): _ANY,
    (Op.RETURNED, 4): (c.TX_COMMIT,),
    (Op.DROPPED, 0): (c.TICK, c.GET),
    (Op.DROPPED, 1): _ANY,
    (Op.PURGED, 0): (c.QUEUE_PURGE,),
    (Op.PURGED, 1): _ANY,
    (Op.PURGED, 2): (c.ACTIVATE,),
    (Op.DECLARED, 0): (c.QUEUE_DECLARE,),
    (Op.RECOVERED, 0): (c.ACTIVATE,),
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
