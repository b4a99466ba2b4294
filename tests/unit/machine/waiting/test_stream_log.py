"""The log of a stream compared with a plain list: every message is found, in any kind of block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.waiting import backlog as backlogs
from broker.waiting.backlog import Backlog
from broker.waiting.blocks import Block
from broker.waiting.stream_log import Recent, StreamLog
from tests.properties.test_backlog import FixedPage

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append all", "adopt", "popleft", "take", "to disk", "restore", "of"]
        ),
        st.integers(1, 9),
    ),
    max_size=30,
)


class CountedPage(FixedPage):
    """A block on disk that counts its reads."""

    reads = 0

    def load(self) -> tuple[int, ...]:
        CountedPage.reads += 1
        return self.messages


@pytest.fixture(autouse=True, scope="module")
def _short_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlogs, "BLOCK_MESSAGES", 3)
        yield


@given(STEPS)
def test_any_message_is_found(steps: list[tuple[str, int]]) -> None:
    found, expected = StreamLog[int](), list[int]()
    recent = Recent[int](len, bytes_max=7)
    number = 0
    for what, count in steps:
        if what == "restore":
            found = StreamLog(expected)
        elif what == "of":
            found = StreamLog.of(Backlog(expected))
        elif what == "append all":
            found.append_all(range(number, number + count), [1] * count)
            expected += range(number, number + count)
            number += count
        elif what == "adopt":
            found.adopt(Block(tuple(range(number, number + count))))
            expected += range(number, number + count)
            number += count
        elif what == "take":
            there = min(count, len(expected))
            assert found.take(there) == expected[:there]
            del expected[:there]
        elif what == "to disk":
            for block in list(found.blocks)[:count]:
                block.put_on_disk(FixedPage(block.messages()))
        else:
            for _ in range(count):
                if what == "append":
                    found.append(number)
                    expected.append(number)
                    number += 1
                elif expected:
                    assert found.popleft() == expected.pop(0)
        assert [found.at(index, recent) for index in range(len(found))] == expected
        assert list(found) == expected


def test_a_sequential_reader_finds_its_block_in_memory() -> None:
    """Only a bounded number of blocks is kept."""
    log = StreamLog(range(30))
    for block in log.blocks:
        block.put_on_disk(CountedPage(block.messages()))
    recent = Recent[int](len, bytes_max=6)
    for readers, reads in ((2, 8), (1, 8)):
        CountedPage.reads = 0
        for index in range(3, 27):
            for _ in range(readers):
                assert log.at(index, recent) == index
        assert CountedPage.reads == reads
        assert recent.bytes == 6
    for index in (4, 13, 22, 4):  # readers at three distant places, and room for two blocks
        log.at(index, recent)
    assert CountedPage.reads == 8 + 4
    recent.forget()
    assert not recent.bytes
