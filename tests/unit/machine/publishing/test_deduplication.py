"""G26: a queue that deduplicates takes each key once in its window."""

from collections.abc import Callable

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.image.scrub import Fault, Scrub
from broker.machine.limits import WINDOW_KEYS_MAX
from broker.machine.machine import Machine
from broker.machine.move_log import BY_DEAD_LETTER, FLAG, MOVE, REPEATED
from broker.machine.queueing import windows
from broker.machine.requests.message_keys import HEADER, key_of_repeat
from tests.support.three_machines import Client, Rig

ONCE: c.Table = {"x-message-deduplication": True}


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q", ONCE)
    return client


def known_as(key: c.Value = None, message_id: str = "", headers: c.Table | None = None) -> bytes:
    named: c.Table = {} if key is None else {HEADER: key}
    headers = named | (headers or {})
    if message_id:
        return codec.encode_properties({"headers": headers, "message_id": message_id})
    return codec.encode_properties({"headers": headers})


def send(
    client: Client,
    key: c.Value,
    body: bytes = b"x",
    *,
    to: str = "q",
    exchange: str = "",
    flags: int = c.PERSISTENT,
    message_id: str = "",
    headers: c.Table | None = None,
) -> list[bool]:
    """How the publish was confirmed."""
    outcome = client.publish(
        to, body, exchange, no=1, flags=flags, properties=known_as(key, message_id, headers)
    )
    assert outcome == c.OK
    return [one.ack for one in client.confirms()]


def depth(client: Client, queue: str = "q") -> int:
    return client.rig.depth(queue)


def tally(client: Client, queue: str = "q") -> int:
    return client.rig.machine.vhosts["/"].queues[queue].tally.drop_duplicate


def repeats(client: Client) -> list[tuple[int, ...]]:
    """The REPEATED moves of the latest command: queue, place, and place of the original."""
    return [
        (queue, seq, of)
        for what, _, queue, seq, of, _ in MOVE.iter_unpack(client.rig.moves)
        if what & ~FLAG == REPEATED
    ]


def test_a_repeat_is_confirmed_and_counted_but_not_enqueued(client: Client) -> None:
    assert send(client, "one") == [True]
    assert send(client.rig.client("b"), "one") == [True]
    assert (depth(client), tally(client)) == (1, 1)
    assert send(client, "two") == [True]
    assert (depth(client), tally(client)) == (2, 1)


def test_a_mandatory_repeat_counts_as_routed(client: Client) -> None:
    for _ in range(2):
        send(client, "one", flags=c.PERSISTENT | c.MANDATORY)
        assert not client.returns()
    assert depth(client) == 1


def test_the_key_is_the_header_or_else_the_message_id(client: Client) -> None:
    client.publish("q", properties=known_as(message_id="one"))
    client.publish("q", properties=known_as(message_id="one"))
    assert depth(client) == 1
    send(client, "one")
    assert depth(client) == 1, "the same text is the same key as header or as message id"
    send(client, "two", message_id="one")
    assert depth(client) == 2, "the header takes precedence over the property"


def test_a_message_without_a_key_is_never_a_repeat(client: Client) -> None:
    for properties in (
        b"\x00\x00",
        known_as(),
        known_as(headers={"other": "one"}),
        known_as(message_id=""),
    ):
        client.publish("q", b"same", properties=properties)
    assert (depth(client), tally(client)) == (4, 0)


def test_keys_differ_by_type_and_value() -> None:
    keys: list[c.Value] = [1, "1", True, 1.0, "", "one", b"\xff", {"a": 1}, (1,), 2**62]
    found = [key_of_repeat(known_as(key)) for key in keys]
    assert not key_of_repeat(known_as(""))
    assert len(set(found)) == len(keys)
    assert all(len(one) in (0, 16) for one in found)
    assert key_of_repeat(known_as("x" * 10_000)) != key_of_repeat(known_as("x" * 10_001))


def test_a_key_outlives_the_consumption_of_its_message(client: Client) -> None:
    """A message that is sent again after a failover may arrive late."""
    send(client, "one")
    client.get("q", no_ack=True)
    send(client, "one")
    assert depth(client) == 0
    client.consume("q", no_ack=True)
    send(client, "two")
    assert [body for _, body, _ in client.deliveries()] == [b"x"]
    send(client, "two")
    assert not client.deliveries()


def test_a_message_returned_to_its_queue_is_no_repeat(client: Client) -> None:
    send(client, "one")
    client.get("q")
    client.nack(1)
    assert depth(client) == 1
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    assert got.redelivered


