"""Errors of a store, with one class for each remedy an operator has.

All of them come from the environment (disk, another process, another release). A caller that
violates the store's contract gets an `AssertionError` instead: that is a bug of this program.
"""

from __future__ import annotations

import errno
import os

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROKEN = (
    errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOMEDIUM, errno.EREMOTEIO,
    errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EUCLEAN,
)  # fmt: skip
"""What a file system answers that became read-only, lost its device or its server, or is damaged.
To start again helps against none of them."""
OWNER = (errno.EACCES, errno.EPERM)
REFUSED = (*BROKEN, *OWNER, errno.ENOENT)
"""The same of a file that was written a moment ago."""
MEND = (
    "the kernel's log (dmesg) says why; repair or mount that file system, then start this member "
    "again: it fetches what it missed"
)

REMEDY = (
    "bring back data.mdb and journal as they were together, or start with --truncate and have "
    "another member give its state"
)


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


class StoreDamaged(StoreUnreadable):
    """The file cannot even be opened: it is no LMDB file, or damaged at its beginning."""


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


class FullMidway(StoreFailed):
    """A commit found no space although it was looked for before: a file system that promises none;
    or there is none for so little that nobody looked before.

    `NoSpace` is what is said where nothing was written, and how much is needed.
    """


class DiskBroken(StoreFailed):
    """The file system takes nothing any more (`BROKEN`), or the store is gone from it."""


class StoreStuck(StoreError):
    """The disk does not respond: the writer thread is blocked in it, so the store is unusable."""


class StoreFull(StoreFailed):
    """The store reached the size limit with which it was opened."""


class DiskFailed(StoreError):
    """The disk does not return the data it was given; the store itself is intact."""


def number_of(error: BaseException) -> int:
    """Return the system's number of an error, which those of LMDB have as text only; 0: none."""
    if isinstance(error, OSError):
        return error.errno or 0
    text = str(error)
    return next((one for one in (*REFUSED, *NO_SPACE) if text.endswith(os.strerror(one))), 0)


def broken(what: str, number: int) -> DiskBroken:
    """Return the error of a file system that takes nothing, with what to do."""
    mend = "check owner and mode there, then start it again" if number in OWNER else MEND
    return DiskBroken(f"{what} ({errno.errorcode[number]}); {mend}")


def failed(where: str, error: BaseException) -> StoreFailed:
    """Return what it means that a write to an open store raised this.  `where` names the file."""
    number = number_of(error)
    text = (error.strerror if isinstance(error, OSError) else "") or str(error) or repr(error)
    what = f"{where}: {text}"
    if number in REFUSED:
        return broken(what, number)
    return FullMidway(f"{what}; free space there") if number in NO_SPACE else StoreFailed(what)


def again(failure: StoreError) -> StoreFailed:
    """Return the failure of earlier for who asks for more."""
    kind = type(failure) if isinstance(failure, StoreFailed) else StoreFailed
    return kind(str(failure))
