"""Behaviour that clients know from RabbitMQ."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import DeliverEffect, GetOk, Return
from tests.support.three_machines import Client, Rig


@pytest.fixture
def client() -> Client:
    return Rig().client()


def headers(**values: c.Value) -> bytes:
    return codec.encode_properties({"headers": values, "expiration": "60000"})


def depths(client: Client, *queues: str) -> list[int]:
    return [client.rig.depth(queue) for queue in queues]


def headers_got(client: Client, queue: str) -> c.Table:
    client.get(queue, no_ack=True)
    got = client.rig.effects[-1]
    assert isinstance(got, GetOk)
    table = codec.decode_properties(got.properties)["headers"]
    assert isinstance(table, dict)
    return table


def keys_of_death(table: c.Table) -> c.Value:
    deaths = table["x-death"]
    assert isinstance(deaths, tuple)
    assert isinstance(deaths[0], dict)
    return deaths[0]["routing-keys"]


def test_unbinding_a_missing_binding_succeeds(client: Client) -> None:
    client.queue("q")
    for queue, exchange in (("nope", "amq.direct"), ("q", "nope"), ("nope", "nope")):
        assert client.unbind(queue, exchange) == c.OK
        assert client.replies() == [("queue.unbind-ok", (), False)]
    for destination, source in (("nope", "amq.direct"), ("amq.direct", "nope")):
        assert client.unbind_exchange(destination, source) == c.OK
        assert client.replies() == [("exchange.unbind-ok", (), False)]
    assert client.unbind("nope", "") == 403


def test_only_known_arguments_of_a_declaration_are_compared(client: Client) -> None:
    unknown: c.Table = {"x-consumer-timeout": 1, "mine": 2, "x-queue-type": "classic"}
    assert client.queue("q", unknown) == c.OK
    assert client.queue("q", {"x-foo": 3}) == c.OK
    assert client.exchange("x", "direct", {"x-foo": 1}) == c.OK
    assert client.exchange("x", "direct", {"x-bar": 2}) == c.OK
    assert client.exchange("x", "direct", {"alternate-exchange": "a"}) == 406
    assert client.channel(1).queue("q", {"x-queue-mode": "lazy"}) == 406
    assert client.channel(1).consume("q", arguments={"x-foo": 1}) == c.OK


def test_of_several_faults_the_one_rabbitmq_reports_is_named(client: Client) -> None:
    assert client.bind("no queue", "no exchange") == 404
    assert "no exchange" in client.error()
    client.channel(1).queue("mine", durable=False, exclusive=True)
    other = client.rig.client("b")
    assert other.unbind("mine", "no exchange") == c.OK
    assert other.bind("mine", "no exchange") == 404
    client.queue("q")
    client.consume("q", "tag", exclusive=True)
    assert client.consume("q", "other", arguments={"x-priority": "high"}) == 406
    client.channel(1).consume("mine", "tag")
    assert client.consume("no queue", "tag") == 530
    assert other.rig.client().exchange("", "no type") == 503


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"x-max-length": -1, "x-expires": 0, "x-message-ttl": "a"}, "'x-expires'"),
        ({"x-overflow": "a", "x-dead-letter-routing-key": "a"}, "'x-dead-letter-routing-key'"),
        ({"x-max-priority": -1, "x-queue-type": "none"}, "'x-queue-type'"),
        ({"x-queue-type": "none", "x-dead-letter-exchange": 1}, "'x-dead-letter-exchange'"),
        ({"x-max-age": "a", "x-max-length": -1}, "'x-max-length'"),
        ({"x-max-age": "a", "x-max-length": 1}, "of queue type rabbit_classic_queue"),
    ],
)
def test_of_several_invalid_arguments_rabbitmqs_first_is_named(
    client: Client, arguments: c.Table, fault: str
) -> None:
    assert client.queue("q", arguments) == 406
    assert fault in client.error()


def test_of_several_inequivalent_arguments_rabbitmqs_first_is_named(client: Client) -> None:
    client.queue("q")
    assert client.queue("q", {"x-max-length": 1, "x-message-ttl": 1, "x-expires": 1}) == 406
    assert "inequivalent arg 'x-expires'" in client.error()
    client = client.channel(1)
    client.queue("other", {"x-max-length": 1, "x-overflow": "drop-head"})
    assert client.queue("other", {"x-max-length": 2, "x-overflow": "drop-head"}) == 406
    assert "received '2' but current is '1'" in client.error()
    client = client.channel(1)
    assert client.queue("other", {"x-max-length": None, "x-overflow": "drop-head"}) == 406
    assert "received none but current is '1'" in client.error()


def test_a_single_active_consumer_queue_refuses_exclusive_consumers(client: Client) -> None:
    client.queue("q", {"x-single-active-consumer": True})
    assert client.consume("q", exclusive=True) == 403
    assert "in exclusive use" in client.error()
    assert client.channel(1).consume("q") == c.OK


def test_a_declaration_that_differs_in_exclusive_is_locked(client: Client) -> None:
    client.queue("mine", durable=False, exclusive=True)
    assert client.queue("mine", durable=True, exclusive=True) == c.OK
    assert client.queue("mine", durable=False) == 405
    assert "does not match that of the original declaration" in client.error()
    client.channel(1).queue("all")
    assert client.queue("all", exclusive=True) == 405


@pytest.mark.parametrize(
    ("asked", "found", "matches"),
    [
        (1, 1.0, True), (1.5, 1.5, True), (1, 2.0, False), (True, 1, False), (1, True, False),
        (True, True, True), ("x", b"x", True), ("1", 1, False), (None, 1, True),
    ],
)  # fmt: skip
def test_headers_match_by_value(
    client: Client, asked: c.Value, found: c.Value, matches: bool
) -> None:
    client.queue("q")
    client.exchange("h", "headers")
    assert client.bind("q", "h", args={"k": asked}) == c.OK
    client.publish("", exchange="h", properties=headers(k=found))
    assert depths(client, "q") == [int(matches)]


def test_an_expiration_may_have_a_sign(client: Client) -> None:
    client.queue("q")
    assert client.publish("q", properties=codec.encode_properties({"expiration": "+60000"})) == c.OK
    assert client.publish("q", properties=codec.encode_properties({"expiration": "++1"})) == 406


def test_cc_and_bcc_name_further_keys(client: Client) -> None:
    for queue in ("to", "cc", "bcc", "other"):
        client.queue(queue)
    properties = headers(CC=("cc", "cc", "to", 5, "nowhere"), k=1, BCC=("bcc",))
    assert client.publish("to", b"x", properties=properties) == c.OK
    assert depths(client, "to", "cc", "bcc", "other") == [1, 1, 1, 0]
    client.get("cc", no_ack=True)
    (got,) = client.rig.effects
    assert isinstance(got, GetOk)
    assert (got.exchange, got.key) == ("", "to")
    assert codec.decode_properties(got.properties) == {
        "headers": {"CC": ("cc", "cc", "to", 5, "nowhere"), "k": 1}, "expiration": "60000",
    }  # fmt: skip


def test_cc_alone_reaches_queues_also_in_a_transaction(client: Client) -> None:
    client.queue("cc")
    client.bind("cc", "amq.topic", "a.*")
    properties = headers(CC=("a.b",))
    assert client.publish("nowhere", exchange="amq.topic", properties=properties) == c.OK
    publish = c.TxPublish("amq.topic", "nowhere", c.PERSISTENT, headers(BCC=("a.c",)), b"")
    assert client.commit([publish], []) == c.OK
    assert depths(client, "cc") == [2]
    client.publish(
        "nowhere", flags=c.MANDATORY, properties=headers(CC=("alsonowhere",), BCC=("nope",))
    )
    (returned,) = client.rig.effects
    assert isinstance(returned, Return)
    assert codec.decode_properties(returned.properties)["headers"] == {"CC": ("alsonowhere",)}


@pytest.mark.parametrize(
    ("key", "copies", "reached"),
    [
        ("a", ("other",), (1, 0)), ("other", ("a",), (1, 0)), ("other", ("another",), (0, 1)),
        ("a", ("a", "a"), (1, 0)),
    ],
)  # fmt: skip
def test_the_alternate_exchange_is_used_only_if_no_key_is_bound(
    client: Client, key: str, copies: tuple[c.Value, ...], reached: tuple[int, int]
) -> None:
    client.queue("q")
    client.queue("rest")
    client.exchange("alternate", "fanout")
    client.exchange("x", "topic", {"alternate-exchange": "alternate"})
    client.bind("q", "x", "a")
    client.bind("rest", "alternate")
    client.publish(key, exchange="x", properties=headers(CC=copies))
    assert tuple(depths(client, "q", "rest")) == reached


def test_a_message_is_routed_by_all_its_keys_at_each_exchange_on_its_way(client: Client) -> None:
    """The first exchange matches one key and the second the other, as in RabbitMQ."""
    for queue in ("q", "rest", "last"):
        client.queue(queue)
    client.exchange("first")
    client.exchange("second", "direct", {"alternate-exchange": "third"})
    client.exchange("third", "topic", {"alternate-exchange": "amq.fanout"})
    client.bind_exchange("second", "first", "a")
    client.bind("q", "second", "b")
    client.bind("rest", "third", "*.c")
    client.bind("last", "amq.fanout")
    for key, copies, blind, reached in (
        ("a", ("b",), (), [1, 0, 0]), ("b", (), ("a",), [1, 0, 0]), ("b", (), (), [0, 0, 0]),
        ("a", ("no", "x.c"), (), [0, 1, 0]), ("no", ("a",), ("no",), [0, 0, 1]),
    ):  # fmt: skip
        for _ in range(2):  # the second time the route is cached
            client.publish(key, exchange="first", properties=headers(CC=copies, BCC=blind))
            assert depths(client, "q", "rest", "last") == reached
            for queue in ("q", "rest", "last"):
                client.purge(queue)


def test_a_route_by_several_keys_is_cached_until_a_binding_changes(client: Client) -> None:
    routes = client.rig.machine.vhosts["/"].routes
    client.queue("q")
    client.publish("q", properties=headers(CC=("b", "c", "b")))
    client.publish("q", properties=headers(CC=("x" * 1024,)))
    assert list(routes) == [("", "q", "b", "c")], "so long a key is not cached"
    client.queue("c")
    client.publish("q", properties=headers(CC=("b", "c")))
    assert depths(client, "q", "c") == [3, 1]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("q", "longstr"), ({"a": 1}, "table"), (1, "signedint"), (1 << 40, "long"), (True, "bool")],
)
@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_cc_is_an_array(client: Client, name: str, value: c.Value, kind: str) -> None:
    client.queue("q")
    assert client.publish("q", properties=headers(**{name: value})) == 406
    words = f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
    assert words in client.error()
    publish = c.TxPublish("", "q", c.PERSISTENT, headers(**{name: value}), b"")
    assert client.channel(1).commit([publish], []) == 406
    assert depths(client, "q") == [0]


def test_cc_keys_count_towards_the_limits_of_a_publish(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("ROUTE_WORK_MAX", "FANOUT_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(f"broker.machine.publishing.routing.{bound}", 2)
            for queue in ("a", "b", "c"):
                client.queue(queue)
            assert client.publish("a", properties=headers(CC=("b", "c"))) == 406
            assert "the limit is 2" in client.error()
            client = client.channel(1)
    assert depths(client, "a", "b", "c") == [0, 0, 0]


def test_a_dead_letter_goes_to_its_cc_keys_too(client: Client) -> None:
    client.queue("dead")
    client.queue("dead too")
    client.exchange("letters")
    client.bind("dead", "letters", "q")
    client.bind("dead too", "letters", "cc")
    client.queue("q", {"x-dead-letter-exchange": "letters"})
    properties = headers(CC=("cc",), BCC=("bcc",))
    client.publish("q", properties=properties)
    client.get("q")
    client.nack(1, requeue=False)
    assert depths(client, "dead", "dead too") == [1, 1]
    assert keys_of_death(headers_got(client, "dead")) == ("q", "cc")


def test_a_dead_letter_routing_key_replaces_all_keys(client: Client) -> None:
    client.queue("dead")
    arguments: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.queue("q", arguments)
    client.queue("cc")
    client.publish("q", properties=headers(CC=("cc",)))
    client.get("q")
    client.nack(1, requeue=False)
    assert depths(client, "dead", "cc") == [1, 1]
    table = headers_got(client, "dead")
    assert "CC" not in table
    assert keys_of_death(table) == ("q", "cc")


@pytest.mark.parametrize("by_queue", [False, True])
def test_a_message_with_zero_ttl_is_delivered_at_once_or_dies(
    client: Client, by_queue: bool
) -> None:
    client.queue("dead")
    arguments: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.queue("q", {**arguments, "x-message-ttl": 0} if by_queue else arguments)
    properties = b"\0\0" if by_queue else codec.encode_properties({"expiration": "0"})
    client.publish("q", properties=properties)
    assert depths(client, "q", "dead") == [0, 1]
    client.consume("q", prefetch=1)
    client.publish("q", properties=properties)
    client.publish("q", properties=properties)
    assert depths(client, "q", "dead") == [0, 2]
    client.nack(1, requeue=True)
    assert depths(client, "q", "dead") == [0, 3], "it is not delivered again"
    client.publish("q", properties=properties)
    client.close_channel()
    assert depths(client, "q", "dead") == [0, 4]


def test_expiry_at_one_position_is_bounded(client: Client) -> None:
    """A policy may expire all waiting messages at once; the ticks take the rest."""
    client.queue("q")
    for _ in range(5):
        client.publish("q")
    definition: c.Table = {
        "pattern": ".*", "apply-to": "queues", "priority": 0, "definition": {"message-ttl": 0},
    }  # fmt: skip
    assert client.rig.define("policy", "/", "none", definition)[0] in (201, 204)
    client.publish("q")
    assert client.rig.depth("q") == 4
    client.rig.pass_time(1_000_000)
    assert client.rig.depth("q") == 0


def served(client: Client, credit: int, rounds: int, *, multiple: bool) -> dict[str, int]:
    """How many messages each of three consumers on a channel with shared credit gets."""
    for queue in ("a", "b"):
        client.queue(queue)
        for _ in range(30):
            client.publish(queue)
    client.qos(credit)
    counts = {"t1": 0, "t2": 0, "t3": 0}
    waiting: list[int] = []

    def watch() -> None:
        for tag, consumer in [
            (one.delivery_tag, one.consumer_tag)
            for one in client.rig.effects
            if isinstance(one, DeliverEffect)
        ]:
            counts[consumer] += 1
            waiting.append(tag)

    for queue, tag in (("a", "t1"), ("b", "t2"), ("b", "t3")):
        client.consume(queue, tag)
        watch()
    for _ in range(rounds):
        last = waiting[-1] if multiple else waiting[0]
        waiting[:] = [] if multiple else waiting[1:]
        client.ack(last, multiple=multiple)
        watch()
    return counts


@pytest.mark.parametrize(("credit", "multiple"), [(1, False), (2, True), (4, False), (4, True)])
def test_shared_credit_goes_round_robin(client: Client, credit: int, multiple: bool) -> None:
    counts = served(client, credit, 9, multiple=multiple)
    assert min(counts.values()) >= 2, counts
    a, b = counts["t1"], counts["t2"] + counts["t3"]
    assert b / 4 <= a <= b * 2, counts
