"""What a power loss may leave of a directory, rebuilt from a record of all writes.

As in ALICE and CrashMonkey, with no more than POSIX promises: a file's content is durable once the
file is synced, a name once its directory is; any part of later changes may be there. Writes that
are not synced are torn at sectors. Name changes in one directory happen in order, and a rename
happens or does not.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

ZEROS = bytes(1 << 16)
WRITE, TRUNCATE, SYNC, CREATE, UNLINK, RENAME, MKDIR, NOTE = range(1, 9)
_HEADER = struct.Struct("<IIQQQII")
SECTOR = 512


class Record(NamedTuple):
    """One operation; paths are absolute, and `sure` means durable on return."""

    kind: int
    sure: bool
    inode: int
    offset: int
    path: str
    other: str
    data: bytes


def read_records(path: Path) -> list[Record]:
    """Return all operations in the order in which they took effect."""
    content = path.read_bytes()
    records: list[Record] = []
    place = 0
    while place < len(content):
        kind, sure, inode, offset, length, one, two = _HEADER.unpack_from(content, place)
        place += _HEADER.size
        ends = (place + one, place + one + two)
        size = length if kind == WRITE else 0
        texts = content[place : ends[0]].decode(), content[ends[0] : ends[1]].decode()
        data = content[ends[1] : ends[1] + size]
        records.append(Record(kind, bool(sure), inode, offset, *texts, data))
        place = ends[1] + size
    return records


@dataclass
class File:
    """A file's durable content, and what was done to it since; data None: truncated to `offset`."""

    content: bytearray = field(default_factory=bytearray)
    later: list[tuple[bool, int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        for _, offset, data in self.later:
            _apply(self.content, offset, data)
        self.later.clear()


@dataclass
class Folder:
    """A directory's durable names, and what was done to them since: (old name, new name, what)."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    later: list[tuple[str, str, File | Folder | None]] = field(default_factory=list)
    now: dict[str, File | Folder] = field(default_factory=dict)

    def change(self, old: str, new: str, what: File | Folder | None) -> None:
        self.later.append((old, new, what))
        _rename(self.now, old, new, what)

    def sync(self) -> None:
        for change in self.later:
            _rename(self.names, *change)
        self.later.clear()


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    end = offset if data is None else offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset:end] = data


def _rename(
    names: dict[str, File | Folder], old: str, new: str, what: File | Folder | None
) -> None:
    if old:
        names.pop(old, None)
    if new and what is not None:
        names[new] = what


class Disk:
    """A directory as it is written, and the durable part of it. `syncs=False`: nothing is
    ever durable."""

    def __init__(self, root: str, *, syncs: bool = True) -> None:
        self.root, self.syncs = root, syncs
        self.top = Folder()
        self._files: dict[int, File] = {}
        self.notes: list[str] = []

    def take(self, record: Record) -> None:
        """Record one more operation."""
        kind = record.kind
        if kind == NOTE:
            self.notes.append(record.path)
        elif kind in (WRITE, TRUNCATE):
            data = record.data if kind == WRITE else None
            self._file(record).later.append((record.sure and self.syncs, record.offset, data))
        elif kind == SYNC:
            if self.syncs:
                self._synced(record)
        else:
            self._named(record)

    def take_back(self, record: Record) -> None:
        """Undo a write that was the last operation."""
        self._file(record).later.pop()

    @classmethod
    def found(cls, directory: Path) -> Disk:
        """Return a disk on which all the present content of a directory is durable."""
        disk = cls(str(directory))
        disk._find(directory, disk.top)
        return disk

    def _find(self, directory: Path, folder: Folder) -> None:
        for path in directory.iterdir():
            what: File | Folder = Folder()
            if isinstance(what, Folder) and path.is_dir():
                self._find(path, what)
            else:
                what = self._files[path.stat().st_ino] = File(bytearray(path.read_bytes()))
            folder.names[path.name] = folder.now[path.name] = what

    def _file(self, record: Record) -> File:
        return self._files.setdefault(record.inode, File())

    def _synced(self, record: Record) -> None:
        what: File | Folder = self.top
        if record.path != self.root:
            folder, name = self._place(record.path)
            what = self._files[record.inode] if name not in folder.now else folder.now[name]
        what.sync()

    def _named(self, record: Record) -> None:
        folder, name = self._place(record.path)
        if record.kind == UNLINK:
            folder.change(name, "", None)
        elif record.kind == RENAME:
            other, new = self._place(record.other)
            assert other is folder, "a rename between directories is not atomic"
            folder.change(name, new, folder.now[name])
        elif record.kind == MKDIR:
            folder.change("", name, Folder())
        else:
            self._files[record.inode] = File()
            folder.change("", name, self._files[record.inode])

    def _place(self, path: str) -> tuple[Folder, str]:
        *parents, name = path[len(self.root) :].strip("/").split("/")
        folder = self.top
        for parent in parents:
            inner = folder.now[parent]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    # -- after the loss --------------------------------------------------------------------------

    def left(self, choice: Choice) -> dict[str, bytearray | None]:
        """Return what is left: the content of each file by its path, None for a directory."""
        found: dict[str, bytearray | None] = {}
        self._leave(self.top, "", choice, found)
        return found

    def _leave(
        self, folder: Folder, path: str, choice: Choice, found: dict[str, bytearray | None]
    ) -> None:
        names = dict(folder.names)
        for change in folder.later[: choice.names(len(folder.later))]:
            _rename(names, *change)
        for name in sorted(names):
            what = names[name]
            if isinstance(what, Folder):
                found[path + name] = None
                self._leave(what, f"{path}{name}/", choice, found)
                continue
            content = bytearray(what.content)
            for sure, offset, data in what.later:
                if sure:
                    _apply(content, offset, data)
                elif data is None:
                    if choice.names(1):
                        _apply(content, offset, None)
                else:
                    for start, end in choice.sectors(offset, len(data)):
                        _apply(content, offset + start, data[start:end])
            found[path + name] = content


def write(left: dict[str, bytearray | None], target: Path) -> None:
    """Write what is left into the new directory `target`; blocks of zeros are holes."""
    target.mkdir(parents=True)
    for name, content in left.items():
        if content is None:
            (target / name).mkdir()
            continue
        with (target / name).open("wb") as file:
            for start in range(0, len(content), len(ZEROS)):
                block = content[start : start + len(ZEROS)]
                if block != ZEROS:
                    file.seek(start)
                    file.write(block)
            file.truncate(len(content))


def digest(left: dict[str, bytearray | None]) -> bytes:
    """Return a value that is equal if the same is left."""
    hashed = xxhash.xxh3_128()
    for name, content in left.items():
        hashed.update(f"{name} {-1 if content is None else len(content)}\n".encode())
        hashed.update(content or b"")
    return hashed.digest()


class Choice:
    """Which part of the non-durable changes is left: all or none of names and data, or any part."""

    def __init__(self, names: bool | None, data: bool | None, seed: int = 0) -> None:
        self._names, self._data = names, data
        self._random = random.Random(seed)

    def names(self, count: int) -> int:
        """How many of the last name changes are left."""
        if self._names is None:
            return self._random.randint(0, count)
        return count * self._names

    def sectors(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """The parts of a write that are left."""
        if self._data is not None:
            if self._data:
                yield 0, size
            return
        if self._random.random() < 0.5:  # most writes are whole, or not there at all
            if self._random.random() < 0.5:
                yield 0, size
            return
        start = 0
        while start < size:
            end = min(size, start + SECTOR - (offset + start) % SECTOR)
            if self._random.random() < 0.5:
                yield start, end
            start = end


def choices(seed: int) -> list[Choice]:
    """The choices tried at each crash point."""
    return [
        Choice(False, False),
        Choice(True, False),
        Choice(False, True),
        Choice(True, True),
        Choice(None, None, 2 * seed),
        Choice(True, None, 2 * seed + 1),
    ]
