"""Durable files and names: syncing, atomic replacement, and what their errors mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from store.errors import BROKEN, NO_SPACE, NotWritable, StoreError, StoreMissing, broken, failed


def explain(error: OSError, path: Path) -> StoreError:
    """Map an operating system error to the class that names the remedy."""
    if error.errno in BROKEN:
        return broken(f"{path}: {error.strerror}", error.errno)
    if error.errno in NO_SPACE:
        return failed(str(path), error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotWritable(f"{path} cannot be written: {error.strerror}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return StoreMissing(f"{path}: {error.strerror}")
    return StoreError(f"{path}: {error.strerror}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; an fsync of a file does not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make a file durable that its writer did not sync."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content durably: after an error either the old or the new content is there.

    Raises OSError.
    """
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
