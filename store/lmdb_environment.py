"""Opening an LMDB environment, looking into one that is in use, and growing its map safely."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from store import schema
from store.api import Meta
from store.directory_lock import explain
from store.errors import StoreMissing, StoreUnreadable

DATA_NAME = "data.mdb"


class MapGate:
    """Keeps readers out while the map grows, and only then: a read never waits for an fsync."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold while a read transaction is open."""
        with self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold while the map is resized: no reader is inside, and none gets in."""
        with self._changed:
            while self._readers:
                self._changed.wait()
            yield


def make_directory(path: Path) -> None:
    """Make the store's directory, saying clearly why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreUnreadable(f"{path} is not a directory") from error
    except OSError as error:
        raise explain(error, path) from error


def open_environment(path: Path, map_bytes: int, sync: bool) -> lmdb.Environment:
    """Open for reading and writing with LMDB's safest flags, which are its defaults."""
    try:
        env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=0, max_readers=16, mode=0o640, sync=sync
        )
        env.reader_check()  # slots of readers that were killed would pin old pages for ever
    except lmdb.Error as error:
        raise _translate(error, path) from error
    return env


def inspect(path: Path) -> Meta:
    """Read the meta of a store that another process may be using; changes nothing."""
    if not (path / DATA_NAME).is_file():
        raise StoreMissing(f"there is no store in {path}")
    lock = os.access(path / "lock.mdb", os.W_OK)  # a reader's slot, where we may take one
    try:
        env = lmdb.open(str(path), readonly=True, lock=lock, create=False, max_dbs=0)
    except lmdb.Error as error:
        raise _translate(error, path) from error
    with env, env.begin() as txn:
        value = txn.get(schema.META_KEY)
        used = txn.stat()["entries"] > 0
    return meta_of(value, used, path)


def meta_of(value: bytes | None, used: bool, path: Path) -> Meta:
    """Decode the meta record, or say what kind of file has none."""
    if value is not None:
        return schema.decode_meta(bytes(value), str(path))
    if used:
        raise StoreUnreadable(f"{path} is an LMDB file of something else")
    # A creation that never finished: it never promised anything either.
    raise StoreMissing(f"the store in {path} was never finished")


def _translate(error: lmdb.Error, path: Path) -> Exception:
    text = str(error)
    if "Permission denied" in text or "Read-only file system" in text:
        return explain(PermissionError(13, "Permission denied"), path)
    return StoreUnreadable(f"{path}: {text}")
