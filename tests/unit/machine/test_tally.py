"""Counts of members for statistics: the same for the clients of all members, and not in the
state.
"""

from dataclasses import fields

from broker.machine import commands as c
from broker.machine.machine import Machine
from broker.machine.state import Channel
from broker.machine.tally import Tally
from tests.support.three_machines import Client, Rig


def counted(tally: Tally) -> dict[str, int]:
    found = {one.name: getattr(tally, one.name) for one in fields(tally)}
    return {name: count for name, count in found.items() if count}


def at_channel(client: Client, machine: Machine) -> Channel:
    return machine.channels[client.session, client.conn, client.chan]


def test_every_member_counts_for_the_clients_of_all() -> None:
    rig = Rig()
    publisher, consumer = rig.client("a"), rig.client("b")
    publisher.queue("q")
    publisher.publish("q", no=1)
    publisher.publish("q")
    consumer.consume("q", prefetch=2)
    consumer.ack(1)
    consumer.nack(2)
    for machine in rig.machines.values():
        assert counted(at_channel(publisher, machine).tally) == {"publish": 2, "confirm": 1}
        expected = {"deliver": 3, "redeliver": 1, "ack": 1}
        assert counted(at_channel(consumer, machine).tally) == expected
        queue = machine.vhosts["/"].queues["q"]
        assert counted(queue.tally) == expected | {"publish": 2}
        assert counted(machine.totals["b", "/"].messages) == expected
        at_a = counted(machine.totals["a", "/"].messages)
        assert at_a == {"publish": 2, "confirm": 1, "routed": 2}


def test_each_way_to_get_a_message_has_its_own_count() -> None:
    client = Rig().client()
    client.queue("q")
    for _ in range(4):
        client.publish("q")
    client.get("q")
    client.ack(1)
    client.get("q", no_ack=True)
    client.consume("q", no_ack=True)
    client.get("q")
    found = counted(client.rig.machine.vhosts["/"].queues["q"].tally)
    assert found.pop("publish") == 4
    assert found == {"get": 1, "ack": 1, "get_no_ack": 1, "deliver_no_ack": 2, "get_empty": 1}


def test_unroutable_messages_count_as_returned_or_dropped() -> None:
    client = Rig().client()
    client.publish("nowhere", flags=c.MANDATORY)
    client.publish("nowhere")
    found = counted(at_channel(client, client.rig.machine).tally)
    assert found == {"publish": 2, "return_unroutable": 1, "drop_unroutable": 1}


def test_a_refused_publish_does_not_count_as_confirmed() -> None:
    client = Rig().client()
    client.queue("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.publish("q", no=1)
    client.publish("q", no=2)
    found = counted(at_channel(client, client.rig.machine).tally)
    assert (found["publish"], found["confirm"]) == (2, 1)


def test_a_transaction_counts_when_it_commits() -> None:
    client = Rig().client()
    client.queue("q")
    client.publish("q")
    client.get("q")
    client.commit([c.TxPublish("", "q", 0, b"", b"x")], [c.TxSettle(1, False, c.TX_ACK)])
    found = counted(at_channel(client, client.rig.machine).tally)
    assert found == {"publish": 2, "get": 1, "ack": 1}


def test_a_multiple_ack_counts_each_message_once_and_rejections_do_not_count() -> None:
    client = Rig().client()
    client.queue("q")
    for _ in range(4):
        client.publish("q")
        client.get("q")
    client.ack(3, multiple=True)
    client.nack(4, requeue=False)
    assert client.rig.machine.vhosts["/"].queues["q"].tally.ack == 3
    assert client.rig.machine.totals["a", "/"].messages.ack == 3


def test_an_exchange_counts_messages_in_and_copies_out() -> None:
    client = Rig().client()
    for name in ("one", "two"):
        client.queue(name)
        client.bind(name, "amq.fanout")
    client.publish("", exchange="amq.fanout")
    fanout = client.rig.machine.vhosts["/"].exchanges["amq.fanout"]
    assert counted(fanout.tally) == {"publish": 1, "routed": 2}


def test_totals_outlive_connections_channels_and_queues() -> None:
    rig = Rig()
    client = rig.client("c")
    client.queue("q")
    client.queue("q")
    client.queue("q", passive=True)
    client.publish("q")
    client.delete("q")
    client.close()
    totals, of_nobody = rig.machine.totals["c", "/"], rig.machine.totals["", "/"]
    assert counted(totals.messages) == {"publish": 1, "routed": 1}
    assert (totals.connections_opened, totals.connections_closed) == (1, 1)
    assert (totals.channels_opened, totals.channels_closed) == (1, 1)
    assert totals.queues_declared == 2
    assert (of_nobody.queues_created, of_nobody.queues_deleted) == (1, 1)


def test_tallies_are_not_part_of_the_state() -> None:
    client = Rig().client("b")
    client.queue("q")
    client.publish("q")
    client.get("q")
    machine = client.rig.machine
    restored = Machine.restore("a", machine.snapshot())
    assert restored.root() == machine.root()
    assert counted(restored.vhosts["/"].queues["q"].tally) == {}
    session = restored.channels[client.session, client.conn, client.chan]
    assert session.total is restored.totals["b", "/"].messages
