"""Backups of stores: stores that were replaced, and copies that an operator made of a live one.

    DIR/_cluster.bak.NNNN    a store that was set aside, numbered in hexadecimal from 0001

The names are those of Qpid's cluster, so that existing scripts and habits still work. A backup is a
whole store; `swap` moves backups in and out of DIR/store, and this module finds and makes them.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import lmdb

from store import schema
from store.api import Marker, Meta
from store.errors import StoreError, StoreMissing
from store.files.durable_files import explain, sync_directory, sync_file
from store.lmdb_environment import DATA_NAME, inspect, journal_of, left_in_journal
from store.lmdb_scans import put_entries
from store.lmdb_store import MAP_BYTES_FIRST, LmdbStore

_BACKUP = re.compile(r"_cluster\.bak\.([0-9a-f]{4})")
NUMBER_MAX = 0xFFFF
MARGIN_BYTES = 64 << 20
"""The space that a copy leaves free on its disk, so that it does not stop other writers."""


class Backup(NamedTuple):
    """A store that was set aside. `meta` is None when it cannot be read; `trouble` says why."""

    number: int
    path: Path
    meta: Meta | None
    trouble: str
    size_bytes: int
    changed_at: float  # seconds since 1970: when the store was last written

    @property
    def name(self) -> str:
        """The number in the form used in the directory's name."""
        return f"{self.number:04x}"


def backup_paths(data_dir: Path) -> dict[int, Path]:
    """Return the stores that were set aside in a data directory, oldest number first."""
    found = ((p, _BACKUP.fullmatch(p.name)) for p in data_dir.iterdir() if p.is_dir())
    return dict(sorted((int(match[1], 16), path) for path, match in found if match))


def next_backup(data_dir: Path) -> Path:
    """Return the path for the next store to set aside: the highest number plus one."""
    number = max(backup_paths(data_dir), default=0) + 1
    if number > NUMBER_MAX:
        raise StoreError(f"{data_dir}: _cluster.bak.ffff is taken; archive the old ones")
    return data_dir / f"_cluster.bak.{number:04x}"


def list_backups(data_dir: Path) -> list[Backup]:
    """Read the backups in a data directory, oldest number first; changes nothing."""
    return [_read(number, path) for number, path in backup_paths(data_dir).items()]


def find_backup(data_dir: Path, number: str) -> Path:
    """Return the backup with a number as listed; StoreMissing names those that exist."""
    paths = backup_paths(data_dir)
    text = number.removeprefix("_cluster.bak.")
    wanted = int(text, 16) if re.fullmatch("[0-9a-fA-F]{1,4}", text) else -1
    if wanted not in paths:
        there = ", ".join(f"{one:04x}" for one in paths) or "none"
        raise StoreMissing(f"{data_dir} has no backup {number}; there are: {there}")
    return paths[wanted]


def copy_store(source: Path, target: Path) -> Meta:
    """Copy the store in `source` to the new directory `target`; return the copy's meta.

    The broker may be running: the copy is that of one commit, at one position, and never makes the
    writer wait. (A reader pins the pages of its commit, so the file of a busy store grows
    meanwhile.) The copy is marked as a backup, and gets its name only once it is complete.
    """
    if target.exists():
        raise StoreError(f"{target} exists; give the name of a directory that does not")
    meta = inspect(source)
    if meta.marker in (Marker.EMPTY, Marker.JOINING):
        raise StoreError(f"{source} is {meta.marker.value}: it holds no state to copy")
    partial = target.with_name(f"{target.name}.partial")
    try:
        _check_space(source, target.parent)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        waiting = journal_of(source)
        with lmdb.open(str(source), readonly=True, create=False, max_dbs=0) as env:
            env.copy(str(partial), compact=True)
        _take_along(partial, waiting)
        sync_file(partial / DATA_NAME)
        copied = LmdbStore(partial)
        meta = replace(copied.meta, marker=Marker.BACKUP)
        copied.put_meta(meta)
        copied.close()
        partial.rename(target)
        sync_directory(target)
        sync_directory(target.parent)
    except OSError as error:
        raise explain(error, target) from error
    except lmdb.Error as error:
        raise StoreError(f"{target}: copying failed: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return meta


def _take_along(copy: Path, waiting: bytes) -> None:
    """Bring the journal's content, read before the copy was made, into the copy.

    The copy has no journal. The journal may have been rewritten from its beginning while it was
    read; then LMDB had all of it. `inspect` has already checked whether it was damaged.
    """
    size = (copy / DATA_NAME).stat().st_size + MAP_BYTES_FIRST
    with lmdb.open(str(copy), map_size=size, max_dbs=0) as env, env.begin(write=True) as txn:
        value = bytes(txn.get(schema.META_KEY) or b"")
        meta = schema.decode_meta(value, str(copy))
        records, _ = left_in_journal(waiting, value, meta)
        put_entries(txn, records)
        if records:
            meta = schema.decode_meta(records[-1].meta, str(copy))
        txn.put(schema.META_KEY, schema.encode_meta(meta))


def _check_space(source: Path, place: Path) -> None:
    """Refuse a copy that does not fit: a full disk would stop the broker being copied."""
    needed = (source / DATA_NAME).stat().st_size + MARGIN_BYTES
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StoreError(
            f"{place} has {free >> 20} MB free, a copy of {source} may need {needed >> 20} MB "
            f"({MARGIN_BYTES >> 20} MB of it stay free); nothing was written"
        )


def _read(number: int, path: Path) -> Backup:
    file = path / DATA_NAME
    try:
        stat = file.stat()
        size, changed = stat.st_size, stat.st_mtime
    except OSError:
        size, changed = 0, 0.0
    try:
        return Backup(number, path, inspect(path), "", size, changed)
    except StoreError as error:
        return Backup(number, path, None, str(error), size, changed)
