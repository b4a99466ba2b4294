"""Moves of messages over time, counted by kind and by slice of time.

For pictures, not for the verdict.  Each position is counted once: the queue contract counts as it
reads the source of each in the canonical history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tools.verify.format.moves import CAUSE_SHIFT, FLAG, Op

_CAUSES: dict[tuple[int, int], str] = {
    (Op.RETURNED, 0): "requeued by its consumer (nack, reject)",
    (Op.RETURNED, 1): "taken back (recover)",
    (Op.RETURNED, 2): "its channel or connection closed",
    (Op.RETURNED, 3): "its member was lost",
    (Op.RETURNED, 4): "requeued in a transaction",
}


class MoveCount(NamedTuple):
    """Number of moves of a kind in one slice of time; `what` as in a row of moves."""

    number: int
    what: int
    n: int

    @property
    def op(self) -> int:
        """Return the kind without its cause."""
        return self.what & ((1 << CAUSE_SHIFT) - 1)

    @property
    def cause(self) -> str:
        """Return why a message was returned to its queue, "" for other moves."""
        return _CAUSES.get((self.op, (self.what & ~FLAG) >> CAUSE_SHIFT), "")

    @property
    def redelivered(self) -> bool:
        """Whether a message was delivered that had been delivered before."""
        return self.op == Op.DELIVERED and bool(self.what & FLAG)


def return_causes(move_counts: Iterable[MoveCount]) -> dict[str, int]:
    """Return how many messages were returned, by cause, the most frequent first."""
    sums: Counter[str] = Counter()
    for one in move_counts:
        if one.cause:
            sums[one.cause] += one.n
    return dict(sums.most_common())
