"""Large bodies, sent in parts ahead of their message."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import ChannelError, GetOk
from broker.machine.image import snapshot
from broker.machine.machine import Machine
from tests.support.three_machines import Client, Rig

PARTS = c.PERSISTENT | c.IN_PARTS
LIMIT = "broker.machine.handlers.publish.UNFINISHED_BYTES_MAX"


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q")
    return client


def body_of(client: Client, queue: str = "q") -> bytes:
    client.get(queue, no_ack=True)
    got = client.got()
    assert isinstance(got, GetOk)
    return bytes(got.body)


def test_parts_and_the_publish_make_one_message(client: Client) -> None:
    assert [client.part(b"one "), client.part(b"two ")] == [c.OK, c.OK]
    assert client.rig.depth("q") == 0
    assert client.publish("q", b"three", flags=PARTS, no=1) == c.OK
    (confirm,) = client.confirms()
    assert (confirm.publish_no, confirm.ack, confirm.durable) == (1, True, True)
    assert body_of(client) == b"one two three"
    client.publish("q", b"next")
    assert body_of(client) == b"next"


def test_other_channels_may_publish_between_the_parts(client: Client) -> None:
    other = client.channel(2)
    client.part(b"1")
    other.part(b"A")
    other.publish("q", b"small", flags=c.PERSISTENT)
    client.part(b"2")
    other.publish("q", b"B", flags=PARTS)
    client.publish("q", b"3", flags=PARTS)
    assert [body_of(client) for _ in range(3)] == [b"small", b"AB", b"123"]


@pytest.mark.parametrize("end", ["channel", "connection", "member", "refusal"])
def test_parts_are_dropped_with_their_channel(client: Client, end: str) -> None:
    rig = client.rig
    client.part(b"x" * 100)
    assert rig.machine.unfinished_bytes == 100
    match end:
        case "channel":
            client.close_channel()
        case "connection":
            client.close()
        case "member":
            rig.activate("a")
        case _:
            assert client.publish("k", exchange="nowhere", flags=PARTS) == 404
    assert (rig.machine.unfinished_bytes, rig.machine.unfinished) == (0, {})


def test_a_snapshot_holds_unfinished_messages(client: Client) -> None:
    other = client.channel(2)
    client.part(b"1")
    other.part(b"A")
    client.part(b"2")
    rig = client.rig
    chunks = list(rig.machine.snapshot())
    copy = Machine.restore("b", chunks)
    copy.invariants()
    assert list(copy.snapshot()) == chunks
    assert list(copy.unfinished) == list(rig.machine.unfinished)
    rig.machines["b"] = copy
    client.publish("q", b"3", flags=PARTS)
    assert body_of(client) == b"123"


def test_a_snapshot_holds_a_large_message_in_parts(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bytes(range(256)) * 4000
    client.publish("q", b"before")
    client.publish("q", whole)
    client.publish("q", b"after")
    for name in ("_WHOLE_BYTES_MAX", "_BODY_PART_BYTES"):
        monkeypatch.setattr(snapshot, name, 100_000)
    chunks = list(client.rig.machine.snapshot())
    copy = Machine.restore("b", chunks)
    assert list(copy.snapshot()) == chunks
    client.rig.machines["b"] = copy
    assert [body_of(client) for _ in range(3)] == [b"before", whole, b"after"]


def test_the_longest_waiting_parts_are_dropped_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a client that stalls harms itself, not the clients that continue."""
    monkeypatch.setattr(LIMIT, 1000)
    stalled, other = client.rig.client("b"), client.rig.client("c")
    stalled.part(b"s" * 400)
    client.part(b"1" * 300)
    other.part(b"2" * 300)
    assert client.part(b"3" * 300) == c.OK
    (error,) = client.rig.effects
    assert isinstance(error, ChannelError)
    assert (error.conn, error.code) == (stalled.conn, 311)
    assert "400 have come" in error.text
    assert stalled.part(b"s") == c.IGNORED
    assert client.publish("q", b"", flags=PARTS) == c.OK
    assert body_of(client) == b"1" * 300 + b"3" * 300


def test_a_message_over_the_limit_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, 1000)
    client.part(b"1" * 600)
    assert client.part(b"2" * 600) == 311
    assert client.rig.machine.unfinished_bytes == 0


def test_a_numbered_message_in_parts_is_taken_once(client: Client) -> None:
    headers: c.Table = {"x-producer-id": "p", "x-sequence": 1}
    numbered = codec.encode_properties({"headers": headers})
    for outcome in (c.OK, c.REPEATED):
        client.part(b"large ")
        assert client.publish("q", b"body", flags=PARTS, properties=numbered) == outcome
    assert client.rig.depth("q") == 1
    client.part(b"other ")
    assert client.publish("q", b"body", flags=PARTS, properties=numbered) == 406


def test_those_who_waited_longest_for_a_part_give_way_until_it_is_enough(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, 10)
    first, second, third = client, client.channel(2), client.channel(3)
    for channel, size in ((first, 1), (second, 1), (third, 7), (first, 1)):
        assert channel.part(b"x" * size) == c.OK
    assert first.part(b"x" * 8) == c.OK
    closed = [one.chan for one in client.rig.effects if isinstance(one, ChannelError)]
    assert closed == [2, 3], "the first one is the last that got a part"
    assert client.rig.machine.unfinished_bytes == 10
