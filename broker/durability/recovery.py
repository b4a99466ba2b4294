"""Restores a running state from a store: the checkpoint, then the items after it.

The same code restores a member after a restart, a joiner from the copy it received, and an audit.
Re-execution must give the chain that the store recorded; otherwise the store (or this code) is
wrong and the state is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import msgpack

from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import Divergence, Replica
from broker.waiting.pager import Pager
from store.api import Meta, Store
from vsync.primary.state_exchange import ZERO_CHAIN


def history_of(meta: Meta) -> History:
    """Return the point in the history that a store's meta record names."""
    return History(
        meta.state_epoch, meta.position, meta.chain or ZERO_CHAIN, meta.order or ZERO_CHAIN
    )


log = logging.getLogger("qpidd")

CHECKPOINT_VERSION = 1
TOLD_POSITIONS = 100_000
"""Positions between two progress lines of a long recovery: some seconds."""


def checkpoint_head(history: History) -> bytes:
    """Return the first chunk of a checkpoint: its point in the history."""
    return bytes(
        msgpack.packb(
            (CHECKPOINT_VERSION, history.epoch, history.position, history.chain, history.order)
        )
    )


def checkpoint_of(replica: Replica) -> Iterator[bytes]:
    """Return a checkpoint of the current state, in chunks: it is never entirely in memory."""
    return chain([checkpoint_head(replica.history)], replica.machine.snapshot(pages=True))


def checkpoint_in_steps(replica: Replica) -> Iterator[bytes | None]:
    """Return the same; it does not change while the replica goes on. An empty chunk is a pause, and
    None is a pause until something was read from disk."""
    return chain([checkpoint_head(replica.history)], replica.machine.snapshot_in_steps(pages=True))


def checkpoint_history(store: Store) -> History:
    """Return the point of the store's checkpoint; the beginning when it has none."""
    saved = store.checkpoint()
    return History() if saved is None else head_of(*saved)


def head_of(position: int, chunks: Iterator[bytes]) -> History:
    """Return the point of a checkpoint at this position, from its first chunk."""
    version, *fields = msgpack.unpackb(next(chunks))
    if version != CHECKPOINT_VERSION:
        raise Divergence(
            f"checkpoint of version {version}, this broker reads version {CHECKPOINT_VERSION}"
        )
    history = History(*fields)
    if history.position != position:
        raise Divergence(f"the checkpoint of position {position} holds position {history.position}")
    return history


def _restore(
    local: str, position: int, chunks: Iterator[bytes], pager: Pager | None, *, own: bool
) -> tuple[Machine, History]:
    history = head_of(position, chunks)
    return Machine.restore(local, chunks, pager, own=own), history


def recover(
    local: str,
    store: Store,
    progress: Callable[[int, int], None] | None = None,
    withheld: Mapping[bytes, tuple[int, ...]] | None = None,
    pager: Pager | None = None,
    *,
    own: bool = False,
) -> Replica:
    """Return the state that `store` holds, re-executed and verified against its chain.

    `progress` is called periodically with (position reached, position to reach); `withheld` is
    that of a `Replica`, `pager` that of its machine; `own`: the checkpoint was written by this
    member, and pages in it are verified when they are read. Raises `Divergence` when re-execution
    does not give the recorded chain, `ExecutionFailed` or `Withheld` when a command cannot or may
    not be executed, and the store's own errors when it cannot be read.
    """
    end = history_of(store.meta)
    replica = restored(local, store, pager, own=own)
    replica.withheld = withheld or {}
    told = replica.history.position
    for _, entry in store.log(told):
        replica.replay(entry)
        if progress is not None and replica.history.position - told >= TOLD_POSITIONS:
            told = replica.history.position
            progress(told, end.position)
    there = (replica.history.position, replica.history.order) == (end.position, end.order)
    # What an operator declared skipped changes outcomes, and from there on the chain.
    if not there or (replica.history.chain != end.chain and not replica.skipped):
        raise Divergence(
            f"re-executing the store gives {replica.history}, its record says {end}; "
            "move the store aside and let this member rejoin"
        )
    return replica


def restored(local: str, store: Store, pager: Pager | None = None, *, own: bool = False) -> Replica:
    """Return the state of the store's current checkpoint; an empty one when it has none."""
    saved = store.checkpoint()
    if saved is None:
        return Replica(local, Machine(local, pager), History())
    position, chunks = saved
    return Replica(local, *_restore(local, position, chunks, pager, own=own))


def log_progress(position: int, end: int) -> None:
    """Log the progress of a long recovery."""
    log.info("recovering: at position %d of %d", position, end)
