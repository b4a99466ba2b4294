"""The apply loop: an ordered item in; machine, chains, store entry, log record and effects out.

The replica is pure: it touches no disk and no socket. It hands out data to make durable as
`AppliedBatch`s, results for clients as effects with their position, and evidence for the member log
as calls on the log. Restart, join and normal operation apply items through the same method, so that
a state is always a checkpoint and the items after it.
Decision: docs/decisions/0018-one-state-model-one-way-back.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, cast

import msgpack

from broker.machine.command_codec import (
    BlobMalformed,
    head_of_bytes,
    is_large,
    unpack_blob,
    with_more_items,
)
from broker.machine.commands import (
    ACK,
    ACTIVATE,
    DIGEST,
    MALFORMED,
    NACK,
    OUT_OF_SEQUENCE,
    PUBLISH,
    REEXECUTED,
    REFUSED,
    SENT,
    SHUTDOWN,
    TICK,
    Activate,
    ActiveMember,
    Command,
    DigestClaim,
    Reexecuted,
    Shutdown,
)
from broker.machine.effects import Effect
from broker.machine.handlers.cold_start import find_survivors
from broker.machine.machine import Machine
from broker.machine.publishing.runs import apply_acks, apply_publishes
from broker.machine.requests.refusals import INTERNAL_ERROR
from broker.machine.state import Queue
from broker.replication.chain import History, item_hash, next_order, steps_to
from broker.waiting.pager import PageLost
from vsync.primary.events import Activation
from vsync.types import RingId

RECORD_VERSION = 1
_ITEM_BLOB, _ITEM_ACTIVATION = 0, 1
_IN_RUNS = {
    PUBLISH: (bytes([PUBLISH, PUBLISH]), apply_publishes),
    ACK: (bytes([ACK, ACK]), apply_acks),
}
UNAWAITED = frozenset((ACK, NACK, SENT, TICK, DIGEST))
"""Kinds of commands that get no reply: no client waits for them to be durable."""


class Divergence(Exception):
    """Re-execution does not give the recorded chain: this store or this code is wrong."""


class ExecutionFailed(Exception):
    """The machine raised: a fault of the broker, and this replica is unusable from here on.

    Decision: docs/decisions/0013-validate-then-mutate.md.
    """

    def __init__(self, item: Item, position: int, index: int, order: bytes, kind: int) -> None:
        super().__init__(f"executing a command at position {position} failed")
        self.item, self.position, self.index, self.kind = item, position, index, kind
        self.order = order  # the order chain after the item: names it and all that is before it

    @property
    def command(self) -> Command | None:
        """Return the command that raised; None for an activation."""
        body = self.item.body
        return unpack_blob(body).commands[self.index] if isinstance(body, bytes) else None


class Withheld(Exception):
    """The next item holds a command on which this member failed before; nothing was executed."""

    def __init__(self, position: int, order: bytes) -> None:
        super().__init__(f"the command at position {position} is quarantined")
        self.position, self.order = position, order


class Item(NamedTuple):
    """One ordered item with its origin. `body` is a blob or an activation."""

    epoch: int
    ring: RingId
    seq: int
    sender: str
    body: bytes | Activation


class Recorded(NamedTuple):
    """An item in a member's log: its positions, and the outcome chain after it."""

    first: int
    last: int
    item: Item
    chain: bytes


class Applied(NamedTuple):
    """The outcome of applying one item, in the columns that the member log keeps."""

    item: Item
    first: int
    kinds: bytes
    outcomes: bytes
    hashed: bytes
    session: int
    blob_no: int
    time_us: int
    moves: bytes  # what the commands did to messages: rows of `move_log.MOVE`
    declared: list[Queue]  # queues that began in it


class AppliedBatch(NamedTuple):
    """The next piece to make durable: `entry` covers positions `first` to `last`."""

    entry: bytes
    first: int
    last: int
    history: History


