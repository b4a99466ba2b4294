"""G32: one consumer at a time has messages of a message group, in their order."""

import random
import sys

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.state import BODY
from tests.support.three_machines import STEP_US, Client, Rig
from tests.unit.machine.waiting.message_groups import (
    GROUPS,
    KEPT,
    Judge,
    consume,
    fill,
    seen,
)


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    assert client.queue("q", GROUPS) == c.OK
    return client


# -- declaring -----------------------------------------------------------------------------------


def test_arguments_are_stored_by_their_names(rig: Rig, client: Client) -> None:
    kept: c.Table = {"qpid.group_header_key": "g", "qpid.shared_msg_group": True}
    assert rig.queue().arguments == kept
    assert client.queue("q", kept) == c.OK
    rig.restore()
    assert client.queue("q", {**GROUPS, "qpid.group_header_key": "h"}) == 406


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**GROUPS, "qpid.shared_msg_group": 2}, "a whole number from 0 to 1 is needed"),
        ({"qpid.shared_msg_group": 1}, "qpid.group_header_key says by which header"),
        ({**GROUPS, "qpid.group_header_key": ""}, "of 1 to 255 bytes"),
        ({**GROUPS, "x-max-priority": 3}, "both this and x-max-priority"),
        ({**GROUPS, "x-message-deduplication": True}, "both this and x-message-deduplication"),
        ({**GROUPS, "qpid.last_value_queue": 1}, "both this and qpid.group_header_key"),
        ({**GROUPS, "x-queue-type": "stream"}, "rabbit_stream_queue"),
        ({"qpid.default_msg_group": "d"}, "are one group, which has no name"),
        ({"qpid.default-message-group": "d"}, "are one group, which has no name"),
    ],
)
def test_contradicting_options_are_refused(rig: Rig, given: c.Table, words: str) -> None:
    client = rig.client()
    assert client.queue("one", given) == 406
    assert words in client.error()


# -- delivery -------------------------------------------------------------------------------------


def test_the_holder_of_a_group_gets_its_next_messages(rig: Rig, client: Client) -> None:
    one, two = consume(client, 2), consume(client, 3)
    fill(client, "a1")
    assert seen(one) == ["a1"]
    fill(client, "a2")
    assert (seen(one), seen(two)) == (["a2"], [])
    fill(client, "b1")
    assert seen(two) + seen(one) == ["b1"]
    rig.restore()
    fill(client, "a3")
    assert (seen(one), seen(two)) == (["a3"], [])


