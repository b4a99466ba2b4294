"""Time in the machine: whose clock counts, how far, and when none is wanted (G17).

Decision: docs/decisions/0008-time-is-the-progress-of-a-majority-of-clocks.md.
"""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import ASTRAY_KEPT_US, GRACE_US, LEAD_US, STEP_US_MAX
from broker.machine.machine import Machine
from broker.machine.state import NOT_YET
from tests.support.clocks import (
    EXPIRES_IN_A_SECOND,
    SECOND,
    YEAR,
    all_speak,
    long_lived,
    mortal,
    read_all,
)
from tests.support.three_machines import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_clock_that_jumps_years_ahead_expires_nothing(rig: Rig) -> None:
    """G17."""
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    for step in range(1, 9):
        read_all(rig, a=start + YEAR, b=start + step * 100_000, c=start + step * 100_000)
    assert rig.machine.now_us == 800_000
    assert rig.depth("q") == 1
    rig.time_us = start + YEAR
    late = rig.client("a")
    late.publish("q", b"from the wild one", properties=EXPIRES_IN_A_SECOND)
    born_us = rig.machine.vhosts["/"].queues["q"].ready[-1][5]
    assert born_us == 800_000 + LEAD_US + GRACE_US, "its own messages live a little longer, no more"
    read_all(rig, b=start + SECOND, c=start + SECOND)
    assert rig.depth("q") == 1
    read_all(rig, b=start + 4 * SECOND, c=start + 4 * SECOND)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("says", ["stands", "goes back", "is years behind from the first"])
def test_one_clock_does_not_hold_the_time(rig: Rig, says: str) -> None:
    """G17."""
    mortal(rig)
    start = rig.time_us
    first = start if says != "is years behind from the first" else 5
    read_all(rig, a=first, b=start, c=start)
    for step in range(1, 11):
        wrong = first if says != "goes back" else max(0, start - step * SECOND)
        read_all(rig, a=wrong, b=start + step * 100_000, c=start + step * 100_000)
    assert rig.depth("q") == 0


def test_what_date_a_clock_shows_does_not_matter(rig: Rig) -> None:
    mortal(rig)
    dates = {"a": 5, "b": YEAR, "c": 40 * YEAR}
    read_all(rig, **dates)
    read_all(rig, **{name: date + 999_000 for name, date in dates.items()})
    assert rig.machine.now_us == 999_000
    assert rig.depth("q") == 1
    read_all(rig, **{name: date + SECOND for name, date in dates.items()})
    assert rig.depth("q") == 0


def test_two_members_of_three_are_as_slow_as_the_slower(rig: Rig) -> None:
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.activate(members=("a", "b"))
    rig.read("a", start + YEAR)
    assert rig.machine.reached_us is None, "one of two is no majority"
    rig.read("b", start + 900_000)
    assert rig.machine.now_us == 900_000


def test_a_jump_of_the_majority_is_a_run_in_steps(rig: Rig) -> None:
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    read_all(rig, a=start + YEAR, b=start + YEAR)
    assert rig.machine.now_us == STEP_US_MAX
    rig.read("c", start)
    assert rig.machine.now_us == 2 * STEP_US_MAX
    # They are put right before long: time goes on from where it is, not years later.
    read_all(rig, a=start + SECOND, b=start + SECOND)
    now_us = rig.machine.now_us
    read_all(rig, a=start + 2 * SECOND, b=start + 2 * SECOND, c=start + 2 * SECOND)
    assert rig.machine.now_us == now_us + SECOND


def test_time_never_goes_back(rig: Rig) -> None:
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    seen = 0
    for date in (3, 1, 2, 7, 4, 9):
        read_all(rig, a=start + date * SECOND, b=start + date * SECOND)
        assert rig.machine.now_us >= seen
        seen = rig.machine.now_us


def test_a_reading_of_another_epoch_is_out_of_date(rig: Rig) -> None:
    mortal(rig)
    session = rig.machine.sessions["a"].session
    old = c.Tick(c.TICK, rig.machine.epoch, 0, rig.time_us, 0)
    rig.activate()
    assert rig.apply(session, old) == c.IGNORED
    assert "a" not in rig.machine.clocks


def test_a_reading_from_before_the_time_came_to_stand_is_out_of_date(rig: Rig) -> None:
    """G17; found by the simulator (oracle, seed 5170): read before the last message that could
    expire went, and ordered after the next one came, it is as old as both are apart."""
    client = mortal(rig)
    start = rig.time_us
    rig.tick(start)
    old = c.Tick(c.TICK, rig.machine.epoch, rig.machine.rests, start, rig.machine.gone_us)
    client.purge("q")
    rig.time_us = late = start + 500_000
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    for record in list(rig.machine.sessions.values()):
        assert rig.apply(record.session, old) == c.IGNORED
    assert {"a", "b", "c"}.isdisjoint(rig.machine.clocks)
    rig.tick(late + 999_000)
    assert rig.depth("q") == 1
    rig.tick(late + SECOND)
    assert rig.depth("q") == 0


def test_how_often_the_time_came_to_stand_is_part_of_the_state(rig: Rig) -> None:
    client = mortal(rig)
    client.purge("q")
    queue = rig.client()
    queue.queue("leased", {"x-expires": 1000})
    queue.delete("leased")
    assert rig.machine.rests == 2
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    assert rig.machines["d"].rests == 2
    root = rig.machine.root()
    rig.machines["d"].rests = 3
    assert rig.machines["d"].recompute_root() != root
    rig.machines["d"].rests = 2


