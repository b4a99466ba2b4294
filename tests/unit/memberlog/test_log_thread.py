"""The thread that writes a member log: what a disk does to it, and what the loop sees."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.memberlog.log_thread import LogThread
from broker.memberlog.reader import read_segment
from broker.memberlog.records import Durable
from broker.memberlog.segment_file import SegmentFile, Step
from broker.memberlog.segments import segments_in
from broker.memberlog.writer import LogWriteFailed
from store.commit_queue import SPACE_RETRY_S

LONG_S = 20.0


class Disk:
    """Stands between all segments and their files; it may hang or fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lets_through, self.error = threading.Event(), 0
        self.reached = threading.Event()
        self.lets_through.set()
        carry_out = SegmentFile.carry_out

        def slowly(file: SegmentFile, steps: list[Step]) -> list[Path]:
            self.reached.set()
            assert self.lets_through.wait(LONG_S)
            if self.error:
                raise OSError(self.error, "as wished")
            return carry_out(file, steps)

        patch.setattr(SegmentFile, "carry_out", slowly)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def run(
    directory: Path, scene: Callable[[LogThread], Awaitable[None]], size: int = 1 << 20
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await scene(LogThread(directory, "prod", "c1", "a", 1, lambda: 1, loop, size))

    asyncio.run(main())


def positions(directory: Path) -> list[int]:
    return [
        entry.record.position
        for path in segments_in(directory)
        for entry in read_segment(path.read_bytes(), path.name)
        if isinstance(entry.record, Durable)
    ]


def test_unflushed_records_are_not_waited_for(tmp_path: Path) -> None:
    """A failed member flushes nothing more, and stops without delay."""

    async def scene(log: LogThread) -> None:
        log.append(Durable(1))
        log.flush()
        log.append(Durable(2))
        assert await log.settled(LONG_S)
        assert positions(tmp_path) == [1]
        assert await log.closed_within(LONG_S)
        assert positions(tmp_path) == [1, 2]

    run(tmp_path, scene)


def test_a_hanging_disk_does_not_block_the_loop(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        told: list[int] = []
        mark = 0
        log.on_written = lambda: told.append(log.written)
        disk.lets_through.clear()
        began = asyncio.get_running_loop().time()
        for position in range(1, 6):
            log.append(Durable(position))
            mark = log.flush()
        assert log.written < mark == log.next_lsn
        assert not await log.settled(0.01)
        lag = log.lag()
        assert lag.waiting == 5
        assert lag.bytes > 0
        assert began <= lag.since <= asyncio.get_running_loop().time()
        assert not told
        assert not positions(tmp_path)
        disk.lets_through.set()
        assert await log.settled(LONG_S)
        assert log.written == mark == told[-1]
        assert not log.lag().waiting
        assert positions(tmp_path) == [1, 2, 3, 4, 5]
        assert await log.closed_within(LONG_S)

    run(tmp_path, scene)


def test_the_loop_is_woken_only_for_waiters(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        told: list[int] = []
        waits: list[bool] = []
        sign = asyncio.Event()

        def on_written() -> None:
            told.append(log.written)
            sign.set()

        log.on_written, log.awaited = on_written, lambda: bool(waits)
        log.append(Durable(1))
        mark = log.flush()
        await asyncio.to_thread(_until, lambda: log.written == mark)
        assert not told
        waits.append(True)
        log.append(Durable(2))
        mark = log.flush()
        while told[-1:] != [mark]:
            sign.clear()
            await asyncio.wait_for(sign.wait(), LONG_S)
        assert await log.closed_within(LONG_S)

    run(tmp_path, scene)


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_records_that_gather_meanwhile_are_written_at_once(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        disk.lets_through.clear()
        disk.reached.clear()
        log.append(Durable(0))
        log.flush()
        assert await asyncio.to_thread(disk.reached.wait, LONG_S)
        for position in range(1, 40):
            log.append(Durable(position))
            log.flush()
        disk.lets_through.set()
        assert await log.settled(LONG_S)
        assert log.counters["writes"] == 2
        assert await log.closed_within(LONG_S)

    run(tmp_path, scene)
    assert positions(tmp_path) == list(range(40))


def test_an_error_is_reported_once_and_nothing_follows(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        told: list[str] = []
        log.on_failed = lambda error: told.append(str(error))
        disk.error = errno.EIO
        log.append(Durable(1))
        log.flush()
        assert not await log.settled(LONG_S)
        disk.error = 0
        assert told == [f"{log.path}: as wished"]
        log.append(Durable(2))
        with pytest.raises(LogWriteFailed):
            log.flush()
        with pytest.raises(LogWriteFailed):
            await log.closed_within(LONG_S)

    run(tmp_path, scene)
    assert not positions(tmp_path)


def test_a_disk_that_never_answers_is_not_waited_for(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        disk.lets_through.clear()
        log.append(Durable(1))
        log.flush()
        assert not await log.closed_within(0.01)
        disk.lets_through.set()

    run(tmp_path, scene)


def test_segments_are_reported_when_they_are_whole(tmp_path: Path, disk: Disk) -> None:
    async def scene(log: LogThread) -> None:
        whole: list[Path] = []
        log.closed = whole.append
        first = log.path
        disk.lets_through.clear()
        for position in range(100):
            log.append(Durable(position))
            log.flush()
        assert log.path == first, "a decided segment is not there yet"
        assert not whole
        disk.lets_through.set()
        assert await log.settled(LONG_S)
        segments = segments_in(tmp_path)
        assert len(segments) > 3
        assert whole == segments[:-1]
        assert log.path == segments[-1]
        assert await log.closed_within(LONG_S)

    run(tmp_path, scene, size=400)
    assert positions(tmp_path) == list(range(100))


def test_a_log_whose_thread_has_just_failed_is_not_closed_in_order(
    tmp_path: Path, disk: Disk
) -> None:
    """The loop sees that the thread has ended before it gets the word of it."""

    async def scene(log: LogThread) -> None:
        disk.error = errno.EIO
        log.append(Durable(1))
        log.flush()
        log._thread.join(LONG_S)
        with pytest.raises(LogWriteFailed) as failed:
            await log.closed_within(LONG_S)
        assert failed.value.number == errno.EIO

    run(tmp_path, scene)


def test_a_full_disk_is_waited_for_except_by_a_closed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G21. First the reserve is given up; any other error ends the log at once."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    reserve = [True]

    async def scene(log: LogThread) -> None:
        full = OSError(errno.ENOSPC, "No space left on device")
        log._give_up_reserve = lambda: bool(reserve) and reserve.pop()
        assert not log._wait_for_space(OSError(errno.EIO, "as wished"))
        assert reserve
        assert log._wait_for_space(full)
        assert (slept, log.full) == ([], "")
        assert log._wait_for_space(full)
        assert slept == [SPACE_RETRY_S]
        assert "No space left" in log.full
        log.append(Durable(1))
        log.flush()
        await log.settled(LONG_S)
        assert log.full == ""
        assert await log.closed_within(LONG_S)
        assert not log._wait_for_space(full)

    run(tmp_path, scene)
