"""Exchanges that hold messages back until their delay is over."""

import struct
from itertools import pairwise

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import ChannelError, ConnectionError_, GetOk
from broker.machine.machine import Machine
from broker.machine.move_log import BY_DELAY, CLOCK, DUE, FLAG, MOVE
from broker.machine.requests.delay_header import DELAY, DELAY_MS_MAX, delay_ms_of, with_turned_delay
from broker.machine.requests.properties import headers_of
from tests.support.three_machines import EMPTY, Client, Rig

TYPE = "x-delayed-message"
MS = 1000


def properties(delay: c.Value, headers: c.Table | None = None, **others: c.Value) -> bytes:
    return codec.encode_properties({"headers": {DELAY: delay, **(headers or {})}, **others})


def client_with(*queues: str, kind: str = "direct", key: str = "k", durable: bool = True) -> Client:
    client = Rig().client()
    assert client.exchange("x", TYPE, {"x-delayed-type": kind}, durable=durable) == c.OK
    for queue in queues:
        client.queue(queue, durable=durable)
        assert client.bind(queue, "x", key) == c.OK
    return client


def later(client: Client, delay: c.Value, body: bytes = b"m", key: str = "k") -> int:
    return client.publish(key, body, "x", properties=properties(delay))


def waiting(rig: Rig) -> int:
    delayed = [queue for vhost in rig.machine.vhosts.values() for queue in vhost.delays.values()]
    return sum(len(queue.returned) for queue in delayed)


def taken(client: Client, queue: str = "q") -> list[bytes]:
    bodies = []
    while client.get(queue, no_ack=True) == c.OK and isinstance(got := client.got(), GetOk):
        bodies.append(bytes(got.body))
    return bodies


def got(client: Client, queue: str = "q") -> GetOk:
    client.get(queue, no_ack=True)
    found = client.got()
    assert isinstance(found, GetOk)
    return found


def refusal(client: Client) -> tuple[int, str]:
    (error,) = client.rig.effects
    assert isinstance(error, ChannelError | ConnectionError_)
    return error.code, error.text


# -- delays --------------------------------------------------------------------------------------


def test_a_message_is_routed_when_its_delay_is_over_and_not_before() -> None:
    client = client_with("q")
    rig = client.rig
    assert later(client, 500) == c.OK
    assert (rig.depth("q"), waiting(rig)) == (0, 1)
    rig.pass_time(499 * MS)
    assert rig.depth("q") == 0
    rig.pass_time(600 * MS)  # creation times are the horizon, up to 0.3 s ahead of the clock
    assert (rig.depth("q"), waiting(rig)) == (1, 0)
    found = got(client)
    assert (found.exchange, found.key, found.body) == ("x", "k", b"m")
    assert not rig.machine.wants_tick


def test_messages_come_in_order_of_due_time_then_of_publish() -> None:
    client = client_with("q")
    for place, delay in enumerate((500, 100, 300, 200, 100, 400)):
        later(client, delay, b"%d %d" % (delay, place))
    client.rig.pass_time(2_000 * MS)
    assert taken(client) == [b"100 1", b"100 4", b"200 3", b"300 2", b"400 5", b"500 0"]


def test_a_shorter_delay_overtakes_earlier_messages() -> None:
    client = client_with("q")
    later(client, 60_000, b"slow")
    client.rig.pass_time(100 * MS)
    later(client, 50, b"fast")
    client.rig.pass_time(700 * MS)
    assert taken(client) == [b"fast"]
    assert waiting(client.rig) == 1


@pytest.mark.parametrize("delay", [0, -1, -500, None, True, {"a": 1}, "0", "-7", 0.9])
def test_a_zero_delay_routes_at_once_and_keeps_the_header(delay: c.Value) -> None:
    client = client_with("q")
    assert later(client, delay) == c.OK
    assert client.rig.depth("q") == 1
    assert headers_of(got(client).properties) == {DELAY: delay}


def test_without_the_header_it_routes_as_its_type() -> None:
    client = client_with("q", kind="topic", key="a.#")
    assert client.publish("a.b.c", exchange="x") == c.OK
    assert client.publish("b", exchange="x") == c.UNROUTABLE
    assert client.rig.depth("q") == 1


