"""Replacing a member's store by a verified copy, atomically and without deleting anything.

    DIR/store                the store in use
    DIR/store.joining        a copy that is being received
    DIR/store.aside.NNNN     stores that were replaced, oldest 0000, kept as evidence for good

The old store stays in force until the new one is complete, verified and durable.  The switch is two
renames; a crash between them leaves no DIR/store but a complete DIR/store.joining, and `recover`,
which every start runs first, does the second rename.  That is why a copy that is not complete must
carry the marker JOINING: only another marker makes it eligible.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from store.api import Marker, Meta
from store.environment import DATA_NAME, inspect
from store.errors import StoreError, StoreMissing, StoreUnreadable
from store.lmdb_store import LmdbStore
from store.lock import explain, sync_directory, sync_file

STORE_NAME = "store"
JOINING_NAME = "store.joining"
INCOMING_NAME = "incoming.mdb"
_ASIDE = re.compile(r"store\.aside\.([0-9a-f]{4})")


def recover(data_dir: Path) -> bool:
    """Finish a switch that a crash cut in two; True when there was one."""
    current, joining = data_dir / STORE_NAME, data_dir / JOINING_NAME
    if current.exists() or not _complete(joining):
        return False
    _rename(joining, current)
    return True


def begin_join(data_dir: Path, meta: Meta) -> LmdbStore:
    """Return a new store to fill, in place of whatever an earlier attempt left behind."""
    discard_join(data_dir)
    return LmdbStore.open(data_dir / JOINING_NAME, replace(meta, marker=Marker.JOINING))


def incoming_file(data_dir: Path) -> Path:
    """Return where to write the file of a copy that comes as a whole; its directory is new.

    Under this name it is no store yet, so a half-received one is never taken for one.
    """
    discard_join(data_dir)
    joining = data_dir / JOINING_NAME
    try:
        joining.mkdir(parents=True)
    except OSError as error:
        raise explain(error, joining) from error
    return joining / INCOMING_NAME


def received(data_dir: Path, own: Meta) -> LmdbStore:
    """Open the file that came, as the store of this member, still marked as joining.

    What it says of the cluster is the donor's; who it belongs to is taken from `own`.
    """
    joining = data_dir / JOINING_NAME
    sync_file(joining / INCOMING_NAME)
    _rename(joining / INCOMING_NAME, joining / DATA_NAME)
    store = LmdbStore.open(joining)
    store.put_meta(
        replace(
            store.meta,
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
    """Remove an attempt that was not installed.  What it held is a copy of another member's."""
    joining = data_dir / JOINING_NAME
    if joining.exists():
        shutil.rmtree(joining)
        sync_directory(data_dir)


def install(data_dir: Path) -> Path | None:
    """Put DIR/store.joining in the place of DIR/store; return where the old one went.

    The caller has verified the new store, given it a marker other than JOINING, and closed both.
    """
    current, joining = data_dir / STORE_NAME, data_dir / JOINING_NAME
    meta = inspect(joining)
    if meta.marker is Marker.JOINING:
        raise StoreUnreadable(f"{joining} is not complete: its marker still says joining")
    sync_file(joining / DATA_NAME)
    sync_directory(joining)
    aside: Path | None = None
    if current.exists():
        aside = set_aside(data_dir)
    _rename(joining, current)
    return aside


def set_aside(data_dir: Path) -> Path:
    """Rename DIR/store out of the way, under the next free number."""
    numbers = [int(m[1], 16) for p in data_dir.iterdir() if (m := _ASIDE.fullmatch(p.name))]
    number = max(numbers, default=-1) + 1
    if number > 0xFFFF:
        raise StoreError(f"{data_dir}: store.aside.ffff is taken; archive the old ones")
    aside = data_dir / f"{STORE_NAME}.aside.{number:04x}"
    _rename(data_dir / STORE_NAME, aside)
    return aside


def find_store(path: Path) -> Path:
    """Return the directory of the store that an operator means by `path`: itself, or its store."""
    for candidate in (path / STORE_NAME, path):
        if (candidate / DATA_NAME).is_file():
            return candidate
    raise StoreMissing(f"there is no store in {path}")


def _complete(joining: Path) -> bool:
    try:
        return inspect(joining).marker is not Marker.JOINING
    except StoreError:
        return False


def _rename(old: Path, new: Path) -> None:
    try:
        old.rename(new)
        sync_directory(new.parent)
    except OSError as error:
        raise explain(error, new) from error
