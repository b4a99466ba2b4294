"""Scans of a store on LMDB, each within one transaction of the caller."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import lmdb

from store import schema
from store.api import Meta, SavedCheckpoint
from store.errors import StoreCorrupt
from store.journal import Record


def pointer_of(txn: lmdb.Transaction, where: str) -> SavedCheckpoint | None:
    """Return which checkpoint is the current one."""
    value = txn.get(schema.POINTER_KEY)
    return None if value is None else schema.decode_pointer(bytes(value), where)


def check_extent(meta: Meta, last: int, saved: SavedCheckpoint | None, where: str) -> None:
    """Check that meta's position is the end of the last entry, or of the checkpoint."""
    reach = max(last, 0 if saved is None else saved.position)
    if reach != meta.position:
        what = f"meta says {meta.position} but the entries reach {reach}"
        raise StoreCorrupt(where, min(reach, meta.position), what)


def last_entry(txn: lmdb.Transaction, where: str) -> tuple[int, int]:
    """Return the last position of the log, and the bytes up to there; zeros if there is no log."""
    with txn.cursor() as cursor:
        if not (cursor.last() and bytes(cursor.key())[:1] == schema.LOG_PREFIX):
            return 0, 0
        value = bytes(cursor.value())
        last, _ = schema.decode_entry(value, schema.log_first(bytes(cursor.key())), where)
        return last, schema.entry_end(value)[1]


def log_slice(
    txn: lmdb.Transaction, start: int, size_max: int, where: str
) -> tuple[list[tuple[int, bytes]], int, bool]:
    """Return some entries from `start` on, where the next one begins, and whether it exists."""
    batch: list[tuple[int, bytes]] = []
    size, expected = 0, start
    with txn.cursor() as cursor:
        found = cursor.set_range(schema.log_key(start))
        while found and size < size_max:
            first = schema.log_first(bytes(cursor.key()))
            if first != expected:
                raise StoreCorrupt(where, expected, f"the next entry starts at {first}")
            last, entry = schema.decode_entry(bytes(cursor.value()), first, where)
            batch.append((first, entry))
            size += len(entry)
            expected = last + 1
            found = cursor.next()
    return batch, expected, found


def newest_generation(txn: lmdb.Transaction) -> int:
    """Return the highest generation that has chunks; 0: none has."""
    with txn.cursor() as cursor:
        found = cursor.set_range(schema.LOG_PREFIX)
        found = cursor.prev() if found else cursor.last()
        if found and bytes(cursor.key())[:1] == schema.CHUNK_PREFIX:
            return schema.chunk_generation(bytes(cursor.key()))
    return 0


def garbage(
    txn: lmdb.Transaction, kept: AbstractSet[int], position: int, spare_bytes: int, limit: int
) -> list[bytes]:
    """Return keys that can be deleted: chunks of generations not in `kept`, and the log up to
    `position` within its first `spare_bytes`, by the entries' own count of bytes."""
    keys: list[bytes] = []
    with txn.cursor() as cursor:
        found = cursor.set_range(schema.CHUNK_PREFIX)
        while found and len(keys) < limit:
            key = bytes(cursor.key())
            if key[:1] == schema.LOG_PREFIX:
                last, log_bytes = schema.entry_end(bytes(cursor.value()))
                if last > position or log_bytes > spare_bytes:
                    break
                keys.append(key)
            elif (generation := schema.chunk_generation(key)) in kept:
                # Skip it without touching its pages.
                found = cursor.set_range(schema.chunk_key(generation + 1, 0))
                continue
            else:
                keys.append(key)
            found = cursor.next()
    return keys


def entry_holding(txn: lmdb.Transaction, position: int, where: str) -> int:
    """Return the first position of the entry that holds `position`."""
    with txn.cursor() as cursor:
        found = cursor.set_range(schema.log_key(position))
        if not (found and schema.log_first(bytes(cursor.key())) == position):
            found = cursor.prev() if found else cursor.last()
        if found and bytes(cursor.key())[:1] == schema.LOG_PREFIX:
            first = schema.log_first(bytes(cursor.key()))
            last, _ = schema.decode_entry(bytes(cursor.value()), first, where)
            if first <= position <= last:
                return first
    raise StoreCorrupt(where, position, "the log does not hold this position any more")


class Pins:
    """Checkpoints being read, with the number of their readers: neither they nor the log behind
    them are garbage. Use it under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: dict[int, tuple[int, int]] = {}
        """By generation: the position, and the number of readers."""

    def add(self, saved: SavedCheckpoint) -> None:
        """Count one more reader."""
        _, readers = self.kept.get(saved.generation, (0, 0))
        self.kept[saved.generation] = saved.position, readers + 1

    def remove(self, generation: int) -> None:
        """Count one reader less."""
        position, readers = self.kept.pop(generation)
        if readers > 1:
            self.kept[generation] = position, readers - 1

    def oldest(self, position: int) -> int:
        """Return the lowest position among the pinned checkpoints and this one."""
        return min([position, *(pinned for pinned, _ in self.kept.values())])


def delete(txn: lmdb.Transaction, keys: Sequence[bytes]) -> None:
    """Delete the keys found to be garbage."""
    for key in keys:
        txn.delete(key)


def put_entries(txn: lmdb.Transaction, records: Sequence[Record]) -> None:
    """Append entries at the end of the log, and the meta record after the last one."""
    for first, _, value, _ in records:
        taken = txn.put(schema.log_key(first), value, overwrite=False, append=True)
        assert taken, f"an entry at {first} is already there"
    if records:
        txn.put(schema.META_KEY, records[-1].meta)