def test_the_window_ends_by_count() -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-cache-size": 2})
    for key in ("one", "two", "three"):
        send(client, key)
    send(client, "two")
    send(client, "three")
    assert depth(client) == 3
    send(client, "one")
    assert depth(client) == 4
    send(client, "three")
    send(client, "two")
    assert depth(client) == 5, "two left the window when one came again"


def test_the_window_ends_by_time() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q", ONCE | {"x-cache-ttl": 1_000})
    assert not rig.machine.wants_tick
    send(client, "one")
    rig.pass_time(900_000)
    send(client, "one")
    assert depth(client) == 1
    rig.pass_time(100_000)
    assert not rig.machine.wants_tick, "the key is forgotten, so no ticks are needed"
    send(client, "one")
    assert depth(client) == 2


def test_a_repeat_does_not_keep_a_key_longer() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q", ONCE | {"x-cache-ttl": 1_000})
    send(client, "one")
    rig.pass_time(600_000)
    send(client, "one")
    rig.pass_time(400_000)
    send(client, "one")
    assert depth(client) == 2


def test_many_keys_end_over_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_KEYS_WORK", 4)
    rig = Rig()
    client = rig.client()
    for queue in ("q", "r"):
        client.queue(queue, ONCE | {"x-cache-ttl": 10})
        for number in range(10):
            send(client, number, to=queue)
    end_us = rig.machine.now_us + 600_000
    ticks = 0
    while rig.machine.wants_tick:
        ticks += 1
        for name in rig.machine.sessions:
            rig.tick(name, end_us + ticks * 1_000)
    assert 1 < ticks < 20
    for queue in ("q", "r"):
        found = rig.machine.vhosts["/"].queues[queue].window
        assert found is not None
        assert not found.order


def test_a_refused_message_does_not_use_up_its_key() -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-max-length": 1, "x-overflow": "reject-publish"})
    assert send(client, "one") == [True]
    assert send(client, "two") == [False]
    assert send(client, "one") == [True], "this one was taken before"
    client.purge("q")
    assert send(client, "two") == [True]
    assert depth(client) == 1


def test_a_message_dropped_by_limit_or_expiry_keeps_its_key() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q", ONCE | {"x-max-length": 1, "x-message-ttl": 1_000})
    send(client, "one")
    send(client, "two")
    send(client, "one")
    assert depth(client) == 1
    rig.pass_time(2_000_000)
    assert depth(client) == 0
    send(client, "two")
    assert depth(client) == 0


def test_a_queue_declared_again_starts_with_an_empty_window(client: Client) -> None:
    send(client, "one")
    client.delete("q")
    client.queue("q", ONCE)
    send(client, "one")
    assert (depth(client), tally(client)) == (1, 0)


def test_each_queue_has_a_window_of_its_own(client: Client) -> None:
    for queue, arguments in (("late", ONCE), ("plain", {})):
        client.queue(queue, arguments)
    for queue in ("q", "late", "plain"):
        client.bind(queue, "amq.fanout")
    send(client, "one")
    assert send(client, "one", exchange="amq.fanout") == [True]
    assert [depth(client, queue) for queue in ("q", "late", "plain")] == [1, 1, 1]
    assert [queue for queue, _, _ in repeats(client)] == [1]
    send(client, "one", exchange="amq.fanout")
    assert [depth(client, queue) for queue in ("q", "late", "plain")] == [1, 1, 2]


def test_a_refusing_queue_leaves_the_keys_of_the_others(client: Client) -> None:
    client.queue("full", ONCE | {"x-max-length": 0, "x-overflow": "reject-publish"})
    for queue in ("q", "full"):
        client.bind(queue, "amq.fanout")
    for _ in range(2):  # the refused publisher sends again, and q holds the message once
        assert send(client, "one", exchange="amq.fanout") == [False]
        assert (depth(client), depth(client, "full")) == (1, 0)


def test_an_alternate_exchange_gets_no_repeats(client: Client) -> None:
    client.queue("spare")
    client.exchange("else", "fanout")
    client.bind("spare", "else")
    client.exchange("first", "direct", {"alternate-exchange": "else"})
    client.bind("q", "first", "q")
    send(client, "one", exchange="first")
    send(client, "one", exchange="first")
    assert (depth(client), depth(client, "spare")) == (1, 0)


def test_the_log_names_the_place_of_the_original_of_a_repeat(client: Client) -> None:
    client.publish("q")
    send(client, "one")
    send(client, "one")
    number = client.rig.machine.next_message - 1
    assert repeats(client) == [(1, 1, number)]


