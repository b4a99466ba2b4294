"""Queues: declaration, arguments, limits, time to live, dead letters, and deletion."""

from collections.abc import Callable

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetEmpty, GetOk
from broker.machine.machine import Machine
from broker.machine.requests.properties import headers_of
from broker.machine.state import BODY
from tests.support.three_machines import Client, Rig

QUORUM: c.Table = {"x-queue-type": "quorum"}
EXPIRES_IN_A_SECOND = b"\x01\x00\x041000"


@pytest.fixture
def client() -> Client:
    return Rig().client()


def bodies(client: Client, queue: str) -> list[bytes]:
    return [bytes(message[BODY]) for message in client.rig.machine.vhosts["/"].queues[queue].ready]


def test_declare_replies_with_the_counts(client: Client) -> None:
    assert client.queue("q") == c.OK
    assert client.replies() == [("queue.declare-ok", ("q", 0, 0), True)]
    client.publish("q")
    assert client.queue("q", passive=True) == c.OK
    assert client.replies() == [("queue.declare-ok", ("q", 1, 0), True)]
    assert client.queue("volatile", durable=False) == c.OK
    assert client.replies() == [("queue.declare-ok", ("volatile", 0, 0), False)]


def test_declaring_again_must_be_equivalent(client: Client) -> None:
    client.queue("q", {"x-max-length": 3})
    assert client.queue("q", {"x-max-length": 3}, durable=False) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    assert client.channel(1).queue("q") == 406
    assert client.error() == (
        "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
        "received none but current is the value '3' of type 'signedint'"
    )
    assert client.channel(1).queue("q", {"x-max-length": 3}) == c.OK


def test_passive_declare_of_a_missing_queue(client: Client) -> None:
    assert client.queue("q", passive=True) == 404
    assert client.error() == "NOT_FOUND - no queue 'q' in vhost '/'"


def test_reserved_names(client: Client) -> None:
    assert client.queue("amq.mine") == 403
    assert client.error() == (
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    )
    assert client.channel(1).queue("amq.gen-stamped-by-the-gateway") == c.OK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-max-priority": 256}, "{max_value_exceeded,256}; from 0 to 255 is needed"),
        (
            {"x-dead-letter-strategy": "at-best"},
            "invalid_dlx_strategy; one of at-most-once, at-least-once",
        ),
        ({"x-max-age": "1h"}, "of queue type rabbit_classic_queue"),
        ({"qpid.browse-only": 2}, "a whole number from 0 to 1 is needed"),
        (
            {"qpid.browse-only": True, "x-max-priority": 3},
            "a queue with priorities cannot be browsed",
        ),
        ({"x-expires": 0}, "{value_zero,0}"),
        (
            {"x-queue-type": "streams"},
            "vhost '/': \"unsupported queue type 'streams'\"; one of classic, quorum, stream",
        ),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length": "many"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": True}, '"expected integer, got bool"'),
        ({"x-message-ttl": 1 << 60}, "{value_too_large,1152921504606846976}"),
        ({"x-overflow": "spill"}, "vhost '/': invalid_overflow; one of drop-head"),
        ({"x-overflow": {"a": 1}}, "{unacceptable_type,table}"),
        (
            {"x-dead-letter-exchange": 1},
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
        ),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": ()},
            "'x-dead-letter-routing-key' for queue 'q' in vhost '/': {unacceptable_type,array}",
        ),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-single-active-consumer": 1}, "{unacceptable_type,signedint}; a boolean"),
        (
            {"x-queue-mode": "eager"},
            "vhost '/': \"unsupported queue mode 'eager'\"; one of default",
        ),
        ({"x-queue-mode": ""}, "\"unsupported queue mode ''\""),
        ({"x-queue-mode": 1}, "{unacceptable_type,signedint}"),
        ({"x-queue-version": 3}, "vhost '/': \"unsupported queue version '3'\"; 1 or 2 is needed"),
        ({"x-queue-version": 0}, "\"unsupported queue version '0'\""),
        ({"x-queue-version": -1}, "{value_negative,-1}"),
        ({"x-queue-version": "2"}, '"expected integer, got longstr"'),
        ({"x-queue-version": True}, '"expected integer, got bool"'),
        ({"x-queue-leader-locator": "here"}, "vhost '/': invalid_queue_locator_arg; one of"),
        ({"x-quorum-initial-group-size": 0}, "{value_zero,0}"),
        ({"x-quorum-initial-group-size": "a"}, '"expected integer, got longstr"'),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(
    client: Client, arguments: c.Table, words: str
) -> None:
    assert client.queue("q", arguments) == 406
    assert words in client.error()
    assert not client.rig.has_queue("q")


