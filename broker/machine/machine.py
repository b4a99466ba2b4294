"""The machine: one command at one position makes the same change at every member.

It reads no clock, random source, socket or disk. It validates, then mutates. A client's error is a
value (an outcome, and an effect for the member that holds the connection), so `apply` raises only
for a bug, and then this member must stop (docs/decisions/0013-validate-then-mutate.md). This module
only routes; each handler is in the module of its subject.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import cast

from broker.machine import commands as c
from broker.machine.clock import cluster_time
from broker.machine.commands import IGNORED, KINDS_MAX, Command
from broker.machine.effects import Effect
from broker.machine.handlers import (
    alarms,
    connections,
    consumers,
    definitions,
    exchanges,
    poison,
    publish,
    queues,
    sessions,
)
from broker.machine.handlers.transactions import on_tx_commit
from broker.machine.image import invariants as checks
from broker.machine.image import restore as restoring
from broker.machine.image import snapshot as snapshots
from broker.machine.publishing.letters import publish_dead_letters
from broker.machine.queueing import streams
from broker.machine.queueing.deletion import contents, drop
from broker.machine.state import Channel, Paging, Queue, QueueRow, State, all_queues, ready_count

SessionHandler = Callable[[State, int, Command], int]
ChannelHandler = Callable[[State, Channel, Command], int]


class Machine(State):
    """The replicated state with its handlers. Effects are built only for connections of the session
    of the member named `local`; nothing else depends on which member that is."""

    __slots__ = ()

    def __init__(self, local: str, pager: Paging = None) -> None:
        super().__init__(local, pager=pager)
        self.definitions = {what: {} for what in definitions.KINDS}
        self.digest = checks.recompute_root(self)

    def apply(self, position: int, session: int, time_us: int, command: Command) -> int:
        """Apply a command; return its outcome. Positions rise by one; effects come in order."""
        self.position = position
        self.time_us = time_us
        kind = command[0]
        on_channel = _ON_CHANNEL[kind]
        if on_channel is None:
            outcome = _ON_SESSION[kind](self, session, command)
        else:
            # All these kinds have the connection and the channel as second and third item.
            key = (session, command[1], command[2])  # type: ignore[misc]
            channel = self.channels.get(key)  # type: ignore[arg-type]
            if channel is None or not channel.open:
                outcome = IGNORED
            elif self.poison and (refusal := poison.refusal_of(self, command)) is not None:
                outcome = connections.refuse(self, channel, kind, refusal)
            else:
                outcome = on_channel(self, channel, command)
        if self.ending:
            sessions.end_what_ended(self)
        if self.leaving or self.stale or self.trimming:
            definitions.go_on(self)
        if self.freed or self.late:
            consumers.serve_others(self)
        if self.dead_letters or self.late_letters:  # what has expired in those queues too
            publish_dead_letters(self)
        if self.reading:
            streams.read(self)
        return outcome

    def accept_blob(self, member: str, session: int, blob_no: int) -> bool:
        """Whether this blob is the next one of a current session; if so it is counted."""
        return sessions.accept_blob(self, member, session, blob_no)

    def take_moves(self) -> tuple[bytes, list[Queue]]:
        """Return the moves of messages since the last call, in rows of move_log.MOVE, and the
        queues declared meanwhile."""
        if not self.moves:
            return b"", []
        moves, declared = b"".join(self.moves), self.declared
        self.moves.clear()
        if declared:
            self.declared = []
        return moves, declared

    def take_effects(self) -> list[Effect]:
        effects = self.effects
        self.effects = []
        return effects

    @property
    def wants_tick(self) -> bool:
        """Whether members should tick: a message or queue may expire, or work continues at the next
        position."""
        return cluster_time.pending(self) or cluster_time.goes_on(self)

    @property
    def due_in_us(self) -> int:
        """Nothing can expire within this time; the frequency of ticks may depend on it."""
        return 0 if cluster_time.goes_on(self) else cluster_time.due_us(self) - self.now_us

    def free(self, count: int) -> int:
        """Free about this many of the purged messages, and their places; return how many. Takes
        time but changes nothing, because nothing refers to them any more."""
        freed = 0
        while self.discarded and freed < count:
            messages = self.discarded[-1]
            freed += drop(messages, count - freed)
            if not messages:
                self.discarded.pop()
        return freed

    def free_also(self, other: "Machine") -> None:
        """Free the messages of a machine no longer in use along with this one's, so that it does
        not hold the last reference to a million of them when it goes."""
        self.discarded += other.discarded
        other.discarded = []
        for vhost in other.vhosts.values():
            for queue in all_queues(vhost):
                self.discarded += contents(queue)

    @property
    def alarm(self) -> str:
        """Why no member takes publishes, as one sentence; empty: they do."""
        return alarms.sentence(self) if self.alarms else ""

    def queue_rows(self) -> list[QueueRow]:
        """One row per queue: members whose roots differ compare these to find the queue."""
        return [
            QueueRow(
                vhost.name,
                queue.name,
                queue.durable,
                queue.owner is not None,
                ready_count(queue),
                queue.unacked,
                len(queue.consumers),
                queue.ready_sum,
            )
            for vhost in self.vhosts.values()
            for queue in all_queues(vhost)
        ]

    def root(self) -> int:
        """The state's hash (digest.ALGORITHM): equal at all members at equal positions."""
        return self.digest

    def recompute_root(self) -> int:
        """The root computed anew, from the bytes held now."""
        return checks.recompute_root(self)

    def snapshot(self, *, pages: bool = False) -> Iterator[bytes]:
        """The current state, in chunks of at most 256 KiB. All members produce the same chunks,
        unless `pages` are written unchanged."""
        return snapshots.Cut(self, at_once=True, pages=pages).chunks()

    def snapshot_in_steps(self, *, pages: bool = False) -> Iterator[bytes | None]:
        """The same with empty chunks in between, at which a caller with little time can pause, and
        None where the next content is being read from disk."""
        return snapshots.Cut(self, at_once=False, pages=pages).steps()

    @classmethod
    def restore(
        cls, local: str, chunks: Iterable[bytes], pager: Paging = None, *, own: bool = False
    ) -> "Machine":
        """The machine of these chunks; raises `SnapshotError` unless they are whole and hash to the
        root they claim. In this member's `own` snapshot, messages in pages are hashed when they are
        first used: their `PageDamaged` comes then."""
        machine = cls(local, pager)
        with pager.at_once() if pager is not None else nullcontext():
            restoring.read(machine, chunks, own=own)
        return machine

    def invariants(self) -> None:
        """Assert the invariants between commands; for tests and the simulator."""
        checks.check(self)


