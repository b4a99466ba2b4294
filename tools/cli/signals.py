"""Signals that end a command: it cleans up as at any other end, and never stops mid-step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by(*signals: signal.Signals) -> Iterator[list[int]]:
    """Turn each of the signals into SystemExit inside the block, so that `finally` and `with` clean
    up; the exit status is the one that a shell reports for that signal. Gives the statuses of those
    that came, for a library that puts an error of its own in the place of SystemExit."""
    came: list[int] = []

    def leave(number: int, frame: object) -> None:
        came.append(128 + number)
        sys.exit(came[0])

    kept = {one: signal.signal(one, leave) for one in signals}
    try:
        yield came
    finally:
        for one, handler in kept.items():
            signal.signal(one, handler)


@contextmanager
def held_back(*signals: signal.Signals, insisting: bool = False) -> Iterator[None]:
    """Make each of the signals wait until the block has ended. Outside the main thread, which alone
    gets signals, do nothing.

    With `insisting` only the first one waits: a second one can end a block that hangs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        before = kept[signal.Signals(number)]
        if came and insisting and callable(before):
            came.clear()
            before(number, frame)
        else:
            came.append(number)

    kept = {one: signal.getsignal(one) for one in signals}
    for one in signals:
        signal.signal(one, keep)
    try:
        yield
    finally:
        for one, handler in kept.items():
            if signal.getsignal(one) is keep:  # else the block set one to stay
                signal.signal(one, handler)
        for number in came:
            signal.raise_signal(number)