class AppliedLog(Protocol):
    """The part of the member log that the apply loop writes."""

    def batch(self, applied: Applied, history: History, root: int) -> None:
        """Record one applied item."""


class Replica:
    """One member's replicated state and the point it has reached."""

    def __init__(
        self, local: str, machine: Machine, history: History, *, in_runs: bool = True
    ) -> None:
        """Without `in_runs` each command is applied by itself: nothing else differs."""
        self.local = local
        self._in_runs = in_runs
        self.machine = machine
        self.history = history
        self.log: AppliedLog | None = None
        self.effects: list[tuple[int, Effect]] = []
        self.digests: list[tuple[str, DigestClaim]] = []
        self.reports: list[tuple[str, Reexecuted]] = []
        self.shutdown_id = ""
        self.own_blob_no = 0  # the last own blob that was applied in the present session
        self.withheld: Mapping[bytes, tuple[int, ...]] = {}
        """Items, by the order chain after them, that are not executed in full: the indices of the
        commands in the item that get the outcome 541 instead; none: go no further."""
        self.skipped = 0
        self.broken = False  # a command raised half-way: this state is nothing's state any more
        self.half_way = False  # in an item, between two positions or within one: it goes on later
        self.counters: dict[str, int] = {}
        self.awaited = False
        """Whether a client may be waiting for items applied since the last cut to be durable."""
        self._parts: list[bytes] = []
        self._parts_first = 0

    # -- applying --------------------------------------------------------------------------------

    def look_ahead(self) -> Iterator[None]:
        """Do, in small steps, the work that may be done ahead of a cold activation, which is the
        next item to apply. Changes nothing."""
        return find_survivors(self.machine)

    def apply(self, item: Item) -> Applied:
        """Apply one ordered item at the next positions.  Client errors are outcomes, never raised.

        An exception from the machine is the broker's fault (a bug, no memory) and is raised as
        `ExecutionFailed`: the caller stops this member. `Withheld` is raised before anything
        changes.
        """
        applied = self.execute(item)
        self.record(applied)
        return applied

    def execute(self, item: Item) -> Applied:
        """Do the same without the member log. May wait for messages that are on disk."""
        body = item.body
        hashed = item_hash(body)
        first = self.history.position + 1
        skip = self._skips_of(first, hashed) if self.withheld else ()
        session = blob_no = time_us = 0
        self.half_way = True
        if isinstance(body, Activation):
            kinds, outcomes = self._apply_activation(first, item, hashed, body)
        else:
            try:
                blob = unpack_blob(body)
            except BlobMalformed:
                self._count("malformed_blobs")
                kinds, outcomes = bytes([REFUSED]), struct.pack("<H", MALFORMED)
            else:
                session, blob_no, time_us = blob.session, blob.blob_no, blob.time_us
                if self.machine.accept_blob(item.sender, session, blob_no):
                    kinds, outcomes = self._apply_commands(
                        first, item, hashed, session, time_us, blob.commands, skip
                    )
                    if item.sender == self.local:
                        self.own_blob_no = blob_no
                else:
                    self._count("blobs_out_of_sequence")
                    kinds, outcomes = bytes([REFUSED]), struct.pack("<H", OUT_OF_SEQUENCE)
        self.history = self.history.after(item.epoch, len(kinds), hashed, outcomes)
        self._keep(first, item, self.history)
        if not self.awaited and not UNAWAITED.issuperset(kinds):
            self.awaited = True
        self.half_way = False
        return Applied(
            item, first, kinds, outcomes, hashed, session, blob_no, time_us,
            *self.machine.take_moves(),
        )  # fmt: skip

    def record(self, applied: Applied) -> None:
        """Record the item executed last in the member log."""
        if self.log is not None:
            self.log.batch(applied, self.history, self.machine.root())

    def _skips_of(self, first: int, hashed: bytes) -> tuple[int, ...]:
        order = next_order(self.history.order, hashed)
        indices = self.withheld.get(order)
        if indices is None:
            return ()
        if not indices:
            raise Withheld(first, order)
        self.skipped += len(indices)
        return indices

    def _failed(
        self, item: Item, first: int, index: int, hashed: bytes, kind: int
    ) -> ExecutionFailed:
        self.broken = True
        order = next_order(self.history.order, hashed)
        return ExecutionFailed(item, first + index, index, order, kind)

    def _apply_commands(
        self, first: int, item: Item, hashed: bytes, session: int, time_us: int,
        commands: tuple[Command, ...], skip: tuple[int, ...],
    ) -> tuple[bytes, bytes]:  # fmt: skip
        machine, apply, sender = self.machine, self.machine.apply, item.sender
        made, effects = machine.effects, self.effects
        outcomes = array("H")
        kinds = bytes([command[0] for command in commands])
        position, end = first, first + len(commands)
        in_runs = self._in_runs and not skip
        while position < end:
            index = position - first
            if skip and index in skip:  # declared by an operator: no change of state
                outcomes.append(INTERNAL_ERROR)
                position += 1
                continue
            command, kind, run = commands[index], kinds[index], 0
            try:
                if in_runs and kind in _IN_RUNS and kinds[index : index + 2] == _IN_RUNS[kind][0]:
                    in_run = _IN_RUNS[kind][1]
                    run = in_run(machine, position, session, time_us, commands, index)
                    outcomes.extend(bytes(run))
                if not run:
                    outcomes.append(apply(position, session, time_us, command))
            except PageLost:
                self.broken = True  # the disk's fault, not that of the command
                raise
            except Exception as error:
                at = machine.position - first
                raise self._failed(item, first, at, hashed, kinds[at]) from error
            if run:
                each = len(made) // run
                effects.extend([(position + i // each, effect) for i, effect in enumerate(made)])
                made.clear()
                position += run
                continue
            if made:
                effects.extend([(position, effect) for effect in made])
                made.clear()
            if kind >= ACTIVATE:
                if kind == DIGEST:
                    self.digests.append((sender, cast("DigestClaim", command)))
                elif kind == REEXECUTED:
                    self.reports.append((sender, cast("Reexecuted", command)))
                elif kind == SHUTDOWN:
                    self.shutdown_id = cast("Shutdown", command)[1]
            position += 1
        return kinds, outcomes.tobytes()

    def _apply_activation(
        self, first: int, item: Item, hashed: bytes, activation: Activation
    ) -> tuple[bytes, bytes]:
        command = Activate(
            ACTIVATE,
            activation.epoch,
            tuple(ActiveMember(*m) for m in activation.members),
            activation.cold,
            (activation.keeps and self.machine.voters) or activation.voters,
            activation.cluster_id,
            activation.version,
        )
        try:
            outcome = self.machine.apply(first, 0, 0, command)
        except PageLost:
            self.broken = True
            raise
        except Exception as error:
            raise self._failed(item, first, 0, hashed, ACTIVATE) from error
        made = self.machine.effects
        self.effects.extend([(first, effect) for effect in made])
        made.clear()
        record = self.machine.sessions.get(self.local)
        self.own_blob_no = record.last_blob_no if record is not None else 0
        return bytes([ACTIVATE]), struct.pack("<H", outcome)

    # -- what must become durable ----------------------------------------------------------------

    def _keep(self, first: int, item: Item, after: History) -> None:
        if not self._parts:
            self._parts_first = first
        body = item.body
        kind = _ITEM_BLOB if isinstance(body, bytes) else _ITEM_ACTIVATION
        place = (item.epoch, tuple(item.ring), item.seq, item.sender)
        head, end = (RECORD_VERSION, first, kind, *place), (after.position, after.chain)
        if is_large(body):  # it is copied once, in `cut`
            packed_end = msgpack.packb(end)
            more = with_more_items(msgpack.packb(head), 1 + len(end))
            self._parts += (more, head_of_bytes(body), body, packed_end[1:])
        else:
            self._parts.append(msgpack.packb((*head, body, *end)))

    @property
    def uncut(self) -> bool:
        """Whether anything was applied since the last cut."""
        return bool(self._parts)

    def cut(self) -> AppliedBatch | None:
        """Return everything applied since the last cut as one commit, or None."""
        if not self._parts:
            return None
        parts, self._parts, self.awaited = self._parts, [], False
        return AppliedBatch(b"".join(parts), self._parts_first, self.history.position, self.history)

    # -- the layer below asks --------------------------------------------------------------------

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return how many of `payloads` lead from here to the order chain `order`; -1: none."""
        return steps_to(payloads, self.history.order, order)

    def replay(self, entry: bytes, end: int | None = None, *, checks: bool = True) -> None:
        """Apply the items of one store entry again, without effects, log or new commits.

        An entry may begin before the checkpoint that this state came from, because items handed to
        the store before and after a checkpoint can share one commit. Nothing is applied beyond
        position `end`. With `checks` raises `Divergence` at the first item that does not give the
        recorded chain; without, the caller examines the result.
        """
        for recorded in records_of(entry):
            if end is not None and recorded.first > end:
                break
            if recorded.first > self.history.position:
                self.execute(recorded.item)
                if checks:
                    self._check(recorded)
        self._forget_outcomes()
        self.machine.discarded.clear()
        self._parts.clear()
        self.awaited = False

    def follow(self, recorded: Recorded) -> None:
        """Apply the next item of another member's log: history, but not of this session."""
        self.followed(recorded, self.execute(recorded.item))

    def followed(self, recorded: Recorded, applied: Applied) -> None:
        """Keep that executed item for store and log, like any other.

        Raises `Divergence`, and is `broken`, when it does not give the recorded chain.
        """
        try:
            self._check(recorded)
        except Divergence:
            self.broken = True
            self._parts.clear()
            raise
        self.record(applied)
        self._forget_outcomes()

    def _check(self, recorded: Recorded) -> None:
        # What an operator declared skipped changes outcomes, and from there on the chain.
        now = self.history
        if (now.position, now.chain) != (recorded.last, recorded.chain) and not self.skipped:
            raise Divergence(
                f"executing the item at position {recorded.first} again gives {now}, its record "
                f"says position {recorded.last}, chain {recorded.chain.hex()[:12]}"
            )

    def _forget_outcomes(self) -> None:
        self.effects.clear()
        self.digests.clear()
        self.reports.clear()
        self.shutdown_id = ""  # that shutdown was of an earlier run

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1


def records_of(entry: bytes) -> Iterator[Recorded]:
    """Yield the items of a store entry in order.  ValueError names what cannot be read."""
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=len(entry) or 1)
    unpacker.feed(entry)
    for record in unpacker:
        yield _recorded(*record)


def cut_records(entry: bytes, after: int, bytes_max: int) -> tuple[bytes, int, bytes]:
    """Return the records of `entry` beyond position `after`, as far as they fit, their end, and
    the rest of the entry.

    At least one, however large; none and `after` when the entry ends there.
    """
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=len(entry) or 1)
    unpacker.feed(entry)
    begin = end = 0
    reached = after
    for record in unpacker:
        there = unpacker.tell()
        last = _recorded(*record).last
        if last <= after:
            begin = end = there
        elif end > begin and there - begin > bytes_max:
            break
        else:
            end, reached = there, last
    return entry[begin:end], reached, entry[end:]


def _recorded(
    version: int, first: int, kind: int, epoch: int, ring: tuple[int, str, int], seq: int,
    sender: str, body: bytes, last: int, chain: bytes,
) -> Recorded:  # fmt: skip
    if version != RECORD_VERSION:
        raise ValueError(
            f"a store record of version {version}, this broker reads version {RECORD_VERSION}: "
            "start it with the release that wrote the store, or move the store aside and join"
        )
    content = Activation(*body) if kind == _ITEM_ACTIVATION else body
    return Recorded(first, last, Item(epoch, RingId(*ring), seq, sender, content), chain)