@pytest.mark.parametrize(
    ("hint", "value", "other"),
    [
        ("x-queue-mode", "lazy", "default"),
        ("x-queue-version", 2, 1),
        ("x-queue-leader-locator", "balanced", "client-local"),
        ("x-queue-master-locator", "min-masters", "client-local"),
        ("x-quorum-initial-group-size", 3, 5),
    ],
)
def test_hints_are_accepted_and_compared(
    client: Client, hint: str, value: c.Value, other: c.Value
) -> None:
    kind = "quorum" if hint in ("x-queue-leader-locator", "x-quorum-initial-group-size") else ""
    hinted: c.Table = {"x-queue-type": kind or "classic", hint: value, "mine": 1}
    assert client.queue("q", hinted) == c.OK
    assert client.queue("q", {**hinted, "mine": 2}) == c.OK
    assert client.queue("q", {**hinted, hint: other}) == 406
    assert f"inequivalent arg '{hint}' for queue 'q'" in client.error()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-priority", 3), ("x-queue-mode", "lazy"), ("x-queue-mode", "bad"),
        ("x-queue-version", 2), ("x-queue-master-locator", "min-masters"), ("x-max-age", "1h"),
        ("x-stream-max-segment-size-bytes", 5), ("x-initial-cluster-size", 3),
    ],
)  # fmt: skip
def test_arguments_a_quorum_queue_lacks_are_refused(
    client: Client, argument: str, value: c.Value
) -> None:
    assert client.queue("q", {**QUORUM, argument: value}) == 406
    assert client.error() == (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/' "
        "of queue type rabbit_quorum_queue"
    )


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("quorum", "x-max-priority", 3), ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-max-age", "1h"), ("stream", "x-max-priority", 3),
        ("stream", "x-message-ttl", 5), ("classic", "x-max-age", "1h"),
    ],
)  # fmt: skip
def test_arguments_the_queue_type_lacks_are_not_compared(
    client: Client, kind: str, argument: str, value: c.Value
) -> None:
    """As in RabbitMQ, which compares only the arguments of the queue's type."""
    assert client.queue("q", {"x-queue-type": kind}) == c.OK
    again: c.Table = {"x-queue-type": kind, argument: value}
    assert client.queue("q", again) == c.OK
    assert client.queue("q", {**again, "x-max-length-bytes": 5}) == 406
    assert "inequivalent arg 'x-max-length-bytes' for queue 'q'" in client.error()


def test_deduplication_of_a_stream_is_still_compared(client: Client) -> None:
    stream: c.Table = {"x-queue-type": "stream"}
    assert client.queue("q", stream) == c.OK
    assert client.queue("q", {**stream, "x-message-deduplication": True}) == 406


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"exclusive": True, "durable": False}, "exclusive-owner"),
        ({"durable": False}, "non-durable"),
    ],
)
def test_a_quorum_queue_is_durable_and_not_exclusive(
    client: Client, flags: dict[str, bool], what: str
) -> None:
    assert client.queue("q", QUORUM, **flags) == 406
    assert client.error() == (
        f"PRECONDITION_FAILED - invalid property '{what}' for queue 'q' in vhost '/'"
    )
    client = client.rig.client()
    assert client.queue("amq.gen-stamped-by-the-gateway", QUORUM) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    )


def test_exclusive_queues_belong_to_their_connection(client: Client) -> None:
    client.queue("mine", durable=False, exclusive=True)
    other = client.rig.client("b")
    attempts: list[Callable[[], int]] = [
        lambda: other.queue("mine", durable=False, exclusive=True),
        lambda: other.queue("mine", passive=True),
        lambda: other.get("mine"),
        lambda: other.consume("mine"),
        lambda: other.purge("mine"),
        lambda: other.delete("mine"),
        lambda: other.bind("mine", "amq.direct"),
    ]
    for attempt in attempts:
        assert attempt() == 405
        assert other.error().startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine'"
        )
        other.channel(1)
    assert client.channel(2).queue("mine", durable=False, exclusive=True) == c.OK
    assert other.publish("mine") == c.OK
    client.close()
    assert not client.rig.has_queue("mine")


def test_purge_and_delete(client: Client) -> None:
    client.queue("q")
    for _ in range(3):
        client.publish("q", b"x")
    assert client.delete("q", if_empty=True) == 406
    assert client.error() == "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    client.channel(1)
    assert client.purge("q") == c.OK
    assert client.replies() == [("queue.purge-ok", (3,), True)]
    client.publish("q", b"x")
    client.consume("q", prefetch=1)
    client.publish("q", b"x")
    assert client.delete("q", if_unused=True) == 406
    assert client.error() == "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    client.channel(1)
    client.consume("q", prefetch=1)
    assert client.delete("q") == c.OK
    assert client.replies() == [("queue.delete-ok", (1,), True)]
    assert client.cancelled() == ["t"]
    assert client.ack(1) == c.OK
    assert client.delete("q") == c.OK
    assert client.replies() == [("queue.delete-ok", (0,), False)]


