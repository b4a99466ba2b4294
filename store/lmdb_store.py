"""A store on LMDB: one environment, one tree; commits are transactions or journal records.

Each commit is one fsynced transaction, unless it is small. A small commit is a record of the
journal (`store.journal`), and also waits in memory; every write transaction first writes the
waiting entries. So at all times LMDB alone holds a complete store, that of a moment ago. Only `log`
and the next start need the rest: both bring it into LMDB first.

Rules from measurements: default LMDB flags only (no WRITEMAP, no NOSYNC); at most four LMDB calls
per commit, because each releases the interpreter lock; no read transaction outlives a call, because
a suspended reader pins pages. LMDB syncs neither the directory nor, at creation, its first two
pages, so `create_data` does. LMDB continues after a failed commit; this store does not (`_poison`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import lmdb

from store import lmdb_scans, schema
from store.api import (
    LOG_BYTES_KEPT,
    Meta,
    SavedCheckpoint,
    Staging,
    check_commit,
    check_switch,
)
from store.errors import (
    REMEDY,
    NoSpace,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreMissing,
    again,
    failed,
)
from store.files.directory_lock import DirectoryLock
from store.files.space import BESIDE_BYTES, LAST_BYTES, START_BYTES, OwnedSpace
from store.journal import ENTRY_BYTES_MAX, JOURNAL_BYTES, Journal, Record, discard_half_made
from store.lmdb_environment import (
    DATA_NAME,
    MapGate,
    create_data,
    file_id,
    journal_of,
    left_in_journal,
    let_go,
    make_directory,
    meta_of,
    misplaced,
    open_environment,
)

MAP_BYTES_FIRST = 64 << 20
MAP_BYTES_MAX = 1 << 40
TRIM_BYTES = 2 << 20  # lists of pages about to become free
TRIM_STEPS_FULL = 32  # of a trim, where the disk is full
PAGE_BYTES = 4096
SLICE_BYTES = 4 << 20  # per log read, and per transaction of a checkpoint
MAPPED_BYTES = 16 << 20
"""After this many bytes were read or written, the file's mapped pages are returned to the system;
otherwise a store that was read once would count fully as the process's memory."""


