"""Qpid's cluster scenarios around the join of a member, under their names.

They share one join, by the tail of the log or by a checkpoint.  Each is a generator that prepares,
yields while a fourth member joins with an empty directory, and then checks that member and the
others.  docs/reference/qpid-scenarios.md lists all scenarios.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika import frame, spec
from pika.adapters.blocking_connection import BlockingChannel

from broker.options.addresses import Address
from tests.support.amqp_peer import opening
from tests.system.qpid_scenarios.clients import (
    Clients,
    clients_of,
    closing_code,
    count_of,
    hear,
    hold,
    send,
    take,
)
from tests.system.support.clusters import wait_until
from tools.client.management import Target
from tools.demo.local_cluster import LocalCluster

# The time of the first test includes its fixture: four brokers, a hundred clients, 150 MiB, a join.
# A machine with fifteen busy processes takes minutes for that.
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
JOIN_S = 300.0

PERSISTENT = pika.BasicProperties(delivery_mode=2)
JOINER = 3
BALLAST_MESSAGES = 150
"""Messages of 1 MiB; a store keeps 64 MiB of log, and some more until its next checkpoint."""
Halves = Iterator[None]
AROUND_A_JOIN: dict[str, Callable[[Clients], Halves]] = {}


def around_a_join(scenario: Callable[[Clients], Halves]) -> Callable[[Clients], Halves]:
    """Enter a scenario in the table; it yields once, and then member 3 has joined."""
    AROUND_A_JOIN[scenario.__name__] = scenario
    return scenario


@around_a_join
def message_replication(clients: Clients) -> Halves:
    """Sent to one member; read in order at another, and at a later joiner."""
    first = clients.channel(0)
    first.queue_declare("replicated", durable=True)
    send(first, "replicated", b"1", b"2", b"3", b"4")
    assert take(clients.channel(1), "replicated", 2) == [b"1", b"2"]
    yield
    send(first, "replicated", b"5")
    joiner = clients.channel(JOINER)
    assert take(joiner, "replicated") == [b"3", b"4", b"5"]
    assert count_of(first, "replicated") == 0


@around_a_join
def tx_update(clients: Clients) -> Halves:
    """A transaction is open while a member joins; after the commit every member shows all of it."""
    outside = clients.channel(1)
    outside.queue_declare("committed", durable=True)
    send(outside, "committed", b"taken in the transaction")
    inside = clients.channel(0, confirms=False)
    inside.tx_select()
    [tag] = hold(inside, "committed", 1)
    inside.basic_ack(tag)
    send(inside, "committed", b"before the join")
    yield
    send(inside, "committed", b"after it")
    joiner = clients.channel(JOINER)
    assert count_of(joiner, "committed") == 0
    inside.tx_commit()
    assert count_of(outside, "committed") == 2
    assert take(joiner, "committed") == [b"before the join", b"after it"]
    inside.connection.close()
    assert count_of(joiner, "committed") == 0


@around_a_join
def tx_rollback_update(clients: Clients) -> Halves:
    """testTxTransaction: after a rollback behind the join nothing of it is there."""
    inside = clients.channel(2, confirms=False)
    inside.queue_declare("rolled back", durable=True)
    inside.tx_select()
    send(inside, "rolled back", b"never")
    yield
    send(inside, "rolled back", b"never either")
    inside.tx_rollback()
    joiner = clients.channel(JOINER)
    assert count_of(joiner, "rolled back") == 0
    send(inside, "rolled back", b"next")
    inside.tx_commit()
    assert take(joiner, "rolled back") == [b"next"]


@around_a_join
def user_id_update(clients: Clients) -> Halves:
    """A client connected before a join may still send with its user's name, and only with that."""
    channel = clients.channel(0)
    channel.queue_declare("named", durable=True)
    send(channel, "named", b"1", user_id="guest")
    yield
    send(channel, "named", b"2", user_id="guest")
    method, properties, body = clients.channel(JOINER).basic_get("named", auto_ack=True)
    assert method is not None
    assert (properties.user_id, body) == ("guest", b"1")
    assert closing_code(lambda: send(channel, "named", b"3", user_id="other")) == 406


