"""The local half of a channel: the state that only the client's own member needs.

Requests travel through the order and replies come back as effects. The state in between: the
numbering of publishes, the buffer of a transaction, the gateway's own replies, which must keep
their place among the machine's, and output that may not be sent yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from broker.amqp.fields import Value
from broker.machine.commands import TxPublish, TxSettle
from broker.machine.effects import (
    CancelNotify,
    ChannelError,
    DeliverEffect,
    GetEmpty,
    GetOk,
    Reply,
)
from broker.machine.state import Held

TX_BYTES_MAX = 32 * 1024 * 1024
"""For all open transactions of one connection; a commit is one message of the ring."""
TX_ITEMS_MAX = 10_000
"""For one transaction."""


class PendingClose(NamedTuple):
    """A close by the gateway, sent once the machine has replied to all earlier requests."""

    code: int
    text: str
    class_id: int
    method_id: int


class LocalReply(NamedTuple):
    """The gateway's own reply, which follows the first `after` replies of the machine."""

    after: int
    method: str
    args: tuple[Value, ...]


Outgoing: TypeAlias = (
    Reply | DeliverEffect | GetOk | GetEmpty | CancelNotify | ChannelError | LocalReply
)


class HeldReply(NamedTuple):
    """Output that waits until `position` is durable, and for everything held before it."""

    position: int
    outgoing: Outgoing


@dataclass(slots=True, eq=False)
class Transaction:
    """The publishes and settlements that tx.commit will send as one command."""

    publishes: list[TxPublish] = field(default_factory=list)
    settlements: list[TxSettle] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)  # of the body of the next publish
    size: int = 0
    giving_back: int = 0
    """The last delivery tag of a basic.recover that may still be under way."""
    _settled: dict[int, bool] = field(default_factory=dict)  # delivery tags, one by one
    _settled_to: int = 0  # and all up to this one

    @property
    def is_full(self) -> bool:
        return len(self.publishes) + len(self.settlements) > TX_ITEMS_MAX

    def clear(self) -> int:
        """Forget everything; return its size in bytes."""
        size = self.size
        self.publishes, self.settlements, self.parts, self.size = [], [], [], 0
        self._settled, self._settled_to = {}, 0
        return size

    def has_settled(self, tag: int) -> bool:
        """Whether this delivery tag is among `settlements`."""
        return tag <= self._settled_to or tag in self._settled

    def last_unsettled(self, outstanding: dict[int, Held]) -> int:
        """Return the highest of these ascending tags that is not settled; 0: none."""
        for tag in reversed(outstanding):
            if not self.has_settled(tag):
                return tag
            if tag <= self._settled_to:
                break
        self._settled_to = max(self._settled_to, next(reversed(outstanding), 0))
        return 0

    def settle(self, tag: int, multiple: bool, action: int) -> None:
        """Note a settlement for tx.commit."""
        self.settlements.append(TxSettle(tag, multiple, action))
        if multiple:
            self._settled_to = max(self._settled_to, tag)
        else:
            self._settled[tag] = True


@dataclass(slots=True, eq=False)
class Confirms:
    """The settled publishes, and the fewest basic.ack methods that report them.

    `multiple` may be set only if all earlier publishes are settled: one that settles early is
    acknowledged on its own and remembered until the rest have caught up.
    """

    fresh: list[tuple[int, bool]] = field(default_factory=list)
    """Since the last flush: number, ack or nack."""
    _settled: int = 0  # all publishes up to here are
    _early: set[int] = field(default_factory=set)

    @property
    def taken(self) -> int:
        """Return how many settled publishes were handed out for sending."""
        return self._settled + len(self._early)

    def take(self) -> list[tuple[int, bool, bool]]:
        """Return the confirms to send now: (number, multiple, ack)."""
        acks: list[tuple[int, bool, bool]] = []
        last = 0  # the highest number that a multiple acknowledgement can reach
        acked = 0
        early = self._early
        for number, ack in self.fresh:
            if not ack:
                acks.append((number, False, False))
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
                    acks.append((number, False, True))
        self.fresh = []
        if last:
            acks.append((last, acked > 1, True))
        return acks


@dataclass(slots=True, eq=False)
class Following:
    """A consumer that is told which messages are in a queue, held or not, and which have left it
    (broker/shovels/followed.py); the machine knows no such consumer."""

    queue: str
    known: str
    """The part of the queue that the client already has."""
    next_tag: int = 1


class ChannelFacts(NamedTuple):
    """The facts that only its member knows of a channel, by RabbitMQ's management names."""

    confirm: int = 0
    transactional: int = 0
    prefetch_count: int = 0
    messages_unconfirmed: int = 0
    messages_uncommitted: int = 0
    acks_uncommitted: int = 0

    def shown(self) -> dict[str, object]:
        """Return the facts for display: the first two are yes or no."""
        return self._asdict() | {
            "confirm": bool(self.confirm), "transactional": bool(self.transactional),
        }  # fmt: skip


@dataclass(slots=True, eq=False)
class LocalChannel:
    """One open channel of a client of this member."""

    last_queue: str | None = None
    prefetch: int = 0
    wants_confirms: bool = False
    publish_no: int = 0
    probe_no: int = 0  # the publish whose confirm is timed; 0: none is under way
    probed_at: float = 0.0
    transaction: Transaction | None = None
    pending_close: PendingClose | None = None
    # Replies: how many were requested of the machine, how many came, which ones are our own.
    requested: int = 0
    replied: int = 0
    local_replies: deque[LocalReply] = field(default_factory=deque)
    recovers: deque[bool] = field(default_factory=deque)
    """For each basic.recover under way: whether the client wants its reply."""
    qos_replies: deque[tuple[str, tuple[Value, ...]]] = field(default_factory=deque)
    """Of each basic.qos under way: what is sent when it is done, basic.qos-ok or a reply of our own
    that follows what was published before it."""
    held: deque[HeldReply] = field(default_factory=deque)
    """Output that may not be sent yet, in order."""
    blocking: int = 0  # how many of `held` no delivery may overtake
    durable_need: int = 0  # the highest position that something here waits or waited for
    confirms: Confirms = field(default_factory=Confirms)
    reply_queue: str = ""  # behind amq.rabbitmq.reply-to, while this consumer is there
    reply_consumer: str = ""
    numbered: set[str] = field(default_factory=set)
    """Tags of the consumers that are told the queue's number of each delivery."""
    following: dict[str, Following] = field(default_factory=dict)
    """By tag."""
    unreported: int = 0  # highest delivery tag written without acknowledgement, not yet SENT
    unanswered: bool = False  # it has sent what the machine gives no reply to, whatever comes of it

    @property
    def is_quiet(self) -> bool:
        """Whether everything sent on the channel is done, and its client has been told so."""
        return not (
            self.unanswered
            or self.transaction is not None
            or self.requested > self.replied
            or self.held
            or self.publish_no > self.confirms.taken
            or self.reply_queue
            or self.following
        )

    def facts(self) -> ChannelFacts:
        """Return the facts that the other members do not know."""
        open_one = self.transaction
        return ChannelFacts(
            int(self.wants_confirms),
            int(open_one is not None),
            self.prefetch,
            self.publish_no - self.confirms.taken if self.wants_confirms else 0,
            len(open_one.publishes) if open_one is not None else 0,
            len(open_one.settlements) if open_one is not None else 0,
        )