class LmdbStore:
    """An open store in its own directory; see `store.api.Store` for the contract."""

    def __init__(
        self,
        path: Path,
        create: Meta | None = None,
        *,
        map_bytes: int = MAP_BYTES_FIRST,
        map_bytes_max: int = MAP_BYTES_MAX,
        sync: bool = True,
        log_bytes_kept: int = LOG_BYTES_KEPT,
        journal_bytes: int = JOURNAL_BYTES,
    ) -> None:
        """Open the store at `path`; with `create`, make it if it does not exist.

        `sync=False` gives up durability, for a directory that is deleted with the process.
        `journal_bytes=0`: no journal.
        """
        self.path = path
        self._where = str(path)
        self._map_bytes = map_bytes
        self._map_bytes_max = map_bytes_max
        self._log_bytes_kept = log_bytes_kept
        self._log_bytes = 0  # of all entries ever committed
        self._failure: StoreFailed | None = None
        self._meta: Meta
        self._pointer: SavedCheckpoint | None = None
        self._gate = MapGate()
        self._mapped_bytes = 0  # read or written since the map was last released
        self._writing = threading.RLock()
        self._journal = Journal(path, journal_bytes if sync else 0)
        self._journaled = False  # the meta in LMDB says that the journal counts
        self._space = OwnedSpace(path / DATA_NAME, self.size_bytes)
        self._staged: set[int] = set()  # generations being written, which `trim` must leave alone
        self._pins = lmdb_scans.Pins()
        if create is not None:
            make_directory(path)
        elif not (path / DATA_NAME).exists():
            raise StoreMissing(f"there is no store in {path}")
        self._lock = DirectoryLock(path)
        try:
            if create is not None and not (path / DATA_NAME).exists():
                if journal_of(path):
                    what = f"{DATA_NAME} is gone, its journal is there: {REMEDY}"
                    raise StoreCorrupt(self._where, 1, what)
                create_data(path, create)
            self._env = open_environment(path, map_bytes, sync)
            self._map_bytes = int(self._env.info()["map_size"])  # the file may be larger already
            self._file_id = file_id(path)
            try:
                found = self._load()
                if sync:
                    self._make_durable()
                discard_half_made(path)
                self._take_up_journal(found)
            except BaseException:
                self._env.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    @property
    def meta(self) -> Meta:
        """The last committed meta."""
        self._raise_if_failed()
        return self._meta

    def commit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Make entry and meta durable: one write, or a transaction of four LMDB calls."""
        with self._writing:
            self._raise_if_failed()  # who held the lock may have failed
            check_commit(self._meta, entry, first, last, meta)
            log_bytes = self._log_bytes + len(entry)
            value = schema.encode_entry(entry, first, last, log_bytes)
            small = len(value) <= ENTRY_BYTES_MAX and self._is_journaling()
            record = Record(first, last, value, self._packed(meta))
            if small and self._journal.has_room(record):
                self._to_journal(record)
            else:
                self._write(partial(lmdb_scans.put_entries, records=[record]), len(value))
            self._meta, self._log_bytes = meta, log_bytes

    def put_meta(self, meta: Meta) -> None:
        """Make meta durable."""
        with self._writing:
            self._raise_if_failed()
            assert meta.position == self._meta.position, (
                "only a commit or a checkpoint moves the position"
            )
            packed = self._packed(meta)
            self._write(lambda txn: txn.put(schema.META_KEY, packed))
            self._meta = meta

    def log(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield (first position, entry) in slices, each with its own read transaction."""
        self._raise_if_failed()
        self._settle()
        start = self._entry_holding(after + 1)
        expected = None if start is None else start
        while expected is not None:
            batch, expected = self._log_slice(expected)
            batch.reverse()
            while batch:  # a slow reader holds no more of it than is left
                yield batch.pop()

    def stage(self, position: int) -> Staging:
        """Begin a checkpoint; its chunks have their own generation."""
        self._raise_if_failed()
        return _LmdbStaging(self, position)

    def write_checkpoint(self, position: int, chunks: Iterable[bytes], meta: Meta) -> None:
        """Write, switch, and delete the replaced checkpoint."""
        check_switch(self.meta, position, meta)
        staging = self.stage(position)
        held: list[bytes] = []
        size = 0
        try:
            for chunk in chunks:
                held.append(chunk)
                size += len(chunk)
                if size >= SLICE_BYTES:
                    staging.add(held)
                    held, size = [], 0
            staging.add(held)
        except StoreError:
            raise
        except BaseException:  # the producer of the chunks failed, not the store
            staging.abandon()
            raise
        staging.finish(meta)
        while self.trim():
            pass

    def checkpoint(self) -> tuple[int, Iterator[bytes]] | None:
        """Return the current checkpoint's position and chunks."""
        self._raise_if_failed()
        if self._pointer is None:
            return None
        return self._pointer.position, self.chunks(self._pointer, 0)

    def log_begins(self) -> int:
        """Return the first position that the log holds."""
        self._raise_if_failed()
        behind = self._in_lmdb + 1  # where the waiting records begin, if there are any
        with self._reading() as txn, txn.cursor() as cursor:
            if cursor.set_range(schema.LOG_PREFIX):
                return schema.log_first(bytes(cursor.key()))
        return behind

    def bytes_to_start(self) -> tuple[int, int]:
        """Return the size of the checkpoint and of the log behind it."""
        self._raise_if_failed()
        if self._pointer is None:
            return 0, self._log_bytes
        waiting = self._journal.waiting
        first = self._entry_holding(self._pointer.position + 1)
        if first is None:
            return self._pointer.bytes, sum(schema.entry_bytes(one.value) for one in waiting)
        with self._reading() as txn:
            value = bytes(txn.get(schema.log_key(first)) or b"")
        _, entry = schema.decode_entry(value, first, self._where)
        return self._pointer.bytes, self._log_bytes - schema.entry_end(value)[1] + len(entry)

    def pin(self) -> SavedCheckpoint | None:
        """Keep the current checkpoint and the log behind it."""
        self._raise_if_failed()
        with self._pins.lock:
            if self._pointer is not None:
                self._pins.add(self._pointer)
            return self._pointer

    def unpin(self, generation: int) -> None:
        """Release it; the next `trim` deletes what is no longer needed."""
        with self._pins.lock:
            self._pins.remove(generation)

    def trim(self, entries_max: int = 256) -> bool:
        """Delete chunks of other generations, and entries that lie far before the checkpoint.

        On a full disk only a few at a time: its last bytes are for urgent writes.
        """
        self._raise_if_failed()
        with self._pins.lock:
            garbage = self._garbage(entries_max + 1)
        if not garbage:
            return False
        keys, size = garbage[:entries_max], TRIM_BYTES
        try:
            self._write(partial(lmdb_scans.delete, keys=keys), size, START_BYTES)
        except NoSpace:
            keys, size = keys[: max(1, entries_max // TRIM_STEPS_FULL)], size // TRIM_STEPS_FULL
            self._write(partial(lmdb_scans.delete, keys=keys), size)
        return len(garbage) > len(keys)

    def size_bytes(self) -> int:
        """Bytes of the file that are in use."""
        with self._mapped():
            return int(self._env.info()["last_pgno"] + 1) * int(self._env.stat()["psize"])

    def misplaced(self) -> str:
        """Return why a restart would not find this store, or nothing. Asks the disk."""
        return misplaced(self.path, self._file_id) or self._journal.misplaced()

    def reusable_bytes(self) -> int:
        """Bytes in the used part of the file that no longer hold data."""
        with self._mapped():
            tree = self._env.stat()
            last, page = int(self._env.info()["last_pgno"]), int(tree["psize"])
        held = int(tree["branch_pages"]) + int(tree["leaf_pages"]) + int(tree["overflow_pages"])
        return max(0, last - 1 - held) * page

    def close(self) -> None:
        """Close and unlock. Idempotent, also after a failure.

        Waits for the write in progress: LMDB crashes, or never returns, if a map is removed during
        a commit.
        """
        with self._writing:
            self._end_journal()
            self._journal.close()
            with self._gate.exclusive():  # a reader crashes it as well
                if self._failure is None:
                    self._failure = StoreFailed(f"{self._where}: the store is closed")
                self._env.close()
        self._lock.release()

    # -- writing ---------------------------------------------------------------------------------

    def _write(
        self, work: Callable[[lmdb.Transaction], object], size: int = 0, leave: int = 0
    ) -> None:
        """Run one write transaction of about `size` bytes; repeat it with a larger map as often as
        needed. Raises NoSpace before anything is written; writes that can wait leave more space
        free."""
        with self._writing:
            self._raise_if_failed()
            self._own(size, leave)
            while True:
                try:
                    with self._env.begin(write=True) as txn:
                        lmdb_scans.put_entries(txn, self._journal.waiting)
                        work(txn)
                except lmdb.MapFullError as error:
                    self._grow(error)  # raised before anything was written: the state is known
                except (lmdb.Error, OSError, MemoryError) as error:
                    where = f"{self.path / DATA_NAME}: commit failed"
                    raise self._poison(failed(where, error)) from error
                else:
                    self._journal.restart()
                    self._touched(size)
                    return

    def _own(self, size: int, leave: int = 0) -> None:
        """Have the blocks for so much, and for what waits."""
        try:
            self._space.own(size + self._journal.waiting_bytes, leave)
        except OSError as error:
            raise self._poison(failed(str(self.path / DATA_NAME), error)) from error

    def _settle(self) -> None:
        """Bring the waiting records into LMDB."""
        with self._writing:
            if self._journal.waiting:
                self._write(lambda _txn: None)

    def _packed(self, meta: Meta) -> bytes:
        return schema.encode_meta(meta, journaled=self._journaled)

    # -- the journal -----------------------------------------------------------------------------

    @property
    def _in_lmdb(self) -> int:
        """The position that LMDB holds, or briefly a lower one: any thread may ask."""
        position, waiting = self._meta.position, self._journal.waiting
        return waiting[0].first - 1 if waiting else position

    def _make_durable(self) -> None:
        """Sync LMDB: the writes of a process that was killed may only be in the system's cache."""
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise failed(str(self.path / DATA_NAME), error) from error

    def _take_up_journal(self, packed: bytes) -> None:
        """Bring into LMDB the records that a former process left in the journal.

        At once: after a failed write they may only be in the system's cache.
        """
        self._journaled = schema.is_journaled(packed)
        found, wrong = left_in_journal(journal_of(self.path), packed, self._meta)
        if wrong:
            position = (found[-1].last if found else self._meta.position) + 1
            raise StoreCorrupt(self._where, position, wrong)
        if found:
            last = found[-1]
            meta = schema.decode_meta(last.meta, self._where)
            size = sum(len(one.value) for one in found)
            self._write(partial(lmdb_scans.put_entries, records=found), size)
            self._meta, self._log_bytes = meta, schema.entry_end(last.value)[1]

    def _is_journaling(self) -> bool:
        """Open the journal, and record in LMDB that it counts from here on; False if none."""
        try:
            if not self._journal.open(self._meta.store_id):
                return False
        except OSError as error:
            raise self._poison(failed(f"{self._journal.path}: no journal", error)) from error
        if not self._journaled:
            packed = schema.encode_meta(self._meta, journaled=True)
            self._write(lambda txn: txn.put(schema.META_KEY, packed))
            self._journaled = True
        return True

    def _to_journal(self, record: Record) -> None:
        # Reserves space in LMDB's file for later: a confirmed entry must find space there.
        self._own(len(record.value))
        try:
            self._journal.append(record)
        except OSError as error:
            where = f"{self._journal.path}: commit failed"
            raise self._poison(failed(where, error)) from error

    def _end_journal(self) -> None:
        """Bring all records into LMDB, which then needs no journal; else the next start does."""
        if self._failure is None and self._journaled:
            packed = schema.encode_meta(self._meta)
            with suppress(StoreError):
                self._write(lambda txn: txn.put(schema.META_KEY, packed))

    def _grow(self, error: lmdb.Error) -> None:
        if self._map_bytes >= self._map_bytes_max:
            full = StoreFull(f"{self._where}: the limit of {self._map_bytes_max} bytes is reached")
            raise self._poison(full) from error
        self._map_bytes = min(self._map_bytes * 2, self._map_bytes_max)
        try:
            with self._gate.exclusive():
                self._env.set_mapsize(self._map_bytes)
        except lmdb.Error as refused:
            raise self._poison(StoreFailed(f"{self._where}: cannot grow: {refused}")) from refused

    def _poison(self, failure: StoreFailed) -> StoreFailed:
        self._failure = failure
        return failure

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise again(self._failure) from self._failure

    # -- reading ---------------------------------------------------------------------------------

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Keep the map in place. A store may be closed while this waits: raises StoreFailed."""
        with self._gate.reading():
            self._raise_if_failed()
            yield

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction]:
        """A read transaction, begun only if the file system accepts a write.

        Beginning one writes to the map of LMDB's lock file with the interpreter's lock held: on a
        hanging file system every thread would hang with this one.
        """
        with self._mapped():
            self._lock.touch()
            with self._env.begin() as txn:
                yield txn

    def _touched(self, size: int) -> None:
        """Count bytes of the map that may be in memory now. Any thread may be here."""
        self._mapped_bytes += size
        if self._mapped_bytes >= MAPPED_BYTES:
            self._mapped_bytes = 0
            with self._gate.reading():  # the map stays where it is
                let_go(self._file_id)

    def _load(self) -> bytes:
        """Read LMDB's content; return the meta record in its stored form."""
        with self._env.begin() as txn:
            value = txn.get(schema.META_KEY)
            used = txn.stat()["entries"] > 0
            self._meta = meta_of(value, used, self.path)
            self._pointer = lmdb_scans.pointer_of(txn, self._where)
            last, self._log_bytes = lmdb_scans.last_entry(txn, self._where)
        lmdb_scans.check_extent(self._meta, last, self._pointer, self._where)
        return bytes(value or b"")

    def _entry_holding(self, position: int) -> int | None:
        """Return the first position of the entry that holds `position`; None past the end."""
        if position > self._in_lmdb:
            return None
        with self._reading() as txn:
            return lmdb_scans.entry_holding(txn, position, self._where)

    def _log_slice(self, start: int) -> tuple[list[tuple[int, bytes]], int | None]:
        """Read some entries from `start` on; also return where to continue."""
        with self._reading() as txn:
            batch, expected, found = lmdb_scans.log_slice(txn, start, SLICE_BYTES, self._where)
        self._touched(sum(len(entry) for _, entry in batch))
        if not batch and expected <= self._in_lmdb:
            raise StoreCorrupt(self._where, expected, "the next entry is missing")
        return batch, expected if found else None

    def chunks(self, saved: SavedCheckpoint, start: int) -> Iterator[bytes]:
        """Yield the chunks from number `start` on, each with its own read transaction."""
        position = saved.position
        for number in range(start, saved.chunks):
            self._raise_if_failed()
            with self._reading() as txn:
                value = txn.get(schema.chunk_key(saved.generation, number))
            if value is None:
                what = f"checkpoint chunk {number} of {saved.chunks} is missing"
                raise StoreCorrupt(self._where, position, what)
            self._touched(len(value))
            yield schema.decode_chunk(bytes(value), number, position, self._where)

    def _next_generation(self) -> int:
        """Return a generation above all that have chunks."""
        known = [0 if self._pointer is None else self._pointer.generation]
        with self._reading() as txn:
            newest = lmdb_scans.newest_generation(txn)
            return max(*known, *self._pins.kept, *self._staged, newest) + 1

    def _garbage(self, limit: int) -> list[bytes]:
        kept = {*self._staged, *self._pins.kept}
        position = spare_bytes = 0
        if self._pointer is not None:
            kept.add(self._pointer.generation)
            position = self._pins.oldest(self._pointer.position)
            kept_bytes = self._log_bytes_kept and max(self._log_bytes_kept, self._pointer.bytes)
            spare_bytes = self._log_bytes - kept_bytes
        with self._reading() as txn:
            return lmdb_scans.garbage(txn, kept, position, spare_bytes, limit)


class _LmdbStaging:
    """A checkpoint under a new generation number, invisible until the pointer names it."""

    def __init__(self, store: LmdbStore, position: int) -> None:
        self._store = store
        self._position = position
        self._generation = store._next_generation()
        self._count = self._bytes = 0
        store._staged.add(self._generation)

    def add(self, chunks: list[bytes]) -> None:
        """Write all of these chunks in one transaction."""
        store, generation, start = self._store, self._generation, self._count
        store._raise_if_failed()
        if not chunks:
            return

        def write(txn: lmdb.Transaction) -> None:
            for number, chunk in enumerate(chunks, start):
                txn.put(schema.chunk_key(generation, number), schema.encode_chunk(chunk, number))

        size = sum(len(chunk) + PAGE_BYTES for chunk in chunks)
        # A large state would not fit to its end; a small one makes room, and is the only one that
        # can.
        store._write(write, size, START_BYTES if size > BESIDE_BYTES else LAST_BYTES)
        self._count += len(chunks)
        self._bytes += sum(map(len, chunks))

    def finish(self, meta: Meta | None = None) -> None:
        """Set the pointer to the new generation and write meta, in one transaction."""
        store = self._store
        store._raise_if_failed()
        meta = store._meta if meta is None else meta
        check_switch(store._meta, self._position, meta)
        pointer = SavedCheckpoint(self._generation, self._count, self._position, self._bytes)
        packed, switch = store._packed(meta), schema.encode_pointer(pointer)

        def write(txn: lmdb.Transaction) -> None:
            txn.put(schema.POINTER_KEY, switch)
            txn.put(schema.META_KEY, packed)

        store._write(write)
        store._meta, store._pointer = meta, pointer
        store._staged.discard(self._generation)

    def abandon(self) -> None:
        """Leave the chunks to `trim`: no pointer names them."""
        self._store._staged.discard(self._generation)
