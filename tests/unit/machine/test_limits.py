"""The cost of one command is bounded: it is refused by all members alike, or done in slices
(G15).
"""

import itertools
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from broker.machine import commands as c
from broker.machine.effects import Reply
from broker.machine.handlers import publish
from broker.machine.image.scrub import Scrub
from broker.machine.machine import Machine
from broker.machine.move_log import PURGED
from broker.machine.queueing.queue import purge
from broker.machine.requests import properties
from broker.machine.state import Held, Message
from broker.waiting.places import Places
from tests.support.three_machines import EMPTY, Client, Rig

ROUTING, BINDINGS = "broker.machine.publishing.routing", "broker.machine.queueing.bindings"
CONSUMERS = "broker.machine.handlers.consumers"


@pytest.fixture
def client() -> Client:
    return Rig().client()


def fan(client: Client, count: int, exchange: str = "amq.fanout") -> None:
    for number in range(count):
        client.queue(f"q{number}")
        assert client.bind(f"q{number}", exchange) == c.OK


def tx(count: int, exchange: str = "amq.fanout") -> list[c.TxPublish]:
    return [c.TxPublish(exchange, "", 0, EMPTY, b"m")] * count


def test_a_publish_that_reaches_too_many_queues_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROUTING}.FANOUT_MAX", 3)
    fan(client, 3)
    assert client.publish("", b"m", "amq.fanout") == c.OK
    fan(client.channel(2), 4)
    assert client.publish("", b"n", "amq.fanout") == 406
    assert client.error() == (
        "PRECONDITION_FAILED - queues that a message to exchange 'amq.fanout' reaches: 4, "
        "the limit is 3; spread them over several exchanges, and publish to each"
    )
    assert [client.rig.depth(f"q{n}") for n in range(4)] == [1, 1, 1, 0]
    assert client.channel(1).publish("q0") == c.OK, "only the publishing channel is closed"