def test_a_new_queue_of_the_same_name_does_not_get_old_messages(client: Client) -> None:
    client.queue("q")
    client.publish("q", b"old")
    client.get("q")
    client.delete("q")
    client.queue("q")
    assert client.nack(1) == c.OK
    assert client.rig.depth("q") == 0


def test_auto_delete_goes_with_the_last_consumer(client: Client) -> None:
    client.queue("q", auto_delete=True)
    client.consume("q", "one")
    client.consume("q", "two")
    client.cancel("one")
    assert client.rig.has_queue("q")
    client.cancel("two")
    assert not client.rig.has_queue("q")
    assert client.replies() == [("basic.cancel-ok", ("two",), False)]


def test_max_length_drops_the_oldest(client: Client) -> None:
    client.queue("q", {"x-max-length": 2})
    for body in (b"1", b"2", b"3"):
        client.publish("q", body)
    assert bodies(client, "q") == [b"2", b"3"]
    client.get("q")
    client.publish("q", b"4")
    assert bodies(client, "q") == [b"3", b"4"]
    client.nack(1)  # 2 returns to the head and exceeds the limit
    assert bodies(client, "q") == [b"3", b"4"]


def test_max_length_bytes(client: Client) -> None:
    client.queue("q", {"x-max-length-bytes": 10})
    for body in (b"12345", b"123456", b"1"):
        client.publish("q", body)
    assert bodies(client, "q") == [b"123456", b"1"]


def test_reject_publish_refuses_the_message(client: Client) -> None:
    client.queue("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.publish("q", b"1", no=1)
    assert [one.ack for one in client.confirms()] == [True]
    client.publish("q", b"2", no=2)
    assert [one.ack for one in client.confirms()] == [False]
    assert bodies(client, "q") == [b"1"]


def test_messages_expire_only_at_ticks(client: Client) -> None:
    rig = client.rig
    client.queue("plain")
    client.queue("short", {"x-message-ttl": 500})
    for queue in ("plain", "short"):
        client.publish(queue, b"mortal", properties=EXPIRES_IN_A_SECOND)
        client.publish(queue, b"other")
    assert rig.machine.wants_tick
    rig.pass_time(400_000)
    assert (rig.depth("plain"), rig.depth("short")) == (2, 2)
    rig.pass_time(200_000)
    assert (rig.depth("plain"), rig.depth("short")) == (2, 0)
    rig.pass_time(400_000)
    assert bodies(client, "plain") == [b"other"]
    assert rig.tick("a", 5) == c.IGNORED
    client.purge("plain")
    assert not rig.machine.wants_tick


@pytest.mark.parametrize("consumes", [True, False])
@pytest.mark.parametrize("of_queue", [True, False])
def test_time_goes_on_while_a_message_is_held_that_can_expire(
    client: Client, of_queue: bool, consumes: bool
) -> None:
    rig = client.rig
    client.queue("q", {"x-message-ttl": 1000} if of_queue else {})
    properties = b"\0\0" if of_queue else EXPIRES_IN_A_SECOND
    if consumes:
        client.consume("q", prefetch=1)
    for tag in (1, 2):
        client.publish("q", properties=properties)
        if not consumes:
            client.get("q")
        assert (rig.depth("q"), rig.machine.wants_tick) == (0, True)
        if tag == 1:
            client.ack(tag)
            assert not rig.machine.wants_tick
    rig.pass_time(1_000_000)
    if consumes:
        client.cancel()
    client.nack(2)
    rig.pass_time(1)
    assert (rig.depth("q"), rig.machine.wants_tick) == (0, False)


def test_unused_queues_expire(client: Client) -> None:
    rig = client.rig
    client.queue("other", {"x-expires": 60_000})
    client.queue("q", {"x-expires": 1000})
    client.consume("q")
    rig.pass_time(5_000_000)
    assert rig.has_queue("q")
    client.cancel()
    rig.pass_time(900_000)
    client.get("q")
    rig.pass_time(999_999)
    assert rig.has_queue("q")
    rig.pass_time(1)
    assert not rig.has_queue("q")
    assert rig.machine.wants_tick
    client.delete("other")
    assert not rig.machine.wants_tick


def test_an_outage_does_not_expire_a_queue(client: Client) -> None:
    rig = client.rig
    client.queue("q", {"x-expires": 1000})
    rig.pass_time(900_000)
    rig.activate(cold=True)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    rig.pass_time(999_999)
    assert rig.has_queue("q"), "no client could use it meanwhile, so its time starts again"
    rig.pass_time(1)
    assert not rig.has_queue("q")


def test_an_expiration_that_is_not_a_number_is_refused(client: Client) -> None:
    client.queue("q")
    assert client.publish("q", properties=b"\x01\x00\x03abc") == 406
    assert "invalid expiration 'abc'" in client.error()


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("soon", "no_integer"), ("", "no_integer"), (" 5", "no_integer"), ("++5", "no_integer"),
        ("1.5", '{leftover_string,".5"}'), ("-1", "{value_negative,-1}"),
        ("9" * 20, f"{{value_too_large,{'9' * 20}}}"),
    ],
)  # fmt: skip
def test_an_invalid_expiration_is_explained_in_rabbitmqs_words(
    client: Client, expiration: str, why: str
) -> None:
    client.queue("q")
    properties = codec.encode_properties({"expiration": expiration})
    assert client.publish("q", properties=properties) == 406
    said = f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"
    assert client.error() == said


