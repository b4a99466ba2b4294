"""Removes stores that were set aside once they are many, old or large, but never a copy that might
be the only one.

Pruning runs while the member serves and is level: then everything that a store of the same cluster
held up to this store's position is here and at the other members. All other stores stay: the newest
one, the newest that an operator restored, states of other clusters or beyond the current one, and
unreadable stores. It runs on a thread of its own, because removing a large file takes a file system
long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from broker.file_thread import FileThread
from broker.options.retention import BackupPolicy
from store.api import Marker, Meta
from store.backups import Backup, list_backups
from store.errors import StoreBusy, StoreError
from store.files.directory_lock import DirectoryLock
from store.files.durable_files import sync_directory

log = logging.getLogger("qpidd")

LEVEL_S = 60.0
"""How long a member serves before it removes anything, and the time between two looks."""
PRUNED_PREFIX = "_pruned."
"""The prefix of a store that is being removed: its remains after a crash are no backup any more."""


class Stays(Enum):
    """Why a store that was set aside stays, or the fact that it does not."""

    NEWEST = "the newest"
    RESTORED = "the newest restored"
    BEYOND = "not all in the store"
    UNREADABLE = "unreadable"
    IN_NUMBER = "by number"
    YOUNG = "by age"
    DUE = "no: removed"


_BY_LIMIT = (Stays.IN_NUMBER, Stays.YOUNG)


def judge_backups(
    backups: Sequence[Backup], present: Meta | None, policy: BackupPolicy,
    now_s: float, disk_bytes: int,
) -> list[Stays]:  # fmt: skip
    """Decide for each whether it stays, oldest number first; `present` None: nothing is level."""
    restored = [one for one in backups if one.meta and one.meta.marker is Marker.BACKUP]
    found = []
    for index, one in enumerate(backups):
        if one is backups[-1]:
            stays = Stays.NEWEST
        elif one.meta is None:
            stays = Stays.UNREADABLE
        elif not _is_in(one.meta, present):
            stays = Stays.BEYOND
        elif one in restored[-1:]:
            stays = Stays.RESTORED
        elif not policy.keep or index >= len(backups) - policy.keep:
            stays = Stays.IN_NUMBER
        elif now_s - one.changed_at < policy.keep_s:
            stays = Stays.YOUNG
        else:
            stays = Stays.DUE
        found.append(stays)
    limit = policy.keep_bytes
    allowed = int(limit * disk_bytes) if isinstance(limit, float) else limit
    if policy.keep and allowed:
        sizes = [one.size_bytes for one in backups]
        left = sum(size for size, stays in zip(sizes, found, strict=True) if stays is not Stays.DUE)
        for index, stays in enumerate(found):
            if left > allowed and stays in _BY_LIMIT:
                found[index] = Stays.DUE
                left -= sizes[index]
    return found


def _is_in(old: Meta, present: Meta | None) -> bool:
    """Whether a level store at `present` includes everything that an older one holds."""
    if present is None:
        return False
    if not old.cluster_id:
        return True  # it never held anything
    there = (present.state_epoch, present.position)
    return old.cluster_id == present.cluster_id and (old.state_epoch, old.position) <= there


class BackupPruner:
    """Prunes the backups of one data directory, from a minute after its member is level on."""

    def __init__(
        self, data_dir: Path, policy: BackupPolicy, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._data_dir, self._policy, self._loop = data_dir, policy, loop
        self._files = FileThread(loop, self._failed)
        self.clock_is_right: Callable[[], bool] = lambda: True
        """By a clock that is not, nothing is too old."""
        self._due: float | None = None
        self._busy = False
        self._told = ""
        self.counters = {"kept": 0, "kept_mb": 0, "pruned": 0, "pruned_mb": 0, "failures": 0}

    def wake(self, present: Meta | None) -> None:
        """Look when it is due; `present`: the store's meta while the member serves and is level."""
        now = self._loop.time()
        if present is None:
            self._due = None
        elif self._due is None:
            self._due = now + LEVEL_S
        elif now >= self._due and not self._busy:
            self._due, self._busy = now + LEVEL_S, True
            policy = self._policy
            if policy.keep_s and not self.clock_is_right():
                policy = policy._replace(keep_s=sys.maxsize)
            self._files.do(lambda: self._prune(present, policy))

    def _failed(self, error: Exception) -> None:
        self._busy = False
        self.counters["failures"] += 1
        if self._told != str(error):
            self._told = str(error)
            log.warning("old stores stay in %s: %s", self._data_dir, error)

    def _prune(self, present: Meta, policy: BackupPolicy) -> Callable[[], None]:
        """On the thread."""
        for left in self._data_dir.glob(f"{PRUNED_PREFIX}*"):
            shutil.rmtree(left)
        disk = os.statvfs(self._data_dir)
        backups = list_backups(self._data_dir)
        found = judge_backups(backups, present, policy, time.time(), disk.f_blocks * disk.f_frsize)
        removed = [
            one
            for one, stays in zip(backups, found, strict=True)
            if stays is Stays.DUE and _remove(one)
        ]
        kept = [one for one in backups if one not in removed]
        return lambda: self._pruned(kept, removed)

    def _pruned(self, kept: list[Backup], removed: list[Backup]) -> None:
        self._busy, self._told = False, ""
        counters = self.counters
        counters["kept"] = len(kept)
        counters["kept_mb"] = sum(one.size_bytes for one in kept) // 1_000_000
        counters["pruned"] += len(removed)
        counters["pruned_mb"] += sum(one.size_bytes for one in removed) // 1_000_000
        for one in removed:
            meta = one.meta
            assert meta is not None
            log.info(
                "%s is removed (%.1f MB, %s, position %d of epoch %d): %d stay, see --backups-keep",
                one.path.name, one.size_bytes / 1e6, meta.marker.value, meta.position,
                meta.state_epoch, len(kept),
            )  # fmt: skip


def _remove(one: Backup) -> bool:
    """Take a backup out of the list at once, then delete its bytes; False: it is in use."""
    try:
        lock = DirectoryLock(one.path)
    except StoreBusy:
        return False
    except StoreError as error:
        raise OSError(str(error)) from error
    try:
        going = one.path.with_name(f"{PRUNED_PREFIX}{one.name}")
        one.path.rename(going)
        sync_directory(going.parent)
    finally:
        lock.release()
    shutil.rmtree(going)
    return True
