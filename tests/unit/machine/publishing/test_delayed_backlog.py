"""G15, G17: a large backlog that is due at once neither makes a position long nor delays others."""

import pytest

from broker.machine.commands import OK
from broker.machine.limits import BODY_PER_UNIT, EXPIRED_PER_TICK_MAX, EXPIRED_WORK
from broker.machine.machine import Machine
from broker.machine.schedule import NEVER_US
from tests.support.three_machines import EMPTY, Client, Rig
from tests.unit.machine.publishing.test_delayed_messages import (
    MS,
    TYPE,
    client_with,
    later,
    properties,
    refusal,
    waiting,
)


def ticks_until(rig: Rig, *, empty: str, full: str) -> int:
    """The number of ticks that publish something before one queue is empty and the other is
    filled."""
    count = 0
    while rig.depth(empty) or not rig.depth(full):
        reached_us = rig.machine.now_us + 300 * MS
        for name in rig.machine.sessions:
            if rig.depth(empty) or not rig.depth(full):
                waited = waiting(rig)
                rig.tick(name, reached_us)
                count += waiting(rig) < waited
    return count


def gains(rig: Rig, queue: str, wanted: int) -> list[int]:
    """How many messages the queue gained at each tick that added any."""
    gained = []
    while rig.depth(queue) < wanted:
        reached_us = rig.machine.now_us + 300 * MS
        for name in rig.machine.sessions:
            before = rig.depth(queue)
            rig.tick(name, reached_us)
            gained.append(rig.depth(queue) - before)
    return [one for one in gained if one]


def test_large_bodies_count_as_work() -> None:
    client = client_with("q")
    large = bytes(BODY_PER_UNIT * 512)
    for _ in range(20):
        later(client, 100, large)
    most = EXPIRED_PER_TICK_MAX * EXPIRED_WORK // 512
    gained = gains(client.rig, "q", 20)
    assert max(gained) <= most
    assert len(gained) >= 3


def test_a_message_that_exceeds_the_work_of_a_tick_is_still_published() -> None:
    client = client_with("q")
    for _ in range(2):
        later(client, 100, bytes(BODY_PER_UNIT * (EXPIRED_PER_TICK_MAX * EXPIRED_WORK + 1)))
    assert gains(client.rig, "q", 2) == [1, 1]


def backlogged(client: Client) -> None:
    """Behind 300 messages of one exchange, one message of another and one that expires
    elsewhere."""
    client.exchange("y", TYPE, {"x-delayed-type": "fanout"})
    client.queue("other")
    client.bind("other", "y")
    for _ in range(300):
        later(client, 100)
    client.publish("k", b"m", "y", properties=properties(110))
    client.queue("e", {"x-message-ttl": 110})
    client.publish("e", b"m")


def test_a_long_backlog_delays_neither_other_exchanges_nor_expiry() -> None:
    client = client_with("q")
    rig = client.rig
    backlogged(client)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    assert ticks_until(rig, empty="e", full="other") == 1
    assert 0 < rig.depth("q") < 300, "the rest is still due"
    rig.machines["c"] = Machine.restore("c", rig.machine.snapshot())
    rig.pass_time(3_000 * MS)
    assert rig.depth("q") == 300
    first, *others = (list(machine.snapshot()) for machine in rig.machines.values())
    assert all(one == first for one in others)


def test_new_large_messages_do_not_put_the_backlog_first_again() -> None:
    """Messages that arrive do not bring the queue back to the front."""
    client = client_with("q")
    rig = client.rig
    large = bytes(BODY_PER_UNIT * EXPIRED_PER_TICK_MAX * EXPIRED_WORK)
    for _ in range(6):
        later(client, 100, large)
    client.queue("e", {"x-message-ttl": 101})
    client.publish("e", b"m")
    number, passed_by = rig.machine.vhosts["/"].queues["e"].number, 0
    while rig.depth("e"):
        reached_us = rig.machine.now_us + 100 * MS
        for name in rig.machine.sessions:
            is_due = rig.machine.expiry.times.get(number, NEVER_US) <= rig.machine.now_us
            rig.tick(name, reached_us)
            passed_by += is_due and rig.depth("e") > 0
            later(client, 60_000)
    assert rig.depth("q") > 0
    assert passed_by == 0


def test_expiry_in_a_long_queue_does_not_delay_other_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.machine.handlers.sessions.EXPIRED_PER_TICK_MAX", 40)
    monkeypatch.setattr("broker.machine.handlers.sessions.EXPIRED_PER_QUEUE_MAX", 10)
    client = Rig().client()
    client.queue("long", {"x-message-ttl": 100})
    client.queue("short", {"x-message-ttl": 101})
    for _ in range(200):
        client.publish("long", b"m")
    client.publish("short", b"m")
    client.rig.pass_time(1)
    while client.rig.depth("long") == 200:
        client.rig.tick("a", client.rig.machine.now_us + 300 * MS)
        client.rig.tick("b", client.rig.machine.now_us + 300 * MS)
    assert client.rig.depth("short") == 0
    assert client.rig.depth("long") > 100


def test_a_refusal_quotes_the_start_of_the_value_in_printable_ascii() -> None:
    client = client_with("q")
    assert later(client, "soon\r\n\x1b[31m\u202e" + "x" * 100_000) == 406
    _, text = refusal(client)
    assert text.isprintable()
    assert text.isascii()
    assert len(text) < 150
    assert "invalid x-delay 'soon??" in text
    again = client.rig.client()
    assert again.publish("k", exchange="x", properties=EMPTY) == OK
