"""The time of a message between distant members: measured for each message, in hops."""

from __future__ import annotations

import statistics

import pytest

from tests.bench.ringturns.distance import measured, row

FEW = 40


@pytest.mark.parametrize("rate", [0, 100])
def test_every_message_is_timed(rate: int) -> None:
    sent = measured(0.001, "b", rate, FEW)
    assert len(sent.ordered) == len(sent.confirmed) == FEW
    assert all(a < b for a, b in zip(sent.ordered, sent.confirmed, strict=True))
    assert min(sent.ordered) > 0.002  # to another member, and back


def test_distance_counts() -> None:
    near, far = (statistics.median(measured(far, "c", 0, FEW).ordered) for far in (0.0, 0.002))
    assert far - near > 0.0039


def test_a_row_has_all_columns() -> None:
    assert row(1.0, "c", 0, FEW).split()[:3] == ["1.0", "apart", "one"]
