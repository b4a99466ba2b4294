"""Compares two stores of one cluster: which is newer, and whether it continues the other.

Every store identifies its point in the history by a hash chain (`replication.chain`), and each item
of its log holds the chain after it. The newer store continues the older one if its own chain, at
the older one's position, equals the older one's.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from broker.durability.recovery import checkpoint_history
from broker.replication.replica import records_of
from store.api import Meta, Store
from vsync.primary.state_exchange import ZERO_CHAIN


class Relation(Enum):
    """The relation of the newer of two stores to the older one."""

    SAME = "the same history"
    CONTINUES = "the newer one continues the older one: it holds all that the older one holds"
    DIVERGED = "they diverged: each holds commands that the other does not"
    UNKNOWN = "the newer one's log does not reach back to the older one's end: nobody can tell"
    FOREIGN = "they are of different clusters"


class Comparison(NamedTuple):
    """The result: `newer` is 0 or 1, the index of the newer store; -1 when neither is newer."""

    newer: int
    relation: Relation


def compare(stores: tuple[Store, Store]) -> Comparison:
    """Compare two stores by (epoch, position), and by their chains."""
    first, second = stores[0].meta, stores[1].meta
    if first.cluster_id != second.cluster_id:
        return Comparison(-1, Relation.FOREIGN)
    if _point(first) == _point(second):
        same = first.chain == second.chain
        return Comparison(-1, Relation.SAME if same else Relation.DIVERGED)
    newer = 0 if _point(first) > _point(second) else 1
    older = stores[1 - newer].meta
    if older.position > stores[newer].meta.position:
        return Comparison(newer, Relation.DIVERGED)
    chain = chain_at(stores[newer], older.position)
    if not chain:
        return Comparison(newer, Relation.UNKNOWN)
    same = chain == (older.chain or ZERO_CHAIN)
    return Comparison(newer, Relation.CONTINUES if same else Relation.DIVERGED)


def chain_at(store: Store, position: int) -> bytes:
    """Return a store's chain after `position`; empty if its log and checkpoint do not hold it, or
    no item ends there.
    """
    checkpoint = checkpoint_history(store)
    if position == checkpoint.position:
        return checkpoint.chain or ZERO_CHAIN
    if position < store.log_begins():
        return b""
    for _, entry in store.log(position - 1):
        for recorded in records_of(entry):
            if recorded.last >= position:
                return recorded.chain if recorded.last == position else b""
    return b""


def _point(meta: Meta) -> tuple[int, int]:
    return meta.state_epoch, meta.position
