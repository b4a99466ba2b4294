"""A process that ends between the renames of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import swap


class Crash(Exception):
    """The process ends here."""


@contextmanager
def crash_behind(renames: int) -> Iterator[None]:
    """What is done in here ends when it wants to rename once more."""
    done: list[Path] = []
    rename = swap._rename

    def crashing(old: Path, new: Path) -> None:
        if len(done) == renames:
            raise Crash
        rename(old, new)
        done.append(new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "_rename", crashing)
        with pytest.raises(Crash):
            yield