@around_a_join
def expire_fanout(clients: Clients) -> Halves:
    """One message with a time to live in two queues: it survives the join in both."""
    channel = clients.channel(0)
    for queue in ("fanned-1", "fanned-2"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    lasting = pika.BasicProperties(delivery_mode=2, expiration="600000")
    channel.basic_publish("amq.fanout", "", b"both", lasting)
    assert take(clients.channel(1), "fanned-1") == [b"both"]
    yield
    joiner = clients.channel(JOINER)
    assert take(joiner, "fanned-2") == [b"both"]
    assert take(joiner, "fanned-1") == []
    for queue in ("fanned-1", "fanned-2"):
        joiner.queue_unbind(queue, "amq.fanout")


@around_a_join
def ttl_consistent(clients: Clients) -> Halves:
    """Many times to live, 20 ms apart, that end before, during and after the join."""
    channel = clients.channel(1, confirms=False)
    channel.queue_declare("expiring", durable=True)
    for number in range(300):
        send(channel, "expiring", b"%d" % number, expiration=str(1 + 20 * number))
    send(channel, "expiring", b"lasting")
    yield
    joiner = clients.channel(JOINER)
    wait_until(lambda: count_of(joiner, "expiring") == 1, 60, "all but one to expire")
    assert count_of(channel, "expiring") == 1
    assert take(joiner, "expiring") == [b"lasting"]


@around_a_join
def alternate_exchange_update(clients: Clients) -> Halves:
    """The alternate exchange works at the joiner; so does a queue's dead-letter exchange."""
    channel = clients.channel(0)
    channel.exchange_declare("spare", "fanout", durable=True)
    channel.queue_declare("spared", durable=True)
    channel.queue_bind("spared", "spare")
    arguments = {"alternate-exchange": "spare"}
    channel.exchange_declare("choosy", "direct", durable=True, arguments=arguments)
    channel.queue_declare("doomed", durable=True, arguments={"x-dead-letter-exchange": "spare"})
    send(channel, "doomed", b"dead")
    yield
    joiner = clients.channel(JOINER)
    joiner.basic_publish("choosy", "nobody", b"unroutable", PERSISTENT)
    [tag] = hold(joiner, "doomed", 1)
    joiner.basic_reject(tag, requeue=False)
    assert take(joiner, "spared") == [b"unroutable", b"dead"]


@around_a_join
def binding_order(clients: Clients) -> Halves:
    """One of four queues is at its limit: every member refuses the publish, to the same effect."""
    queues = ["order-1", "order-2", "order-3", "order-4"]
    channel = clients.channel(0)
    channel.exchange_declare("ordered", "fanout", durable=True)
    for queue in queues:
        limit = {"x-max-length": 1, "x-overflow": "reject-publish"} if queue == queues[1] else {}
        channel.queue_declare(queue, durable=True, arguments=limit)
        channel.queue_bind(queue, "ordered")
    channel.basic_publish("ordered", "", b"1", PERSISTENT)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("ordered", "", b"2", PERSISTENT)
    yield
    joiner = clients.channel(JOINER)
    for one in (channel, joiner):
        with pytest.raises(pika.exceptions.NackError):
            one.basic_publish("ordered", "", b"3", PERSISTENT)
    seen = [[count_of(one, queue) for queue in queues] for one in (channel, joiner)]
    assert seen[0] == seen[1]
    contents = [take(joiner, queue) for queue in queues]
    assert contents[1] == [b"1"]
    assert contents[0] == contents[2] == contents[3]


@around_a_join
def deleted_exchange(clients: Clients) -> Halves:
    """A publish to an exchange that was deleted at another member gets not-found, nothing worse."""
    sender, other = clients.channel(0), clients.channel(1)
    sender.exchange_declare("short-lived", "fanout")
    sender.basic_publish("short-lived", "", b"1")
    other.exchange_delete("short-lived")
    assert closing_code(lambda: sender.basic_publish("short-lived", "", b"2")) == 404
    yield
    joiner = clients.channel(JOINER)
    assert closing_code(lambda: joiner.basic_publish("short-lived", "", b"3")) == 404


@around_a_join
def deleted_exchange_inconsistent(clients: Clients) -> Halves:
    """The same with the join between the last publish and the deletion."""
    sender = clients.channel(0)
    sender.exchange_declare("deleted-later", "fanout")
    sender.queue_declare("had-a-binding", durable=True)
    sender.queue_bind("had-a-binding", "deleted-later")
    sender.basic_publish("deleted-later", "", b"1", PERSISTENT)
    yield
    clients.channel(1).exchange_delete("deleted-later")
    assert closing_code(lambda: sender.basic_publish("deleted-later", "", b"2")) == 404
    joiner = clients.channel(JOINER)
    assert closing_code(lambda: joiner.basic_publish("deleted-later", "", b"3")) == 404
    assert take(clients.channel(JOINER), "had-a-binding") == [b"1"]


@around_a_join
def unacked(clients: Clients) -> Halves:
    """testUnacked: held across a join; when the holder ends they return, in place and flagged."""
    holder = clients.channel(0)
    holder.queue_declare("held", durable=True)
    send(holder, "held", b"1", b"2", b"3", b"4")
    tags = hold(holder, "held", 3)
    holder.basic_ack(tags[1])
    yield
    joiner = clients.channel(JOINER)
    assert count_of(joiner, "held") == 1
    holder.connection.close()
    method, _, body = joiner.basic_get("held", auto_ack=True)
    assert method is not None
    assert (method.redelivered, body) == (True, b"1")
    assert take(joiner, "held") == [b"3", b"4"]


@around_a_join
def update_message_builder(clients: Clients) -> Halves:
    """testUpdateMessageBuilder: a message half of which was sent before the join arrives whole."""
    channel = clients.channel(0, confirms=False)
    channel.queue_declare("half", durable=True)
    wire = channel.connection._impl  # pika's public functions send whole messages only
    number = channel.channel_number
    wire._send_method(number, spec.Basic.Publish(exchange="", routing_key="half"))
    wire._send_frame(frame.Header(number, 10, PERSISTENT))
    wire._send_frame(frame.Body(number, b"hello"))
    channel.connection.process_data_events(0)
    yield
    wire._send_frame(frame.Body(number, b"world"))
    assert count_of(channel, "half") == 1
    assert take(clients.channel(JOINER), "half") == [b"helloworld"]


@around_a_join
def update_consumers(clients: Clients) -> Halves:
    """testUpdateConsumers: a consumer's credit continues; messages a dead one held stay."""
    consumer = clients.channel(0)
    consumer.queue_declare("consumed", durable=True)
    consumer.basic_qos(prefetch_count=2)
    heard: list[tuple[int, bytes]] = []
    consumer.basic_consume(
        "consumed", lambda _, got, __, body: heard.append((got.delivery_tag, body))
    )
    send(consumer, "consumed", b"1", b"2", b"3", b"4")
    hear(consumer, lambda: len(heard) == 2)
    yield
    joiner = clients.channel(JOINER)
    assert count_of(joiner, "consumed") == 2
    consumer.basic_ack(heard[0][0])
    hear(consumer, lambda: len(heard) == 3)
    assert [body for _, body in heard] == [b"1", b"2", b"3"]
    assert count_of(joiner, "consumed") == 1
    consumer.connection.close()
    assert take(joiner, "consumed") == [b"2", b"3", b"4"]


@around_a_join
def update_messages(clients: Clients) -> Halves:
    """testUpdateMessages, store_direct_update_match: bodies of all sizes, every property exact."""
    given = pika.BasicProperties(
        content_type="text/plain", content_encoding="none", headers={"n": 1, "deep": {"a": [1]}},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", expiration="600000",
        message_id="m", timestamp=1_700_000_000, type="t", user_id="guest", app_id="a",
    )  # fmt: skip
    bodies = [b"", b"1", b"x" * 100, b"y" * 10_000, bytes(range(256)) * 1200]
    channel = clients.channel(0)
    channel.queue_declare("exact", durable=True)
    channel.queue_bind("exact", "amq.topic", "exact.#")
    for body in bodies:
        channel.basic_publish("amq.topic", "exact.key", body, given)
    yield
    joiner = clients.channel(JOINER)
    for body in bodies:
        method, properties, found = joiner.basic_get("exact", auto_ack=True)
        assert method is not None
        assert (method.exchange, method.routing_key) == ("amq.topic", "exact.key")
        assert properties == given
        assert found == body


@around_a_join
def wiring_replication(clients: Clients) -> Halves:
    """testWiringReplication: a queue and an exchange of one member exist at all."""
    channel = clients.channel(0)
    channel.exchange_declare("wired", "headers", durable=True)
    channel.queue_declare("wire", durable=True)
    channel.queue_bind("wire", "wired", arguments={"x-match": "any", "a": 1, "b": 2})
    yield
    for member in (1, 2, JOINER):
        one = clients.channel(member)
        one.exchange_declare("wired", passive=True)
        one.basic_publish("wired", "", b"%d" % member, pika.BasicProperties(headers={"b": 2}))
    assert take(channel, "wire") == [b"1", b"2", b"%d" % JOINER]


@around_a_join
def dequeue_waiting_subscription(clients: Clients) -> Halves:
    """testDequeueWaitingSubscription: a waiting consumer gets messages sent to other members."""
    waiting = clients.channel(0)
    waiting.queue_declare("awaited", durable=True)
    heard: list[bytes] = []
    waiting.basic_consume("awaited", lambda _, __, ___, body: heard.append(body), auto_ack=True)
    yield
    send(clients.channel(1), "awaited", b"1")
    hear(waiting, lambda: heard == [b"1"])
    send(clients.channel(JOINER), "awaited", b"2")
    hear(waiting, lambda: heard == [b"1", b"2"])
    waiting.connection.close()


@around_a_join
def queue_durability_propagation(clients: Clients) -> Halves:
    """queueDurabilityPropagationToNewbie: the joiner knows which queues are durable."""
    clients.channel(0).queue_declare("durable", durable=True)
    clients.channel(0).queue_declare("transient")
    yield
    for queue, durable in (("durable", True), ("transient", False)):
        clients.channel(JOINER).queue_declare(queue, durable=durable)
        other = clients.channel(JOINER)
        assert closing_code(lambda: other.queue_declare(queue, durable=not durable)) == 406  # noqa: B023


@around_a_join
def policy_update(clients: Clients) -> Halves:
    """testPolicyUpdate: the joiner knows the size of a queue with a limit, in bytes too."""
    channel = clients.channel(0)
    for queue, limit in (("few", {"x-max-length": 2}), ("small", {"x-max-length-bytes": 10})):
        refusing = {"x-overflow": "reject-publish", **limit}
        channel.queue_declare(queue, durable=True, arguments=refusing)
        send(channel, queue, b"12345", b"67890")
    yield
    joiner = clients.channel(JOINER)
    for queue in ("few", "small"):
        with pytest.raises(pika.exceptions.NackError):
            send(joiner, queue, b"too much")
        assert take(joiner, queue, 1) == [b"12345"]
        send(joiner, queue, b"again")
        assert take(joiner, queue) == [b"67890", b"again"]


@around_a_join
def exclusive_queue_update(clients: Clients) -> Halves:
    """testExclusiveQueueUpdate: for its owner only, also at the joiner; gone with its owner."""
    owner = clients.channel(0)
    owner.queue_declare("mine", exclusive=True)
    yield
    joiner = clients.channel(JOINER)
    assert closing_code(lambda: joiner.queue_declare("mine", passive=True)) == 405
    owner.connection.close()
    joiner = clients.channel(JOINER)
    assert closing_code(lambda: joiner.queue_declare("mine", passive=True)) == 404


@around_a_join
def ring_queue_update(clients: Clients) -> Halves:
    """testRingQueueUpdate: a queue that drops its oldest message, one of which is held, still
    does."""
    holder = clients.channel(0)
    holder.queue_declare("ring", durable=True, arguments={"x-max-length": 3})
    send(holder, "ring", b"1", b"2", b"3")
    [tag] = hold(holder, "ring", 1)
    send(holder, "ring", b"4", b"5")
    yield
    joiner = clients.channel(JOINER)
    send(joiner, "ring", b"6")
    assert count_of(holder, "ring") == count_of(joiner, "ring") == 3
    holder.basic_nack(tag)
    assert count_of(holder, "ring") == count_of(joiner, "ring") == 3
    assert take(joiner, "ring") == [b"4", b"5", b"6"]


@around_a_join
def release(clients: Clients) -> Halves:
    """testRelease: requeued after the join, in its place."""
    holder = clients.channel(1)
    holder.queue_declare("released", durable=True)
    send(holder, "released", b"1", b"2", b"3")
    tags = hold(holder, "released", 2)
    yield
    holder.basic_nack(tags[0], requeue=True)
    holder.basic_ack(tags[1])
    assert count_of(holder, "released") == 2
    assert take(clients.channel(JOINER), "released") == [b"1", b"3"]


@around_a_join
def priority_delivery(clients: Clients) -> Halves:
    """testFairsharePriorityDelivery, without shares: the order of priorities continues."""
    channel = clients.channel(0)
    channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 9})
    for number, priority in enumerate((1, 9, 5, 9, 1, 5)):
        send(channel, "urgent", b"%d" % number, priority=priority)
    assert take(channel, "urgent", 1) == [b"1"]
    yield
    joiner = clients.channel(JOINER)
    send(joiner, "urgent", b"6", priority=5)
    assert take(joiner, "urgent") == [b"3", b"2", b"5", b"6", b"0", b"4"]


