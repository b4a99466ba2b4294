"""Pins of files: how they were when a check listed them, whatever their writers do meanwhile.

Members append to their logs, compress closed segments and drop old ones.  A pinned file stays open,
so its bytes are there when its name is gone, and is read up to the size that it had.  What reads
segments reads them by this module.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")
OTHER_FILES = 256
"""So many a process may open besides those that it pins."""


class Pin(NamedTuple):
    """By which name a file can be opened again, and up to where it is read."""

    where: str
    size: int
    inode: int


_pins: dict[str, Pin] = {}  # of this process


def opened(path: Path) -> BinaryIO:
    """Open a file, also one whose name is gone since it was pinned."""
    pin = _pins.get(str(path))
    if pin is not None:
        with suppress(OSError):  # on another machine it is not there, or names another file
            if os.stat(pin.where).st_ino == pin.inode:
                return open(pin.where, "rb")
    return open(path, "rb")


def bytes_of(path: Path) -> bytes:
    """Return what is in a file, of a pinned one what was there."""
    with opened(path) as file:
        return file.read(size_of(path))


def size_of(path: Path) -> int:
    pin = _pins.get(str(path))
    return path.stat().st_size if pin is None else pin.size


def by_pins(work: Callable[[T], Iterator[R]]) -> Callable[[T], Iterator[R]]:
    """Return the same work, for other processes, where it reads by the pins of this one."""
    return partial(_work_by, dict(_pins), work)


def _work_by(pins: Mapping[str, Pin], work: Callable[[T], Iterator[R]], tasks: T) -> Iterator[R]:
    with _reading_by(pins):
        yield from work(tasks)


@contextmanager
def _reading_by(pins: Mapping[str, Pin]) -> Iterator[None]:
    """Read these files by their pins."""
    before = dict(_pins)
    _pins.update(pins)
    try:
        yield
    finally:
        _pins.clear()
        _pins.update(before)


@contextmanager
def pinned(paths: Sequence[Path]) -> Iterator[None]:
    """Pin files that are there; FileNotFoundError where one has gone.

    Where a process may not have so many files open, the others are only read up to their size.
    """
    files: list[int] = []
    pins: dict[str, Pin] = {}
    places = _places_for(len(paths))
    try:
        for path in paths:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stat = os.fstat(file)
            pins[str(path)] = Pin(str(path), stat.st_size, stat.st_ino)
            if len(files) < places:
                files.append(file)
                pins[str(path)] = pins[str(path)]._replace(where=f"/proc/{os.getpid()}/fd/{file}")
            else:
                os.close(file)
        with _reading_by(pins):
            yield
    finally:
        for file in files:
            os.close(file)


def _places_for(wanted: int) -> int:
    """Return how many of so many files may be open at a time, with a name for others to open."""
    if not Path("/proc/self/fd").is_dir():
        return 0
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (limit, most) and limit < wanted + OTHER_FILES:
        limit = min(wanted + OTHER_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    return wanted if limit == resource.RLIM_INFINITY else max(limit - OTHER_FILES, 0)
