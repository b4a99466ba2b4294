"""G30: last-value queues: a newer message replaces the older one with the same key."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.move_log import FLAG, MOVE, REPLACED, SUPERSEDED, Op
from broker.machine.state import BODY
from tests.support.three_machines import Client, Rig

KEY = "ticker"
LAST: c.Table = {"qpid.last_value_queue_key": KEY}


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    assert client.queue("q", LAST) == c.OK
    return client


def named(key: object, **others: object) -> bytes:
    return codec.encode_properties({"headers": {KEY: key}, **others})  # type: ignore[dict-item]


def publish(client: Client, *texts: str, flags: int = c.PERSISTENT, queue: str = "q") -> None:
    """Each text is a body, and its first letter is the key."""
    for text in texts:
        client.publish(queue, text.encode(), flags=flags, properties=named(text[0]))


def waiting(rig: Rig, name: str = "q") -> list[str]:
    return [bytes(message[BODY]).decode() for message in rig.queue(name).returned.values()]


def get(client: Client, queue: str = "q") -> tuple[int, str, bool]:
    client.get(queue)
    got = client.got()
    assert isinstance(got, GetOk)
    return got.delivery_tag, bytes(got.body).decode(), got.redelivered


def whats(rig: Rig) -> list[int]:
    """The moves of the latest command."""
    return [what & ~FLAG for what, *_ in MOVE.iter_unpack(rig.moves)]


# -- declaring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (LAST, KEY),
        ({"qpid.last_value_queue": 1}, "qpid.LVQ_key"),
        ({"qpid.last_value_queue_no_browse": True}, "qpid.LVQ_key"),
        ({"qpid.last_value_queue": 1, **LAST}, KEY),
    ],
)
def test_the_key_is_shown_by_its_argument(rig: Rig, given: c.Table, key: str) -> None:
    client = rig.client()
    assert client.queue("one", given) == c.OK
    assert rig.queue("one").arguments == {"qpid.last_value_queue_key": key}
    assert client.queue("one", {"qpid.last_value_queue_key": key}) == c.OK
    rig.restore()
    assert client.queue("one") == 406
    assert "qpid.last_value_queue_key" in client.error()


def test_disabled_options_make_an_ordinary_queue(rig: Rig) -> None:
    client = rig.client()
    assert client.queue("one", {"qpid.last_value_queue": 0}) == c.OK
    assert rig.queue("one").arguments == {}
    assert rig.queue("one").last_values is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"qpid.last_value_queue_key": ""}, "of 1 to 255 bytes"),
        ({"qpid.last_value_queue_key": "k" * 256}, "of 1 to 255 bytes"),
        ({"qpid.last_value_queue_key": 7}, "the name of a header is needed"),
        ({"qpid.last_value_queue": "yes"}, "a whole number from 0 to 1"),
        ({"x-max-priority": 5}, "both this and x-max-priority"),
        ({"qpid.priorities": 10}, "both this and x-max-priority"),
        ({"x-message-deduplication": True}, "both this and x-message-deduplication"),
        ({"x-queue-type": "stream"}, "rabbit_stream_queue"),
    ],
)
def test_contradicting_options_are_refused(rig: Rig, more: c.Table, words: str) -> None:
    client = rig.client()
    assert client.queue("one", {**LAST, **more}) == 406
    assert words in client.error()
    assert not rig.has_queue("one")


# -- replacing -----------------------------------------------------------------------------------


def test_the_example_of_the_manual(rig: Rig, client: Client) -> None:
    publish(client, "1", "2", "3", "4", "2", "1")
    assert waiting(rig) == ["3", "4", "2", "1"]


def test_the_newer_message_goes_to_the_end(rig: Rig, client: Client) -> None:
    publish(client, "a1", "b1", "a2")
    assert waiting(rig) == ["b1", "a2"]
    assert whats(rig)[-2:] == [REPLACED, Op.ENQUEUED]
    assert rig.queue().tally.replaced == 1
    assert rig.queue().ready_bytes == 4


def test_a_message_without_a_key_is_like_any_other(rig: Rig, client: Client) -> None:
    for body in (b"1", b"2"):
        client.publish("q", body)
        client.publish("q", body + b"empty", properties=named(""))
        client.publish("q", body + b"other", properties=codec.encode_properties({"headers": {}}))
    assert len(waiting(rig)) == 6


def test_text_and_bytes_are_the_same_key_and_a_number_is_another(rig: Rig, client: Client) -> None:
    for value in ("5", b"5", 5, True, 5):
        client.publish("q", repr(value).encode(), properties=named(value))
    assert waiting(rig) == ["b'5'", "True", "5"]
    client.publish("q", b"long", properties=named("k" * 5000))
    client.publish("q", b"longer", properties=named("k" * 5000))
    assert waiting(rig)[3:] == ["longer"]
    last = rig.queue().last_values
    assert last is not None
    assert {len(key) for key in last.waiting} == {16}, "a key takes 16 bytes"


def test_the_last_of_duplicate_headers_counts(rig: Rig, client: Client) -> None:
    once = codec.encode_properties({"headers": {KEY: "a"}})
    entry = once[6:]
    twice = once[:2] + (2 * len(entry)).to_bytes(4, "big") + entry + entry[:-1] + b"b"
    client.publish("q", b"1", properties=named("b"))
    client.publish("q", b"2", properties=twice)
    assert waiting(rig) == ["2"]


def test_a_message_consumed_at_once_leaves_nothing_to_replace(rig: Rig, client: Client) -> None:
    client.consume("q", prefetch=1)
    publish(client, "a1", "a2", "b1", "a3")
    assert waiting(rig) == ["b1", "a3"]
    client.ack(1)
    assert client.deliveries() == [(2, b"b1", False)]
    client.ack(2)
    assert client.deliveries() == [(3, b"a3", False)]


def test_held_messages_are_settled_as_usual(rig: Rig, client: Client) -> None:
    publish(client, "a1")
    tag, *_ = get(client)
    publish(client, "a2")
    assert waiting(rig) == ["a2"]
    assert client.ack(tag) == c.OK
    assert waiting(rig) == ["a2"]
    publish(client, "a3")
    assert waiting(rig) == ["a3"]


def test_a_superseded_message_does_not_return(rig: Rig, client: Client) -> None:
    publish(client, "a1", "b1")
    old, *_ = get(client)
    other, *_ = get(client)
    publish(client, "a2")
    rig.restore()
    client.nack(old)
    assert SUPERSEDED in whats(rig)
    client.nack(other)
    assert waiting(rig) == ["b1", "a2"]
    assert get(client)[1:] == ("b1", True)
    assert get(client)[1:] == ("a2", False)


def test_nor_when_the_newer_one_was_consumed_meanwhile(rig: Rig, client: Client) -> None:
    publish(client, "a1")
    old, *_ = get(client)
    publish(client, "a2")
    client.ack(get(client)[0])
    rig.restore()
    client.nack(old)
    assert waiting(rig) == []


def test_a_returned_message_is_replaced_too(rig: Rig, client: Client) -> None:
    publish(client, "a1", "b1")
    tag, *_ = get(client)
    client.nack(tag)
    assert waiting(rig) == ["a1", "b1"]
    rig.restore()
    publish(client, "a2")
    assert waiting(rig) == ["b1", "a2"]


def test_no_ack_deliveries_behave_the_same(rig: Rig, client: Client) -> None:
    client.consume("q", no_ack=True)
    publish(client, "a1", "a2")
    client.sent(2)
    client.cancel()
    publish(client, "a3", "a4")
    assert waiting(rig) == ["a4"]


def test_a_lost_member_returns_only_the_newest(rig: Rig, client: Client) -> None:
    other = rig.client("b")
    publish(client, "a1", "b1")
    get(other)
    get(other)
    publish(client, "a2")
    rig.activate("b")
    assert waiting(rig) == ["b1", "a2"]


def test_a_transaction_replaces_when_it_commits(rig: Rig, client: Client) -> None:
    publish(client, "a0")
    tag, *_ = get(client)
    bodies = [
        c.TxPublish("", "q", c.PERSISTENT, named(text[0]), text.encode())
        for text in ("a1", "b1", "a2")
    ]
    client.commit(bodies, [c.TxSettle(tag, False, c.TX_REQUEUE)])
    assert waiting(rig) == ["b1", "a2"]


def test_a_purge_clears_the_keys(rig: Rig, client: Client) -> None:
    publish(client, "a1", "b1")
    tag, *_ = get(client)
    client.purge("q")
    rig.restore()
    publish(client, "b2", "a2")
    client.nack(tag)
    assert waiting(rig) == ["b2", "a2"]


def test_a_deleted_queue_takes_superseded_messages_along(rig: Rig, client: Client) -> None:
    publish(client, "a1")
    tag, *_ = get(client)
    publish(client, "a2")
    client.delete("q")
    rig.restore()
    client.nack(tag)
    client.queue("q", LAST)
    publish(client, "a1")
    assert waiting(rig) == ["a1"]


def test_a_cold_start_keeps_the_newest_persistent_message(rig: Rig, client: Client) -> None:
    publish(client, "a1", "b1", "c1")
    get(client)
    publish(client, "b2", flags=0)
    publish(client, "d1", "a2")
    rig.activate(*"abc", cold=True)
    assert waiting(rig) == ["c1", "d1", "a2"]
    other = rig.client()
    publish(other, "c2")
    assert waiting(rig) == ["d1", "a2", "c2"]
    rig.restore()
    assert get(other)[1:] == ("d1", True)


# -- with other features of a queue
# -----------------------------------------------------------------


def test_a_full_queue_accepts_a_replacement(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {**LAST, "qpid.max_count": 2, "qpid.max_size": 6})
    publish(client, "a1", "b1")
    for no, (text, taken) in enumerate(
        (("c1", False), ("a2", True), ("b2345", False), ("b234", True)), 1
    ):
        client.publish("q", text.encode(), no=no, properties=named(text[0]))
        assert [one.ack for one in client.confirms()] == [taken], text
    assert waiting(rig) == ["a2", "b234"], "a refused message replaced nothing"


def test_a_full_queue_may_dead_letter_what_it_refuses(rig: Rig) -> None:
    client = rig.client()
    client.queue("grave")
    letters: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue(
        "q", {**LAST, **letters, "x-max-length-bytes": 2, "x-overflow": "reject-publish-dlx"}
    )
    publish(client, "a1", "a2", "a234")
    assert waiting(rig) == ["a2"]
    assert rig.depth("grave") == 1, "a replaced message is not dead-lettered"


def test_a_ring_queue_drops_its_oldest(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {**LAST, "qpid.max_count": 2, "qpid.policy_type": "ring"})
    publish(client, "a1", "b1", "a2", "c1")
    assert waiting(rig) == ["a2", "c1"]
    publish(client, "b2")
    assert waiting(rig) == ["c1", "b2"]


def test_an_expired_message_frees_its_key(rig: Rig, client: Client) -> None:
    client.publish("q", b"a1", properties=named("a", expiration="1000"))
    client.publish("q", b"b1", properties=named("b", expiration="9000"))
    publish(client, "a2")
    assert rig.machine.wants_tick
    rig.pass_time(10_000_000)
    assert waiting(rig) == ["a2"]
    publish(client, "b2")
    assert waiting(rig) == ["a2", "b2"]


def test_replacing_the_last_message_with_a_time_to_live_stops_ticks(
    rig: Rig, client: Client
) -> None:
    client.publish("q", b"a1", properties=named("a", expiration="1000"))
    publish(client, "a2")
    assert not rig.machine.wants_tick
    assert rig.queue().timed == 0


def test_it_counts_how_often_a_message_returned(rig: Rig) -> None:
    client = rig.client()
    client.queue("grave")
    letters: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue("q", {**LAST, **letters, "x-delivery-limit": 1})
    publish(client, "a1", "b1")
    client.nack(get(client)[0])
    publish(client, "a2")
    assert not rig.queue().returns, "the count leaves with the replaced message"
    client.nack(get(client)[0])
    client.nack(get(client)[0])
    assert rig.depth("grave") == 1
    assert waiting(rig) == ["a2"]


def test_a_rejected_message_is_dead_lettered_even_if_superseded(rig: Rig) -> None:
    client = rig.client()
    client.queue("grave")
    letters: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue("q", {**LAST, **letters})
    publish(client, "a1")
    tag, *_ = get(client)
    publish(client, "a2")
    client.nack(tag, requeue=False)
    assert rig.depth("grave") == 1
    assert waiting(rig) == ["a2"]


def test_dead_letters_may_go_into_a_last_value_queue(rig: Rig, client: Client) -> None:
    letters: c.Table = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
        "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
    }  # fmt: skip
    client.queue("source", letters)
    publish(client, "a1", "b1", "a2", queue="source")
    for _ in range(3):
        client.nack(get(client, "source")[0], requeue=False)
    assert waiting(rig) == ["b1", "a2"]


def test_a_single_active_consumer_is_served(rig: Rig) -> None:
    client = rig.client()
    client.queue("q", {**LAST, "x-single-active-consumer": True})
    publish(client, "a1", "a2")
    client.consume("q", "first", 1)
    assert client.deliveries() == [(1, b"a2", False)]
    publish(client, "b1", "b2")
    client.consume("q", "second", 1)
    assert client.deliveries() == []
    client.cancel("first")
    assert client.deliveries() == [(2, b"b2", False)]