@around_a_join
def connect_consistent(clients: Clients) -> Halves:
    """Many clients connect and leave; every member lists the same ones."""
    members = clients.cluster.members
    for number in range(100):
        clients.channel(number % JOINER).connection.close()
    stay = [(number % JOINER, clients.channel(number % JOINER)) for number in range(20)]
    yield
    for number in range(100):
        clients.channel(number % len(members)).connection.close()
    stay += [(JOINER, clients.channel(JOINER)) for _ in range(5)]
    ids = [local_id(member.address) for member in members]
    here = {(ids[member], local_address(channel)) for member, channel in stay}

    def lists() -> list[list[tuple[str, str]]]:
        return [sorted(listed(member.address)) for member in members]

    def alike() -> bool:
        first, *others = lists()
        return here <= set(first) and all(one == first for one in others)

    wait_until(alike, 60, "equal lists of clients")
    for _, channel in stay:
        channel.connection.close()

    def gone() -> bool:
        return not any(here & set(one) for one in lists())

    wait_until(gone, 60, "the lists to drop the clients that left")


def listed(broker: Address) -> list[tuple[str, str]]:
    """Member and address of all clients that a member knows of.

    Clients of two members may have the same address, as the kernel assigns ports per destination.
    """
    found = Target(broker).ask(op="connections")["connections"]
    assert isinstance(found, list)
    return [(str(one["member"]), str(one["address"])) for one in found if isinstance(one, dict)]