@pytest.mark.parametrize(
    ("delay", "turned"),
    [(500, -500), ("500", -500), (500.9, -500), (1, -1)],
)
def test_a_delayed_message_carries_the_delay_negated(delay: c.Value, turned: int) -> None:
    client = client_with("q")
    client.publish("k", exchange="x", properties=properties(delay, headers={"a": "b"}, priority=3))
    assert client.rig.depth("q") == 0
    client.rig.pass_time(1_000 * MS)
    found = got(client).properties
    assert headers_of(found) == {"a": "b", DELAY: turned}
    assert codec.decode_properties(found)["priority"] == 3
    assert b"\x07x-delayI" + struct.pack(">i", turned) in found, "Java's clients want an Integer"
    longest = headers_of(with_turned_delay(properties(DELAY_MS_MAX)))
    assert longest == {DELAY: -DELAY_MS_MAX}


@pytest.mark.parametrize(
    ("delay", "why"),
    [
        (DELAY_MS_MAX + 1, f"x-delay of {DELAY_MS_MAX + 1} milliseconds, the limit is"),
        (1e30, "milliseconds, the limit is"),
        ("soon", "invalid x-delay 'soon': not an integer"),
        ("", "invalid x-delay '': not an integer"),
        ("1_0", "invalid x-delay '1_0'"),
    ],
)
def test_an_impossible_delay_is_refused(delay: c.Value, why: str) -> None:
    client = client_with("q")
    assert later(client, delay) == 406
    code, text = refusal(client)
    assert code == 406
    assert why in text
    assert waiting(client.rig) == 0


def test_nan_and_timestamps_are_not_delays() -> None:
    nan = properties(float("nan"))
    stamp = b"\x20\x00" + struct.pack(">I", 17) + b"\x07x-delayT" + struct.pack(">Q", 1 << 30)
    assert delay_ms_of(nan) == delay_ms_of(stamp) == 0
    assert headers_of(stamp) == {DELAY: 1 << 30}


def test_of_duplicate_headers_the_last_counts_and_alone_remains() -> None:
    entry = b"\x07x-delayI"
    table = entry + struct.pack(">i", 60_000) + entry + struct.pack(">i", 10)
    client = client_with("q")
    twice = b"\x20\x00" + struct.pack(">I", len(table)) + table
    client.publish("k", exchange="x", properties=twice)
    client.rig.pass_time(500 * MS)
    assert got(client).properties.count(b"x-delay") == 1


# -- other properties of a message ---------------------------------------------------------------


def test_the_confirm_follows_storage_and_is_durable_if_the_exchange_is() -> None:
    client = client_with("q")
    client.publish("k", exchange="x", properties=properties(500), no=7)
    (confirm,) = client.confirms()
    assert (confirm.publish_no, confirm.durable, confirm.ack) == (7, True, True)
    loose = client_with("q", durable=False)
    loose.publish("k", exchange="x", properties=properties(500), no=1)
    assert [one.durable for one in loose.confirms()] == [False]


def test_a_mandatory_message_that_is_delayed_is_not_returned() -> None:
    client = client_with()
    flags = c.PERSISTENT | c.MANDATORY
    assert client.publish("k", exchange="x", flags=flags, properties=properties(500)) == c.OK
    assert not client.returns()
    client.rig.pass_time(1_000 * MS)
    assert waiting(client.rig) == 0
    assert client.publish("k", exchange="x", flags=flags) == c.UNROUTABLE
    assert len(client.returns()) == 1


def test_the_time_to_live_starts_at_the_end_of_the_delay() -> None:
    client = client_with("q")
    rig = client.rig
    client.publish("k", exchange="x", properties=properties(5_000, expiration="400"))
    rig.pass_time(5_400 * MS)
    assert rig.depth("q") == 1
    rig.pass_time(1_000 * MS)
    assert rig.depth("q") == 0


def test_bindings_at_the_due_time_count() -> None:
    client = client_with("before")
    later(client, 500)
    client.unbind("before", "x", "k")
    client.queue("after")
    client.bind("after", "x", "k")
    client.rig.pass_time(1_000 * MS)
    assert (client.rig.depth("before"), client.rig.depth("after")) == (0, 1)


