"""When messages are born by the machine's time, and what outages count (G17).

Decision: docs/decisions/0008-time-is-the-progress-of-a-majority-of-clocks.md.
"""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import GRACE_US, LAST, LEAD_US, dates_of
from broker.machine.machine import Machine
from broker.machine.state import NOT_YET, Clock
from tests.support.clocks import (
    EXPIRES_IN_A_SECOND,
    SECOND,
    YEAR,
    all_speak,
    long_lived,
    mortal,
    new_message,
    read_all,
)
from tests.support.three_machines import Rig


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


def test_an_outage_counts_after_which_all_members_join_anew(rig: Rig) -> None:
    """Found by the simulator (oracle, seed 12453): what had been born by clocks that were forgotten
    then waited for as long as the outage had been."""
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.activate("b")  # one by one, before any is read
    rig.activate("a", "b", "c")
    rig.time_us = late = start + 20 * SECOND
    new_message(rig, "b")
    for moment in (late, late + 100_000):
        read_all(rig, a=moment, b=moment, c=moment)
    assert rig.machine.reached_us == 20 * SECOND + 100_000
    assert rig.machine.clocks.keys() & {"a", "b", "c", LAST} == {"a", "b", "c"}
    read_all(rig, a=late, b=late, c=late)  # a step of ten seconds each
    rig.tick(late + 999_000)
    assert rig.depth("new") == 1
    rig.tick(late + SECOND + 2 * GRACE_US)
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
    read_all(rig, a=start, c=start)
    rig.activate()
    rig.read("b", start + 20 * SECOND, seen_us=0)
    rig.read("a", start + 20 * SECOND, seen_us=0)
    assert rig.machine.reached_us == 20 * SECOND


def test_what_one_clock_alone_tells_of_an_outage_is_not_believed(rig: Rig) -> None:
    """G17: its date may be wrong, and others would be placed by it: c is eight seconds behind."""
    all_speak(rig)
    long_lived(rig)
    start = rig.time_us
    for name, date in (("c", start - 8 * SECOND), ("b", start), ("a", start)):
        rig.read(name, date)
    rig.activate("a", members=("a", "b"))
    read_all(rig, a=start + SECOND, b=start + SECOND)
    assert rig.machine.reached_us == SECOND


def test_a_clock_of_who_left_places_nobody(rig: Rig) -> None:
    """G17: c is an hour behind, leaves, and a and b join anew."""
    long_lived(rig)
    start = rig.time_us
    read_all(rig, c=start - 3600 * SECOND, b=start, a=start)
    rig.activate(members=("a", "b"))
    rig.activate("a", "b", members=("a", "b"))
    read_all(rig, a=start + SECOND, b=start + SECOND)
    assert rig.machine.reached_us == SECOND


def test_a_lease_lets_time_be_wanted_as_a_message_does(rig: Rig) -> None:
    """G17: ticks count from when the queue came, and the message came later."""
    client = rig.client()
    client.queue("leased", {"x-expires": 60_000})
    start = rig.time_us
    rig.time_us = start + 400_000
    mortal(rig)
    for name in "abc":
        rig.read(name, start + 500_000, seen_us=500_000)
    rig.tick(start + 400_000 + 999_000)
    assert rig.depth("q") == 1
    rig.tick(start + 400_000 + SECOND + GRACE_US)
    assert rig.depth("q") == 0


def test_what_comes_after_something_without_a_date_lives_longer(rig: Rig) -> None:
    """G17: an activation, which has no date, gives back what a dead member's consumer held."""
    client = rig.client("c")
    client.queue("q", {"x-message-ttl": 2000})
    client.consume("q")
    client.publish("q", b"held")
    assert not rig.machine.wants_tick
    rig.time_us, start = 0, rig.time_us
    rig.activate(members=("a", "b"))
    assert rig.machine.wants_tick
    assert not rig.machine.clocks
    rig.time_us = start + 1_500_000
    rig.client().publish("q", b"late")
    read_all(rig, a=start + 1_600_000, b=start + 1_600_000)
    born_us = rig.machine.vhosts["/"].queues["q"].ready[-1][5]
    assert born_us == LEAD_US + GRACE_US


