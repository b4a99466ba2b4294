"""A member's clock: when it ticks, and what it claims (G17).

Decision: docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md.
"""

from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import AHEAD_US_MAX
from broker.machine.state import Clock, Span
from broker.timers.ticker import AHEAD_S, GRID_US, LOOK_S_MIN, NEAR_S, TRIP_S_MAX, Clocked, Ticker

SECOND = 1_000_000


class Scripted:
    """What a ticker sees of the machine, and what it sends; nothing is applied by itself."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(
            wants_tick=True, now_us=0, due_in_us=60 * SECOND,
            clocks={}, horizon_us=0, spans=[], last_other=0, last_tick=0,
        )  # fmt: skip
        self.history = SimpleNamespace(position=1)
        self.sent: list[c.Tick] = []
        self.now = 5.0
        self.core = SimpleNamespace(
            replica=SimpleNamespace(machine=self.machine, history=self.history),
            me=SimpleNamespace(name="a"),
            primary=SimpleNamespace(has_caught_up=True),
            serving=True,
            submit=self.sent.extend,
            flush=lambda: None,
        )
        self.ticker = Ticker(cast("Clocked", self.core), self.now)
        self.turn()
        self.apply()

    def turn(self, *, busy: bool = False) -> float | None:
        return self.ticker.turn(self.now, busy=busy)

    def wait(self, seconds: float, *, busy: bool = False) -> float | None:
        self.now += seconds
        return self.turn(busy=busy)

    def apply(self, *, moves: bool = True) -> None:
        """Apply the last tick at the next position; if `moves`, with those of the other members."""
        last = self.sent[-1]
        self.history.position += 1
        self.machine.last_tick = self.history.position
        self.machine.clocks["a"] = Clock(last.reached_us, last.applied)
        self.machine.horizon_us = max(self.machine.horizon_us, last.ahead_us)
        if moves:
            gone_us = last.reached_us - self.machine.now_us
            self.machine.now_us += gone_us
            self.machine.due_in_us -= gone_us

    def publish(self) -> None:
        """Apply a message published by some member."""
        self.history.position += 1


def test_a_tick_is_sent_when_something_is_due() -> None:
    """And its member asks to be woken at that time."""
    scripted = Scripted()
    scripted.machine.due_in_us = 123_000
    delay_s = scripted.wait(0.02)
    assert delay_s is not None
    assert abs(delay_s - 0.103) < 0.003
    before = len(scripted.sent)
    assert scripted.wait(delay_s - 0.002) is not None
    assert len(scripted.sent) == before
    scripted.wait(0.003)
    assert 0 <= scripted.sent[-1].reached_us - 123_000 < 3_000
    assert scripted.sent[-1].applied == scripted.history.position


def test_otherwise_all_members_tick_at_the_same_machine_times() -> None:
    scripted = Scripted()
    for _ in range(400):
        scripted.wait(0.01)
        if scripted.sent[-1].applied == scripted.history.position:
            scripted.apply()
    reached = [tick.reached_us for tick in scripted.sent[1:]]
    assert 7 <= len(reached) <= 8
    assert all(one % GRID_US < 20_000 for one in reached)


def test_client_messages_find_a_horizon_ahead_of_them() -> None:
    """One tick covers what is sent within a few milliseconds."""
    scripted = Scripted()
    scripted.wait(0.2)
    sent = len(scripted.sent)
    scripted.turn(busy=True)
    assert len(scripted.sent) == sent + 1
    assert scripted.sent[-1].ahead_us > scripted.sent[-1].reached_us
    scripted.now += 0.004
    scripted.apply(moves=False)
    for _ in range(3):
        scripted.wait(0.001, busy=True)
    assert len(scripted.sent) == sent + 1
    scripted.wait(0.1, busy=True)
    assert len(scripted.sent) == sent + 2


def test_a_clock_is_set_back_to_the_horizon_of_an_applied_message() -> None:
    """G17: it might have been beyond that horizon when the message was ordered."""
    scripted = Scripted()
    scripted.wait(0.3)
    horizon_us = scripted.machine.horizon_us
    scripted.publish()
    scripted.turn()
    scripted.wait(0.1, busy=True)
    assert scripted.sent[-1].reached_us == pytest.approx(horizon_us + 100_000, abs=1)


def test_a_former_horizon_counts_for_messages_ordered_under_it() -> None:
    """G17: several items may be applied between two turns."""
    scripted = Scripted()
    scripted.wait(0.3)
    first_us = scripted.machine.horizon_us
    scripted.publish()
    scripted.machine.spans = [Span(scripted.history.position, first_us)]
    scripted.machine.horizon_us = first_us + 200_000
    scripted.machine.last_other = scripted.history.position
    scripted.history.position += 1
    scripted.machine.last_tick = scripted.history.position
    scripted.wait(0.0)
    scripted.wait(0.25, busy=True)
    assert scripted.sent[-1].reached_us == pytest.approx(first_us + 250_000, abs=1)


def test_ticks_alone_set_no_clock_back() -> None:
    scripted = Scripted()
    scripted.wait(0.3)
    scripted.history.position += 1
    scripted.machine.last_tick = scripted.history.position
    scripted.wait(0.1, busy=True)
    assert scripted.sent[-1].reached_us == pytest.approx(400_000, abs=1)


def test_time_in_which_this_member_does_not_serve_does_not_count() -> None:
    """G17."""
    scripted = Scripted()
    scripted.core.serving = False
    scripted.wait(3.0)
    scripted.core.serving = True
    scripted.wait(0.0)
    scripted.wait(0.1, busy=True)
    assert scripted.sent[-1].reached_us == pytest.approx(100_000, abs=1)


def test_a_clock_goes_no_further_than_the_machine_allows() -> None:
    scripted = Scripted()
    scripted.machine.wants_tick = False
    scripted.wait(3600.0)
    scripted.machine.wants_tick = True
    scripted.turn()
    assert scripted.sent[-1].reached_us == AHEAD_US_MAX


def test_a_received_state_restarts_the_clock() -> None:
    """G17: its positions may be of another history, with other horizons."""
    scripted = Scripted()
    scripted.wait(0.4)
    received = SimpleNamespace(
        machine=SimpleNamespace(**{**vars(scripted.machine), "now_us": 100_000, "last_other": 1}),
        history=SimpleNamespace(position=1),
    )
    scripted.core.replica = received
    scripted.wait(0.1)
    scripted.wait(0.05, busy=True)
    assert scripted.sent[-1].applied == 1
    assert scripted.sent[-1].reached_us == pytest.approx(150_000, abs=1)


def test_a_tick_under_way_is_not_repeated_but_a_lost_one_is() -> None:
    scripted = Scripted()
    scripted.machine.due_in_us = 50_000
    scripted.wait(0.1)
    sent = len(scripted.sent)
    for _ in range(9):
        assert scripted.wait(0.1) is None
    assert len(scripted.sent) == sent
    scripted.wait(0.2)
    assert len(scripted.sent) == sent + 1


def test_a_tick_that_was_held_up_moves_the_next_horizon_little_further_ahead() -> None:
    """A pause of the ring says nothing about later trips; a message published under a distant
    horizon would live longer."""
    scripted = Scripted()
    scripted.machine.due_in_us = 50_000
    scripted.wait(0.1)
    scripted.now += 60.0
    scripted.apply()
    scripted.machine.due_in_us = 0
    scripted.wait(0.1)
    last = scripted.sent[-1]
    assert last.ahead_us - last.reached_us <= (1.5 * TRIP_S_MAX + AHEAD_S) * SECOND


def test_a_clock_ahead_of_the_others_does_not_hurry() -> None:
    """It has claimed that its time has come; the others have not."""
    scripted = Scripted()
    scripted.machine.due_in_us = 50_000
    scripted.wait(0.06)
    scripted.apply(moves=False)
    sent = len(scripted.sent)
    for _ in range(30):
        scripted.wait(0.01)
        if scripted.sent[-1].applied == scripted.history.position:
            scripted.apply(moves=False)
    assert len(scripted.sent) <= sent + 4


def test_no_turn_asks_for_another_at_once() -> None:
    """Frequent turns lose no time either. (Regression: each cut off its microseconds.)"""
    scripted = Scripted()
    scripted.wait(0.1)
    for _ in range(2000):
        delay_s = scripted.wait(0.0000004)
        assert delay_s is None or delay_s >= LOOK_S_MIN
    scripted.machine.due_in_us = 1
    assert scripted.wait(0.0) is None, "the last turn is long ago"
    scripted.apply(moves=False)
    delay_s = scripted.wait(NEAR_S / 2)
    assert delay_s is None or delay_s >= LOOK_S_MIN
    assert scripted.sent[-1].reached_us >= 100_790


def test_a_partly_accepted_claim_is_followed_by_the_next_in_time() -> None:
    """G17: after a pause of all voters nobody ticked any more, and nothing expired."""
    scripted = Scripted()
    scripted.wait(1.7)
    last, machine = scripted.sent[-1], scripted.machine
    assert last.reached_us > 3 * GRID_US
    scripted.history.position += 2  # something was ordered before it, under the old horizon
    machine.clocks["a"] = Clock(GRID_US // 5, last.applied)
    machine.now_us = machine.horizon_us = GRID_US // 5
    before = len(scripted.sent)
    for _ in range(40):
        scripted.wait(0.02)
    assert len(scripted.sent) == before + 1
    assert scripted.sent[-1].reached_us < 2 * GRID_US
