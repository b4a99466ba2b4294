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
    """The block ends with a crash at its next rename."""
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
