"""When messages are born by the machine's time, and what outages count (decision 8, G17)."""

import pytest

from broker.machine import commands as c
from broker.machine.clock import GRACE_US, LEAD_US
from tests.unit.clock_rig import (
    EXPIRES_IN_A_SECOND,
    SECOND,
    YEAR,
    all_speak,
    long_lived,
    mortal,
    new_message,
    read_all,
)
from tests.unit.machine_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_idle_time_counts_for_nobody(rig: Rig) -> None:
    """Without a deadline nobody ticks, however long; the next message lives its whole life."""
    client = mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    client.purge("q")
    assert not rig.machine.wants_tick
    assert not rig.machine.clocks
    assert rig.read("a", start + SECOND) == c.IGNORED, "one that was under way"
    rig.time_us = late = start + 3600 * SECOND
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    read_all(rig, a=late, b=late, c=late)
    read_all(rig, a=late + 999_000, b=late + 999_000)
    assert rig.depth("q") == 1
    read_all(rig, a=late + SECOND, b=late + SECOND)
    assert rig.depth("q") == 0


def test_a_time_without_a_primary_counts_for_the_old_and_not_for_the_new(rig: Rig) -> None:
    """G17: an hour without a primary, and a message of a client that comes back first."""
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.activate()
    assert rig.machine.reached_us is None
    rig.time_us = late = start + 3600 * SECOND
    new_message(rig, "b")
    while rig.machine.now_us < 3600 * SECOND:
        read_all(rig, a=late, b=late, c=late)
    assert rig.depth("q") == 0
    assert rig.depth("new") == 1
    rig.tick(late + SECOND)
    assert rig.depth("new") == 1
    rig.tick(late + SECOND + GRACE_US)
    assert rig.depth("new") == 0


def test_a_message_that_came_before_the_first_reading_lives_its_whole_life(rig: Rig) -> None:
    """G17: ticks of a second ago are ordered after it."""
    mortal(rig)
    start = rig.time_us
    rig.time_us = start + SECOND
    new_message(rig, "c")
    for moment in range(0, 2 * SECOND, 100_000):
        for name in "abc":
            rig.read(name, start + moment, seen_us=moment)
        assert rig.depth("q") == (moment < SECOND)
        assert rig.depth("new") == 1
    rig.tick(start + 2 * SECOND + GRACE_US)
    assert rig.depth("new") == 0


def test_a_wild_date_before_the_first_reading_is_worth_two_seconds(rig: Rig) -> None:
    mortal(rig)
    start = rig.time_us
    rig.time_us = start + YEAR
    new_message(rig, "c")
    born_us = rig.machine.vhosts["/"].queues["new"].ready[-1][5]
    assert born_us == LEAD_US + GRACE_US


def test_while_a_clock_is_missing_a_message_is_born_at_the_latest_that_dates_tell(rig: Rig) -> None:
    """G17; found by the simulator (oracle, seed 10320): the first clock that was read was placed
    late, what its member published then was as old by it, and the next clocks were placed right."""
    all_speak(rig)
    mortal(rig)
    start = rig.time_us
    rig.time_us = late = start + 900_000
    rig.read("a", late, seen_us=100_000)  # its member applied the first message only just now
    new_message(rig, "a")
    rig.read("b", late, seen_us=900_000)
    rig.read("c", late, seen_us=900_000)
    assert rig.machine.now_us == 900_000
    rig.tick(late + 999_000)
    assert (rig.depth("q"), rig.depth("new")) == (0, 1)
    rig.tick(late + SECOND + GRACE_US)
    assert rig.depth("new") == 0


def test_who_is_read_first_after_an_outage_counts_it_by_its_date(rig: Rig) -> None:
    """Found by the simulator (oracle, seed 2169): placed at what it knew, b stood 20 s behind a, by
    whose clock messages were born, so they lived 20 s longer."""
    all_speak(rig)
    long_lived(rig)
    start = rig.time_us
    rig.read("a", start)
    rig.activate()
    rig.read("b", start + 20 * SECOND, seen_us=0)
    rig.read("a", start + 20 * SECOND, seen_us=0)
    assert rig.machine.reached_us == 20 * SECOND
