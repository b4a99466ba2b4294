"""A member's data directory: the member's name, its store, and the incarnation that now begins.

The voter set remembers the name, so it must survive restarts: it is the ring address if that is
fixed, else it is made from the store's id. The incarnation rises with every start.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from broker.durability.pages import Pages
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.memberlog.records import Lease
from broker.options.broker import BrokerOptions
from store import swap
from store.api import Marker, Meta
from store.errors import (
    BROKEN,
    NO_SPACE,
    NotWritable,
    StoreError,
    StoreUnreadable,
    failed,
)
from store.files.directory_lock import DirectoryLock
from store.files.space import START_BYTES, Reserve, discard_unfinished
from store.lmdb_store import LmdbStore
from vsync.admin.protocol import Json

log = logging.getLogger("qpidd")

STORE_DIR = "store"
LOG_DIR = "memberlog"


class StoreLease(Protocol):
    """The lease by which the store belongs to this process: others may be waiting for it."""

    log_dir: Path | None
    """The directory of the member logs of all leaders; None: the data directory."""

    def holds(self) -> bool:
        """Whether clients may be replied to at this moment."""

    def status(self) -> Json:
        """Return the lease's part of the reply to `status`."""

    def recorded_by(self, record: Callable[[Lease], None]) -> None:
        """Have the member log record that the lease was taken, before anything is done under it,
        and that it is lost."""

    def given_up(self) -> None:
        """Have the log record that this process no longer acts on the lease: the log ends."""


class Unshared:
    """The lease of a store that belongs to one broker alone."""

    log_dir: Path | None = None

    def holds(self) -> bool:
        """Always."""
        return True

    def status(self) -> Json:
        """Nothing."""
        return {}

    def recorded_by(self, record: Callable[[Lease], None]) -> None:
        """Nothing."""

    def given_up(self) -> None:
        """Nothing."""


class DataDirectory:
    """One member's data directory, opened for one incarnation of the broker."""

    def __init__(self, options: BrokerOptions, lease: StoreLease | None = None) -> None:
        self.lease: StoreLease = Unshared() if lease is None else lease
        self.temporary = options.data_dir is None
        self.data_dir = options.data_dir or Path(tempfile.mkdtemp(prefix="qpidd-"))
        self.cluster_name = options.cluster_name
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.data_dir, error) from error
        # Before anything is changed: while another broker switches stores there is none to lock.
        self._lock = DirectoryLock(self.data_dir)
        try:
            self._open(options)
        except BaseException:
            self._release()
            raise

    def _open(self, options: BrokerOptions) -> None:
        try:
            swap.recover(self.data_dir)
            swap.discard_incoming(self.data_dir)  # a full disk may be full of leftovers
            discard_unfinished(self.data_dir / LOG_DIR)
            self.reserve = Reserve(self.data_dir)
            if self.reserve.given_up:
                log.warning(
                    "less than %d MiB are free in %s: its reserve of %d MiB was given up for this "
                    "start; free space on that disk",
                    START_BYTES >> 20, self.data_dir, self.reserve.bytes >> 20,
                )  # fmt: skip
            self.reserve.demand_room()
        except OSError as error:
            raise _not_writable(self.data_dir, error) from error
        self.pages = Pages(self.data_dir, options.bounds.page_memory)
        fixed = str(options.cluster_bind) if options.clustered and options.cluster_bind.port else ""
        fresh = _named(Meta("", "", store_id=uuid.uuid4().hex), options.cluster_name, fixed)
        self.store = LmdbStore(self.data_dir / STORE_DIR, fresh)
        meta = self._corrected(options.cluster_name, fixed)
        if meta.cluster_name != options.cluster_name:
            self.close()
            ours, theirs = _cluster(options.cluster_name), _cluster(meta.cluster_name)
            raise StoreUnreadable(
                f"{self.data_dir} holds the store of {theirs}, this broker was started for {ours}; "
                "use another --data-dir or the --cluster-name of that store"
            )
        if meta.version and not MACHINE_VERSION_MIN <= meta.version <= MACHINE_VERSION:
            self.close()
            raise StoreUnreadable(
                f"{self.data_dir} was written with version {meta.version} in force, this release "
                f"executes versions {MACHINE_VERSION_MIN} to {MACHINE_VERSION}: start one that "
                f"executes version {meta.version}"
            )
        if fixed and meta.member != fixed:
            self.close()
            raise StoreUnreadable(
                f"{self.data_dir} is the store of member {meta.member}, "
                f"this broker was started as {fixed}; keep --cluster-bind or change --data-dir"
            )
        # A clock that went back must not make a new incarnation look like an old one.
        self.incarnation = max(time.time_ns() // 1_000_000, meta.incarnation + 1)
        self.name = meta.member

    def _corrected(self, cluster_name: str, fixed: str) -> Meta:
        """Return the store's meta, with another name if no cluster has used the store: the first
        thing to correct is a mistyped option, and nothing was promised under the old name."""
        meta = self.store.meta
        named = _named(meta, cluster_name, fixed)
        if meta.cluster_id or meta.marker is not Marker.EMPTY or named == meta:
            return meta
        log.info(
            "this store was made for member %s of %s; no cluster has used it, so it becomes that "
            "of member %s of %s",
            meta.member, _cluster(meta.cluster_name), named.member, _cluster(cluster_name),
        )  # fmt: skip
        self.store.put_meta(named)
        return named

    def begin(self) -> Meta:
        """Record that a new incarnation began; a clean marker lasts until the first change."""
        meta = replace(self.store.meta, incarnation=self.incarnation)
        self.store.put_meta(meta)
        return meta

    @property
    def ring_name(self) -> str:
        """Return the name that keeps rings apart; a stand-alone broker's is its own."""
        return self.cluster_name or f"alone-{self.store.meta.store_id}"

    @property
    def log_dir(self) -> Path:
        """Directory of the member log."""
        return self.lease.log_dir or self.data_dir / LOG_DIR

    def close(self) -> None:
        """Release the store; a temporary data directory is removed with it."""
        self.store.close()
        self._release()

    def _release(self) -> None:
        self._lock.release()
        if self.temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)


