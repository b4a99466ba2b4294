"""The local half of a channel: what its member must remember that no other member needs.

Requests travel through the order and answers come back as effects. Between the two lie: the
numbering of publishes, the buffer of a transaction, answers that the gateway gives itself and
that must keep their place among the machine's, and what may not be spoken yet.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

from broker.amqp.fields import Value
from broker.machine.commands import TxPublish, TxSettle
from broker.machine.effects import ChannelError, DeliverEffect, GetEmpty, GetOk, Reply

TX_BYTES_MAX = 32 * 1024 * 1024
"""Of all open transactions of one connection; a commit is one message of the ring."""
TX_ITEMS_MAX = 10_000
"""Of one transaction."""


class PendingClose(NamedTuple):
    """The gateway ends the channel: spoken when the machine has answered all that came before."""

    code: int
    text: str
    class_id: int
    method_id: int


class LocalAnswer(NamedTuple):
    """An answer of the gateway's own, which follows the first `after` answers of the machine."""

    after: int
    method: str
    args: tuple[Value, ...]


Spoken: TypeAlias = Reply | DeliverEffect | GetOk | GetEmpty | ChannelError | LocalAnswer


class HeldReply(NamedTuple):
    """Something that waits until `position` is durable, and for what is held before it."""

    position: int
    spoken: Spoken


class Transaction:
    """What tx.commit will send as one command."""

    __slots__ = ("publishes", "settlements", "size")

    def __init__(self) -> None:
        self.publishes: list[TxPublish] = []
        self.settlements: list[TxSettle] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        return len(self.publishes) + len(self.settlements) > TX_ITEMS_MAX

    def clear(self) -> int:
        """Forget everything; returns how many bytes that were."""
        size = self.size
        self.publishes, self.settlements, self.size = [], [], 0
        return size


class LocalChannel:
    """One open channel of a client of this member."""

    __slots__ = (
        "answered",
        "answers",
        "asked",
        "blocking",
        "confirms",
        "durable_need",
        "held",
        "last_queue",
        "pending_close",
        "prefetch",
        "publish_no",
        "recovers",
        "transaction",
        "unreported",
        "wants_confirms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.last_queue: str | None = None
        self.prefetch = 0
        self.wants_confirms = False
        self.publish_no = 0
        self.transaction: Transaction | None = None
        self.pending_close: PendingClose | None = None
        # Answers: how many were asked of the machine, how many came, which ones are our own.
        self.asked = 0
        self.answered = 0
        self.answers: deque[LocalAnswer] = deque()
        self.recovers: deque[bool] = deque()  # of each recover under way: wants its answer
        # What may not be spoken yet, in order.
        self.held: deque[HeldReply] = deque()
        self.blocking = 0  # how many of `held` no delivery may overtake
        self.durable_need = 0  # the highest position that something here waits or waited for
        self.confirms = Confirms()
        self.unreported = 0  # highest delivery tag written without acknowledgement, not yet SENT


class Confirms:
    """Which publishes are settled, and the fewest basic.ack that say so.

    `multiple` may only be said when all before are settled: what is settled early is said on its
    own and remembered until the rest caught up.
    """

    __slots__ = ("_early", "_settled", "fresh")

    def __init__(self) -> None:
        self.fresh: list[tuple[int, bool]] = []  # since the last flush: number, ack or nack
        self._settled = 0  # all publishes up to here are
        self._early: set[int] = set()

    def take(self) -> list[tuple[int, bool, bool]]:
        """What to say now: (number, multiple, ack)."""
        said: list[tuple[int, bool, bool]] = []
        last = 0  # the highest number that a multiple acknowledgement can reach
        acked = 0
        early = self._early
        for number, ack in self.fresh:
            if not ack:
                said.append((number, False, False))
            if number == self._settled + 1:
                self._settled = number
                if ack:
                    last = number
                    acked += 1
                while early and self._settled + 1 in early:
                    self._settled += 1
                    early.discard(self._settled)
            else:
                early.add(number)
                if ack:
                    said.append((number, False, True))
        self.fresh = []
        if last:
            said.append((last, acked > 1, True))
        return said