def test_a_consumer_with_credit_gets_the_message_when_due() -> None:
    client = client_with("q")
    client.consume("q")
    later(client, 100)
    assert not client.deliveries()
    client.rig.pass_time(400 * MS)
    # The tick that made the message due sent it: the rig keeps only the effects of the last
    # command.
    (held,) = client.rig.machine.channels[client.session, client.conn, client.chan].unacked.values()
    assert held[2][-1] == b"m"


def test_cc_keys_count_when_due_and_bcc_stays_hidden() -> None:
    client = client_with("q")
    for queue in ("cc", "bcc"):
        client.queue(queue)
        client.bind(queue, "x", queue)
    named = properties(100, headers={"CC": ("cc",), "BCC": ("bcc",)})
    client.publish("k", exchange="x", properties=named)
    client.rig.pass_time(500 * MS)
    for queue in ("q", "cc", "bcc"):
        assert headers_of(got(client, queue).properties) == {DELAY: -100, "CC": ("cc",)}


def test_publishes_of_a_transaction_are_delayed_too() -> None:
    client = client_with("q")
    client.commit([c.TxPublish("x", "k", c.PERSISTENT, properties(100), b"tx")])
    assert (client.rig.depth("q"), waiting(client.rig)) == (0, 1)
    client.rig.pass_time(500 * MS)
    assert taken(client) == [b"tx"]


def test_a_numbered_publish_is_delayed_once() -> None:
    client = client_with("q")
    numbered = properties(100, headers={"x-producer-id": "p", "x-sequence": 1})
    assert client.publish("k", exchange="x", properties=numbered) == c.OK
    assert client.publish("k", exchange="x", properties=numbered) == c.REPEATED
    client.rig.pass_time(500 * MS)
    assert client.publish("k", exchange="x", properties=numbered) == c.REPEATED
    assert client.rig.depth("q") == 1


def test_a_due_message_that_finds_the_queue_full_is_dead_lettered() -> None:
    client = client_with("q")
    client.queue("dead")
    client.queue("full", {"x-max-length": 0, "x-dead-letter-exchange": "",
                          "x-dead-letter-routing-key": "dead"})  # fmt: skip
    client.bind("full", "x", "k")
    later(client, 100)
    client.rig.pass_time(500 * MS)
    assert client.rig.depth("dead") == 1


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_due_message_that_is_refused_is_dead_lettered(
    overflow: str,
) -> None:
    """No publisher is left to be told. (Broker seed 8417231: the message was confirmed and in no
    queue.)"""
    client = client_with("q")
    client.queue("dead")
    client.queue("full", {"x-max-length": 0, "x-overflow": overflow, "x-dead-letter-exchange": "",
                          "x-dead-letter-routing-key": "dead"})  # fmt: skip
    client.bind("full", "x", "k")
    later(client, 100)
    client.rig.pass_time(500 * MS)
    assert (client.rig.depth("q"), client.rig.depth("dead")) == (1, 1)


# -- other exchanges -----------------------------------------------------------------------------


def test_an_exchange_bound_to_a_delaying_one_gets_due_messages() -> None:
    client = client_with()
    client.exchange("behind", "fanout")
    client.bind_exchange("behind", "x", "k")
    client.queue("q")
    client.bind("q", "behind")
    later(client, 100)
    assert client.rig.depth("q") == 0
    client.rig.pass_time(500 * MS)
    assert client.rig.depth("q") == 1


def test_a_delaying_exchange_bound_to_another_delays_its_messages() -> None:
    client = client_with("slow", kind="fanout")
    client.exchange("front", "fanout")
    client.bind_exchange("x", "front")
    client.queue("fast")
    client.bind("fast", "front")
    for _ in range(2):  # the second time a cached route is used, if one was kept
        client.publish("", b"m", "front", properties=properties(100))
        client.publish("", b"n", "front")
    assert (client.rig.depth("fast"), client.rig.depth("slow")) == (4, 2)
    client.rig.pass_time(500 * MS)
    assert taken(client, "slow") == [b"n", b"n", b"m", b"m"]
    client.publish("", b"m", "front", properties=properties(100))
    client.rig.pass_time(500 * MS)
    assert got(client, "slow").exchange == "front"


