"""A backlog against a plain list: the same messages in the same order, whatever its blocks are."""

from __future__ import annotations

import gc
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.waiting import backlog as backlogs
from broker.waiting.backlog import BLOCK_MESSAGES, Backlog
from broker.waiting.blocks import Block, Packed, Summary

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append",
                "extend",
                "append all",
                "popleft",
                "take",
                "pop",
                "copy",
                "to disk",
                "drop",
                "adopt",
            ]
        ),
        st.integers(1, 9),
    ),
    max_size=30,
)


class FixedPage(NamedTuple):
    """A block on disk."""

    messages: tuple[int, ...]

    def load(self) -> tuple[int, ...]:
        return self.messages

    def found(self) -> tuple[int, ...]:
        return self.messages

    def ask(self) -> int:
        """The page is there."""
        return 0

    @property
    def summary(self) -> Summary:
        return Summary(len(self.messages), 0, 0, 0, persistent=False)

    def packed(self) -> Packed:
        raise AssertionError("nobody hands it on")


OVERFULL = [("append", 1), ("adopt", 4), ("append", 1), ("pop", 2), ("append all", 1)]
"""An adopted block that is larger than others is the end of the queue."""


@example(OVERFULL, [0] * 9)
@given(STEPS, st.lists(st.sampled_from([0, 1, 1, 2, 9, 10, 11]), min_size=9, max_size=9))
def test_it_equals_a_list_used_at_both_ends(steps: list[tuple[str, int]], sizes: list[int]) -> None:
    before = backlogs.BLOCK_MESSAGES, backlogs.BLOCK_BYTES
    backlogs.BLOCK_MESSAGES, backlogs.BLOCK_BYTES = 3, 10
    try:
        _compare(steps, sizes)
    finally:
        backlogs.BLOCK_MESSAGES, backlogs.BLOCK_BYTES = before


def _compare(steps: list[tuple[str, int]], sizes: list[int]) -> None:
    found, expected = Backlog[int](), list[int]()
    copies: list[tuple[Backlog[int], list[int]]] = []
    number = 0
    for what, count in steps:
        if what == "copy":
            copies.append((found, list(expected)))
            found = found.copy()
            continue
        if what == "to disk":
            for block in list(found.blocks)[:count]:
                block.put_on_disk(FixedPage(block.messages()))
            continue
        if what == "drop":
            gone = found.copy()
            dropped = sum(iter(lambda: gone.drop(count), 0))  # noqa: B023
            assert dropped == len(expected)
            assert not gone
            continue
        if what == "take":
            count = min(count, len(expected))
            first, expected = expected[:count], expected[count:]
            assert found.take(count) == first
            continue
        if what == "append all":
            added = list(range(number, number + count))
            expected += added
            number += count
            before = found.copy()
            full = found.append_all(added, sizes[:count])
            again = [one for one in map(before.append, added, sizes) if one is not None]
            assert list(map(tuple, full)) == list(map(tuple, again))
            assert list(map(tuple, found.blocks)) == list(map(tuple, before.blocks))
            continue
        if what == "adopt":
            found.adopt(Block(tuple(range(count))))
            expected.extend(range(count))
            continue
        for _ in range(count):
            if what == "append":
                number += 1
                found.append(number)
                expected.append(number)
            elif what == "extend":
                found.extend(range(number, number + count))
                expected.extend(range(number, number + count))
                number += count
            elif expected:
                taken = found.popleft() if what == "popleft" else found.pop()
                assert taken == expected.pop(0 if what == "popleft" else -1)
            assert len(found) == len(expected)
            assert bool(found) == bool(expected)
            if expected:
                assert found.first == expected[0]
        assert list(found) == expected
        assert [one for part in found.parts() for one in part] == expected
    for other, then in copies:
        assert list(other) == then, "a copy and its original are independent"


def _looked_at(backlog: Backlog[tuple[int, bytes]]) -> list[object]:
    """The objects a copy refers to, and those a full collection visits."""
    deques = [one for one in gc.get_referents(backlog) if isinstance(one, deque)]
    return [one for held in deques for one in held]


def test_neither_copy_nor_collector_visits_the_middle() -> None:
    """A deque of a million messages took 20 ms to copy, and 40 ms in each full collection."""
    backlog = Backlog((number, b"body") for number in range(8 * BLOCK_MESSAGES))
    gc.collect()
    gc.collect()
    for one in (backlog, backlog.copy()):
        found = _looked_at(one)
        assert len(found) <= 2 * BLOCK_MESSAGES + 8, "two ends, and the blocks"
        blocks = [block for block in found if isinstance(block, Block)]
        assert len(blocks) == 7
        inside = [block.messages() for block in blocks]
        assert not any(map(gc.is_tracked, inside)), "it does not look into the blocks"


@pytest.mark.parametrize("count", [0, 1, BLOCK_MESSAGES, 3 * BLOCK_MESSAGES + 1])
def test_it_is_filled_and_emptied(count: int) -> None:
    backlog = Backlog(range(count))
    assert len(backlog) == count
    assert [backlog.popleft() for _ in range(count)] == list(range(count))
    assert not backlog