def local_id(broker: Address) -> str:
    """The id of the member that listens there."""
    members = Target(broker).ask(op="status")["members"]
    assert isinstance(members, list)
    [found] = [str(one["id"]) for one in members if isinstance(one, dict) and one["local"]]
    return found


def local_address(channel: BlockingChannel) -> str:
    """The client's address as the broker sees it."""
    host, port = channel.connection._impl._transport._sock.getsockname()[:2]
    return f"{host}:{port}"


@around_a_join
def bad_client_data(clients: Clients) -> Halves:
    """testBadClientData: an illegal frame ends the connection that sent it, and no other."""
    good = [clients.channel(member) for member in range(JOINER)]
    bad = [logged_in(clients.cluster[0].address)]  # a silent client is not kept this long
    yield
    good.append(clients.channel(JOINER))
    bad.append(logged_in(clients.cluster[JOINER].address))
    for one in bad:
        with one:
            one.sendall(b"\x09\0\0\0\0\0\x04what\0")
            told = b""
            while b"FRAME_ERROR" not in told:
                told += (part := one.recv(4096))
                assert part, told
    for channel in good:
        channel.queue_declare("", exclusive=True)


def logged_in(address: Address) -> socket.socket:
    """An open connection without a client library, which would keep to the protocol."""
    link = socket.create_connection(address, 10)
    link.sendall(opening())
    return link