def test_a_chain_of_exchanges_costs_the_work_of_all_its_bindings(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange adds a binding, so a few queues may take much work to find."""
    monkeypatch.setattr(f"{ROUTING}.ROUTE_WORK_MAX", 10)
    client.queue("q")
    names = [f"e{number}" for number in range(6)]
    for number, name in enumerate(names):
        client.exchange(name, "fanout")
        client.bind("q", name)
        if number:
            client.bind_exchange(name, names[number - 1])
    assert client.publish("", b"m", names[-1]) == c.OK
    assert client.publish("", b"m", names[0]) == 406
    assert "work to route a message by exchange" in client.error()


@pytest.mark.parametrize(
    ("kind", "key", "properties"),
    [
        ("topic", ".".join("a" * 120), EMPTY),
        ("headers", "", b"\x20\x00\x00\x00\x00\xa0" + b"\x01aV\x01bx\x00\x00\x00\x92" + bytes(146)),
    ],
)
def test_long_keys_and_headers_count_as_work(
    kind: str, key: str, properties: bytes, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROUTING}.ROUTE_WORK_MAX", 10)
    client.queue("q")
    client.exchange("x", kind)
    client.bind("q", "x", "#.a.#.b")
    assert client.publish("a.b", b"m", "x") == c.OK
    assert client.publish(key, b"m", "x", properties=properties) == 406


def test_headers_are_read_once_however_many_queues_look_for_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15: a publish with 10,000 headers to 10,000 last-value queues took two minutes."""
    read = Mock(wraps=properties.entries_of)
    monkeypatch.setattr(properties, "entries_of", read)
    for number in range(4):
        kinds: list[c.Table] = [
            {"qpid.last_value_queue_key": "k"},
            {"qpid.last_value_queue_key": f"k{number}"},
            {"qpid.group_header_key": "k"},
            {"x-queue-type": "stream"},
        ]
        for kind, arguments in enumerate(kinds):
            client.queue(f"{kind}.{number}", arguments)
            client.bind(f"{kind}.{number}", "amq.fanout")
    several = properties.with_header(EMPTY, "k", 1)
    for name in ("k0", "k1", "k2", "k3", "x-stream-filter-value"):
        several = properties.with_header(several, name, "v")
    read.reset_mock()
    machine = client.rig.machine
    one = c.Publish(c.PUBLISH, client.conn, 1, 0, "amq.fanout", "", 0, several, b"m")
    machine.apply(client.rig.position + 1, client.session, 0, one)
    assert read.call_count == 1
    assert client.rig.depth("0.0") == client.rig.depth("3.3") == 1


def test_a_transaction_that_costs_too_much_does_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 publishes to 5,000 queues would be 1.5 million messages at one position, and 20
    seconds."""
    monkeypatch.setattr("broker.machine.handlers.transactions.COMMIT_WORK_MAX", 20)
    fan(client, 4)
    client.publish("q0", b"unacked")
    client.get("q0")
    assert client.commit(tx(3)) == c.OK  # 3 publishes, 12 messages, 4 bindings + 1
    before = [client.rig.depth(f"q{n}") for n in range(4)]
    assert client.commit(tx(3), [c.TxSettle(1, False, c.TX_ACK)]) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - messages that this transaction puts into queues or settles, and "
        "routes to find: 21, the limit is 20; nothing of it was done: commit fewer at a time"
    )
    returned = [1, 0, 0, 0]  # the channel is closed and its messages return
    assert [client.rig.depth(f"q{n}") for n in range(4)] == [
        a + b for a, b in zip(before, returned, strict=True)
    ]


def test_routing_a_transaction_stops_at_its_work_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding all routes first took longer than the token may be away."""
    monkeypatch.setattr("broker.machine.handlers.transactions.COMMIT_WORK_MAX", 20)
    found = Mock(wraps=publish.way_or_refusal)
    monkeypatch.setattr("broker.machine.handlers.transactions.way_or_refusal", found)
    fan(client, 4)
    assert client.commit(tx(300)) == 406
    assert found.call_count <= 5


def test_the_cost_of_a_commit_does_not_depend_on_cached_routes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member restored from a snapshot has no cached routes and must decide alike."""
    monkeypatch.setattr("broker.machine.handlers.transactions.COMMIT_WORK_MAX", 19)
    fan(client, 4)
    client.publish("", b"m", "amq.fanout")
    fresh = Machine.restore("b", client.rig.machine.snapshot())
    commit = c.TxCommit(c.TX_COMMIT, client.conn, 1, tuple(tx(3)), ())
    assert client.commit(tx(3)) == 406
    assert fresh.apply(client.rig.position, client.session, 0, commit) == 406
    assert fresh.root() == client.rig.machine.root()


def test_a_commit_pays_for_each_route_it_finds_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15: routes by headers are not cached. 10,000 publishes to an exchange with 5,000 such
    bindings took minutes at one position."""
    monkeypatch.setattr("broker.machine.handlers.transactions.COMMIT_WORK_MAX", 30)
    client.queue("q0")
    for number in range(8):
        client.bind("q0", "amq.headers", args={"n": number})
    # Publishes, once 8 * 2 + 1, and for each further one a quarter of that.
    assert client.commit(tx(3, "amq.headers")) == c.OK
    assert client.commit(tx(4, "amq.headers")) == 406
    other = client.rig.client("b")
    fan(other, 4)
    assert other.commit(tx(5)) == c.OK  # 5 publishes, 20 messages, and once 4 + 1


def test_a_commit_visits_each_delivery_once(client: Client) -> None:
    """However many of its settlements say "all up to this one"."""
    walked: list[int] = []

    class Walked(dict[int, Held]):
        def __iter__(self) -> Iterator[int]:
            for tag in super().__iter__():
                walked.append(tag)
                yield tag

    client.queue("q")
    for _ in range(20):
        client.publish("q")
        client.get("q")
    channel = client.rig.machine.channels[client.session, client.conn, client.chan]
    channel.unacked = Walked(channel.unacked)
    settles = [c.TxSettle(tag, tag % 5 != 0, c.TX_ACK) for tag in range(1, 20)]
    assert client.commit([], [*settles, c.TxSettle(0, True, c.TX_ACK)]) == c.OK
    assert walked == list(range(1, 21))
    assert client.rig.machine.vhosts["/"].queues["q"].unacked == 0


def test_bindings_are_bounded_at_both_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{BINDINGS}.EXCHANGE_BINDINGS_MAX", 3)
    monkeypatch.setattr(f"{BINDINGS}.DESTINATION_BINDINGS_MAX", 2)
    for name in ("q", "r", "s"):
        client.queue(name)
    assert client.bind("q", "amq.topic", "a") == client.bind("q", "amq.topic", "b") == c.OK
    assert client.bind("q", "amq.topic", "b") == c.OK, "a repeated binding counts once"
    assert client.bind("q", "amq.direct", "c") == 406
    assert client.error() == (
        "PRECONDITION_FAILED - bindings to 'q': 3, the limit is 2; "
        "bind with patterns, or to several queues"
    )
    client = client.channel(1)
    assert client.bind("r", "amq.topic", "c") == c.OK
    assert client.bind("s", "amq.topic", "d") == 406
    assert "bindings of exchange 'amq.topic': 4, the limit is 3" in client.error()
    assert client.channel(1).unbind("q", "amq.topic", "a") == c.OK


def test_consumers_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CONSUMERS}.CHANNEL_CONSUMERS_MAX", 2)
    monkeypatch.setattr(f"{CONSUMERS}.QUEUE_CONSUMERS_MAX", 3)
    client.queue("q")
    assert client.consume("q", "a") == client.consume("q", "b") == c.OK
    assert client.channel(2).consume("q", "a") == c.OK
    assert client.channel(3).consume("q", "a") == 406
    assert "consumers of queue 'q': 4, the limit is 3" in client.error()
    assert client.consume("q", "c") == 406
    assert "consumers on this channel: 3, the limit is 2" in client.error()


