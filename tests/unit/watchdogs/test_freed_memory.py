"""Freed memory is returned to the system in steps (G15: nobody waits for others' purges)."""

import itertools
from collections.abc import Callable

import pytest

from broker.watchdogs.freed_memory import (
    REST_S,
    SLICE_MESSAGES,
    TRIM_MESSAGES,
    TRIM_S_MAX,
    TRIM_S_MIN,
    FreedMemory,
    share_one_heap,
)
from broker.watchdogs.resource_gauge import own_bytes


class Heap:
    """A machine with purged messages, and memory of which a trim returns what was freed."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.resident = messages * 1000
        self.free_bytes = 0
        self.trims: list[int] = []
        self.waiting: list[Callable[[], None]] = []

    @property
    def discarded(self) -> list[object]:
        return [object()] * min(1, self.left)

    def free(self, count: int) -> int:
        freed = min(count, self.left)
        self.left -= freed
        self.free_bytes += freed * 1000
        return freed

    def trim(self) -> None:
        self.trims.append(self.free_bytes)
        self.resident -= self.free_bytes
        self.free_bytes = 0

    def memory(self) -> FreedMemory:
        return FreedMemory(self.trim, lambda: self.resident, self.waiting.append)

    def run_trim(self) -> None:
        self.waiting.pop()()
        assert not self.waiting


def test_purged_messages_are_freed_in_slices_with_trims_between() -> None:
    heap = Heap(100_000)
    memory = heap.memory()
    turns = 0
    while heap.left:
        before = heap.left
        if not memory.slice(heap):
            assert heap.left + SLICE_MESSAGES >= before
            heap.run_trim()
        turns += 1
    assert turns >= 100_000 // SLICE_MESSAGES
    assert max(heap.trims) <= (TRIM_MESSAGES + SLICE_MESSAGES) * 1000
    assert heap.resident == 0
    assert memory.counters["freed_messages"] == 100_000
    assert memory.counters["trimmed_bytes"] == 100_000_000


def test_nothing_more_is_freed_while_a_trim_runs() -> None:
    """Freeing waits for the trim, on the loop's thread."""
    heap = Heap(100_000)
    memory = heap.memory()
    while memory.slice(heap):
        pass
    left = heap.left
    assert not memory.slice(heap)
    assert heap.left == left
    heap.run_trim()
    assert memory.slice(heap)


def test_trims_are_rarer_while_they_yield_nothing() -> None:
    heap = Heap(0)
    memory = heap.memory()
    times: list[float] = []
    for now in range(3000):
        memory.wake(float(now), 0.0)
        if heap.waiting:
            heap.run_trim()
            times.append(float(now))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] == TRIM_S_MIN
    assert gaps == sorted(gaps)
    assert gaps[-1] == TRIM_S_MAX
    heap.free_bytes = heap.resident = 100 << 20
    memory.soon()
    memory.wake(3000.0, 0.0)
    heap.run_trim()
    assert heap.resident == 0
    memory.wake(3000.0 + TRIM_S_MIN, 0.0)
    assert heap.waiting, "it yielded much: there may be more"


def test_memory_is_returned_soon_after_work_ends() -> None:
    """Whatever the pace was while trims yielded nothing."""
    heap = Heap(0)
    memory = heap.memory()
    worked, trims = 0.0, []
    for now in range(1000):
        worked += 0.9 if 500 <= now < 700 else 0.01
        if now == 699:
            heap.free_bytes = heap.resident = 100 << 20
        memory.wake(float(now), worked)
        if heap.waiting:
            heap.run_trim()
            trims.append(now)
    assert not [now for now in trims if 700 <= now < 699 + REST_S], "trims may begin again"
    assert 699 + REST_S in trims
    assert heap.resident == 0
    assert len(trims) < 30, "then trims are rarer again"


def test_a_c_library_without_a_trim_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    share_one_heap()
    memory = FreedMemory()
    heap = Heap(10)
    assert memory.slice(heap)
    memory.wake(1.0, 0.0)
    assert memory.counters["trims"] == 0


def test_the_size_of_this_process_is_known() -> None:
    assert own_bytes() > 1 << 20


@pytest.mark.parametrize("lacks", ["thread", "file"])
def test_where_a_trim_cannot_run_freeing_goes_on(lacks: str) -> None:
    """A process at its limit of threads or files: what was purged was never freed again."""
    heap = Heap(100_000)

    def start(run: Callable[[], None]) -> None:
        if lacks == "thread":
            raise RuntimeError("can't start new thread")
        run()

    def resident() -> int:
        raise OSError(24, "Too many open files")

    memory = FreedMemory(heap.trim, resident, start)
    for _ in range(100):
        memory.slice(heap)
    assert not heap.left
    assert not memory.counters["trims"]
