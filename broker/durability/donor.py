"""Reads a donor's open store for joiners: the log after a joiner's point, or the checkpoint.
Nothing is copied: a checkpoint that a joiner reads is pinned until the joiner has the log behind it
as well.

Called on worker threads, one call at a time for each joiner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack

from broker.durability.recovery import head_of
from broker.durability.transfer_protocol import BLOCK_BYTES, LOG, Library, Offer, Tail
from broker.replication.chain import History
from broker.replication.replica import cut_records, records_of
from store.api import SavedCheckpoint, Store
from store.errors import StoreError
from vsync.primary.state_exchange import ZERO_CHAIN


def lies_on(store: Store, point: History) -> bool:
    """Whether the history in `store` includes this point, and the log leads on from there."""
    meta, position = store.meta, point.position
    if position == meta.position:
        return point.chain == (meta.chain or ZERO_CHAIN)
    if position > meta.position or position + 1 < store.log_begins():
        return False
    if position == 0:
        return point.chain == ZERO_CHAIN
    saved = store.checkpoint()
    if saved is not None and saved[0] == position:
        return head_of(*saved).chain == point.chain
    if position < store.log_begins():
        return False
    for _, entry in store.log(position - 1):
        for recorded in records_of(entry):
            if recorded.last >= position:
                there = recorded.item.epoch, recorded.last, recorded.chain
                return there == (point.epoch, position, point.chain)
    return False


class _LogReader:
    """The log of a store from a position on, in blocks."""

    def __init__(self, store: Store, after: int) -> None:
        self.position, self._store = after, store
        self._entries: Iterator[tuple[int, bytes]] = iter(())
        self._entry = b""

    def block(self, bytes_max: int) -> bytes:
        """Return the next records; nothing at the durable end."""
        parts: list[bytes] = []
        left = bytes_max
        while left > 0:
            if not self._entry:
                following = next(self._entries, None)
                if following is None:
                    if self._store.meta.position <= self.position:
                        break
                    self._entries = self._store.log(self.position)
                    continue
                self._entry = following[1]
            part, reached, rest = cut_records(self._entry, self.position, left)
            if part and len(part) > left and parts:
                break
            parts.append(part)
            self.position, self._entry = reached, rest
            left -= len(part)
        return b"".join(parts)


class DonorLibrary(Library):
    """Reads from the store in use; there is none while one store replaces another.

    `request_checkpoint` asks for a newer checkpoint; any thread may.
    """

    def __init__(
        self, store: Callable[[], Store | None], request_checkpoint: Callable[[], None],
        block_bytes: int = BLOCK_BYTES,
    ) -> None:  # fmt: skip
        self._in_use, self._request_checkpoint = store, request_checkpoint
        self._block_bytes = block_bytes
        self._pinned: dict[str, tuple[Store, SavedCheckpoint, Offer]] = {}
        self._readers: dict[str, _LogReader] = {}

    def _store(self) -> Store:
        store = self._in_use()
        if store is None:
            raise StoreError("its store is being replaced")
        return store

    def judge(self, key: str, point: History | None, beyond: int) -> Tail | Offer | None:
        """Return the way from `point`.

        A joiner that may not execute some command gets the state after that command (`beyond`);
        if this store has not come that far, its log does not hold that command.
        """
        store = self._store()
        meta = store.meta
        self._readers.pop(key, None)
        if point is not None and not point.position < beyond <= meta.position:
            given = self._pinned.get(key)
            known = given is not None and given[0] is store and _same(given[2].history, point)
            if known or lies_on(store, point):
                return Tail(meta.position)
        self._unpin(key)
        saved = store.pin()
        if (saved.position if saved is not None else 0) < beyond <= meta.position:
            if saved is not None:
                store.unpin(saved.generation)
            self._request_checkpoint()
            return None
        if saved is None:
            return Offer(0, 0, 0, 0, 0, ZERO_CHAIN, ZERO_CHAIN)
        try:
            head = head_of(saved.position, store.chunks(saved, 0))
        except BaseException:
            store.unpin(saved.generation)
            raise
        place = head.epoch, head.position, head.chain, head.order
        offer = Offer(saved.generation, saved.chunks, saved.bytes, *place)
        self._pinned[key] = store, saved, offer
        return offer

    def read(self, key: str, stream: int, cursor: int) -> tuple[int, bytes]:
        """Return the next cursor and the block at this one."""
        if stream != LOG:
            return self._chunks(key, stream, cursor)
        reader = self._readers.get(key)
        if reader is None or reader.position != cursor:
            reader = self._readers[key] = _LogReader(self._store(), cursor)
        data = reader.block(self._block_bytes)
        return reader.position, data

    def _chunks(self, key: str, generation: int, start: int) -> tuple[int, bytes]:
        store, saved, _ = self._pinned[key]
        if saved.generation != generation:
            raise StoreError("that checkpoint is gone")
        chunks: list[bytes] = []
        size = 0
        for chunk in store.chunks(saved, start):
            if chunks and size + len(chunk) > self._block_bytes:
                break
            chunks.append(chunk)
            size += len(chunk)
        return start + len(chunks), bytes(msgpack.packb(chunks))

    def close(self, key: str) -> None:
        """Unpin the checkpoint that this joiner read."""
        self._readers.pop(key, None)
        self._unpin(key)

    def _unpin(self, key: str) -> None:
        pinned = self._pinned.pop(key, None)
        if pinned is not None:
            store, saved, _ = pinned
            store.unpin(saved.generation)


def _same(one: History, other: History) -> bool:
    return (one.epoch, one.position, one.chain) == (other.epoch, other.position, other.chain)