def test_two_delaying_exchanges_in_a_row_delay_once() -> None:
    client = client_with()
    client.exchange("y", TYPE, {"x-delayed-type": "fanout"})
    client.bind_exchange("y", "x", "k")
    client.queue("q")
    client.bind("q", "y")
    later(client, 100)
    client.rig.pass_time(500 * MS)
    assert client.rig.depth("q") == 1


def test_a_dead_letter_is_delayed_even_beyond_the_maximum() -> None:
    client = client_with("q")
    client.queue("first", {"x-message-ttl": 0, "x-dead-letter-exchange": "x",
                           "x-dead-letter-routing-key": "k"})  # fmt: skip
    client.publish("first", properties=properties(1_000))
    assert (client.rig.depth("q"), waiting(client.rig)) == (0, 1)
    client.publish("first", properties=properties("soon"))
    client.publish("first", properties=properties(DELAY_MS_MAX + 1))
    assert (client.rig.depth("q"), waiting(client.rig)) == (1, 2)
    client.rig.pass_time(2_000 * MS)
    assert (client.rig.depth("q"), waiting(client.rig)) == (2, 1)


def test_an_unroutable_due_message_goes_to_the_alternate_exchange() -> None:
    client = Rig().client()
    client.exchange("x", TYPE, {"x-delayed-type": "direct", "alternate-exchange": "lost"})
    client.exchange("lost", "fanout")
    client.queue("q")
    client.bind("q", "lost")
    later(client, 100)
    assert client.rig.depth("q") == 0
    client.rig.pass_time(500 * MS)
    assert client.rig.depth("q") == 1


@pytest.mark.parametrize("kind", ["headers", "x-consistent-hash", "x-modulus-hash", "x-random"])
def test_it_routes_as_any_type(kind: str) -> None:
    client = client_with("a", "b", kind=kind, key="1")
    for n in range(30):
        later(client, 100, key=str(n))
    assert waiting(client.rig) == 30
    client.rig.pass_time(500 * MS)
    depths = client.rig.depth("a"), client.rig.depth("b")
    assert depths == (30, 30) if kind == "headers" else min(depths) > 5


# -- declaring and deleting ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, 7, "", TYPE])
def test_the_routing_type_is_required(kind: c.Value) -> None:
    client = Rig().client()
    arguments: c.Table = {} if kind is None else {"x-delayed-type": kind}
    code = client.exchange("x", TYPE, arguments)
    assert code == (503 if kind == "" else 406)
    assert "exchange type" in refusal(client)[1]
    assert not client.rig.has_exchange("x")


def test_redeclaring_with_another_type_is_refused() -> None:
    client = client_with()
    assert client.exchange("x", TYPE, {"x-delayed-type": "direct"}) == c.OK
    assert client.exchange("x", TYPE, {"x-delayed-type": "fanout"}) == 406
    assert "inequivalent arg 'x-delayed-type'" in refusal(client)[1]


def test_weights_of_a_hash_are_validated() -> None:
    client = client_with(kind="x-consistent-hash")
    client.queue("q")
    assert client.bind("q", "x", "heavy") == 406


def test_deleting_the_exchange_drops_its_messages() -> None:
    client = client_with("q")
    rig = client.rig
    root = rig.machine.root()
    for _ in range(5):
        later(client, 100)
    client.delete_exchange("x")
    assert rig.has_queue("q")
    rig.pass_time(500 * MS)
    assert (rig.depth("q"), waiting(rig)) == (0, 0)
    assert not rig.machine.wants_tick
    assert rig.machine.root() != root
    client.exchange("x", TYPE, {"x-delayed-type": "direct"})  # of the same name, and empty
    assert waiting(rig) == 0


def test_an_auto_deleted_exchange_drops_its_messages() -> None:
    client = Rig().client()
    client.exchange("x", TYPE, {"x-delayed-type": "direct"}, auto_delete=True)
    client.queue("q")
    client.bind("q", "x", "k")
    later(client, 100)
    client.delete("q")
    assert not client.rig.has_exchange("x")
    assert not client.rig.machine.wants_tick


