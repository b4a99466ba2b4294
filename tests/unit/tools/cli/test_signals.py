"""Signals that end a command, sent by the test to itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from tools.cli.signals import ended_by, held_back

TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


def test_a_signal_ends_the_block_and_the_old_handlers_return() -> None:
    before = signal.getsignal(TERM)
    done: list[str] = []

    def block() -> None:
        with ended_by(TERM):
            try:
                signal.raise_signal(TERM)
            finally:
                done.append("cleaned up")

    with pytest.raises(SystemExit) as ended:
        block()
    assert (ended.value.code, done) == (143, ["cleaned up"])
    assert signal.getsignal(TERM) == before


def test_a_deferred_signal_is_delivered_afterwards() -> None:
    done: list[str] = []

    def block() -> None:
        with ended_by(TERM), held_back(TERM):
            signal.raise_signal(TERM)
            done.append("the whole block")

    with pytest.raises(SystemExit):
        block()
    assert done == ["the whole block"]


def test_a_second_signal_ends_a_block_that_may_hang() -> None:
    done: list[str] = []

    def block() -> None:
        with ended_by(TERM), held_back(TERM, insisting=True):
            signal.raise_signal(TERM)
            done.append("after the first")
            signal.raise_signal(TERM)
            done.append("after the second")

    with pytest.raises(SystemExit):
        block()
    assert done == ["after the first"]


def handler_of(came: list[int]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that records each signal."""
    return lambda number, _: came.append(number)


def test_a_handler_set_in_the_block_stays() -> None:
    before, came = signal.getsignal(USR1), list[int]()
    try:
        with held_back(USR1):
            signal.raise_signal(USR1)
            signal.signal(USR1, handler_of(came))
        assert came == [USR1]
        signal.raise_signal(USR1)
        assert came == [USR1, USR1]
    finally:
        signal.signal(USR1, before)


def test_other_threads_get_no_signals() -> None:
    done = []

    def work() -> None:
        with held_back(TERM):
            done.append("here")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert done == ["here"]