def truncated(data_dir: Path | None) -> Path | None:
    """Set the store of a data directory aside, whatever its content; return its new path.

    An interrupted switch of stores is completed first: otherwise the next start would complete it,
    and not begin empty.
    """
    if data_dir is None or not data_dir.is_dir():
        return None
    lock = DirectoryLock(data_dir)
    try:
        swap.recover(data_dir)
        if not (data_dir / STORE_DIR).is_dir():
            return None
        DirectoryLock(data_dir / STORE_DIR).release()  # a tool may have it open
        swap.discard_incoming(data_dir)
        return swap.set_aside(data_dir)
    except OSError as error:
        where = f"the store in {data_dir} cannot be set aside"
        if error.errno in BROKEN:
            raise failed(where, error) from error
        raise NotWritable(f"{where}: {error.strerror or error}") from error
    finally:
        lock.release()


def _named(meta: Meta, cluster_name: str, fixed: str) -> Meta:
    return replace(meta, cluster_name=cluster_name, member=fixed or f"m-{meta.store_id[:8]}")


def _cluster(name: str) -> str:
    return f"cluster '{name}'" if name else "a stand-alone broker"


def _not_writable(data_dir: Path, error: OSError) -> StoreError:
    where = f"--data-dir: {data_dir} cannot be made or written"
    if error.errno in (*BROKEN, *NO_SPACE):  # or no inode is left
        return failed(where, error)
    what = f"{where}: {error.strerror or error}"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return NotWritable(
                f"{what}; it must belong to the user that runs the broker, {_user()}"
            )
        case errno.EEXIST | errno.ENOTDIR:
            return NotWritable(f"{what}; a file of that name exists: give another directory")
        case _:
            return NotWritable(what)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"number {os.getuid()}"


def filled(meta: Meta) -> bool:
    """Whether a store counts in a state exchange: it holds what a primary view put there."""
    return bool(meta.cluster_id) and meta.marker in (Marker.DIRTY, Marker.CLEAN)
