"""A lagging disk first slows the ring down; then its member leaves.

Decision: docs/decisions/0009-a-disk-that-lags-slows-all-down-then-leaves.md.
"""

from types import SimpleNamespace
from typing import cast

import pytest

from broker.replication.unapplied import Unapplied
from broker.watchdogs.disk_lag import HOLD_S_MAX, HOLD_S_MIN, DiskLag, DurableProgress, PageLag
from store.commit_queue import CommitLag

SECONDS, BYTES = 30.0, 1000
BEAT_S = 0.05


class Bench:
    """A watch that is polled twenty times a second."""

    def __init__(self) -> None:
        self.holds: list[float] = []
        self.watch = DiskLag(SECONDS, BYTES, self.holds.append)
        self.now = 10.0

    def run(self, lag: CommitLag, seconds: float) -> str:
        """The first reason to leave within `seconds` of a constant lag."""
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            reason = self.watch.look(lag, self.now)
            if reason:
                return reason
        return ""


def test_a_disk_that_keeps_up_slows_nothing() -> None:
    bench = Bench()
    assert not bench.run(CommitLag(0, 0, 0.0), 100)
    assert not bench.run(CommitLag(3, 90, bench.now), 2)
    assert bench.holds == []
    assert not bench.watch.alarm


def test_beyond_a_tenth_it_slows_the_ring_in_proportion() -> None:
    bench = Bench()
    for part, hold_s in ((0.11, 0.011), (0.3, 0.03), (0.9, HOLD_S_MAX)):
        bench.run(CommitLag(1, int(part * BYTES), bench.now), BEAT_S)
        assert abs(bench.holds[-1] - hold_s) < 1e-6
        assert "lags" in bench.watch.alarm
    assert bench.watch.counters["throttled"] == 1
    bench.run(CommitLag(0, 0, 0.0), BEAT_S)
    assert bench.holds[-1] == 0.0
    assert not bench.watch.alarm
    assert HOLD_S_MIN < 0.011


def test_beyond_its_limit_of_bytes_it_leaves() -> None:
    bench = Bench()
    reason = bench.run(CommitLag(9, BYTES + 1, bench.now), 1)
    assert "1001 bytes wait" in reason
    assert "--disk-backlog-max" in reason


class View:
    """A primary view, and how far a majority has committed in it."""

    active = True
    position = 7

    def durable_elsewhere(self) -> int:
        return self.position


def test_a_stuck_disk_is_waited_for_while_no_majority_advances() -> None:
    """All disks may hang behind one controller: if members left, none would remain."""
    bench, progress, view = Bench(), DurableProgress(), View()
    assert progress.look(view, bench.now) == 0.0
    bench.now += 1.0
    lag = CommitLag(1, 10, bench.now)

    def run(seconds: float) -> str:
        for _ in range(round(seconds / BEAT_S)):
            bench.now += BEAT_S
            if reason := bench.watch.look(lag, bench.now, progress.look(view, bench.now)):
                return reason
        return ""

    assert not run(3 * SECONDS)
    assert "lags" in bench.watch.alarm
    view.position += 1  # the others go on
    assert "--disk-lag-max" in run(BEAT_S)


def test_nobody_leaves_if_nothing_became_durable_elsewhere_since() -> None:
    """Both may have begun before the same poll; which was first is unknown, so it waits."""
    bench, progress, view = Bench(), DurableProgress(), View()
    assert progress.look(view, bench.now) == 0.0
    view.position += 1
    lag = CommitLag(1, 10, bench.now)
    for _ in range(round(3 * SECONDS / BEAT_S)):
        assert not bench.watch.look(lag, bench.now, progress.look(view, bench.now))
        bench.now += BEAT_S
    view.position += 1
    assert bench.watch.look(lag, bench.now, progress.look(view, bench.now))


def test_outside_a_primary_view_the_others_wait_for_this_member() -> None:
    """It cannot promise; they form a view without it once it has left."""
    progress, view = DurableProgress(), View()
    assert progress.look(view, 10.0) == 0.0
    assert progress.look(view, 15.0) == 5.0
    view.active = False
    assert progress.look(view, 20.0) == progress.look(view, 30.0) == 0.0
    view.active = True
    assert progress.look(view, 40.0) == 0.0


def test_bytes_are_bounded_even_while_nobody_advances() -> None:
    bench = Bench()
    assert bench.watch.look(CommitLag(9, BYTES + 1, bench.now), bench.now, stuck_s=100.0)