def test_an_outage_counts_for_queues_with_priorities_too(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-max-priority": 3, "x-message-ttl": 60_000})
    client.publish("q", b"m")
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.time_us = 0
    rig.activate("a", "b", "c", cold=True)
    rig.time_us = late = start + 3600 * SECOND
    for _ in range(7):
        read_all(rig, a=late, b=late, c=late)
    assert rig.depth("q") == 0


def test_a_wild_date_of_the_first_makes_nobody_go_early(rig: Rig) -> None:
    """G17: its clock is an hour ahead."""
    rig.time_us, start = rig.time_us + 3600 * SECOND, rig.time_us
    long_lived(rig)
    rig.time_us = start + 500_000
    new_message(rig, "b")
    read_all(rig, a=start + 600_000, b=start + 600_000, c=start + 600_000)
    born_us = rig.machine.vhosts["/"].queues["new"].ready[-1][5]
    assert born_us == LEAD_US + GRACE_US


@pytest.mark.parametrize("read", [False, True])
def test_what_a_member_says_whose_clock_was_set_back_lives_longer(rig: Rig, read: bool) -> None:
    """G17; found by the swarm of clock worlds: it was as old as the last readings."""
    rig.time_us = YEAR
    mortal(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    if read:
        rig.read("b", start - 9 * SECOND)
    rig.time_us = start + 900_000 - 9 * SECOND
    new_message(rig, "b")
    read_all(rig, a=start + SECOND + 800_000, c=start + SECOND + 800_000)
    assert (rig.depth("q"), rig.depth("new")) == (0, 1)
    read_all(rig, a=start + 4 * SECOND, c=start + 4 * SECOND)
    assert rig.depth("new") == 0


def test_one_clock_that_went_back_is_no_majority_with_one_that_was_not_read(rig: Rig) -> None:
    """G17; found by the swarm of clock worlds: all clocks were read anew from where
    the time stood, so six seconds without a primary came as soon as the third clock was read."""
    rig.time_us = YEAR
    all_speak(rig)
    long_lived(rig)
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    rig.activate()
    late = start + 20 * SECOND
    rig.read("a", late)
    rig.read("b", start - 3600 * SECOND)
    assert rig.machine.clocks["a"].shift_us == start
    rig.time_us = late
    new_message(rig, "c")
    for _ in range(3):  # a step of ten seconds each
        read_all(rig, c=late + 500_000, a=late + 500_000)
    assert rig.machine.now_us == 20_500_000
    assert rig.depth("new") == 1
    read_all(rig, c=late + SECOND + GRACE_US, a=late + SECOND + GRACE_US)
    assert rig.depth("new") == 0


def test_what_is_dead_lettered_is_born_by_no_clock_of_a_member(rig: Rig) -> None:
    """Its date is that of a majority, which the member whose tick it was may be years ahead of."""
    long_lived(rig)  # so that the clocks stay known
    client = rig.client()
    client.queue("dead", {"x-message-ttl": 1000})
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    start = rig.time_us
    read_all(rig, a=start, c=start, b=start + YEAR)
    late = start + SECOND + GRACE_US
    read_all(rig, a=late, b=late + YEAR)
    assert rig.machine.vhosts["/"].queues["dead"].ready[-1][5] == SECOND + 2 * GRACE_US


def test_of_five_voters_the_time_may_go_on_to_where_two_clocks_are() -> None:
    """In a view of three, two clocks take it there: who is behind them publishes by them, too."""
    machine = Machine("a")
    members = tuple(c.ActiveMember(name, 1, True) for name in "abcde")
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, tuple("abcde"), "cluster"))
    for name, shift in zip("abcde", (500, 100, 300, 200, 400), strict=True):
        machine.clocks[name] = Clock(shift, 900, NOT_YET)
    assert dates_of(machine).least_us == 200
    machine.voters = ("a", "b", "c", "d", "e=2")
    assert dates_of(machine).least_us == 100, "one of them alone may go on"
    machine.voters = tuple("abcde")
    assert machine.accept_blob("e", machine.sessions["e"].session, 1)
    machine.clocks.pop("e")
    told = dates_of(machine)
    assert (told.least_us, told.fastest_us) == (100, 800), "any that is known, and what it told"


def test_a_use_that_was_held_up_takes_no_lease_back(rig: Rig) -> None:
    """G17: two members read from a queue, and what the one did first is ordered last."""
    long_lived(rig)
    client = rig.client("a")
    client.queue("leased", {"x-expires": 60_000})
    queue = rig.machine.vhosts["/"].queues["leased"]
    start = rig.time_us
    read_all(rig, a=start, b=start, c=start)
    read_all(rig, a=start + 5 * SECOND, b=start + 5 * SECOND, c=start + 5 * SECOND)
    rig.time_us = start + 6 * SECOND
    client.get("leased")
    used_us = queue.used_us
    assert used_us == 6 * SECOND + GRACE_US
    rig.time_us = start + 5 * SECOND + 500_000
    rig.client("b").get("leased")
    assert queue.used_us == used_us
