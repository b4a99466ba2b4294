"""How two stores of one cluster relate: which is newer, and whether it continues the other.

Every store names its point in the history by hash chains (`replication.chain`).  The newer store
continues the older one when its own order chain, at the older one's position, is the older one's.
Nothing is executed: the order chain needs the ordered items only.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from broker.durability.recovery import checkpoint_history
from broker.replication.chain import item_hash, next_order
from broker.replication.replica import items_of
from store.api import Meta, Store
from vsync.primary.state_exchange import ZERO_CHAIN


class Relation(Enum):
    """What the newer of two stores is to the older one."""

    SAME = "the same history"
    CONTINUES = "the newer one continues the older one: it holds all that the older one holds"
    DIVERGED = "they diverged: each holds commands that the other does not"
    UNKNOWN = "the newer one's log does not reach back to the older one's end: nobody can tell"
    FOREIGN = "they are of different clusters"


class Comparison(NamedTuple):
    """The result: `newer` is 0 or 1, the place of the newer store; -1 when neither is."""

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
    order = order_at(stores[newer], older.position)
    if not order:
        return Comparison(newer, Relation.UNKNOWN)
    same = order == (older.order or ZERO_CHAIN)
    return Comparison(newer, Relation.CONTINUES if same else Relation.DIVERGED)


def order_at(store: Store, position: int) -> bytes:
    """Return a store's order chain after `position`; empty when its log begins later, or no item
    ends there.
    """
    return next((order for at, order in _points(store) if at == position), b"")


def _points(store: Store) -> Iterator[tuple[int, bytes]]:
    """Yield the points that a store's log passes: position and order chain, from its checkpoint."""
    begin = checkpoint_history(store)
    order, last = begin.order, b""  # the hash of an item of which only the next one tells the end
    for _, entry in store.log(begin.position):
        for first, item in items_of(entry):
            if first > begin.position:
                order = next_order(order, last) if last else order
                yield first - 1, order
                last = item_hash(item.body)
    yield store.meta.position, next_order(order, last) if last else order


def _point(meta: Meta) -> tuple[int, int]:
    return meta.state_epoch, meta.position