@pytest.mark.parametrize("dates", ["the same date", "another date"])
def test_a_first_reading_that_was_held_up_does_not_set_its_clock_ahead(
    rig: Rig, dates: str
) -> None:
    """G17; found by the simulator (broker, seed 165276597173): what waited on both sides of a cut
    link came one side after the other."""
    mortal(rig)
    start = rig.time_us
    other = 0 if dates == "the same date" else YEAR
    for late in range(0, 900_000, 100_000):
        rig.read("c", start + late, seen_us=late)
    for name in "ab":
        for late in range(0, 900_000, 100_000):
            rig.read(name, start + other + late, seen_us=late)
    assert rig.machine.now_us == 800_000
    read_all(rig, a=start + other + 999_000, b=start + other + 999_000)
    assert rig.depth("q") == 1
    read_all(rig, a=start + other + SECOND, b=start + other + SECOND)
    assert rig.depth("q") == 0


def test_a_reading_that_was_held_up_does_not_set_its_clock_ahead(rig: Rig) -> None:
    """G17: by turns, each member's tick is late by half a second."""
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    for step in range(1, 20):
        fresh = step * 500_000
        held_up = "abc"[step % 3]
        for name in "abc":
            late = 500_000 if name == held_up else 0
            rig.read(name, start + fresh - late, seen_us=fresh - late)
        assert rig.machine.now_us <= fresh


def test_who_knows_nothing_of_what_was_reached_is_read_later(rig: Rig) -> None:
    """A tick from before an hour without a primary, or from a link that was cut for long."""
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start)
    read_all(rig, a=start + 3 * SECOND, b=start + 3 * SECOND)
    rig.read("c", start + YEAR, seen_us=0)
    assert "c" not in rig.machine.clocks
    rig.read("c", start + YEAR, seen_us=2 * SECOND)
    assert rig.machine.clocks["c"].shift_us == start + YEAR - 2 * SECOND


def test_one_clock_alone_moves_no_time_while_others_spoke(rig: Rig) -> None:
    """G17: it may be the one that jumps, and the others' ticks are on the way."""
    all_speak(rig)
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start)
    read_all(rig, a=start + YEAR)
    assert rig.machine.reached_us is None
    rig.read("b", start + 100_000, seen_us=100_000)
    assert rig.machine.now_us == 100_000
    assert rig.depth("q") == 1


def test_a_clock_that_was_put_right_counts_again(rig: Rig) -> None:
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start + 50 * SECOND, b=start, c=start)
    for moment in range(start + SECOND, start + 3 * SECOND + ASTRAY_KEPT_US, SECOND):
        assert rig.machine.clocks["a"].shift_us == start + 50 * SECOND
        read_all(rig, b=moment, c=moment, a=moment)  # a was 50 s ahead, and is right now
    assert rig.machine.clocks["a"].shift_us == start
    read_all(rig, b=moment + SECOND, c=moment + SECOND, a=moment + SECOND)
    assert rig.machine.clocks["a"].astray_us == NOT_YET


def test_time_that_is_behind_the_clocks_asks_for_ticks(rig: Rig) -> None:
    """Found by the simulator (mixed, seed 8031): two clocks jumped by hours, a tick a second."""
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    assert not rig.machine.catches_up
    read_all(rig, a=start + 3600 * SECOND, b=start + 3600 * SECOND)
    assert rig.machine.catches_up
    for _ in range(3600 * SECOND // STEP_US_MAX):
        read_all(rig, a=start + 3600 * SECOND)
    assert not rig.machine.catches_up


def test_a_joiner_is_read_anew_and_holds_nothing_up(rig: Rig) -> None:
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.activate(members=("a", "b"))
    read_all(rig, a=start + 100_000, b=start + 100_000)
    rig.activate("c")  # it joins, and says nothing until it has the state
    read_all(rig, a=start + 500_000, b=start + 500_000)
    assert rig.machine.now_us == 500_000
    rig.read("c", start + YEAR)
    assert rig.machine.clocks["c"].shift_us == start + YEAR - 500_000


def test_clocks_are_part_of_the_state(rig: Rig) -> None:
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start + 3, c=start)
    read_all(rig, a=start + 100_000, b=start + YEAR)
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    assert rig.machines["d"].clocks == rig.machine.clocks
    assert rig.machines["d"].reached_us == rig.machine.reached_us
    read_all(rig, a=start + SECOND, b=start + YEAR, c=start + SECOND)
    assert rig.depth("q") == 0


def test_a_queue_that_is_consumed_from_has_no_deadline(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-expires": 1000})
    assert rig.machine.wants_tick
    client.consume("q")
    assert not rig.machine.wants_tick
    client.cancel()
    assert rig.machine.wants_tick
    client.delete("q")
    assert not rig.machine.wants_tick


def test_only_messages_that_can_expire_want_ticks(rig: Rig) -> None:
    client = mortal(rig)
    client.publish("q", b"immortal")
    rig.tick(rig.time_us + SECOND)
    assert rig.depth("q") == 1
    assert not rig.machine.wants_tick


def test_how_long_nothing_is_due(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-message-ttl": 60_000})
    client.publish("q", b"m")
    rig.tick(rig.time_us)
    assert rig.machine.due_in_us == 60 * SECOND
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    assert rig.machine.due_in_us == SECOND + GRACE_US
    rig.tick(rig.time_us + 2 * SECOND)
    assert rig.depth("q") == 2, "it waits behind the first"
    assert rig.machine.due_in_us == 58 * SECOND
    client.get("q")
    assert rig.machine.due_in_us <= 0, "what is at the head now may be dead already"
