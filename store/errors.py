"""What can go wrong with a store, one class per thing that an operator would do about it.

All of these are the world's doing (disk, another process, another release), never a client's.  A
caller that breaks the store's rules gets an `AssertionError` instead: that is our own bug.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything that the store raises about the world."""


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
    """The files are there but are not a store that we can read."""


class StoreVersion(StoreUnreadable):
    """The store was written in another format version; nothing was changed."""


class StoreCorrupt(StoreUnreadable):
    """A checksum or the sequence of entries does not hold.  `position` says where, 0 = meta."""

    def __init__(self, path: str, position: int, what: str) -> None:
        self.position = position
        super().__init__(f"{path}: {what} (position {position})")


class StoreFailed(StoreError):
    """A commit failed, so nobody knows what is on disk: the member must stop and reopen.

    LMDB itself would go on after a failed data sync and lose the middle of the sequence.
    """


class StoreStuck(StoreError):
    """The disk does not answer: the store's thread waits for it, so nothing may touch the store."""


class StoreFull(StoreFailed):
    """The store reached the size limit that it was opened with."""
