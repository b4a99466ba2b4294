"""LMDB environments: creating, opening, inspecting; growing the map and releasing its memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import errorcode
from mmap import MADV_DONTNEED
from pathlib import Path

import lmdb

from store import journal, schema
from store.api import Meta
from store.errors import (
    BROKEN,
    NO_SPACE,
    OWNER,
    REMEDY,
    StoreCorrupt,
    StoreDamaged,
    StoreError,
    StoreMissing,
    StoreUnreadable,
    failed,
    number_of,
)
from store.files.durable_files import explain, sync_directory, sync_file

DATA_NAME = "data.mdb"
LOOKS_MAX = 20


class MapGate:
    """Read-write lock for the map: keeps readers out while it grows, but not during an fsync."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold this while a read transaction is open."""
        with self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold this while the map is resized: waits for readers and keeps new ones out."""
        with self._changed:
            while self._readers:
                self._changed.wait()
            yield


def let_go(opened: tuple[int, int]) -> None:
    """Return to the system the memory of the opened file's map.

    A process that reads all of a large file once looks as large as the file (VmRSS, `top`),
    although the system takes these pages back when it needs them. The next access looks them up
    again; nothing else changes, as long as the map stays where it is. The caller must hold the
    gate, or the addresses might belong to someone else's memory.
    """
    with suppress(OSError):  # not Linux: the pages stay
        for begin, end in _maps_of(str(opened[1])):
            _MADVISE(begin, end - begin, MADV_DONTNEED)


def _maps_of(inode: str) -> list[tuple[int, int]]:
    """Return the file's shared read-only mappings."""
    found: list[tuple[int, int]] = []
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        place, rights, _, _, number, *path = line.split(maxsplit=5)
        if number == inode and rights == "r--s" and path and path[0].endswith(f"/{DATA_NAME}"):
            begin, _, end = place.partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


_MAPS = Path("/proc/self/maps")
_MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
    ("madvise", ctypes.CDLL(None))
)


def make_directory(path: Path) -> None:
    """Make the store's directory; StoreError with the reason otherwise."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreUnreadable(f"{path} is not a directory") from error
    except OSError as error:
        raise explain(error, path) from error


def create_data(path: Path, meta: Meta) -> None:
    """Create the file of a new store, under another name until it is whole and durable.

    LMDB writes its first pages in place: if a power loss left half of them, the store would never
    open.
    """
    fresh = path / f"{DATA_NAME}.new"
    try:
        fresh.unlink(missing_ok=True)
        with lmdb.open(str(fresh), subdir=False, lock=False, max_dbs=0, mode=0o640) as env:
            with env.begin(write=True) as txn:
                txn.put(schema.META_KEY, schema.encode_meta(meta))
            env.sync(True)
        sync_file(fresh)
        fresh.rename(path / DATA_NAME)
        sync_directory(path)
        sync_directory(path.parent)
    except lmdb.Error as error:
        raise failed(f"{path}: a store could not be created", error) from error
    except OSError as error:
        raise explain(error, path) from error


def open_environment(path: Path, map_bytes: int, sync: bool) -> lmdb.Environment:
    """Open for reading and writing with LMDB's safest flags, which are its defaults."""
    try:
        env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=0, max_readers=16, mode=0o640, sync=sync
        )
        env.reader_check()  # slots of killed readers would pin old pages for ever
    except (lmdb.Error, OSError) as error:  # it makes the directory by itself
        raise _translate(error, path) from error
    return env


def file_id(path: Path) -> tuple[int, int]:
    """Return an identity that distinguishes a store's file from every other file."""
    stat = (path / DATA_NAME).stat()
    return stat.st_dev, stat.st_ino


def misplaced(path: Path, opened: tuple[int, int]) -> str:
    """Return why a restart would not find the store opened at `path`, or nothing.

    Commits continue into a file that was removed, and on a file system that became read-only they
    fail only when there is something to commit. Blocks as long as the disk does.
    """
    try:
        if file_id(path) != opened:
            return f"{path / DATA_NAME} is not the file that this broker has open"
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"the file system of {path} has become read-only (EROFS)"
    except OSError as error:
        return f"{path / DATA_NAME}: {error.strerror} ({errorcode[error.errno or 0]})"
    return ""


def inspect(path: Path) -> Meta:
    """Read the meta of a store that another process may have open; changes nothing.

    A journal that is restarted while it is read looks damaged. It is damaged only if it, and LMDB's
    content, are the same at a second look.
    """
    for _ in range(LOOKS_MAX):
        found = _look(path)
        waiting, value = found
        meta = meta_of(value, True, path)
        records, wrong = left_in_journal(waiting, value, meta)
        if not wrong:
            return schema.decode_meta(records[-1].meta, str(path)) if records else meta
        if _look(path) == found:
            raise StoreCorrupt(str(path), meta.position + 1, wrong)
    raise StoreError(f"{path} is written too fast to be read; try again")


def _look(path: Path) -> tuple[bytes, bytes]:
    """Return the journal and the meta record, read in this order; see `journal.content`."""
    if not (path / DATA_NAME).is_file():
        raise StoreMissing(f"there is no store in {path}")
    waiting = journal_of(path)
    lock = os.access(path / "lock.mdb", os.W_OK)  # register as a reader if possible
    try:
        env = lmdb.open(str(path), readonly=True, lock=lock, create=False, max_dbs=0)
    except lmdb.Error as error:
        raise _translate(error, path) from error
    with env, env.begin() as txn:
        value = txn.get(schema.META_KEY)
        used = txn.stat()["entries"] > 0
    if value is None:
        meta_of(None, used, path)
    return waiting, bytes(value or b"")


def journal_of(path: Path) -> bytes:
    """Return the content of a store's journal; StoreError where it cannot be read."""
    try:
        return journal.content(path)
    except OSError as error:
        raise explain(error, path / journal.JOURNAL_NAME) from error


def left_in_journal(waiting: bytes, value: bytes, meta: Meta) -> tuple[list[journal.Record], str]:
    """Return the journal's records beyond this meta record of LMDB, and any fault in it."""
    if not schema.is_journaled(value):
        return [], ""
    records, wrong = journal.records_after(waiting, meta.store_id, meta.position)
    return records, f"{wrong}: {REMEDY}" if wrong else ""


def meta_of(value: bytes | None, used: bool, path: Path) -> Meta:
    """Decode the meta record; raise the error that fits a file without one."""
    if value is not None:
        return schema.decode_meta(bytes(value), str(path))
    if used:
        raise StoreUnreadable(f"{path} is an LMDB file of something else")
    # A creation that never finished: no promise depends on it.
    raise StoreMissing(f"the store in {path} was never finished")


def _translate(error: lmdb.Error | OSError, path: Path) -> Exception:
    text = str(error)
    if (number := number_of(error)) in (*BROKEN, *OWNER, *NO_SPACE):
        return explain(OSError(number, os.strerror(number)), path)
    if isinstance(error, lmdb.MemoryError):
        return StoreError(
            f"{text}: the store is mapped into memory, and this process may not map so much; raise "
            "the limit of its address space (ulimit -v; with systemd LimitAS)"
        )
    return StoreDamaged(f"{path}: {text.removeprefix(f'{path}: ')}")
