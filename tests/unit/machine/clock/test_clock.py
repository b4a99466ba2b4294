"""Time in the machine until version 12: whose clock counts, how far, when none is wanted (G17).

Decision: docs/decisions/0020-messages-expire-late-rather-than-early.md.
"""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import LEAD_US, LIMIT_US_MAX
from broker.machine.machine import Machine
from broker.machine.version import TICKS_NAME_POSITIONS
from tests.support.clocks import (
    EXPIRES_IN_A_SECOND,
    SECOND,
    WILD_US,
    all_sent_something,
    created_us,
    expiring,
    long_lived,
    tick_all,
)
from tests.support.three_machines import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig(TICKS_NAME_POSITIONS - 1)


def test_a_message_lives_for_its_time_and_what_a_clock_may_claim_already(rig: Rig) -> None:
    """G17."""
    rig.pass_time(5 * SECOND)
    expiring(rig)
    rig.pass_time(LEAD_US + SECOND - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_one_clock_that_jumps_far_ahead_expires_nothing(rig: Rig) -> None:
    """G17."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 13):
        tick_all(rig, a=WILD_US, b=step * 100_000, c=step * 100_000)
        assert rig.machine.now_us == step * 100_000
    assert rig.depth("q") == 1
    expiring(rig, "new", "a")
    assert created_us(rig, "new") == rig.machine.now_us + LEAD_US, "nor do its own live longer"
    tick_all(rig, b=LEAD_US + SECOND, c=LEAD_US + SECOND)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("wrong", ["stops", "goes back", "does not tick"])
def test_one_clock_does_not_hold_the_time(rig: Rig, wrong: str) -> None:
    """G17."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 14):
        if wrong != "does not tick":
            tick_all(rig, a=50_000 if wrong == "stops" else 1_000_000 // step)
        tick_all(rig, b=step * 100_000, c=step * 100_000)
    assert rig.depth("q") == 0


def test_two_members_of_three_are_as_slow_as_the_slower(rig: Rig) -> None:
    expiring(rig)
    tick_all(rig, a=100_000, b=100_000, c=100_000)
    rig.activate(members=("a", "b"))
    rig.tick("a", 400_000)
    assert rig.machine.now_us == 100_000, "one of two is no majority"
    rig.tick("b", 250_000)
    assert rig.machine.now_us == 250_000


def test_time_never_goes_back(rig: Rig) -> None:
    long_lived(rig)
    seen = 0
    for reached in (300, 100, 200, 700, 400, 900):
        tick_all(rig, a=reached, b=reached)
        assert rig.machine.now_us >= seen
        seen = rig.machine.now_us
    assert seen == 900


def test_ticks_that_were_held_up_make_nothing_expire_early(rig: Rig) -> None:
    """G17: each of them claims as much as it may, and was sent before the message came."""
    long_lived(rig)
    rig.pass_time(SECOND)
    claimed = SECOND + LEAD_US
    expiring(rig)
    tick_all(rig, a=claimed, b=claimed, c=claimed)
    assert rig.machine.now_us == claimed
    tick_all(rig, a=claimed + 150_000, b=claimed + 299_999, c=claimed + 299_999)
    rig.pass_time(claimed + SECOND - 1 - rig.machine.now_us)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_no_tick_moves_the_time_further_than_a_right_clock_may_be(rig: Rig) -> None:
    all_sent_something(rig)
    long_lived(rig)
    tick_all(rig, a=WILD_US, b=WILD_US, c=WILD_US)
    assert rig.machine.now_us == LEAD_US
    rig.tick("a", WILD_US)
    assert rig.machine.now_us == 2 * LEAD_US


def test_a_member_may_claim_as_much_as_the_limit_that_it_named(rig: Rig) -> None:
    """Of what is created meanwhile the age counts from there."""
    long_lived(rig)
    for name in "abc":
        rig.tick(name, 100_000, limit_us=1_600_000)
    expiring(rig)
    assert created_us(rig, "q") == 1_600_000
    tick_all(rig, a=1_100_000, b=1_100_000, c=1_100_000)
    assert rig.machine.now_us == 1_100_000
    expiring(rig, "new")
    assert created_us(rig, "new") == 1_100_000 + LEAD_US, "a tick without a limit takes it back"


def test_a_limit_is_limited(rig: Rig) -> None:
    """G17: one wrong member makes nothing live for ever."""
    long_lived(rig)
    rig.tick("a", 100_000, limit_us=WILD_US)
    expiring(rig)
    assert created_us(rig, "q") == LIMIT_US_MAX


def test_who_leaves_takes_its_limit_along(rig: Rig) -> None:
    all_sent_something(rig)
    long_lived(rig)
    rig.tick("c", 100_000, limit_us=1_600_000)
    rig.activate(members=("a", "b"))
    assert rig.machine.clocks.keys() == set()
    expiring(rig)
    assert created_us(rig, "q") == LEAD_US


def test_one_clock_alone_moves_no_time_while_others_sent_something(rig: Rig) -> None:
    """G17: it may be the one that jumps, and the others' ticks are on the way."""
    all_sent_something(rig)
    expiring(rig)
    rig.tick("a", LEAD_US)
    assert rig.machine.now_us == 0
    rig.tick("b", 100_000)
    assert rig.machine.now_us == 100_000


def test_a_joiner_holds_nothing_up(rig: Rig) -> None:
    """It sends nothing until it has the state."""
    all_sent_something(rig)
    expiring(rig)
    rig.activate(members=("a", "b"))
    rig.activate("c")
    tick_all(rig, a=200_000, b=200_000)
    assert rig.machine.now_us == 200_000


def test_time_stands_while_nothing_can_expire(rig: Rig) -> None:
    """Nobody ticks then, however long; the next message lives its whole life."""
    client = expiring(rig)
    rig.pass_time(SECOND)
    client.purge("q")
    assert not rig.machine.wants_tick
    under_way = SECOND + LEAD_US
    assert rig.tick("a", under_way) == c.IGNORED, "no majority of the clocks is there"
    assert rig.machine.clocks["a"].reached_us == under_way, "it came back: its sender may go on"
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    rig.pass_time(LEAD_US + SECOND - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("cold", [False, True])
def test_a_time_without_a_primary_does_not_count(rig: Rig, cold: bool) -> None:
    """G17: no majority's clocks are there to count it."""
    client = rig.client()
    client.queue("q", {"x-message-ttl": 1000})
    client.publish("q", b"m")
    rig.pass_time(SECOND)
    rig.activate("a", "b", "c", cold=cold)
    assert rig.machine.now_us == SECOND
    rig.pass_time(LEAD_US - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_clocks_are_part_of_the_state(rig: Rig) -> None:
    expiring(rig)
    tick_all(rig, a=200_000, b=100_000)
    rig.tick("c", 200_000, limit_us=900_000)
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    assert rig.machines["d"].clocks == rig.machine.clocks
    assert rig.machines["d"].horizon_us == rig.machine.horizon_us == 900_000
    rig.pass_time(2 * SECOND)
    assert rig.depth("q") == 0


def test_a_tick_below_zero_says_nothing(rig: Rig) -> None:
    expiring(rig)
    assert rig.tick("a", -1) == c.IGNORED
    assert rig.tick("a", 0, limit_us=-1) == c.IGNORED
    assert not rig.machine.clocks


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
    client = expiring(rig)
    client.publish("q", b"immortal")
    rig.pass_time(LEAD_US + SECOND)
    assert rig.depth("q") == 1
    assert not rig.machine.wants_tick


def test_how_long_nothing_is_due(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-message-ttl": 60_000})
    client.publish("q", b"m")
    rig.pass_time(LEAD_US)
    assert rig.machine.due_in_us == 60 * SECOND
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    assert rig.machine.due_in_us == 60 * SECOND, "it waits behind the first"
    rig.pass_time(2 * SECOND)
    assert rig.depth("q") == 2
    assert rig.machine.due_in_us == 58 * SECOND
    client.get("q")
    assert rig.machine.due_in_us <= 0, "what is at the head now may have expired long ago"


def test_what_is_dead_lettered_is_created_when_it_is(rig: Rig) -> None:
    client = rig.client()
    client.queue("dead", {"x-message-ttl": 1000})
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    rig.pass_time(LEAD_US + SECOND)
    assert created_us(rig, "dead") == SECOND + 2 * LEAD_US


def test_a_horizon_that_comes_nearer_takes_no_lease_back(rig: Rig) -> None:
    """G17: a use counts from the horizon of its moment."""
    client = rig.client()
    client.queue("leased", {"x-expires": 60_000})
    queue = rig.machine.vhosts["/"].queues["leased"]
    rig.tick("a", 100_000, limit_us=SECOND)
    client.get("leased")
    assert queue.used_us == SECOND
    rig.tick("a", 200_000)
    client.get("leased")
    assert queue.used_us == SECOND
