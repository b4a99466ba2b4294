"""Files and names that last: what is synced, replaced as a whole, and what their errors mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from store.errors import NotWritable, StoreError, StoreMissing


def explain(error: OSError, path: Path) -> StoreError:
    """Map an error of the operating system to the class that names the remedy."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotWritable(f"{path} cannot be written: {error.strerror}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return StoreMissing(f"{path}: {error.strerror}")
    return StoreError(f"{path}: {error.strerror}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, which no fsync of a file does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make a file durable whose writer did not."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Give a file other content, durably: after an error the old content or the new one is there.

    Raises OSError.
    """
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
