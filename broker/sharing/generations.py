"""Generations of a shared store: each leader works in its own data directory.

    DIR/generation.000007        the data directory of the leader with token 7, complete
    DIR/generation.000008.new    one that is being copied from it
    DIR/generation.000006.gone   one that is being removed

Two processes never write one file. A former leader that was stopped in the middle of a commit, and
continues later, writes into its own generation, which nobody reads any more. A new leader copies
the newest complete generation. That holds everything ever confirmed: a leader confirms only in a
complete generation, and a copy begins only when no former leader can confirm any more.

Such a process may write the store's files while they are copied. LMDB leaves the pages of the last
commit alone until the next but one is written, and each commit changes one of the first two pages,
by a number that only rises. If these are the same before and after the copy, the copy has all of
the commit that they name. The journal only grows until such a commit. If it is unchanged as well,
it has everything confirmed after that commit, and belongs to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import struct
import time
from pathlib import Path
from typing import NamedTuple

from store.errors import NO_SPACE, NoSpace, StoreFailed, StoreMissing
from store.files.durable_files import explain, sync_directory, sync_file
from store.journal import JOURNAL_NAME, content
from store.lmdb_environment import DATA_NAME

_NAME = re.compile(r"generation\.(\d{6,})(\.new|\.gone)?")
_FICLONE = 0x40049409
_CHUNK_BYTES = 16 << 20
_TRIES, _PAUSE_S = 20, 0.1
_META_BYTES = 4096
_NOT_COPIED = frozenset(
    ("memberlog", "owner.lock", "lock.mdb", "reserve", "pages", "ring.trace", "lease")
)
"""Files of one process, or created anew; the member log is shared by all generations."""
_WORD = struct.Struct("<I")
_LAST_PAGE = struct.Struct("<Q")
_MAGIC = 0xBEEFC0DE
_MAGIC_AT, _PAGE_SIZE_AT, _LAST_PAGE_AT = 16, 40, 136
"""In the page of LMDB's format 1: `mm_magic`, `mm_dbs[0].md_pad`, `mm_last_pg`."""


class _State(NamedTuple):
    """The parts that each commit to a store changes: the journal, or the pages that name LMDB's
    last commit."""

    journal: bytes
    pages: tuple[bytes, bytes]


def generation_path(directory: Path, number: int) -> Path:
    """Return the data directory of the leader with this token."""
    return directory / f"generation.{number:06d}"


def newest_complete(directory: Path) -> int:
    """Return the newest complete generation; 0: there is none."""
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return max((int(match[1]) for match in found if match and not match[2]), default=0)


def newest_number(directory: Path) -> int:
    """Return the highest number of a generation, complete or not: no later leader may have it."""
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return max((int(match[1]) for match in found if match), default=0)


def source_for(directory: Path, known: int) -> int:
    """Return the generation to copy; 0: none. `known`: one that was complete, according to a lease.

    Raises StoreMissing, NotWritable.
    """
    try:
        newest = newest_complete(directory)
    except OSError as error:
        raise explain(error, directory) from error
    if newest < known:
        raise StoreMissing(
            f"{generation_path(directory, known)} is named by the lease and is not there: bring it "
            "back (is the file system mounted?), as nothing else holds what was confirmed; or give "
            "another --shared-store, which begins empty"
        )
    return newest


def make_generation(directory: Path, number: int, source: int) -> Path:
    """Create a generation as a copy of another one, or empty if that is 0; return its path.

    Raises NoSpace, StoreFailed and NotWritable; the source is unchanged.
    """
    path, fresh = generation_path(directory, number), directory / f"generation.{number:06d}.new"
    origin = generation_path(directory, source)
    try:
        if source:
            fresh.mkdir(0o700)
            _copy_tree(origin, fresh)
        else:
            fresh.mkdir()
        sync_directory(fresh)
        fresh.rename(path)
        sync_directory(directory)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if error.errno in NO_SPACE:
            raise NoSpace(str(directory), _tree_bytes(origin) if source else 0) from error
        raise explain(error, path) from error
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return path


def remove_former(directory: Path, source: int, own: int, served: int = 0) -> None:
    """Remove the generations before `source`, and those before `own` that were never complete.

    `served`: the last one that a leader is known to have served from. It is kept as well, because
    nobody may have been able to open the copies made of it since.
    Each is renamed first: a broker that lost its lease may still be making a copy, and could
    complete it by name while half of its content is removed. Nothing from `own` on is touched.
    Raises OSError.
    """
    for path in list(directory.iterdir()):
        if match := _NAME.fullmatch(path.name):
            unfinished, number = bool(match[2]), int(match[1])
            if number < own and (unfinished or (number < source and number != served)):
                gone = directory / f"generation.{match[1]}.gone"
                shutil.rmtree(path if path == gone else path.rename(gone))


