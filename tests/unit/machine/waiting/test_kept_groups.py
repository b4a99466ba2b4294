"""G34: a message group stays with the consumer that got its first message, while that consumer
lives.
"""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.waiting.groups import KEPT_GROUPS_MAX
from tests.support.three_machines import Client, Rig
from tests.unit.machine.waiting.message_groups import (
    GROUPS,
    KEPT,
    consume,
    fill,
    seen,
)


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    assert client.queue("q", KEPT) == c.OK
    return client


def kept(rig: Rig, queue: str = "q") -> list[str]:
    """The consumers that keep groups, in the order in which they got them."""
    groups = rig.queue(queue).groups
    assert groups is not None
    return [consumer.tag for consumer in groups.kept.values()]


def test_the_argument_is_stored_and_the_queue_differs_from_a_shared_one(
    rig: Rig, client: Client
) -> None:
    assert rig.queue().arguments == KEPT
    assert client.queue("q", {**KEPT, "qpid.shared_msg_group": 0}) == c.OK
    rig.restore()
    assert client.queue("q", GROUPS) == 406
    assert "inequivalent arg 'qpid.shared_msg_group'" in client.error()


def test_a_group_stays_when_all_its_messages_are_settled(rig: Rig, client: Client) -> None:
    one, two = consume(client, 2), consume(client, 3)
    fill(client, "a1")
    assert seen(one) == ["a1"]
    one.ack(1)
    fill(client, "b1")
    assert seen(two) == ["b1"], "this consumer is next"
    fill(client, "a2")
    assert (seen(one), seen(two)) == (["a2"], [])
    rig.restore()
    for _ in range(3):
        fill(client, "b2", "a3")
        two.ack(0, multiple=True)
        one.ack(0, multiple=True)
    fill(client, "a4")
    assert (seen(one), seen(two)) == (["a4"], []), "whichever consumer is next"
    assert kept(rig) == ["t2", "t3"]