def test_a_group_waits_for_its_holder_and_other_messages_pass(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2", "b1", "a3", "c1")
    one = consume(client, 2, 1)
    assert seen(one) == ["a1"]
    two = consume(client, 3, 1)
    assert seen(two) == ["b1"], "the other consumer holds the group of a2"
    two.ack(1)
    assert seen(two) == ["c1"]
    two.ack(2)
    assert seen(two) == []
    assert rig.depth("q") == 2
    rig.restore()
    one.ack(1)
    assert seen(one) + seen(two) == ["a2"], (
        "the group is free: the consumer that waited longest gets it"
    )
    assert rig.depth("q") == 1, "and holds the group now"


def test_an_ack_that_frees_a_group_serves_other_consumers(rig: Rig, client: Client) -> None:
    """The former holder has credit left, and another consumer is next."""
    one, two = consume(client, 2), consume(client, 3)
    fill(client, "a1")
    assert seen(one) == ["a1"]
    one.cancel("t2")
    fill(client, "a2")
    assert (seen(one), seen(two)) == ([], [])
    one.ack(1)
    assert seen(two) == ["a2"]


def test_returned_messages_go_first_and_to_any_consumer(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2")
    one = consume(client, 2)
    assert seen(one) == ["a1", "a2"]
    two = consume(client, 3)
    one.cancel("t2")
    one.nack(2)
    assert seen(two) == [], "the group is still held"
    one.nack(1)
    assert two.deliveries() == [(1, b"a1", True), (2, b"a2", True)]


def test_messages_without_a_group_are_one_group(rig: Rig, client: Client) -> None:
    one, two = consume(client, 2), consume(client, 3)
    fill(client, "-1", "-2")
    assert rig.depth("q") == 0
    assert len(rig.machine.channels[one.session, one.conn, 2].unacked) == 2
    assert seen(two) == []


def test_a_get_holds_its_group_against_all_consumers(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2", "b1")
    client.get("q")
    assert client.got().body == b"a1"  # type: ignore[union-attr]
    client.get("q")
    assert client.got().body == b"b1"  # type: ignore[union-attr]
    client.get("q")
    assert not hasattr(client.got(), "body"), "a2 waits for the holder of a1"
    one = consume(client, 2)
    assert seen(one) == []
    rig.restore()
    client.ack(1)
    assert seen(one) == ["a2"]


def test_a_connection_that_ends_frees_its_groups(rig: Rig, client: Client) -> None:
    other = rig.client("b")
    held = consume(other, 2)
    fill(client, "a1", "a2", "b1")
    one = consume(client, 2)
    assert (rig.depth("q"), seen(one)) == (0, [])
    held.close_channel()
    assert seen(one) == ["a1", "a2", "b1"]


def test_without_acks_a_group_is_free_once_sent(rig: Rig, client: Client) -> None:
    one = consume(client, 2, no_ack=True)
    fill(client, "a1")
    two = consume(client, 3)
    one.cancel("t2")
    fill(client, "a2")
    assert seen(two) == []
    one.sent(1)
    assert seen(two) == ["a2"]


def test_credit_of_a_channel_is_shared(rig: Rig, client: Client) -> None:
    client.queue("other")
    one = client.channel(2)
    one.qos(2)
    one.consume("q", "t", 0)
    one.consume("other", "o", 0)
    fill(client, "a1")
    fill(client, "1", queue="other")
    fill(client, "a2", "b1")
    assert rig.depth("q") == 2
    one.ack(2)
    assert seen(one) == ["a2"]
    one.ack(0, multiple=True)
    assert seen(one) == ["b1"]


def test_limits_expiry_and_purges(rig: Rig, client: Client) -> None:
    client.queue("r", {**GROUPS, "x-max-length": 2, "x-overflow": "reject-publish"})
    one = client.channel(2)
    one.consume("r", "t", 1)
    fill(client, "a1", "a2", "a3", queue="r")
    assert rig.depth("r") == 2
    fill(client, "a4", queue="r")
    assert rig.depth("r") == 2
    two = client.channel(3)
    two.consume("r", "u", 1)
    fill(client, "b1", queue="r")
    assert seen(two) == ["b1"], "the message never waits"
    client.purge("r")
    assert not rig.queue("r").groups.free  # type: ignore[union-attr]
    fill(client, "a5", queue="r")
    one.ack(1)
    assert seen(one) == ["a5"]
    client.queue("s", {**GROUPS, "x-max-length": 1, "x-message-ttl": 1000})
    fill(client, "a1", "b1", queue="s")
    assert [message[BODY] for message in rig.queue("s").returned.values()] == [b"b1"]
    rig.pass_time(5_000_000)
    assert not rig.queue("s").groups.by_key  # type: ignore[union-attr]
    client.delete("r")
    one.ack(2)


def test_an_expired_message_of_a_freed_group_dies_at_the_position_of_the_ack(rig: Rig) -> None:
    """G14: a snapshot taken after the ack holds its dead letter, or the queue to which that
    went."""
    client = rig.client()
    client.queue("grave")
    to_grave: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue("q", {**GROUPS, **to_grave})
    fill(client, "a1")
    client.get("q")
    consume(client, 2)
    fill(client, "a2")
    dying = codec.encode_properties({"headers": {"g": "a"}, "expiration": "100"})
    client.publish("q", b"a3", properties=dying)
    rig.pass_time(STEP_US + 1)
    assert rig.depth("q") == 2, "what has expired is not the first"
    client.ack(1)
    assert rig.depth("grave") == 1
    rig.restore()


def test_a_cold_start_keeps_the_groups(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2", "b1", persistent=True)
    fill(client, "a3")
    consume(client, 2, 1)
    rig.activate(*"abc", cold=True)
    assert rig.depth("q") == 3
    rig.machine.invariants()
    again = rig.client()
    one = consume(again, 2, 1)
    two = consume(again, 3, 1)
    assert rig.depth("q") == 1
    assert one.chan != two.chan


def test_a_browser_sees_all_groups(rig: Rig, client: Client) -> None:
    fill(client, "a1", "b1", "a2")
    assert seen(consume(client, 2, 1)) == ["a1"]
    looker = client.channel(3)
    looker.consume("q", "b", 10, {"x-filter-no-consume": True})
    assert seen(looker) == ["b1", "a2"]


def _calls_of_a_publish(rig: Rig, client: Client, text: str) -> int:
    """How many functions a machine in this state calls for the publish, which is delivered."""
    machine, calls = Machine.restore("a", rig.machine.snapshot()), 0
    properties = codec.encode_properties({"headers": {"g": text[0]}})
    command = c.Publish(
        c.PUBLISH, client.conn, client.chan, 0, "", "q", 0, properties, text.encode()
    )

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    machine.apply(machine.position + 1, client.session, 0, command)
    sys.setprofile(None)
    assert [one.body for one in machine.take_effects() if isinstance(one, DeliverEffect)]
    return calls


def test_blocked_groups_cost_nothing_to_messages_that_pass_them(rig: Rig, client: Client) -> None:
    two = consume(client, 3, 1)
    before = _calls_of_a_publish(rig, client, "z")
    two.cancel("t3")
    consume(client, 2, 26)
    fill(client, *(f"{chr(97 + number % 26)}{number}" for number in range(300)))
    assert rig.depth("q") == 300 - 26
    assert two.consume("q", "t3", 1) == c.OK
    assert _calls_of_a_publish(rig, client, "A") <= before + 5


@pytest.mark.turns(3)
@pytest.mark.parametrize("keeps", [False, True], ids=["shared", "kept"])
@pytest.mark.parametrize("seed", range(4))
def test_one_consumer_has_messages_of_each_group_in_order(seed: int, keeps: bool) -> None:
    """Random consumers, prefetches, acks, returns and snapshots; groups of both kinds."""
    chance, rig = random.Random(seed), Rig()
    client, judge, number = rig.client(), Judge(keeps=keeps), 0
    client.queue("q", KEPT if keeps else GROUPS)
    channels: dict[int, Client] = {}
    cancelled: set[int] = set()

    def watch() -> None:
        for one in rig.effects:
            if isinstance(one, DeliverEffect):
                text = bytes(one.body).decode()
                judge.delivered((one.chan, one.delivery_tag), text, one.consumer_tag)

    for step in range(300):
        roll = chance.random()
        mine = [key for key in judge.held if key[0] in channels]
        if roll < 0.4:
            number += 1
            text = f"{chance.choice('abcdef-')}{number}"
            judge.waiting.setdefault(text[0], []).append(number)
            fill(client, text)
        elif roll < 0.5 and len(channels) < 6:
            chan = step + 2
            channels[chan] = client.channel(chan)
            channels[chan].consume("q", f"t{chan}", chance.choice((0, 1, 2, 5)))
        elif roll < 0.88 and mine:
            chan, tag = chance.choice(mine)
            if chance.random() < 0.7:
                del judge.held[chan, tag]
                channels[chan].ack(tag)
            else:
                judge.back((chan, tag))
                channels[chan].nack(tag)
        elif roll < 0.93 and channels:
            chan = chance.choice(list(channels))
            judge.gone(f"t{chan}")
            if roll < 0.9 and chan not in cancelled:
                cancelled.add(chan)
                channels[chan].cancel(f"t{chan}")
            else:
                for key in [key for key in judge.held if key[0] == chan]:
                    judge.back(key)
                channels.pop(chan).close_channel()
        elif roll < 0.96:
            rig.restore()
            continue
        else:
            continue
        watch()
        rig.machine.invariants()
    assert number > 50
