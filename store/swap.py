"""Atomic replacement of a member's store by a verified copy; the old store is kept.

    DIR/store                the store in use
    DIR/store.joining        a copy that is being received
    DIR/store.aside.NNNN     stores that were replaced, oldest 0000, kept as evidence

The old store is in use until the new one is complete, verified and durable.  The switch is two
renames; a crash between them leaves no DIR/store but a DIR/store.joining, and `recover`, which
every start runs first, does the second rename.  So that it never takes half a copy, the switch
first makes a file `verified` durable in the new store's directory.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from store.api import Marker, Meta
from store.directory_lock import explain, sync_directory, sync_file
from store.errors import StoreError, StoreMissing, StoreUnreadable
from store.lmdb_environment import DATA_NAME, inspect
from store.lmdb_store import LmdbStore

STORE_NAME = "store"
JOINING_NAME = "store.joining"
INCOMING_NAME = "incoming.mdb"
VERIFIED_NAME = "verified"  # the switch to this copy has begun
_ASIDE = re.compile(r"store\.aside\.([0-9a-f]{4})")


def recover(data_dir: Path) -> bool:
    """Complete a switch that a crash interrupted; True when there was one."""
    current, joining = data_dir / STORE_NAME, data_dir / JOINING_NAME
    if current.exists() or not (joining / VERIFIED_NAME).exists():
        return False
    _put_in_place(joining, current)
    return True


def incoming_file(data_dir: Path) -> Path:
    """Return the path for the donor's file; under this name it is no store yet."""
    discard_join(data_dir)
    joining = data_dir / JOINING_NAME
    try:
        joining.mkdir(parents=True)
    except OSError as error:
        raise explain(error, joining) from error
    return joining / INCOMING_NAME


def received(data_dir: Path, own: Meta) -> LmdbStore:
    """Open the received file as the store of this member, marked as joining.

    The cluster's fields of its meta are the donor's, the member's fields are taken from `own`.
    """
    joining = data_dir / JOINING_NAME
    sync_file(joining / INCOMING_NAME)
    _rename(joining / INCOMING_NAME, joining / DATA_NAME)
    store = LmdbStore(joining)
    store.put_meta(
        replace(
            store.meta,
            cluster_name=own.cluster_name,
            member=own.member,
            store_id=own.store_id,
            incarnation=own.incarnation,
            marker=Marker.JOINING,
            shutdown_id="",
            note="",
        )
    )
    return store


def discard_join(data_dir: Path) -> None:
    """Remove a copy that was not installed.  The donor still has the original."""
    joining = data_dir / JOINING_NAME
    if joining.exists():
        shutil.rmtree(joining)
        sync_directory(data_dir)


def install(data_dir: Path) -> Path | None:
    """Replace DIR/store by DIR/store.joining; return the path of the old one.

    The caller has verified the new store, given it a marker other than JOINING, and closed both.
    """
    current, joining = data_dir / STORE_NAME, data_dir / JOINING_NAME
    meta = inspect(joining)
    if meta.marker is Marker.JOINING:
        raise StoreUnreadable(f"{joining} is not complete: its marker still says joining")
    sync_file(joining / DATA_NAME)
    (joining / VERIFIED_NAME).touch()
    sync_directory(joining)
    aside: Path | None = None
    if current.exists():
        aside = set_aside(data_dir)
    _put_in_place(joining, current)
    return aside


def set_aside(data_dir: Path) -> Path:
    """Rename DIR/store to store.aside.NNNN, with the next free number."""
    numbers = [int(m[1], 16) for p in data_dir.iterdir() if (m := _ASIDE.fullmatch(p.name))]
    number = max(numbers, default=-1) + 1
    if number > 0xFFFF:
        raise StoreError(f"{data_dir}: store.aside.ffff is taken; archive the old ones")
    aside = data_dir / f"{STORE_NAME}.aside.{number:04x}"
    _rename(data_dir / STORE_NAME, aside)
    return aside


def find_store(path: Path) -> Path:
    """Return the directory of the store in `path`, or `path` itself if it is one."""
    for candidate in (path / STORE_NAME, path):
        if (candidate / DATA_NAME).is_file():
            return candidate
    raise StoreMissing(f"there is no store in {path}")


def _put_in_place(joining: Path, current: Path) -> None:
    _rename(joining, current)
    (current / VERIFIED_NAME).unlink(missing_ok=True)


def _rename(old: Path, new: Path) -> None:
    try:
        old.rename(new)
        sync_directory(new.parent)
    except OSError as error:
        raise explain(error, new) from error