def write_past_the_logs(clients: Clients) -> None:
    """Order so much that the members' logs no longer reach back to an empty store."""
    channel = clients.channel(0)
    channel.queue_declare("ballast", durable=True)
    for _ in range(BALLAST_MESSAGES):
        send(channel, "ballast", bytes(1 << 20))
    channel.queue_delete("ballast")


@pytest.fixture(scope="module", params=["tail", pytest.param("checkpoint", marks=pytest.mark.slow)])
def joined(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Halves]]:
    """All scenarios of the table up to their half, and the fourth member has joined in one of two
    ways."""
    folder = tmp_path_factory.mktemp("joined")
    with LocalCluster(folder, 4, voters=3) as cluster, clients_of(cluster) as clients:
        for member in cluster.members[:JOINER]:
            member.start()
        cluster.wait_active(cluster.members[:JOINER], JOIN_S)
        halves = {name: scenario(clients) for name, scenario in AROUND_A_JOIN.items()}
        for first_half in halves.values():
            next(first_half)
        if request.param == "checkpoint":
            write_past_the_logs(clients)
        cluster[JOINER].start()
        cluster.wait_active(timeout_seconds=JOIN_S)
        # Not its last lines only: a slow joiner also logs its progress and its lateness.
        copied = "receiving its checkpoint" in cluster[JOINER].log_path.read_text(encoding="utf-8")
        assert copied == (request.param == "checkpoint")
        yield halves
        assert all(member.alive for member in cluster.members)


@pytest.mark.parametrize("name", AROUND_A_JOIN)
def test_around_a_join(joined: dict[str, Halves], name: str) -> None:
    """G4, G11: the joiner holds what the others hold; connected clients notice nothing."""
    assert next(joined[name], "at its end") == "at its end"