def test_a_group_waits_for_its_consumer_and_other_messages_pass(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2", "b1", "a3", "c1")
    one = consume(client, 2, 1)
    assert seen(one) == ["a1"]
    two = consume(client, 3, 1)
    assert seen(two) == ["b1"]
    two.ack(1)
    assert seen(two) == ["c1"]
    two.ack(2)
    assert (seen(two), rig.depth("q")) == ([], 2)
    rig.restore()
    one.ack(1)
    assert (seen(one), seen(two)) == (["a2"], [])


def test_a_group_moves_with_its_waiting_messages_when_its_consumer_ends(
    rig: Rig, client: Client
) -> None:
    other = rig.client("b")
    held = consume(other, 2, 2)
    fill(client, "a1", "a2", "a3", "b1")
    one = consume(client, 2)
    assert seen(one) == ["b1"]
    rig.restore()
    held.close_channel()
    assert seen(one) == ["a1", "a2", "a3"]
    assert kept(rig) == ["t2", "t2"]


def test_the_loss_of_a_member_moves_its_groups(rig: Rig, client: Client) -> None:
    other = rig.client("b")
    consume(other, 2)
    fill(client, "a1", "a2", "b1")
    one = consume(client, 2)
    assert (seen(one), kept(rig)) == ([], ["t2", "t2"])
    del rig.machines["b"]
    rig.activate("b", members=("a", "c"))
    assert one.deliveries() == [(1, b"a1", True), (2, b"a2", True), (3, b"b1", True)]
    restored = rig.queue().groups
    assert restored is not None
    assert all(consumer.channel.key[0] == one.session for consumer in restored.kept.values())


def test_a_cancelled_consumer_keeps_its_groups_until_it_has_settled(
    rig: Rig, client: Client
) -> None:
    """No consumer gets the next message while the last one may still be processed."""
    one, two = consume(client, 2, 1), consume(client, 3)
    fill(client, "a1", "a2")
    one.cancel("t2")
    assert (seen(two), kept(rig)) == ([], [])
    rig.restore()
    one.ack(1)
    assert (seen(two), kept(rig)) == (["a2"], ["t3"])


def test_messages_without_a_group_go_to_any_consumer(rig: Rig, client: Client) -> None:
    one, two = consume(client, 2), consume(client, 3)
    got = []
    for text in ("-1", "-2", "-3"):
        fill(client, text)
        got.append((seen(one), seen(two)))
    assert got == [(["-1"], []), ([], ["-2"]), (["-3"], [])], "in turn"
    rig.restore()
    one.nack(1)
    assert seen(two) == ["-1"]
    assert kept(rig) == []


def test_messages_without_a_group_keep_their_place(rig: Rig, client: Client) -> None:
    fill(client, "-1", "a1", "-2")
    client.get("q")
    assert client.got().body == b"-1"  # type: ignore[union-attr]
    rig.restore()
    one = consume(client, 2)
    assert seen(one) == ["a1", "-2"]
    client.nack(1)
    assert seen(one) == ["-1"]


def test_a_get_holds_a_group_but_does_not_keep_it(rig: Rig, client: Client) -> None:
    fill(client, "a1", "a2")
    client.get("q")
    assert client.got().body == b"a1"  # type: ignore[union-attr]
    one = consume(client, 2)
    assert (seen(one), kept(rig)) == ([], [])
    client.ack(1)
    assert (seen(one), kept(rig)) == (["a2"], ["t2"])
    one.ack(1)
    fill(client, "a3")
    one.cancel("t2")
    client.get("q")
    assert not hasattr(client.got(), "body"), "a3 is still held"


def test_without_acks_a_group_stays_as_well(rig: Rig, client: Client) -> None:
    one, two = consume(client, 2, no_ack=True), consume(client, 3)
    fill(client, "a1")
    one.sent(1)
    fill(client, "b1")
    fill(client, "a2")
    assert (seen(one), seen(two)) == (["a2"], [])
    one.sent(2)
    assert kept(rig) == ["t2", "t3"]


def test_groups_outlive_a_purge_and_an_expiry_but_not_the_queue(rig: Rig, client: Client) -> None:
    client.queue("s", {**KEPT, "x-message-ttl": 1000})
    one = client.channel(2)
    one.consume("s", "t", 1)
    fill(client, "a1", "a2", "-1", "b1", queue="s")
    client.purge("s")
    assert kept(rig, "s") == ["t"], "a group stays, whatever happens to its messages"
    fill(client, "a3", "-2", queue="s")
    rig.restore()
    rig.pass_time(5_000_000)
    assert rig.queue("s").groups.by_key.keys() == rig.queue("s").groups.kept.keys()  # type: ignore[union-attr]
    client.delete("s")
    one.ack(1)


def test_a_cold_start_frees_all_groups(rig: Rig, client: Client) -> None:
    consume(client, 2, 1)
    fill(client, "a1", "a2", "-1", "b1", persistent=True)
    assert kept(rig) == ["t2"]
    rig.activate(*"abc", cold=True)
    assert (rig.depth("q"), kept(rig)) == (4, [])
    one = consume(rig.client(), 2)
    assert seen(one) == ["a1", "a2", "-1", "b1"]


def test_the_number_of_kept_groups_is_bounded(rig: Rig, client: Client) -> None:
    """Groups with the same number are one: they stay together."""
    one, two = consume(client, 2), consume(client, 3)
    machine, by = Machine.restore("a", rig.machine.snapshot()), dict[bytes, int]()
    for number in range(2 * KEPT_GROUPS_MAX):
        body = b"%d" % (number % 1500)
        properties = codec.encode_properties({"headers": {"g": f"customer {number % 1500}"}})
        publish = c.Publish(c.PUBLISH, client.conn, client.chan, 0, "", "q", 0, properties, body)
        machine.apply(machine.position + 1, client.session, 0, publish)
        (sent,) = [one for one in machine.take_effects() if isinstance(one, DeliverEffect)]
        assert by.setdefault(body, sent.chan) == sent.chan, "the group stayed"
        ack = c.Ack(c.ACK, sent.conn, sent.chan, sent.delivery_tag, False)
        machine.apply(machine.position + 1, client.session, 0, ack)
    machine.invariants()
    groups = machine.vhosts["/"].queues["q"].groups
    assert groups is not None
    assert 500 < len(groups.kept) < KEPT_GROUPS_MAX
    assert {*by.values()} == {one.chan, two.chan}
    again = Machine.restore("b", machine.snapshot())
    again.invariants()
    assert list(again.snapshot()) == list(machine.snapshot())
    cancel = c.Cancel(c.CANCEL, one.conn, one.chan, "t2", False)
    position = machine.position + 1
    for each in (machine, again):
        each.apply(position, client.session, 0, cancel)
        each.invariants()
    assert machine.root() == again.root()
    assert {consumer.tag for consumer in groups.kept.values()} == {"t3"}