def _on_unknown(_state: State, _session: int, _command: Command) -> int:
    return IGNORED


_ON_SESSION: list[SessionHandler] = [_on_unknown] * KINDS_MAX
for _kind, _handler in (
    (c.CONNECTION_OPEN, connections.on_connection_open),
    (c.CONNECTION_CLOSE, connections.on_connection_close),
    (c.CHANNEL_OPEN, connections.on_channel_open),
    (c.ACTIVATE, sessions.on_activate),
    (c.DIGEST, sessions.on_digest),
    (c.TICK, sessions.on_tick),
    (c.SHUTDOWN, sessions.on_shutdown),
    (c.POISONED, poison.on_poisoned),
    (c.REEXECUTED, sessions.on_digest),
    (c.VOTERS, sessions.on_voters),
    (c.UPGRADE, sessions.on_upgrade),
    (c.ALARM, alarms.on_alarm),
    (c.DEFINE, definitions.on_define),
    (c.PROMOTE, sessions.on_promote),
    (c.DEMOTE, sessions.on_demote),
):
    _ON_SESSION[_kind] = cast("SessionHandler", _handler)

_ON_CHANNEL: list[ChannelHandler | None] = [None] * KINDS_MAX
for _kind, _channel_handler in (
    (c.CHANNEL_CLOSE, connections.on_channel_close),
    (c.EXCHANGE_DECLARE, exchanges.on_exchange_declare),
    (c.EXCHANGE_DELETE, exchanges.on_exchange_delete),
    (c.EXCHANGE_BIND, exchanges.on_bind),
    (c.EXCHANGE_UNBIND, exchanges.on_unbind),
    (c.QUEUE_DECLARE, queues.on_queue_declare),
    (c.QUEUE_BIND, exchanges.on_bind),
    (c.QUEUE_UNBIND, exchanges.on_unbind),
    (c.QUEUE_PURGE, queues.on_queue_purge),
    (c.QUEUE_DELETE, queues.on_queue_delete),
    (c.PUBLISH, publish.on_publish),
    (c.CONSUME, consumers.on_consume),
    (c.CANCEL, consumers.on_cancel),
    (c.GET, consumers.on_get),
    (c.ACK, consumers.on_ack),
    (c.NACK, consumers.on_nack),
    (c.RECOVER, consumers.on_recover),
    (c.QOS, consumers.on_qos),
    (c.SENT, consumers.on_sent),
    (c.TX_COMMIT, on_tx_commit),
    (c.BODY_PART, publish.on_body_part),
):
    _ON_CHANNEL[_kind] = cast("ChannelHandler", _channel_handler)
