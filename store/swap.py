"""Atomic replacement of a member's store by a verified copy; the old store is kept.

    DIR/store                the store in use
    DIR/store.joining.ID     a state being received; each attempt has its own directory
    DIR/_cluster.bak.NNNN    stores that were replaced, see `backups`

The old store is in use until the new one is complete, verified and durable. The switch is two
renames. A crash between them leaves no DIR/store, only the joining directory (or the backup being
restored); `recover`, which every start runs first, does the second rename. Recovering, switching
and restoring hold the lock of DIR itself, because a store's own lock does not cover the moment when
there is no store. So that `recover` never takes a partial state, or a backup that nobody asked for,
the switch first makes a file `verified` durable in the new store's directory.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from store.api import Marker, Meta
from store.backups import backup_paths, list_backups, next_backup
from store.errors import StoreMissing, StoreUnreadable
from store.files.directory_lock import DirectoryLock
from store.files.durable_files import explain, sync_directory
from store.lmdb_environment import DATA_NAME, inspect
from store.lmdb_store import LmdbStore

STORE_NAME = "store"
JOINING_PREFIX = "store.joining."
VERIFIED_NAME = "verified"  # the switch to this copy has begun


def recover(data_dir: Path) -> bool:
    """Complete a switch that a crash interrupted; True when there was one."""
    current = data_dir / STORE_NAME
    begun = _begun(data_dir)
    if current.exists():
        for path in begun:
            if not path.name.startswith(JOINING_PREFIX):
                # A restore that did not get as far as changing anything.
                _end(path)
        return False
    if not begun:
        return False
    _put_in_place(begun[0], current)
    return True


def _incoming(data_dir: Path) -> list[Path]:
    return sorted(data_dir.glob(f"{JOINING_PREFIX}*")) if data_dir.is_dir() else []


def _backups(data_dir: Path) -> list[Path]:
    return list(backup_paths(data_dir).values()) if data_dir.is_dir() else []


def _begun(data_dir: Path) -> list[Path]:
    """Return the stores of which a switch was begun; at most one, unless a crash cut it short."""
    paths = (*_incoming(data_dir), *_backups(data_dir))
    return [path for path in paths if (path / VERIFIED_NAME).exists()]


def incoming(data_dir: Path, attempt: str, meta: Meta) -> LmdbStore:
    """Create the store into which an attempt to join receives a state."""
    return LmdbStore(data_dir / f"{JOINING_PREFIX}{attempt}", meta)


def discard_incoming(data_dir: Path) -> None:
    """Remove the states received by an earlier process. The donor still has the original.

    After a power loss they may be back, and are removed again: until a later switch is durable in
    the same directory, DIR/store is there, and `recover` takes none of them.
    """
    for joining in _incoming(data_dir):
        shutil.rmtree(joining)


def install(data_dir: Path, joining: Path) -> Path | None:
    """Replace DIR/store by a received store; return the path of the old one.

    The caller has verified it, given it a marker other than EMPTY, and closed both. All of it is
    durable: a store syncs each commit.
    """
    meta = inspect(joining)
    if meta.marker is Marker.EMPTY:
        raise StoreUnreadable(f"{joining} is not complete: its marker still says empty")
    return put_in_force(data_dir, joining)


def put_in_force(data_dir: Path, new: Path) -> Path | None:
    """Replace DIR/store by the complete store `new` of the same directory; return the old path."""
    for other in _begun(data_dir):  # and cut short: `recover` must not take it for this one
        _end(other)
    (new / VERIFIED_NAME).touch()
    sync_directory(new)
    aside = set_aside(data_dir) if (data_dir / STORE_NAME).exists() else None
    _put_in_place(new, data_dir / STORE_NAME)
    return aside


def set_aside(data_dir: Path) -> Path:
    """Rename DIR/store to _cluster.bak.NNNN, with the next free number."""
    # The switch that put this store in place may have been cut short, or the end of its mark not be
    # durable yet. In a backup the mark would mean that the backup is being put in place.
    _end(data_dir / STORE_NAME)
    aside = next_backup(data_dir)
    _rename(data_dir / STORE_NAME, aside)
    return aside


def restore(data_dir: Path, backup: Path) -> tuple[Meta, Path | None]:
    """Put a backup in place of DIR/store; return its meta, and where the former store is now.

    The backup keeps its marker only if none of the other stores in DIR is ahead of it, neither the
    former one nor any that was set aside. Otherwise it is marked as a backup, which has no vote.
    Promises that the member made since remain in force.
    """
    lock = DirectoryLock(data_dir)  # refused while a broker uses it, or switches stores
    try:
        return _restore(data_dir, backup)
    finally:
        lock.release()


def _restore(data_dir: Path, backup: Path) -> tuple[Meta, Path | None]:
    current = data_dir / STORE_NAME
    present = LmdbStore(current) if current.exists() else None  # refused while a tool uses it
    now = None if present is None else present.meta
    if present is not None:
        present.close()
    aside = [one.meta for one in list_backups(data_dir) if one.meta]
    store = LmdbStore(backup)
    try:
        old = store.meta
        known = [one for one in aside if one.cluster_id == old.cluster_id]
        known += [] if now is None else [now]
        newer = [one for one in known if _point(one) > _point(old)]
        back = now is None or bool(newer)
        what = f"{backup.name}, position {old.position} of epoch {old.state_epoch}, was restored"
        if now is not None and _point(now) > _point(old):
            what += f" in the place of position {now.position} of epoch {now.state_epoch}"
        meta = replace(
            old,
            marker=Marker.BACKUP if back and old.cluster_id else old.marker,
            incarnation=max(one.incarnation for one in (old, *known)) + 1,
            promised_epoch=max(one.promised_epoch for one in (old, *known)),
            note="\n".join(filter(None, [old.note, what])),
        )
        store.put_meta(meta)
    finally:
        store.close()
    return meta, put_in_force(data_dir, backup)


def _point(meta: Meta) -> tuple[int, int]:
    return meta.state_epoch, meta.position


def find_store(path: Path) -> Path:
    """Return the directory of the store in `path`, or `path` itself if it is one."""
    for candidate in (path / STORE_NAME, path):
        if (candidate / DATA_NAME).is_file():
            return candidate
    raise StoreMissing(f"there is no store in {path}")


def _end(path: Path) -> None:
    """No switch to this store is under way, whatever a power loss brings back."""
    (path / VERIFIED_NAME).unlink(missing_ok=True)
    sync_directory(path)


def _put_in_place(joining: Path, current: Path) -> None:
    _rename(joining, current)
    (current / VERIFIED_NAME).unlink(missing_ok=True)


def _rename(old: Path, new: Path) -> None:
    try:
        old.rename(new)
        sync_directory(new.parent)
    except OSError as error:
        raise explain(error, new) from error
