"""SIGHUP, which would end a process without a handler: it waits until the broker has one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reading it takes long, and the signal may come meanwhile
    import asyncio


def hold_hang_ups() -> None:
    """Let the signal wait from here on. Call it before the options are read: a change that somebody
    made since, and announced by the signal, is then read as soon as there is a handler."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))


def on_hang_up(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call this at each signal, and for one that waited."""
    loop.add_signal_handler(signal.SIGHUP, call)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
