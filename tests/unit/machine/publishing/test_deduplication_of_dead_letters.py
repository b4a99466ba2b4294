"""G26: a dead letter is never a repeat, whichever way it returns: it is the only copy."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.requests.message_keys import DEATHS, key_of_repeat
from tests.support.three_machines import Client, Rig

ONCE: c.Table = {"x-message-deduplication": True}
ID = codec.encode_properties({"message_id": "one"})


def tally(client: Client) -> int:
    return client.rig.machine.vhosts["/"].queues["q"].tally.drop_duplicate


def send(client: Client, properties: bytes, flags: int = c.PERSISTENT) -> None:
    client.publish("q", b"x", no=1, flags=flags, properties=properties)
    assert [one.ack for one in client.confirms()] == [True]


def read(client: Client, queue: str) -> GetOk:
    client.get(queue)
    got = client.got()
    assert isinstance(got, GetOk)
    return got


@pytest.mark.parametrize("delay_ms", [0, 500])
def test_a_retry_through_a_delaying_exchange_comes_back(delay_ms: int) -> None:
    client = Rig().client()
    grave: c.Table = {"x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "q"}
    client.queue("q", ONCE | grave)
    client.exchange("retry", "x-delayed-message", {"x-delayed-type": "direct"})
    client.bind("q", "retry", "q")
    headers: c.Table = {"x-delay": delay_ms} if delay_ms else {}
    send(client, codec.encode_properties({"headers": headers, "message_id": "one"}))
    read(client, "q")
    client.nack(1, requeue=False)
    client.rig.pass_time(5_000_000)
    assert (client.rig.depth("q"), tally(client)) == (1, 0)


def test_a_message_shovelled_back_from_a_dead_letter_queue_is_taken() -> None:
    """A shovel publishes the properties unchanged and acks when the publish is confirmed."""
    client = Rig().client()
    client.queue("dead")
    client.queue("q", ONCE | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    send(client, ID)
    read(client, "q")
    client.nack(1, requeue=False)
    got = read(client, "dead")
    send(client, got.properties)
    client.ack(got.delivery_tag)
    assert (client.rig.depth("q"), client.rig.depth("dead"), tally(client)) == (1, 0, 0)
    send(client, ID)
    assert (client.rig.depth("q"), tally(client)) == (1, 1), "its key is still in the window"


def test_a_dead_letter_in_a_transaction_uses_up_no_key() -> None:
    client = Rig().client()
    client.queue("q", ONCE)
    died = codec.encode_properties({"headers": {DEATHS: ()}, "message_id": "one"})
    one = c.TxPublish("", "q", c.PERSISTENT, died, b"x")
    assert client.commit([one, one]) == c.OK
    assert (client.rig.depth("q"), tally(client)) == (2, 0)
    assert client.commit([one._replace(properties=ID)]) == c.OK
    assert client.rig.depth("q") == 3


def test_only_a_header_of_this_exact_name_marks_a_dead_letter() -> None:
    """The name in a value, or as a part of another name, does not."""
    others: list[c.Table] = [{"other": f"\x07{DEATHS}"}, {f"{DEATHS}s": 1}, {"t": {DEATHS: ()}}]
    for headers in others:
        assert key_of_repeat(codec.encode_properties({"headers": headers, "message_id": "one"}))
    assert not key_of_repeat(
        codec.encode_properties({"headers": {DEATHS: ()}, "message_id": "one"})
    )


@pytest.mark.parametrize("empty", ["", b""])
def test_an_empty_header_does_not_hide_the_message_id(empty: c.Value) -> None:
    headers: c.Table = {"x-deduplication-header": empty}
    properties = codec.encode_properties({"headers": headers, "message_id": "one"})
    assert key_of_repeat(properties) == key_of_repeat(ID)