def test_dead_letters_carry_their_history(client: Client) -> None:
    client.queue("grave")
    client.bind("grave", "amq.direct", "dead")
    client.queue(
        "q",
        {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": "dead"},
    )
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    client.rig.time_us = 3_000_000
    client.rig.pass_time(2_000_000)
    client.get("grave")
    got = client.got()
    assert isinstance(got, GetOk)
    assert (got.exchange, got.key, got.body) == ("amq.direct", "dead", b"m")
    death: c.Table = {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "time": 3,
        "exchange": "",
        "routing-keys": ("q",),
        "original-expiration": "1000",
    }
    headers = headers_of(got.properties)
    assert repr(headers["x-death"]) == repr((death,))  # in this order, as RabbitMQ writes them
    assert headers == {
        "x-first-death-exchange": "",
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
        "x-death": (death,),
        "x-last-death-exchange": "",
        "x-last-death-queue": "q",
        "x-last-death-reason": "expired",
    }
    assert not client.rig.machine.wants_tick


def test_rejected_messages_may_cycle_and_are_counted(client: Client) -> None:
    client.queue("q", {"x-dead-letter-exchange": ""})
    client.publish("q", b"m")
    for tag in (1, 2):
        client.get("q")
        assert client.nack(tag, requeue=False) == c.OK
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    deaths = headers_of(got.properties)["x-death"]
    assert isinstance(deaths, tuple)
    assert isinstance(deaths[0], dict)
    assert deaths[0]["count"] == 2


def test_a_dead_letter_cycle_without_rejection_ends(client: Client) -> None:
    """The queue would dead-letter excess messages to itself for ever."""
    client.queue("q", {"x-dead-letter-exchange": "", "x-max-length": 0})
    assert client.publish("q", b"m") == c.OK
    assert client.rig.depth("q") == 0
    client.queue(
        "there",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "back", "x-max-length": 0},
    )
    client.queue(
        "back",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "there", "x-max-length": 0},
    )
    assert client.publish("there", b"m") == c.OK
    assert client.rig.depth("there") == client.rig.depth("back") == 0


def test_priorities(client: Client) -> None:
    rig = client.rig
    client.queue("q", {"x-max-priority": 5})
    for body, priority in ((b"1", 1), (b"5", 9), (b"0", 0), (b"1b", 1), (b"5b", 5)):
        client.publish("q", body, properties=b"\x18\x00\x02" + bytes((priority,)))
    client.get("q")
    client.get("q")
    client.nack(1)  # 5 is first again
    client.ack(2)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    order = []
    for _ in range(3):
        client.get("q")
        got = client.got()
        assert isinstance(got, GetOk)
        order.append((got.body, got.redelivered))
    assert order == [(b"5", True), (b"1", False), (b"1b", False)]
    client.publish("q", b"none")
    client.publish("q", b"volatile", flags=0)
    rig.activate(cold=True)
    again = rig.client()
    again.consume("q")
    assert [body for _, body, _ in again.deliveries()] == [b"5", b"1", b"1b", b"0", b"none"]
    assert all(redelivered for _, _, redelivered in again.deliveries())
    again.publish("q", b"now", properties=b"\x08\x00\x03")
    assert again.deliveries() == [(6, b"now", False)]


def test_get_from_an_empty_queue(client: Client) -> None:
    client.queue("q")
    client.get("q")
    assert isinstance(client.got(), GetEmpty)


def test_queue_rows_are_the_same_on_all_members(client: Client) -> None:
    client.queue("q")
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.get("q")
    rows = [machine.queue_rows() for machine in client.rig.machines.values()]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0][:7] == ("/", "q", True, False, 1, 1, 0)
    assert rows[0][0].digest != 0