def test_a_member_with_a_stuck_disk_leaves_in_time() -> None:
    bench = Bench()
    since = bench.now
    reason = bench.run(CommitLag(1, 1, since), 60)
    assert "does not keep up" in reason
    assert SECONDS < bench.now - since < SECONDS + 1


def test_a_stopped_process_does_not_blame_its_disk() -> None:
    bench = Bench()
    lag = CommitLag(1, 1, bench.now)
    bench.run(lag, 20)
    bench.now += 1000
    assert not bench.run(lag, 29)
    assert bench.run(lag, 2)


def test_work_that_waits_for_a_page_lags_since_this_wait_began() -> None:
    """docs/decisions/0060-applying-waits-for-the-disk.md: a slow disk that advances is no fault."""
    now = [5.0]
    execution = SimpleNamespace(pauses=0)
    unapplied = SimpleNamespace(
        waits_for_disk=False, held_back=[], execution=execution, work=SimpleNamespace(bytes=700)
    )
    lag = PageLag(lambda: cast("Unapplied", unapplied), lambda: now[0])
    assert lag.look() == CommitLag(0, 0, 0.0)
    unapplied.waits_for_disk, execution.pauses = True, 1
    assert lag.look() == CommitLag(1, 700, 5.0)
    now[0] = 9.0
    assert lag.look() == CommitLag(1, 700, 5.0), "since this wait began"
    execution.pauses = 2
    assert lag.look() == CommitLag(1, 700, 9.0), "another wait, though nobody saw the first end"
    now[0] = 10.0
    unapplied.waits_for_disk = False
    assert lag.look() == CommitLag(0, 0, 0.0)


def test_a_disk_that_returns_nothing_is_told_apart() -> None:
    """A lone broker waits for it, and an operator must see for what."""
    bench = Bench()
    began = bench.now
    for _ in range(round(3 * SECONDS / BEAT_S)):
        bench.now += BEAT_S
        pages = CommitLag(1, 70, began)
        assert not bench.watch.look(CommitLag(0, 0, 0.0), bench.now, bench.now - began, pages)
        if bench.now - began < SECONDS / 10 - BEAT_S:
            assert not bench.watch.alarm
    assert "has not given" in bench.watch.alarm
    assert "70 bytes wait" in bench.watch.alarm
    assert bench.watch.counters["unread"] == 1
    assert bench.watch.counters["worst_read_ms"] > 2.9 * SECONDS * 1000
    assert not bench.run(CommitLag(0, 0, 0.0), BEAT_S)
    assert not bench.watch.alarm
    reason = bench.run(CommitLag(1, 1, bench.now), 2 * SECONDS)
    assert "has not given" not in reason
    assert "does not keep up" in reason


def test_if_others_advance_it_leaves_and_says_why() -> None:
    bench, reason = Bench(), ""
    pages = CommitLag(1, 70, bench.now)
    while not reason:
        bench.now += BEAT_S
        reason = bench.watch.look(CommitLag(0, 0, 0.0), bench.now, 0.0, pages)
    assert "does not keep up" in reason
    assert "it has not given back messages" in reason


def test_a_view_waits_for_all_pages_no_longer_than_for_one() -> None:
    """All other members wait too, however many pages it needs."""
    now = [5.0]
    execution = SimpleNamespace(pauses=1)
    unapplied = SimpleNamespace(
        waits_for_disk=True, held_back=["view"], execution=execution, work=SimpleNamespace(bytes=7)
    )
    lag = PageLag(lambda: cast("Unapplied", unapplied), lambda: now[0])
    unapplied.held_back.clear()
    lag.look()
    unapplied.held_back.append("view")
    for pause in range(2, 10):
        now[0] += 1.0
        execution.pauses = pause
        assert lag.look().since == 5.0
    unapplied.held_back.clear()
    now[0] += 1.0
    execution.pauses += 1
    assert lag.look().since == now[0]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (CommitLag(2, 10, 5.0), CommitLag(1, 7, 3.0), CommitLag(3, 17, 3.0)),
        (CommitLag(2, 10, 5.0), CommitLag(0, 0, 0.0), CommitLag(2, 10, 5.0)),
        (CommitLag(0, 0, 0.0), CommitLag(0, 0, 0.0), CommitLag(0, 0, 0.0)),
    ],
)
def test_two_disks_lag_as_the_one_that_waits_longest(
    one: CommitLag, other: CommitLag, both: CommitLag
) -> None:
    """Of one where nothing waits, the time means nothing."""
    assert one.beside(other) == other.beside(one) == both
