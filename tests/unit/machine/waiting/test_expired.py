"""G15, G17: what has expired is not delivered, however much of it waits before what has not."""

import pytest

from broker.machine import commands as c
from broker.machine.clock.cluster_time import goes_on
from broker.machine.effects import GetEmpty, GetOk
from broker.machine.publishing.runs import is_at_rest
from broker.machine.requests.properties import with_header
from broker.machine.state import CREATED_US, NO_TTL, TTL_US
from tests.support.three_machines import EMPTY, STEP_US, Client, Rig

MORTAL = b"\x01\x00\x03100"
"""Properties of a message that expires after 0.1 s."""
TO_GRAVE: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}


@pytest.fixture
def client(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Client:
    """At most three messages are dropped, or delivered from such a queue, at one position."""
    for room in ("queueing.dispatch", "handlers.consumers"):
        monkeypatch.setattr(f"broker.machine.{room}.EXPIRED_AT_ONCE_MAX", 3)
    client = rig.client()
    client.queue("grave")
    return client


def fill(
    client: Client, expired: int, *live: bytes, arguments: c.Table | None = None, queue: str = "q"
) -> None:
    """A queue with a live message, many that expired behind it, and live ones again."""
    client.queue(queue, arguments)
    client.publish(queue, b"first")
    for _ in range(expired):
        client.publish(queue, b"expired", properties=MORTAL)
    for body in live:
        client.publish(queue, body)
    client.rig.pass_time(STEP_US + 1)
    assert client.rig.depth(queue) == 1 + expired + len(live), "what has expired is not the first"


def step(client: Client) -> list[bytes]:
    """What this channel gets at another position, at which nothing happens."""
    client.qos(0, shared=False)
    return [body for _, body, _ in client.deliveries()]


def go_on(client: Client) -> list[bytes]:
    """What it gets until no work is left."""
    got = []
    while goes_on(client.rig.machine):
        client.rig.restore()
        got += step(client)
    return got


def test_a_consumer_gets_none_of_them(client: Client) -> None:
    """G17: RabbitMQ delivers none either. G15: a position drops so many, and the next goes on."""
    fill(client, 10, b"live", b"last", arguments=TO_GRAVE)
    other = client.channel(2)
    other.consume("q", prefetch=100)
    assert [body for _, body, _ in other.deliveries()] == [b"first"]
    assert client.rig.depth("q") == 10 - 3 + 2
    client.rig.restore()
    client.publish("q", b"new")
    assert other.deliveries() == [], "it goes behind those that wait"
    assert not any(is_at_rest(machine) for machine in client.rig.machines.values())
    assert go_on(other) == [b"live", b"last", b"new"]
    assert client.rig.depth("grave") == 10
    client.publish("q", b"newer")
    assert [body for _, body, _ in other.deliveries()] == [b"newer"]


def test_a_get_gets_none_of_them(client: Client) -> None:
    """It finds nothing rather than what has expired. RabbitMQ would drop all of it at once."""
    fill(client, 6, b"live")
    other = client.channel(2)
    for _ in range(2):
        other.get("q")
    assert isinstance(other.got(), GetEmpty)
    assert client.rig.depth("q") == 1 + 6 - 3 + 1 - 1
    other.get("q")
    got = other.got()
    assert isinstance(got, GetOk)
    assert bytes(got.body) == b"live"


def test_ticks_drop_what_a_get_left(client: Client) -> None:
    fill(client, 10)
    client.get("q")
    client.get("q")
    client.rig.pass_time(STEP_US)
    assert client.rig.depth("q") == 0


def test_deliveries_to_all_who_waited_for_that_are_bounded(client: Client) -> None:
    """G15: consumers came in the meantime, each with credit for everything."""
    fill(client, 30, *[b"live"] * 12)
    client.get("q")
    others = [client.channel(2 + number) for number in range(3)]
    for other in others:
        other.consume("q", prefetch=4)
    most = 0
    while goes_on(client.rig.machine):
        before = client.rig.queue().unacked
        step(client)
        most = max(most, client.rig.queue().unacked - before)
    assert client.rig.queue().unacked == 1 + 3 * 4
    assert most == 3
    assert client.rig.depth("q") == 0


def test_late_queues_take_turns(client: Client) -> None:
    fill(client, 30)
    fill(client, 4, b"live", queue="r")
    other = client.channel(2)
    other.consume("q", "of q", prefetch=100)
    other.consume("r", "of r", prefetch=100)
    assert [step(other) for _ in range(4)] == [[], [], [b"live"], []]
    assert client.rig.depth("q") == 30 - 4 * 3
    assert go_on(other) == []


def test_a_late_queue_does_not_hold_up_another(client: Client) -> None:
    fill(client, 30)
    other = client.channel(2)
    other.queue("r")
    other.consume("q", "of q", prefetch=100)
    other.consume("r", "of r", prefetch=100)
    client.publish("r", b"at once")
    assert [body for _, body, _ in other.deliveries()] == [b"at once"]


def test_credit_of_a_channel_delivers_none_of_them(client: Client) -> None:
    fill(client, 10, b"live")
    other = client.channel(2)
    other.qos(1)
    other.queue("r")
    other.consume("r", "of r")
    client.publish("r", b"other")
    other.consume("q", "of q")
    client.get("q")
    assert client.rig.depth("q") == 11
    other.qos(0)
    assert go_on(other) == [b"live"]


def test_consumers_leave_a_late_queue(client: Client) -> None:
    fill(client, 10, b"live")
    other = client.channel(2)
    other.consume("q", prefetch=100)
    other.cancel()
    assert not goes_on(client.rig.machine)
    client.rig.pass_time(STEP_US)
    assert client.rig.depth("q") == 1


def test_a_late_queue_is_deleted_or_purged(client: Client) -> None:
    fill(client, 10)
    client.consume("q", prefetch=100)
    client.purge("q")
    assert not goes_on(client.rig.machine)
    client.cancel()
    fill(client, 10)
    client.consume("q", prefetch=100)
    client.delete("q")
    assert not goes_on(client.rig.machine)


def test_a_snapshot_has_no_late_queue_that_was_deleted(client: Client) -> None:
    """G14: its turn would have come later than that of another one."""
    other = client.channel(2)
    for queue in ("q", "r"):
        fill(client, 20, queue=queue)
    for queue in ("q", "r"):
        other.consume(queue, f"of {queue}", prefetch=100)
    step(client)
    assert next(iter(client.rig.machine.late.values())) is client.rig.queue("q")
    client.delete("r")
    client.rig.restore()
    assert go_on(other) == []


@pytest.mark.parametrize("arguments", [{}, {"qpid.group_header_key": "g"}])
def test_a_late_queue_that_is_full_refuses(client: Client, arguments: c.Table) -> None:
    """A new message would have to wait, because the consumers get others first."""
    late_and_full(client, arguments)
    client.publish("q", b"new", no=1)
    assert [one.ack for one in client.confirms()] == [False]


def late_and_full(client: Client, arguments: c.Table) -> None:
    fill(client, 20, b"live", arguments={**arguments, "x-overflow": "reject-publish"})
    limit: c.Table = {"pattern": "^q$", "definition": {"max-length": 5}}
    assert client.rig.define("policy", "/", "p", limit) == (201, "")
    client.consume("q", prefetch=100)
    assert client.rig.depth("q") > 5


def test_a_letter_waits_for_a_late_queue_that_is_full(client: Client) -> None:
    """G31: no consumer takes it at once."""
    strategy: c.Table = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    way: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    source = client.channel(2)
    source.queue("source", strategy | way)
    source.publish("source", b"letter")
    source.get("source")
    late_and_full(client, {})
    source.nack(1, requeue=False)
    letters = client.rig.queue("source").letters
    assert letters is not None
    assert len(letters.returned) + len(letters.ready) == 1
    go_on(client)
    client.rig.pass_time(2_000_000)
    assert len(letters.returned) + len(letters.ready) == 0


def test_groups_that_wait_behind_it_are_served_later_too(client: Client) -> None:
    fill(client, 10, b"live", arguments={"qpid.group_header_key": "g"})
    other = client.channel(2)
    other.consume("q", prefetch=100)
    client.publish("q", b"new", properties=with_header(EMPTY, "g", "a"))
    assert other.deliveries() == []
    assert go_on(other) == [b"live", b"new"]


def test_in_a_group_too_it_has_expired_when_its_time_is_over(client: Client) -> None:
    client.queue("q", {"qpid.group_header_key": "g"})
    client.consume("q", prefetch=1)
    for _ in range(2):
        client.publish("q", b"held, and next", properties=with_header(EMPTY, "g", "a"))
    client.publish("q", b"expired", properties=with_header(MORTAL, "g", "b"))
    (message,) = [one for one in client.rig.queue().returned.values() if one[TTL_US] != NO_TTL]
    rest_us = message[CREATED_US] + message[TTL_US] - client.rig.machine.now_us
    client.rig.pass_time(rest_us)
    assert client.rig.machine.now_us == message[CREATED_US] + message[TTL_US]
    client.get("q")
    assert isinstance(client.got(), GetEmpty)


@pytest.mark.parametrize("more", [{}, {"qpid.shared_msg_group": True}])
def test_a_group_that_passes_others_delivers_none_of_them(client: Client, more: c.Table) -> None:
    """G17: the first message of the queue waits for the holder of its group, and is alive."""
    grouped = {name: with_header(EMPTY, "g", name) for name in "abc"}
    mortal = {name: with_header(MORTAL, "g", name) for name in "abc"}
    client.queue("q", {"qpid.group_header_key": "g", **more, **TO_GRAVE})
    holder = client.channel(2)
    holder.consume("q", prefetch=1)
    for _ in range(2):
        client.publish("q", b"held, and next", properties=grouped["a"])
    for _ in range(5):
        client.publish("q", b"expired", properties=mortal["b"])
    client.publish("q", b"live", properties=grouped["b"])
    client.publish("q", b"expired", properties=mortal["c"])
    client.rig.pass_time(STEP_US + 1)
    assert client.rig.depth("q") == 8
    client.get("q")
    assert isinstance(client.got(), GetEmpty)
    assert client.rig.depth("q") == 5
    other = client.channel(3)
    other.consume("q", prefetch=10)
    assert [body for _, body, _ in other.deliveries()] + go_on(other) == [b"live"]
    assert client.rig.depth("grave") == 6
    assert client.rig.depth("q") == 1


def test_holders_of_groups_have_the_same_turns_at_a_restored_member(client: Client) -> None:
    """G14: a snapshot has the order of consumers, and not in which order they got something."""
    of = {name: with_header(EMPTY, "g", name) for name in "abx"}
    client.queue("q", {"qpid.group_header_key": "g", "qpid.shared_msg_group": True})
    client.publish("q", b"held by a get", properties=of["x"])
    client.get("q")
    client.publish("q", b"alive", properties=of["x"])
    for _ in range(20):
        client.publish("q", b"expired", properties=with_header(MORTAL, "g", "x"))
    others = [client.channel(2 + number) for number in range(2)]
    for name, other in zip("ab", others, strict=True):
        other.consume("q", prefetch=2)
        for _ in range(2):
            client.publish("q", b"of its group", properties=of[name])
            assert len(other.deliveries()) == 1
    for other in others:
        other.ack(2)
    client.rig.pass_time(STEP_US + 1)
    client.ack(1)
    assert client.rig.queue().number in client.rig.machine.late
    for name in "ba":
        client.publish("q", b"third", properties=of[name])
    client.rig.restore()
    got = []
    while goes_on(client.rig.machine):
        step(client)
        got += [number for number, other in enumerate(others) if other.deliveries()]
    assert got == [1], "the credit of the other one was for the group that the get let go"