def test_it_is_deleted_with_its_virtual_host() -> None:
    rig = Rig()
    client = rig.client(vhost="other")
    client.exchange("x", TYPE, {"x-delayed-type": "direct"})
    later(client, 100)
    rig.define("vhost", "", "other", None)
    client.close()
    for _ in range(5):
        rig.tick("a", 0)
    assert "other" not in rig.machine.vhosts


def test_its_internal_queue_is_hidden_and_its_name_reserved() -> None:
    client = client_with()
    later(client, 60_000)
    client.queue("mine")
    assert list(client.rig.machine.vhosts["/"].queues) == ["mine"]
    assert client.get("amq.delayed.x") == 404
    assert client.rig.client().queue("amq.delayed.x") == 403
    assert client.rig.client().publish("amq.delayed.x") == c.UNROUTABLE


# -- the state -----------------------------------------------------------------------------------


def test_a_restored_machine_continues_with_delayed_messages() -> None:
    client = client_with("q", kind="fanout")
    rig = client.rig
    for place in range(600):  # more than one block
        later(client, 1_000 + 7 * place % 97, str(place).encode())
    rig.pass_time(1_020 * MS)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    rig.pass_time(100 * MS)
    rig.machines["c"] = Machine.restore("c", rig.machine.snapshot())
    rig.pass_time(2_000 * MS)  # the rig compares roots, moves and invariants
    assert rig.depth("q") == 600


@pytest.mark.parametrize("durable", [True, False])
def test_a_cold_start_keeps_persistent_messages_of_durable_exchanges(durable: bool) -> None:
    client = client_with("q", durable=durable)
    rig = client.rig
    later(client, 500, b"kept")
    client.publish("k", b"lost", "x", flags=0, properties=properties(500))
    rig.activate(cold=True, members=("a", "b", "c"))
    assert waiting(rig) == (1 if durable else 0)
    again = rig.client()
    rig.pass_time(2_000 * MS)
    if durable:
        found = got(again)
        assert (found.body, found.redelivered) == (b"kept", False)
    else:
        assert not rig.has_exchange("x")


def test_each_tick_publishes_a_bounded_number_of_due_messages() -> None:
    client = client_with("q")
    rig = client.rig
    for _ in range(400):
        later(client, 100)
    depths = [0]
    while rig.depth("q") < 400:
        reached_us = rig.machine.now_us + 300 * MS
        for name in rig.machine.sessions:
            rig.tick(name, reached_us)
            depths.append(rig.depth("q"))
    gained = [after - before for before, after in pairwise(depths)]
    assert max(gained) < 300
    assert len([one for one in gained if one]) >= 2


def test_the_publish_move_of_a_due_message_names_its_old_number() -> None:
    client = client_with("q")
    rig = client.rig
    later(client, 100)
    number = rig.machine.next_message - 1
    while rig.depth("q") == 0:
        reached_us = rig.machine.now_us + 300 * MS
        for name in rig.machine.sessions:
            if rig.depth("q") == 0:
                rig.tick(name, reached_us)
    rows = [(what & ~FLAG, of, queue, seq) for what, _, queue, seq, of, _ in
            MOVE.iter_unpack(rig.moves)]  # fmt: skip
    assert rows[0][0] == CLOCK
    assert rows[1][:2] == (DUE, number)
    assert rows[2] == (BY_DELAY, 0, number, number + 1)


def test_numbers_with_equal_low_bits_keep_separate_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.machine.requests.delay_header._ARRIVALS", 1)
    client = client_with("q")
    for place in range(6):
        later(client, 100, b"%d" % place)
    client.rig.pass_time(1_000 * MS)
    assert sorted(taken(client)) == [b"%d" % place for place in range(6)]


def test_a_cached_route_neither_delays_nor_forgets() -> None:
    client = client_with("q")
    for delay in (0, 100, 0):
        later(client, delay)
    client.publish("k", exchange="x", properties=EMPTY)
    assert (client.rig.depth("q"), waiting(client.rig)) == (3, 1)
    assert not client.rig.machine.vhosts["/"].routes