def _copy_tree(source: Path, target: Path) -> None:
    """Copy with the modes; `target` exists, and is its owner's alone until it has its content."""
    for path in sorted(source.iterdir()):
        copy = target / path.name
        if path.name in _NOT_COPIED or path.name.endswith(".new"):
            continue
        if path.is_dir():
            copy.mkdir(0o700)
            _copy_tree(path, copy)
            sync_directory(copy)
        elif path.name == DATA_NAME:
            copy_store_files(source, target)
        elif path.name == JOURNAL_NAME and (source / DATA_NAME).exists():
            continue  # copied with LMDB's file
        elif path.is_file():
            _copy(path, copy, path.stat().st_size)
            sync_file(copy)
    target.chmod(_mode(source.stat()))


def copy_store_files(source: Path, target: Path) -> None:
    """Copy LMDB's file, and the journal, of a store that another process may be writing.

    Raises OSError, and StoreFailed if it is written too fast.
    """
    file, waiting = source / DATA_NAME, source / JOURNAL_NAME
    for _ in range(_TRIES):
        before = _state(source)
        if before.journal:
            _copy(waiting, target / JOURNAL_NAME, len(before.journal))
        _copy(file, target / DATA_NAME, _used_bytes(before.pages))
        if _state(source) == before:
            if before.journal:
                sync_file(target / JOURNAL_NAME)
            sync_file(target / DATA_NAME)
            return
        time.sleep(_PAUSE_S)  # its writer looks for a later token now and then, and stops
    raise StoreFailed(
        f"{file} was written each time that it was copied, {_TRIES} times: a former leader still "
        "commits to it; end that broker, or start this one again"
    )


def _state(store: Path) -> _State:
    """Read the journal before LMDB: records that leave the journal are in LMDB."""
    return _State(content(store), _meta_pages(store / DATA_NAME))


def _meta_pages(path: Path) -> tuple[bytes, bytes]:
    with path.open("rb", buffering=0) as file:
        first = _checked(file.read(_META_BYTES))
        file.seek(_page_size(first))
        return first, _checked(file.read(_META_BYTES))


def _checked(page: bytes) -> bytes:
    """Raises OSError. Of a page of zeros nothing would be copied, and an empty store begin."""
    if len(page) < _META_BYTES or _WORD.unpack_from(page, _MAGIC_AT)[0] != _MAGIC:
        raise OSError(errno.EIO, "the store's file is cut short or damaged")
    return page


def _page_size(first: bytes) -> int:
    return int(_WORD.unpack_from(first, _PAGE_SIZE_AT)[0])


def _used_bytes(pages: tuple[bytes, bytes]) -> int:
    """Where the pages of the last commit end; allocated space behind that need not be copied."""
    last = max(int(_LAST_PAGE.unpack_from(page, _LAST_PAGE_AT)[0]) for page in pages)
    return (last + 1) * _page_size(pages[0])


def _copy(source: Path, target: Path, size: int) -> None:
    """Make `target` hold the first `size` bytes: shared with `source` if the file system can do
    that, which takes no time and no space, otherwise copied. Permissions are the same."""
    with (
        source.open("rb", buffering=0) as old,
        open(target, "wb", buffering=0, opener=_private) as new,
    ):
        os.fchmod(new.fileno(), _mode(os.fstat(old.fileno())))
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            _copy_bytes(old.fileno(), new.fileno(), size)
        if os.fstat(new.fileno()).st_size > size:
            os.ftruncate(new.fileno(), size)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode)


def _copy_bytes(old: int, new: int, size: int) -> None:
    done = 0
    while done < size:
        length = min(_CHUNK_BYTES, size - done)
        try:
            copied = os.copy_file_range(old, new, length, done, done)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            copied = 0
        if not copied:  # some file systems say so without an error
            copied = os.pwrite(new, os.pread(old, length, done), done)
        if not copied:
            return  # it is shorter than that
        done += copied


def _tree_bytes(path: Path) -> int:
    """The size of its files, as far as a later leader has not removed them."""
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for one in path.rglob("*"):
            size += one.stat().st_size if one.is_file() else 0
    return size