def test_a_full_channel_gets_more_when_it_settles(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefetch is the most that a client may be sent, so sending less is allowed (AMQP,
    basic.qos)."""
    monkeypatch.setattr("broker.machine.queueing.dispatch.CHANNEL_HELD_MAX", 3)
    monkeypatch.setattr(f"{CONSUMERS}.CHANNEL_HELD_MAX", 3)
    client.queue("q")
    client.qos(0)
    client.consume("q", "a", prefetch=2)
    client.consume("q", "b", prefetch=65_535)
    client.consume("q", "c", no_ack=True)
    for number in range(12):
        client.publish("q", bytes([number]))
    machine = client.rig.machine
    channel = machine.channels[client.session, client.conn, 1]
    assert (len(channel.unacked), len(channel.unsent), client.rig.depth("q")) == (3, 3, 6)
    client.ack(next(iter(channel.unacked)))
    assert (len(channel.unacked), client.rig.depth("q")) == (3, 5)
    client.nack(next(iter(channel.unacked)), requeue=False)
    assert (len(channel.unacked), client.rig.depth("q")) == (3, 4)
    client.sent(max(channel.unsent))
    assert (len(channel.unsent), client.rig.depth("q")) == (3, 1)


def test_a_channel_that_gets_without_settling_is_refused_at_a_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONSUMERS}.CHANNEL_HELD_MAX", 1)
    client.queue("q")
    for _ in range(3):
        client.publish("q")
    assert client.get("q") == client.get("q") == c.OK
    assert client.get("q") == 406
    assert "messages that this channel holds: 3, the limit is 2" in client.error()
    assert client.rig.depth("q") == 3


def test_excess_dead_letters_follow_at_the_next_positions(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are part of the state meanwhile: restarts, joins and digests include them."""
    monkeypatch.setattr("broker.machine.publishing.letters.LETTERS_WORK_MAX", 40)
    client.queue("grave")
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"})
    client.consume("q")
    for number in range(7):
        client.publish("q", bytes([number]))
    assert client.nack(0, multiple=True, requeue=False) == c.OK
    rig = client.rig
    assert rig.depth("grave") == 3
    assert len(rig.machine.late_letters) == 4
    assert rig.machine.wants_tick
    assert rig.machine.due_in_us == 0
    chunks = list(rig.machine.snapshot())
    copy = Machine.restore("b", chunks)
    assert list(copy.snapshot()) == chunks
    assert len(copy.late_letters) == 4
    rig.tick("a", 0)
    assert rig.depth("grave") == 6
    client.nack(1, requeue=False)  # a failed command takes a position too
    assert rig.depth("grave") == 7
    assert not rig.machine.wants_tick
    bodies = [message[8][0] for message in rig.machine.vhosts["/"].queues["grave"].ready]
    assert bodies == list(range(7)), "in the order in which the messages died (G12)"


def test_a_cold_start_drops_only_transient_late_letters(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.machine.publishing.letters.LETTERS_WORK_MAX", 1)
    client.queue("grave")
    client.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"})
    client.consume("q")
    for flags in (c.PERSISTENT, 0, c.PERSISTENT):
        client.publish("q", bytes([flags]), flags=flags)
    client.nack(0, multiple=True, requeue=False)
    rig = client.rig
    assert [rig.depth("grave"), len(rig.machine.late_letters)] == [1, 2]
    rig.activate(cold=True)
    rig.tick("a", 0)
    assert [rig.depth("grave"), len(rig.machine.late_letters)] == [2, 0]


def test_a_letter_that_reaches_too_many_queues_is_dropped(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ROUTING}.FANOUT_MAX", 1)
    fan(client, 2)
    client.queue("q", {"x-dead-letter-exchange": "amq.fanout", "x-max-length": 0})
    assert client.publish("q", b"m") == c.OK
    assert [client.rig.depth(name) for name in ("q", "q0", "q1")] == [0, 0, 0]


def test_a_large_message_drops_small_ones_in_slices(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.machine.handlers.policies.TRIMMED_MAX", 2)
    rig = client.rig
    client.queue("q", {"x-max-length-bytes": 8})
    for _ in range(8):
        client.publish("q", b".")
    client.publish("q", b"8 bytes.")
    assert rig.depth("q") == 5, "two dropped by the publish, two more at the end of its position"
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    assert rig.machine.wants_tick, "dropping continues without another publish"
    rig.pass_time(1)
    assert rig.depth("q") == 1, "the queue is within its limit again"
    assert not rig.machine.wants_tick


def test_unused_queues_expire_in_slices(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.machine.handlers.sessions.LEASES_WORK_MAX", 16)
    for number in range(5):
        client.queue(f"q{number}", {"x-expires": 1000})
    rig = client.rig
    rig.pass_time(1_300_000)
    left = [len(rig.machine.vhosts["/"].queues)]
    for _ in range(4):
        rig.tick("a", rig.machine.now_us)
        left.append(len(rig.machine.vhosts["/"].queues))
    assert left[-1] == 0
    assert all(before - after <= 2 for before, after in itertools.pairwise(left))


def test_connections_of_a_lost_member_end_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile they get no deliveries, and a client that reconnects can declare its own queue
    again."""
    monkeypatch.setattr("broker.machine.handlers.sessions.ENDING_WORK_MAX", 16)
    rig = Rig()
    other = rig.client("a")
    other.queue("q")
    lost = [rig.client("b") for _ in range(4)]
    for number, one in enumerate(lost):
        one.queue(f"own{number}", exclusive=True)
        one.consume("q", prefetch=1)
        one.publish("q", bytes([number]))
    assert rig.depth("q") == 0
    rig.activate(members=("a", "c"))
    machine = rig.machine
    assert [len(machine.ending), rig.depth("q")] == [3, 1]
    assert machine.wants_tick
    chunks = list(machine.snapshot())
    copy = Machine.restore("b", chunks)
    assert list(copy.snapshot()) == chunks
    assert list(copy.ending) == [copy.connections[one.key] for one in machine.ending]
    assert other.queue("own3", exclusive=True) == c.OK, "its client reconnected to another member"
    assert [len(machine.ending), rig.depth("q")] == [2, 2]
    rig.activate(members=("a",))
    rig.tick("a", 0)
    assert [len(machine.ending), rig.depth("q"), len(machine.connections)] == [0, 4, 1]
    assert not machine.wants_tick
    assert rig.has_queue("own3")
    assert not rig.has_queue("own2")
    other.consume("q")
    assert [(body, again) for _, body, again in other.deliveries()] == [
        (bytes([number]), True) for number in range(4)
    ]


def test_a_connection_with_many_messages_ends_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """G15: a connection of 25 channels with 4,096 messages each took a second at one position."""
    for module in ("sessions", "connections"):
        monkeypatch.setattr(f"broker.machine.handlers.{module}.ENDING_WORK_MAX", 16)
    rig = Rig()
    other, heavy = rig.client("b"), rig.client("a")
    other.queue("q")
    heavy.queue("own", exclusive=True)
    for number in range(10):
        other.publish("q", bytes([number]))
    for channel in (heavy, heavy.channel(2)):
        for _ in range(5):
            channel.get("q")
    heavy.part(b"of a body that does not become whole")
    assert heavy.close() == c.OK
    assert not rig.machine.unfinished
    assert [one.method for one in rig.effects if isinstance(one, Reply)] == ["connection.close-ok"]
    machine = rig.machine
    assert [len(machine.ending), rig.has_queue("own"), rig.depth("q")] == [1, False, 1]
    assert machine.wants_tick
    rig.machines["c"] = Machine.restore("c", machine.snapshot())
    assert heavy.close() == heavy.ack(2) == heavy.publish("q", b"late") == c.IGNORED
    assert rig.apply(heavy.session, c.ChannelOpen(c.CHANNEL_OPEN, heavy.conn, 9)) == c.IGNORED
    rig.activate(members=("b", "c"))
    for _ in range(3):
        rig.tick("b", 0)
    assert [len(machine.ending), rig.depth("q"), len(machine.connections)] == [0, 10, 1]
    assert not machine.wants_tick
    other.consume("q", prefetch=20)
    assert [body for _, body, _ in other.deliveries()] == [bytes([number]) for number in range(10)]


def test_a_cold_start_ends_all_ending_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.machine.handlers.sessions.ENDING_WORK_MAX", 1)
    rig = Rig()
    for _ in range(3):
        rig.client("b")
    rig.activate(members=("a",))
    assert len(rig.machine.ending) == 2
    rig.activate(cold=True)
    assert not rig.machine.ending
    assert not rig.machine.connections


def test_a_scrub_does_not_keep_purged_messages_in_memory(client: Client) -> None:
    """A pass takes minutes; a member kept all purged messages in memory until the pass ended."""
    client.queue("q")
    for number in range(10):
        client.publish("q", bytes([number]))
    client.queue("r")
    client.publish("r")
    machine = client.rig.machine
    scrub = Scrub(machine)
    assert scrub.step(3) is None
    client.purge("q")
    while not scrub.done:
        assert scrub.step(3) is None
    assert scrub.messages < 10
    freed = 0
    while count := machine.free(4):
        assert count <= 4
        freed += count
    assert freed == 10 + 10 + 1, "those of the queue and those of the scrub"


def test_purged_messages_are_freed_in_slices(client: Client) -> None:
    client.queue("q")
    for number in range(10):
        client.publish("q", bytes([number]))
    client.get("q")
    client.nack(1)
    client.purge("q")
    machine = client.rig.machine
    assert client.rig.depth("q") == 0
    freed = [machine.free(4) for _ in range(4)]
    assert freed == [4, 4, 2, 0]
    assert not machine.discarded


def test_a_purge_of_a_long_queue_does_not_visit_each_place(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million places it took 0.2 s, for one message that had returned."""
    client.queue("q", {"x-max-priority": 3, "x-delivery-limit": 5})
    for _ in range(40):
        client.publish("q")
    client.get("q")
    client.get("q")
    client.nack(2, multiple=True)
    client.get("q")
    machine, places = client.rig.machine, Places.__iter__
    looked: list[int] = []
    queue = machine.vhosts["/"].queues["q"]
    held, waits = sorted(queue.returns)

    def look(self: Places[Message]) -> Iterator[int]:
        for place in places(self):
            looked.append(place)
            yield place

    monkeypatch.setattr(Places, "__iter__", look)
    purge(machine, queue, PURGED)
    assert not looked
    assert list(queue.returns) == [held], "a held message keeps its count, as it may return"
    assert held < waits
    machine.invariants()


def test_a_replaced_machine_is_freed_in_slices(client: Client) -> None:
    """A joiner froze when it dropped the million messages that it had held before."""
    client.queue("q")
    for number in range(10):
        client.publish("q", bytes([number]))
    old = client.rig.machine
    received = Machine.restore("a", list(old.snapshot()))
    received.free_also(old)
    assert not old.vhosts["/"].queues["q"].ready
    freed = [received.free(4) for _ in range(4)]
    assert freed == [4, 4, 2, 0]
    assert len(received.vhosts["/"].queues["q"].ready) == 10
    received.invariants()
