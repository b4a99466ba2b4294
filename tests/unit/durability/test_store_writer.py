"""A checkpoint in slices: short turns, little in memory, and the disk sets the pace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

from broker.durability.store_writer import AHEAD_BYTES_MAX, SLICE_S, CheckpointWriter
from store.commit_queue import CheckpointJob

CHUNK = bytes(256 * 1024)


class Bench:
    """A loop whose time is counted in steps: each look at the clock costs a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0
        self.errors: list[Exception] = []
        self.taken: list[bytes] = []
        self.checkpoint = CheckpointJob(1, int, threading.Condition())

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def run(
        self, steps: Iterator[bytes], until: Callable[[CheckpointWriter], bool]
    ) -> CheckpointWriter:
        async def whole() -> CheckpointWriter:
            loop = asyncio.get_running_loop()
            slices = CheckpointWriter(loop, steps, self.checkpoint, self.errors.append, self.clock)
            async with asyncio.timeout(5):
                while not until(slices):  # noqa: ASYNC110  (a clock of its own)
                    await asyncio.sleep(0)
            slices.cancel()
            return slices

        return asyncio.run(whole())


def test_a_slice_takes_a_few_steps_and_lets_others_work() -> None:
    bench = Bench()
    turns: list[float] = []

    def steps() -> Iterator[bytes]:
        for number in range(12):
            turns.append(bench.now)
            yield CHUNK if number % 3 else b""

    slices = bench.run(steps(), lambda _: bench.checkpoint.complete)
    assert slices.bytes == 8 * len(CHUNK)
    assert len(bench.checkpoint.take()[0]) == 8, "pauses are not written"
    assert bench.now > len(turns) * SLICE_S / 2, "several slices"


def test_no_more_is_packed_than_the_disk_takes() -> None:
    bench = Bench()

    def endless() -> Iterator[bytes]:
        while True:
            yield CHUNK

    slices = bench.run(endless(), lambda s: s.bytes >= AHEAD_BYTES_MAX and bench.now > 0.1)
    assert slices.bytes == AHEAD_BYTES_MAX
    assert not bench.checkpoint.complete


def test_a_failure_is_told_and_ends_it() -> None:
    bench = Bench()

    def broken() -> Iterator[bytes]:
        yield CHUNK
        raise ZeroDivisionError

    bench.run(broken(), lambda _: bool(bench.errors))
    assert isinstance(bench.errors[0], ZeroDivisionError)
    assert not bench.checkpoint.complete
