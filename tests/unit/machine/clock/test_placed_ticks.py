"""Ticks that name the position they were read at, since version 13 of the machine (G17).

Decision: docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md.
"""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import LIMIT_US_MAX
from broker.machine.clock.horizons import SPANS_MAX
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


def test_a_message_lives_for_its_time_and_no_longer(rig: Rig) -> None:
    """G17."""
    rig.pass_time(5 * SECOND)
    expiring(rig)
    rig.pass_time(SECOND - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_a_tick_says_nothing_of_what_was_ordered_behind_its_position(rig: Rig) -> None:
    """G17: its sender had not applied the message, and its clock may have been anywhere."""
    long_lived(rig)
    read_at = rig.position
    expiring(rig)
    for name in "abc":
        rig.placed_tick(name, SECOND, read_at)
    assert rig.machine.now_us == 0
    assert rig.depth("q") == 1
    tick_all(rig, a=SECOND, b=SECOND)
    assert rig.depth("q") == 0


def test_a_tick_counts_up_to_the_horizon_of_what_its_sender_did_not_know(rig: Rig) -> None:
    """G17."""
    long_lived(rig)
    read_at = rig.position
    rig.placed_tick("a", 0, read_at, ahead_us=300_000)
    expiring(rig)
    assert created_us(rig, "q") == 300_000
    rig.placed_tick("b", 0, rig.position, ahead_us=400_000)
    for name in "abc":
        rig.placed_tick(name, 390_000, read_at)
    assert rig.machine.now_us == 300_000
    tick_all(rig, a=390_000, b=390_000)
    assert rig.machine.now_us == 390_000, "who had applied the message knows better"


def test_ticks_alone_hide_nothing_from_one_another(rig: Rig) -> None:
    """What was read before other ticks counts in full: they create nothing."""
    long_lived(rig)
    read_at = rig.position
    for name in "abc":
        rig.placed_tick(name, 500_000, read_at, ahead_us=510_000)
    assert rig.machine.now_us == 500_000


def test_what_dies_at_a_tick_counts_from_its_horizon(rig: Rig) -> None:
    """G17: a tick at which messages are dead-lettered hides them like any other position."""
    client = rig.client()
    client.queue("dead", {"x-message-ttl": 1000})
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    read_at = rig.position
    tick_all(rig, a=SECOND, b=SECOND)
    assert created_us(rig, "dead") == SECOND
    for name in "abc":
        rig.placed_tick(name, 2 * SECOND, read_at)
    assert rig.machine.now_us == SECOND
    assert rig.depth("dead") == 1
    tick_all(rig, a=2 * SECOND, b=2 * SECOND)
    assert rig.depth("dead") == 0


def test_no_claim_that_is_kept_is_beyond_the_horizon(rig: Rig) -> None:
    """G17: it would count for what is created after it."""
    all_sent_something(rig)
    long_lived(rig)
    rig.tick("a", SECOND)
    expiring(rig)
    assert created_us(rig, "q") == SECOND
    rig.tick("b", SECOND)
    assert rig.machine.now_us == SECOND
    assert rig.depth("q") == 1


def test_one_clock_that_jumps_far_ahead_expires_nothing(rig: Rig) -> None:
    """G17: and makes nothing live for ever."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 10):
        rig.placed_tick("a", WILD_US, rig.position, ahead_us=WILD_US)
        tick_all(rig, b=step * 100_000, c=step * 100_000)
        assert rig.machine.now_us == step * 100_000
    assert rig.depth("q") == 1
    assert rig.machine.horizon_us <= rig.machine.now_us + LIMIT_US_MAX
    tick_all(rig, b=SECOND, c=SECOND)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("wrong", ["stops", "goes back", "does not tick"])
def test_one_clock_does_not_hold_the_time(rig: Rig, wrong: str) -> None:
    """G17."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 11):
        if wrong != "does not tick":
            tick_all(rig, a=50_000 if wrong == "stops" else SECOND // step)
        tick_all(rig, b=step * 100_000, c=step * 100_000)
    assert rig.depth("q") == 0


def test_a_horizon_never_goes_back(rig: Rig) -> None:
    long_lived(rig)
    rig.placed_tick("a", 100_000, rig.position, ahead_us=900_000)
    rig.activate(members=("b", "c"))
    expiring(rig, member="b")
    assert created_us(rig, "q") == 900_000
    tick_all(rig, b=SECOND, c=SECOND)
    assert rig.depth("q") == 1


def test_a_tick_that_is_older_than_the_horizons_that_are_kept_claims_little(rig: Rig) -> None:
    """G17: and it is bounded what the machine keeps of them."""
    client = expiring(rig)
    read_at = rig.position
    for step in range(1, 2 * SPANS_MAX):
        client.publish("q", b"more")
        rig.placed_tick("a", 0, rig.position, ahead_us=step * 1000)
    assert len(rig.machine.spans) == SPANS_MAX
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    for name in "abc":
        rig.placed_tick(name, SECOND, read_at)
    assert rig.machine.now_us == 0
    tick_all(rig, a=SECOND, b=SECOND)
    assert rig.depth("q") == 2 * SPANS_MAX - 1


def test_ticks_of_the_other_version_are_ignored() -> None:
    """One that was under way when the version was raised counts for nothing."""
    rig = Rig(TICKS_NAME_POSITIONS - 1)
    client = expiring(rig)
    assert rig.placed_tick("a", 1000, rig.position) == c.IGNORED
    tick_all(rig, a=200_000, b=100_000, c=100_000)
    horizon_us, now_us = rig.machine.horizon_us, rig.machine.now_us
    session = rig.machine.sessions["a"].session
    upgrade = c.Upgrade(c.UPGRADE, rig.machine.epoch, TICKS_NAME_POSITIONS)
    assert rig.apply(session, upgrade) == c.OK
    assert (rig.machine.horizon_us, rig.machine.now_us) == (horizon_us, now_us)
    assert rig.apply(session, c.Tick(c.TICK, 300_000, 0)) == c.IGNORED
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    client.publish("q", b"new", properties=EXPIRES_IN_A_SECOND)
    assert created_us(rig, "q") == horizon_us
    rig.pass_time(horizon_us + SECOND)
    assert rig.depth("q") == 0


def test_a_tick_below_zero_says_nothing(rig: Rig) -> None:
    expiring(rig)
    for reached, ahead, applied in ((-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        assert rig.placed_tick("a", reached, applied, ahead) == c.IGNORED
    assert not rig.machine.clocks


def test_a_tick_that_names_its_own_position_or_a_later_one_says_nothing(rig: Rig) -> None:
    """Its sender cannot have applied that: its clock would count for whatever comes before it."""
    expiring(rig)
    for ahead in (1, 2, 1000):
        assert rig.placed_tick("a", 100_000, rig.position + ahead) == c.IGNORED
    assert not rig.machine.clocks
    rig.placed_tick("a", 100_000, rig.position)
    assert rig.machine.clocks["a"].reached_us == 100_000
