"""The open file of a member log, and the steps that a writer orders for it. Every step blocks.

The writer packs records and decides where a segment ends; it knows no file. So the steps can be
carried out at once (clients, tools) or by a thread (`log_thread`), in order in either case.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from store.files.durable_files import sync_directory


class Begin(NamedTuple):
    """Create a segment; everything written from here on goes there."""

    path: Path


class Finish(NamedTuple):
    """Close the segment; `sync`: make it and its name durable first."""

    sync: bool


Step: TypeAlias = bytes | Begin | Finish
"""Bytes are appended to the segment."""


class SegmentFile:
    """The segment being written. After an error nothing may follow."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.may_try_again: Callable[[OSError], bool] = lambda error: False
        """Called after an error of which nothing was written; may take its time."""
        self._fd = -1

    def resume(self, path: Path, cut_at: int | None) -> None:
        """Continue a segment; cut off its torn tail, if there is one."""
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if cut_at is not None:
            os.ftruncate(self._fd, cut_at)

    def carry_out(self, steps: list[Step]) -> list[Path]:
        """Carry out all steps; return the segments that were closed. Raises OSError."""
        finished: list[Path] = []
        data: list[bytes] = []
        for step in steps:
            if isinstance(step, bytes):
                data.append(step)
                continue
            self._append(data)
            data = []
            if isinstance(step, Begin):
                self._begin(step.path)
            else:
                self._finish(sync=step.sync)
                finished.append(self.path)
        self._append(data)
        return finished

    def give_up(self) -> None:
        """Close the file as it is."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def discard(self) -> None:
        """Close the file and remove it, because it has no record."""
        if self._fd >= 0:
            self.give_up()
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _append(self, parts: list[bytes]) -> None:
        data = memoryview(b"".join(parts))
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                if not self.may_try_again(error):
                    raise

    def _begin(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        while self._fd < 0:
            try:
                self._fd = os.open(path, flags, 0o640)
            except OSError as error:
                if not self.may_try_again(error):
                    raise
        self.path = path

    def _finish(self, *, sync: bool) -> None:
        fd, self._fd = self._fd, -1
        try:
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        if sync:
            sync_directory(self.path.parent)
