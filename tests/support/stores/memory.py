"""Store in memory: a fake that passes the same tests as the LMDB one, for simulator and tests.

A `MemoryDisk` outlives the stores opened on it, as a directory does.  It can fail, and have little
space; `crash` drops a store without `close`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from store.api import (
    LOG_BYTES_KEPT,
    Meta,
    SavedCheckpoint,
    Staging,
    check_commit,
    check_switch,
)
from store.errors import StoreBusy, StoreCorrupt, StoreFailed, StoreMissing


@dataclass(slots=True)
class MemoryDisk:
    """Committed data, and the store that has it open."""

    meta: Meta | None = None
    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # first -> (last, entry)
    kept: tuple[int, list[bytes]] | None = None
    generation: int = 0  # of `kept`
    owner: MemoryStore | None = None
    fail_next_commit: bool = False
    fails: bool = False  # each write, as long as this is set
    room_bytes: int | None = None  # bytes left; None: unlimited

    def crash(self) -> None:
        """End the process that has it open."""
        if self.owner is not None:
            self.owner.dropped()
        self.owner = None


class MemoryStore:
    """Open store on a `MemoryDisk`; see `store.api.Store` for the contract."""

    def __init__(
        self,
        disk: MemoryDisk,
        create: Meta | None = None,
        *,
        log_bytes_kept: int = LOG_BYTES_KEPT,
    ) -> None:
        if disk.owner is not None:
            raise StoreBusy("memory", None)
        if disk.meta is None:
            if create is None:
                raise StoreMissing("there is no store in memory")
            disk.meta = create
        self._meta = disk.meta
        self.disk = disk
        self._log_bytes_kept = log_bytes_kept
        self._pins: dict[int, tuple[int, list[bytes], int]] = {}  # position, chunks, readers
        self._failure: StoreFailed | None = None
        disk.owner = self

    @property
    def meta(self) -> Meta:
        """The last committed meta."""
        self._raise_if_failed()
        return self._meta

    def commit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Keep entry and meta together."""
        self._raise_if_failed()
        check_commit(self._meta, entry, first, last, meta)
        self.commit_point(len(entry))
        self.disk.entries[first] = (last, entry)
        self.disk.meta = self._meta = meta

    def put_meta(self, meta: Meta) -> None:
        """Keep meta."""
        self._raise_if_failed()
        assert meta.position == self._meta.position, (
            "only a commit or a checkpoint moves the position"
        )
        self.commit_point()
        self.disk.meta = self._meta = meta

    def log(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield each entry that reaches beyond `after`."""
        self._raise_if_failed()
        expected = after + 1
        for first, (last, entry) in sorted(self.disk.entries.items()):
            if last <= after:
                continue
            if first > expected:
                raise StoreCorrupt(
                    "memory", expected, "the log does not hold this position any more"
                )
            yield first, entry
            expected = last + 1
        if expected <= self._meta.position:
            raise StoreCorrupt("memory", expected, "the log does not hold this position any more")

    def stage(self, position: int) -> Staging:
        """Begin a checkpoint."""
        self._raise_if_failed()
        return _MemoryStaging(self, position)

    def write_checkpoint(self, position: int, chunks: Iterable[bytes], meta: Meta) -> None:
        """Switch to a whole checkpoint and delete what it replaces."""
        check_switch(self.meta, position, meta)
        staging = self.stage(position)
        staging.add(list(chunks))
        staging.finish(meta)
        while self.trim():
            pass

    def checkpoint(self) -> tuple[int, Iterator[bytes]] | None:
        """Return the present checkpoint's position and chunks."""
        self._raise_if_failed()
        if self.disk.kept is None:
            return None
        position, chunks = self.disk.kept
        return position, iter(chunks)

    def log_begins(self) -> int:
        """Return the first position that the log holds."""
        self._raise_if_failed()
        return min(self.disk.entries, default=self._meta.position + 1)

    def bytes_to_start(self) -> tuple[int, int]:
        """Return the size of the checkpoint and of the log behind it."""
        self._raise_if_failed()
        position, chunks = self.disk.kept or (0, [])
        behind = [entry for last, entry in self.disk.entries.values() if last > position]
        return sum(map(len, chunks)), sum(map(len, behind))

    def pin(self) -> SavedCheckpoint | None:
        """Keep the present checkpoint and the log behind it."""
        self._raise_if_failed()
        if self.disk.kept is None:
            return None
        (position, chunks), generation = self.disk.kept, self.disk.generation
        readers = self._pins[generation][2] if generation in self._pins else 0
        self._pins[generation] = position, chunks, readers + 1
        return SavedCheckpoint(generation, len(chunks), position, sum(map(len, chunks)))

    def unpin(self, generation: int) -> None:
        """Release it."""
        position, chunks, readers = self._pins.pop(generation)
        if readers > 1:
            self._pins[generation] = position, chunks, readers - 1

    def chunks(self, saved: SavedCheckpoint, start: int) -> Iterator[bytes]:
        """Yield the chunks from number `start` on."""
        self._raise_if_failed()
        if saved.generation not in self._pins:
            raise StoreCorrupt("memory", saved.position, "that checkpoint is gone")
        return iter(self._pins[saved.generation][1][start:])

    def trim(self, entries_max: int = 256) -> bool:
        """Delete entries that lie far before the checkpoint."""
        self._raise_if_failed()
        garbage = self._garbage()
        if not garbage:
            return False
        self.commit_point()
        for first in garbage[:entries_max]:
            del self.disk.entries[first]
        return len(garbage) > entries_max

    def _garbage(self) -> list[int]:
        if self.disk.kept is None:
            return []
        position, chunks = self.disk.kept
        position = min((position, *(pin[0] for pin in self._pins.values())))
        kept_bytes = self._log_bytes_kept and max(self._log_bytes_kept, sum(map(len, chunks)))
        garbage, behind = [], 0
        for first, (last, entry) in sorted(self.disk.entries.items(), reverse=True):
            if last <= position and behind >= kept_bytes:
                garbage.append(first)
            behind += len(entry)
        return garbage[::-1]

    def size_bytes(self) -> int:
        """Bytes of entries and chunks."""
        self._raise_if_failed()
        chunks = [] if self.disk.kept is None else self.disk.kept[1]
        return sum(len(entry) for _, entry in self.disk.entries.values()) + sum(map(len, chunks))

    def close(self) -> None:
        """Close the store.  Idempotent."""
        if self.disk.owner is self:
            self.disk.owner = None
        self.dropped()

    def dropped(self) -> None:
        """Fail every later call."""
        if self._failure is None:
            self._failure = StoreFailed("memory: the store is closed")

    def switch(self, position: int, chunks: list[bytes], meta: Meta | None) -> None:
        """Commit a staged checkpoint."""
        self._raise_if_failed()
        meta = self._meta if meta is None else meta
        check_switch(self._meta, position, meta)
        self.commit_point()
        self.disk.kept = (position, chunks)
        self.disk.generation += 1
        self.disk.meta = self._meta = meta

    def commit_point(self, size: int = 0) -> None:
        """Fail if the disk does, or if it lacks space for this many bytes."""
        self._raise_if_failed()
        disk = self.disk
        if disk.fail_next_commit or disk.fails:
            disk.fail_next_commit = False
            self._failure = StoreFailed("memory: commit failed on request")
            raise self._failure
        if disk.room_bytes is not None:
            if size > disk.room_bytes:
                self._failure = StoreFailed("memory: commit failed: No space left on device")
                raise self._failure
            disk.room_bytes -= size

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise StoreFailed(str(self._failure)) from self._failure


class _MemoryStaging:
    """Chunks that no checkpoint names yet."""

    def __init__(self, store: MemoryStore, position: int) -> None:
        self._store = store
        self._position = position
        self._chunks: list[bytes] = []

    def add(self, chunks: list[bytes]) -> None:
        """Append a chunk."""
        self._store.commit_point(sum(map(len, chunks)))
        self._chunks += chunks

    def finish(self, meta: Meta | None = None) -> None:
        """Switch to the staged checkpoint."""
        self._store.switch(self._position, self._chunks, meta)

    def abandon(self) -> None:
        """Drop the chunks."""
        self._chunks = []