def test_the_log_of_a_priority_queue_names_the_place_too() -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-max-priority": 5})
    properties = codec.encode_properties({"message_id": "one", "priority": 3})
    for _ in range(2):
        client.publish("q", properties=properties)
    assert depth(client) == 1
    assert repeats(client) == [(1, (5 - 3) << 54, 2)]


# -- together with others --------------------------------------------------------------------------


def test_a_transaction_is_checked_publish_by_publish(client: Client) -> None:
    send(client, "one")
    names = ("one", "two", "two")
    publishes = [c.TxPublish("", "q", c.PERSISTENT, known_as(one), b"x") for one in names]
    assert client.commit(publishes) == c.OK
    assert (depth(client), tally(client)) == (2, 2)


def test_a_refused_transaction_uses_up_no_key(client: Client) -> None:
    good = c.TxPublish("", "q", c.PERSISTENT, known_as("one"), b"x")
    assert client.commit([good, good._replace(exchange="nowhere")]) == 404
    send(client.channel(2), "one")
    assert depth(client) == 1


def test_dead_letters_are_not_deduplicated() -> None:
    """Retries come back to the queue to which they were published: deduplicated, they would be
    lost."""
    client = Rig().client()
    client.queue("q", ONCE | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"})
    back: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    client.queue("later", back | {"x-message-ttl": 100})
    send(client, "one")
    client.get("q")
    client.nack(1, requeue=False)
    client.rig.pass_time(1_000_000)
    assert (depth(client), tally(client)) == (1, 0)
    send(client, "one")
    assert depth(client) == 1


def test_a_dead_letter_uses_up_no_key(client: Client) -> None:
    client.queue("source", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    send(client, "one", to="source")
    client.get("source")
    client.nack(1, requeue=False)
    whats = [what & ~FLAG for what, *_ in MOVE.iter_unpack(client.rig.moves)]
    assert BY_DEAD_LETTER in whats
    send(client, "one")
    assert depth(client) == 2


def test_a_delayed_message_is_checked_when_it_is_due(client: Client) -> None:
    client.exchange("slow", "x-delayed-message", {"x-delayed-type": "direct"})
    client.bind("q", "slow", "q")
    delay: c.Table = {"x-delay": 500}
    for _ in range(2):
        assert send(client, "one", exchange="slow", headers=delay) == [True]
    assert depth(client) == 0
    client.rig.pass_time(2_000_000)
    assert (depth(client), tally(client)) == (1, 1)
    send(client, "one")
    assert depth(client) == 1


def test_delayed_messages_to_a_full_queue_use_up_no_key() -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-max-length": 0, "x-overflow": "reject-publish"})
    client.exchange("slow", "x-delayed-message", {"x-delayed-type": "direct"})
    client.bind("q", "slow", "q")
    send(client, "one", exchange="slow", headers={"x-delay": 500})
    client.rig.pass_time(2_000_000)
    window = client.rig.machine.vhosts["/"].queues["q"].window
    assert window is not None
    assert not window.order


def test_producer_numbers_are_checked_before_keys(client: Client) -> None:
    number: c.Table = {"x-producer-id": "p", "x-sequence": 1}
    send(client, "one", headers=number)
    again = client.publish("q", b"x", no=1, properties=known_as("one", headers=number))
    assert (again, tally(client)) == (c.REPEATED, 0)
    later = known_as("one", headers=number | {"x-sequence": 2})
    for outcome in (c.OK, c.REPEATED):  # a new number with a known key
        assert client.publish("q", b"x", no=1, properties=later) == outcome
        assert [one.ack for one in client.confirms()] == [True]
    assert (depth(client), tally(client)) == (1, 1)


def test_copies_are_deduplicated_in_each_queue(client: Client) -> None:
    client.queue("other", ONCE)
    for _ in range(2):
        send(client, "one", headers={"CC": ("other",)})
    assert (depth(client), depth(client, "other")) == (1, 1)


# -- what is replicated ----------------------------------------------------------------------------


def test_a_cold_start_drops_the_keys_of_the_messages_it_drops(client: Client) -> None:
    send(client, "kept")
    send(client, "lost", flags=0)
    client.rig.activate(*"abc", cold=True)
    again = client.rig.client()
    send(again, "lost", flags=0)
    send(again, "kept")
    assert (depth(again), tally(again)) == (2, 1)


def test_a_persistent_message_is_no_repeat_of_a_transient_one(client: Client) -> None:
    """It was confirmed as durable, so it must be there after a cold start."""
    send(client, "one", flags=0)
    send(client, "one")
    send(client, "one")
    send(client, "one", flags=0)
    assert (depth(client), tally(client)) == (2, 2)
    client.rig.activate(*"abc", cold=True)
    again = client.rig.client()
    assert depth(again) == 1
    send(again, "one")
    assert depth(again) == 1


@pytest.mark.parametrize("ttl_ms", [0, 1_000])
def test_a_snapshot_holds_the_window(ttl_ms: int) -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q", ONCE | {"x-cache-size": 3} | ({"x-cache-ttl": ttl_ms} if ttl_ms else {}))
    for key, flags in (("a", c.PERSISTENT), ("b", 0), ("b", c.PERSISTENT), ("c", 0)):
        send(client, key, flags=flags)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    assert list(rig.machines["b"].snapshot()) == list(rig.machine.snapshot())
    for key in ("b", "c", "a", "d", "b"):
        send(client, key)  # the rig compares the roots
    rig.pass_time(3_000_000)


def test_a_snapshot_with_a_different_window_is_refused(client: Client) -> None:
    send(client, "one")
    machine = client.rig.machine
    window = machine.vhosts["/"].queues["q"].window
    assert window is not None
    key, *_ = window.order[0]
    assert key != bytes(16)
    window.order[0] = bytes(16), *window.order[0][1:]
    with pytest.raises(ValueError, match="root"):
        Machine.restore("d", machine.snapshot())


def scrubbed(machine: Machine) -> Fault | None:
    """What a scrub in small slices finds."""
    scrub = Scrub(machine)
    while not scrub.done:
        fault = scrub.step(3)
        if fault is not None:
            return fault
    return None


def test_a_scrub_finds_a_key_corrupted_in_memory(client: Client) -> None:
    machine = client.rig.machine
    for number in range(20):
        send(client, number)
    assert scrubbed(machine) is None
    window = machine.vhosts["/"].queues["q"].window
    assert window is not None
    key, place, noted_us, volatile = window.order[7]
    window.order[7] = key, place + 1, noted_us, volatile
    fault = scrubbed(machine)
    assert fault is not None
    assert fault.where == "queue 'q' in vhost '/'"
    assert "keys" in fault.what


def test_a_queue_may_be_deleted_during_a_scrub(client: Client) -> None:
    client.queue("r", ONCE)
    for queue in ("q", "r"):
        send(client, "one", to=queue)
    scrub = Scrub(client.rig.machine)
    client.delete("q")
    client.delete("r")
    while not scrub.done:
        assert scrub.step(1) is None


def test_the_window_of_a_deleted_queue_is_freed_in_slices(client: Client) -> None:
    for number in range(20):
        send(client, number)
    machine = client.rig.machine
    while machine.discarded:
        machine.free(1_000)
    client.delete("q")
    assert not machine.vhosts["/"].queues
    assert sum(map(len, machine.discarded)) >= 40
    assert machine.free(7) == 7
    while machine.discarded:
        machine.free(7)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"x-message-deduplication": "yes"}, "a boolean is needed"),
        (ONCE | {"x-cache-size": 0}, "from 1 to"),
        (ONCE | {"x-cache-size": WINDOW_KEYS_MAX + 1}, f"from 1 to {WINDOW_KEYS_MAX}"),
        (ONCE | {"x-cache-size": "9"}, "expected integer, got longstr"),
        (ONCE | {"x-cache-ttl": 0}, "from 1 to"),
        (ONCE | {"x-cache-ttl": True}, "expected integer, got bool"),
    ],
)
def test_bad_arguments_are_refused(arguments: c.Table, fault: str) -> None:
    client = Rig().client()
    assert client.queue("bad", arguments) == 406
    assert fault in client.error()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({}, {"x-message-deduplication": False}, True),
        (ONCE, {}, False),
        ({}, ONCE, False),
        (ONCE, ONCE | {"x-cache-size": 5}, False),
        (ONCE | {"x-cache-ttl": 5}, ONCE, False),
        ({"x-cache-size": 5}, {}, True),  # refused: without the other argument it has no meaning
    ],
)
def test_an_inequivalent_declaration_is_refused(
    first: c.Table, second: c.Table, same: bool
) -> None:
    client = Rig().client()
    client.queue("q", first)
    assert client.queue("q", second) == (c.OK if same else 406)


@pytest.mark.parametrize(
    "ends",
    [
        lambda client: client.close(),
        lambda client: client.rig.activate("a"),
        lambda client: client.delete("q"),
    ],
)
def test_an_exclusive_queue_is_deleted_with_its_window(ends: Callable[[Client], object]) -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-cache-ttl": 1_000}, exclusive=True)
    send(client, "one")
    assert client.rig.machine.wants_tick
    ends(client)
    assert not client.rig.machine.wants_tick
