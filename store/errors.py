"""Errors of a store, with one class for each remedy an operator has.

All of them come from the environment (disk, another process, another release). A caller that
violates the store's contract gets an `AssertionError` instead: that is a bug of this program.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of the errors caused by the environment."""


class StoreMissing(StoreError):
    """There is no store at that path."""


class StoreBusy(StoreError):
    """Another process has this store open."""

    def __init__(self, path: str, pid: int | None) -> None:
        self.pid = pid
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is in use by {who}")


class NotWritable(StoreError):
    """The directory or its files cannot be written by this user."""


class StoreUnreadable(StoreError):
    """The files exist but are not a store that this release can read."""


class StoreVersion(StoreUnreadable):
    """The store was written in another format version; nothing was changed."""


class StoreCorrupt(StoreUnreadable):
    """A checksum or the sequence of entries is wrong. `position` says where, 0 = meta."""

    def __init__(self, path: str, position: int, what: str) -> None:
        self.position = position
        super().__init__(f"{path}: {what} (position {position})")


class StoreFailed(StoreError):
    """A commit failed, so the content of the disk is unknown: the member must stop and reopen.

    LMDB itself would continue after a failed data sync and lose the middle of the sequence.
    """


class NoSpace(StoreError):
    """There is no space for a write. Nothing was written: the store is unchanged."""

    def __init__(self, path: str, need: int) -> None:
        super().__init__(
            f"{path}: No space left on device: {need / 1e6:.1f} MB more are needed; free "
            "space there"
        )


class StoreStuck(StoreError):
    """The disk does not respond: the writer thread is blocked in it, so the store is unusable."""


class StoreFull(StoreFailed):
    """The store reached the size limit with which it was opened."""


class DiskFailed(StoreError):
    """The disk does not return the data it was given; the store itself is intact."""
