"""The machine's time: whose clock counts, how far it moves time, and when ticks are needed (G17).

Decision: docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md.
"""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import AHEAD_US_MAX
from broker.machine.clock.horizons import SPANS_MAX
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
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
from tests.support.three_machines import EMPTY, Rig


def test_a_message_expires_exactly_at_its_time_to_live(rig: Rig) -> None:
    """G17."""
    rig.pass_time(5 * SECOND)
    expiring(rig)
    rig.pass_time(SECOND - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_a_tick_does_not_age_messages_ordered_after_its_position(rig: Rig) -> None:
    """G17: the sender had not applied the message, so its clock reading says nothing about its
    age."""
    long_lived(rig)
    read_at = rig.position
    expiring(rig)
    for name in "abc":
        rig.tick(name, SECOND, read_at)
    assert rig.machine.now_us == 0
    assert rig.depth("q") == 1
    tick_all(rig, a=SECOND, b=SECOND)
    assert rig.depth("q") == 0


def test_a_tick_counts_up_to_the_horizon_of_items_its_sender_had_not_applied(rig: Rig) -> None:
    """G17."""
    long_lived(rig)
    read_at = rig.position
    rig.tick("a", 0, read_at, ahead_us=300_000)
    expiring(rig)
    assert created_us(rig, "q") == 300_000
    rig.tick("b", 0, rig.position, ahead_us=400_000)
    for name in "abc":
        rig.tick(name, 390_000, read_at)
    assert rig.machine.now_us == 300_000
    tick_all(rig, a=390_000, b=390_000)
    assert rig.machine.now_us == 390_000, "ticks of members that applied it count"


def test_ticks_alone_do_not_limit_one_another(rig: Rig) -> None:
    """Ticks create no messages, so a tick read before other ticks counts in full."""
    long_lived(rig)
    read_at = rig.position
    for name in "abc":
        rig.tick(name, 500_000, read_at, ahead_us=510_000)
    assert rig.machine.now_us == 500_000


def test_a_message_dead_lettered_at_a_tick_ages_from_its_horizon(rig: Rig) -> None:
    """G17: a tick at which messages are dead-lettered limits older ticks as any other position
    does."""
    client = rig.client()
    client.queue("dead", {"x-message-ttl": 1000})
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    read_at = rig.position
    tick_all(rig, a=SECOND, b=SECOND)
    assert created_us(rig, "dead") == SECOND
    for name in "abc":
        rig.tick(name, 2 * SECOND, read_at)
    assert rig.machine.now_us == SECOND
    assert rig.depth("dead") == 1
    tick_all(rig, a=2 * SECOND, b=2 * SECOND)
    assert rig.depth("dead") == 0


def test_a_letter_that_follows_at_a_tick_ages_from_its_horizon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G17: members that had not applied that tick do not know of it."""
    monkeypatch.setattr("broker.machine.publishing.letters.LETTERS_WORK_MAX", 1)
    client = rig.client()
    client.queue("q", {"x-message-ttl": 1000})
    client.queue("source", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    for _ in range(2):
        client.publish("source")
        client.get("source")
    client.nack(0, multiple=True, requeue=False)
    assert rig.depth("q") == 1, "the other letter follows"
    read_at = rig.position
    rig.tick("a", 0, ahead_us=SECOND)
    assert rig.depth("q") == 2
    for name in "abc":
        rig.tick(name, 3 * SECOND, read_at)
    assert rig.machine.now_us == SECOND
    assert rig.depth("q") == 1


def test_no_stored_claim_exceeds_the_horizon(rig: Rig) -> None:
    """G17: otherwise it would age messages that are created after it."""
    all_sent_something(rig)
    long_lived(rig)
    rig.tick("a", SECOND)
    expiring(rig)
    assert created_us(rig, "q") == SECOND
    rig.tick("b", SECOND)
    assert rig.machine.now_us == SECOND
    assert rig.depth("q") == 1


def test_one_clock_that_jumps_far_ahead_expires_nothing(rig: Rig) -> None:
    """G17: nor does it make any message live for ever."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 10):
        rig.tick("a", WILD_US, rig.position, ahead_us=WILD_US)
        tick_all(rig, b=step * 100_000, c=step * 100_000)
        assert rig.machine.now_us == step * 100_000
    assert rig.depth("q") == 1
    assert rig.machine.horizon_us <= rig.machine.now_us + AHEAD_US_MAX
    tick_all(rig, b=SECOND, c=SECOND)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("wrong", ["stops", "goes back", "does not tick"])
def test_one_clock_does_not_hold_back_time(rig: Rig, wrong: str) -> None:
    """G17."""
    all_sent_something(rig)
    expiring(rig)
    for step in range(1, 11):
        if wrong != "does not tick":
            tick_all(rig, a=50_000 if wrong == "stops" else SECOND // step)
        tick_all(rig, b=step * 100_000, c=step * 100_000)
    assert rig.depth("q") == 0


def test_the_horizon_never_goes_back(rig: Rig) -> None:
    long_lived(rig)
    rig.tick("a", 100_000, rig.position, ahead_us=900_000)
    rig.activate(members=("b", "c"))
    expiring(rig, member="b")
    assert created_us(rig, "q") == 900_000
    tick_all(rig, b=SECOND, c=SECOND)
    assert rig.depth("q") == 1


def test_a_tick_older_than_the_stored_horizons_moves_no_time(rig: Rig) -> None:
    """G17: the machine stores a bounded number of horizons."""
    client = expiring(rig)
    read_at = rig.position
    for step in range(1, 2 * SPANS_MAX):
        client.publish("q", b"more")
        rig.tick("a", 0, rig.position, ahead_us=step * 1000)
    assert len(rig.machine.spans) == SPANS_MAX
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    for name in "abc":
        rig.tick(name, SECOND, read_at)
    assert rig.machine.now_us == 0
    tick_all(rig, a=SECOND, b=SECOND)
    assert rig.depth("q") == 2 * SPANS_MAX - 1


def test_a_tick_with_a_negative_number_is_ignored(rig: Rig) -> None:
    expiring(rig)
    for reached, ahead, applied in ((-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        assert rig.tick("a", reached, applied, ahead) == c.IGNORED
    assert not rig.machine.clocks


def test_a_tick_that_names_its_own_or_a_later_position_is_ignored(rig: Rig) -> None:
    """Its sender cannot have applied that position: the clock would age all that comes before
    it."""
    expiring(rig)
    for ahead in (1, 2, 1000):
        assert rig.tick("a", 100_000, rig.position + ahead) == c.IGNORED
    assert not rig.machine.clocks
    rig.tick("a", 100_000, rig.position)
    assert rig.machine.clocks["a"].reached_us == 100_000


def test_one_tick_moves_time_at_most_by_the_allowed_clock_error(rig: Rig) -> None:
    all_sent_something(rig)
    long_lived(rig)
    tick_all(rig, a=WILD_US, b=WILD_US, c=WILD_US)
    assert rig.machine.now_us == AHEAD_US_MAX
    rig.tick("a", WILD_US)
    assert rig.machine.now_us == 2 * AHEAD_US_MAX


def test_with_two_of_three_members_the_slower_clock_counts(rig: Rig) -> None:
    expiring(rig)
    tick_all(rig, a=100_000, b=100_000, c=100_000)
    rig.activate(members=("a", "b"))
    rig.tick("a", 400_000)
    assert rig.machine.now_us == 100_000, "one of two is not a majority"
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


def test_one_clock_does_not_move_time_while_other_members_are_heard(rig: Rig) -> None:
    """G17: it may be the clock that jumps, and the ticks of the others are on their way."""
    all_sent_something(rig)
    expiring(rig)
    rig.tick("a", 300_000)
    assert rig.machine.now_us == 0
    rig.tick("b", 100_000)
    assert rig.machine.now_us == 100_000


def test_a_joining_member_does_not_hold_back_time(rig: Rig) -> None:
    """It sends no ticks until it has the state."""
    all_sent_something(rig)
    expiring(rig)
    rig.activate(members=("a", "b"))
    assert rig.machine.clocks.keys() == set(), "the clock of a member leaves with it"
    rig.activate("c")
    tick_all(rig, a=200_000, b=200_000)
    assert rig.machine.now_us == 200_000


def test_time_stands_still_while_nothing_can_expire(rig: Rig) -> None:
    """No member ticks then, however long that lasts; the next message lives its whole time."""
    client = expiring(rig)
    rig.pass_time(SECOND // 2)
    client.purge("q")
    assert not rig.machine.wants_tick
    under_way = SECOND
    assert rig.tick("a", under_way) == c.IGNORED, "there is no majority of clocks"
    assert rig.machine.clocks["a"].reached_us == under_way, (
        "its sender sees its tick ordered and may send the next"
    )
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    rig.pass_time(under_way + SECOND // 2 - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


@pytest.mark.parametrize("cold", [False, True])
def test_time_without_a_primary_does_not_count(rig: Rig, cold: bool) -> None:
    """G17: no majority of clocks exists to count it."""
    client = rig.client()
    client.queue("q", {"x-message-ttl": 1000})
    client.publish("q", b"m")
    rig.pass_time(SECOND // 2)
    rig.activate("a", "b", "c", cold=cold)
    assert rig.machine.now_us == SECOND // 2
    rig.pass_time(SECOND // 2 - 1)
    assert rig.depth("q") == 1
    rig.pass_time(1)
    assert rig.depth("q") == 0


def test_clocks_are_part_of_the_state(rig: Rig) -> None:
    expiring(rig)
    tick_all(rig, a=200_000, b=100_000)
    rig.tick("c", 200_000, ahead_us=900_000)
    rig.machines["d"] = Machine.restore("d", rig.machine.snapshot())
    assert rig.machines["d"].clocks == rig.machine.clocks
    assert rig.machines["d"].horizon_us == rig.machine.horizon_us == 900_000
    rig.pass_time(2 * SECOND)
    assert rig.depth("q") == 0


def test_a_queue_with_a_consumer_has_no_expiry_deadline(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-expires": 1000})
    assert rig.machine.wants_tick
    client.consume("q")
    assert not rig.machine.wants_tick
    client.cancel()
    assert rig.machine.wants_tick
    client.delete("q")
    assert not rig.machine.wants_tick


def test_a_use_of_a_queue_counts_from_the_horizon(rig: Rig) -> None:
    """G17."""
    client = rig.client()
    client.queue("leased", {"x-expires": 60_000})
    rig.tick("a", 100_000, ahead_us=SECOND)
    client.get("leased")
    assert rig.queue("leased").used_us == SECOND


def test_ticks_are_wanted_only_while_a_message_can_expire(rig: Rig) -> None:
    client = expiring(rig)
    client.publish("q", b"immortal")
    rig.pass_time(SECOND)
    assert rig.depth("q") == 1
    assert not rig.machine.wants_tick


def test_due_in_us_is_the_time_until_the_head_expires(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {"x-message-ttl": 60_000})
    client.publish("q", b"m")
    assert rig.machine.due_in_us == 60 * SECOND
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    assert rig.machine.due_in_us == 60 * SECOND, "it waits behind the first message"
    rig.pass_time(2 * SECOND)
    assert rig.depth("q") == 2
    assert rig.machine.due_in_us == 58 * SECOND
    client.get("q")
    assert rig.machine.due_in_us <= 0, "the new head may have expired long ago"


@pytest.mark.parametrize("shared", [False, True])
def test_a_message_that_expired_behind_another_is_not_delivered(rig: Rig, shared: bool) -> None:
    """As RabbitMQ promises. It dies when it reaches the head."""
    client = rig.client()
    client.queue("dead")
    letters: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.queue("q", {"x-message-ttl": 60_000, **letters})
    for body in (b"first", b"late", b"late", b"second", b"late", b"last"):
        properties = EXPIRES_IN_A_SECOND if body == b"late" else EMPTY
        client.publish("q", body, properties=properties)
    rig.pass_time(2 * SECOND)
    assert rig.depth("q") == 6
    if shared:
        client.qos(1)
    client.consume("q", prefetch=0 if shared else 1)
    got = []
    for tag in (1, 2, 3):
        got += [one.body for one in rig.effects if isinstance(one, DeliverEffect)]
        client.ack(tag)
    assert got == [b"first", b"second", b"last"]
    assert rig.depth("dead") == 3
