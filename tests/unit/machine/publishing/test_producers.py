"""G23: a numbered publish is taken once, and a repeat gets the same answer."""

from collections.abc import Callable

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.image.scrub import Scrub
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE
from broker.machine.requests.properties import headers_of
from tests.support.three_machines import Client, Rig

WINDOW = "broker.machine.publishing.numbers.NUMBERS_MAX"


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q")
    return client


def numbered(number: c.Value, producer: c.Value = "p", **more: c.Value) -> bytes:
    headers: c.Table = {"x-producer-id": producer, "x-sequence": number}
    if "epoch" in more:
        headers["x-producer-epoch"] = more.pop("epoch")
    return codec.encode_properties({"headers": headers | more})


def send(
    client: Client,
    number: c.Value,
    body: bytes = b"x",
    *,
    no: int = 1,
    flags: int = c.PERSISTENT,
    key: str = "q",
    **more: c.Value,
) -> int:
    return client.publish(key, body, no=no, flags=flags, properties=numbered(number, **more))


def depth(client: Client) -> int:
    return client.rig.depth("q")


def test_a_repeated_number_is_confirmed_and_not_stored_again(client: Client) -> None:
    assert send(client, 1) == c.OK
    other = client.rig.client("b")
    assert send(other, 1, no=7) == c.REPEATED
    (confirm,) = other.confirms()
    assert (confirm.conn, confirm.publish_no, confirm.ack, confirm.durable) == (1, 7, True, True)
    assert depth(client) == 1
    assert send(other, 2, no=8) == c.OK
    assert depth(client) == 2


def test_the_log_names_the_message_that_a_number_stands_for(client: Client) -> None:
    client.publish("q")
    send(client, 1, b"body")
    (published, _) = MOVE.iter_unpack(client.rig.moves)
    send(client, 1, b"body", no=2)
    (again,) = MOVE.iter_unpack(client.rig.moves)
    assert again[0] == published[0] | 0x30
    assert again[2:] == (2, *published[3:])


def test_a_received_message_carries_no_producer_number(client: Client) -> None:
    """Else its consumer could not publish it again unchanged as the same user: the publish would be
    confirmed as a repeat, and the message lost with the ack."""
    send(client, 1, epoch=0, kept="as it was")
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    assert headers_of(got.properties) == {"kept": "as it was"}
    assert client.publish("q", b"x", no=2, flags=c.PERSISTENT, properties=got.properties) == c.OK
    client.ack(1)
    assert depth(client) == 1


def test_a_repeated_unroutable_publish_is_returned_again(client: Client) -> None:
    flags = c.PERSISTENT | c.MANDATORY
    for outcome in (c.UNROUTABLE, c.REPEATED):
        assert send(client, 1, key="nowhere", flags=flags) == outcome
        (returned,) = client.returns()
        assert (returned.key, returned.body) == ("nowhere", b"x")
        assert [one.ack for one in client.confirms()] == [True]
    client.queue("nowhere")
    assert send(client, 1, key="nowhere") == c.REPEATED
    assert not client.returns()
    assert client.rig.depth("nowhere") == 0


def test_a_repeat_of_a_refused_publish_is_refused_again(client: Client) -> None:
    client.queue("full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    send(client, 1, key="full")
    for outcome in (c.OK, c.REPEATED):
        assert send(client, 2, key="full") == outcome
        assert [one.ack for one in client.confirms()] == [False]
    client.purge("full")
    assert send(client, 2, key="full") == c.REPEATED
    assert send(client, 3, key="full") == c.OK
    assert client.rig.depth("full") == 1


def test_a_publish_that_failed_uses_no_number(client: Client) -> None:
    properties = numbered(1)
    assert client.publish("q", exchange="later", no=1, properties=properties) == 404
    again = client.channel(1)
    again.exchange("later", "fanout")
    again.bind("q", "later")
    assert again.publish("q", exchange="later", no=1, properties=properties) == c.OK
    assert depth(client) == 1


def test_a_lower_epoch_is_refused_and_a_higher_one_starts_anew(client: Client) -> None:
    send(client, 5, b"old")
    other = client.rig.client("b")
    assert send(other, 5, b"new", epoch=3) == c.OK
    assert send(other, 5, b"new", epoch=3) == c.REPEATED
    for epoch in (0, 2):
        assert send(client, 6, b"zombie", epoch=epoch) == 406
        assert "x-producer-epoch 3 by now" in client.error()
        client = client.channel(1)
    assert depth(client) == 2


def test_numbers_may_be_skipped_and_come_late(client: Client) -> None:
    for number in (3, 10, 4, 0, 2**62):
        assert send(client, number) == c.OK
    assert send(client, 2**62) == c.REPEATED
    assert depth(client) == 5


def test_a_number_below_the_window_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WINDOW, 4)
    monkeypatch.setattr("broker.machine.publishing.producers.NUMBERS_MAX", 4)
    for number in range(1, 12):
        assert send(client, number) == c.OK
    for number in (8, 9, 10, 11):
        assert send(client, number) == c.REPEATED
    assert send(client, 7) == 406
    assert "x-sequence 7 of producer 'p' is too old to be known, 4 are" in client.error()
    again = client.channel(1)
    assert send(again, 100) == c.OK
    assert send(again, 97) == c.OK
    assert send(again, 96) == 406
    assert depth(client) == 13


@pytest.mark.parametrize(
    "other",
    [
        lambda client: send(client, 1, b"y"),
        lambda client: send(client, 1, key="r"),
        lambda client: send(client, 1, note=1),
    ],
)
def test_a_number_stands_for_one_message(client: Client, other: Callable[[Client], int]) -> None:
    client.queue("r")
    send(client, 1)
    assert other(client) == 406
    assert "x-sequence 1 of producer 'p' was given to another message" in client.error()
    assert depth(client) == 1


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"number": -1}, "x-sequence of producer 'p' is no whole number"),
        ({"number": "1"}, "x-sequence of producer 'p' is no whole number"),
        ({"number": True}, "x-sequence of producer 'p' is no whole number"),
        ({"number": 1, "epoch": -1}, "x-producer-epoch of producer 'p' is no whole number"),
        ({"number": 1, "producer": ""}, "x-producer-id is no text of 1 to 255 bytes"),
        ({"number": 1, "producer": "é" * 128}, "x-producer-id is no text of 1 to 255 bytes"),
        ({"number": 1, "producer": 5}, "x-producer-id is no text of 1 to 255 bytes"),
    ],
)
def test_invalid_headers_are_refused(client: Client, headers: c.Table, words: str) -> None:
    assert client.publish("q", no=1, properties=numbered(**headers)) == 406
    assert words in client.error()
    assert depth(client) == 0


def test_a_name_without_a_number_is_ignored(client: Client) -> None:
    alone: list[c.Table] = [{"x-producer-id": "p"}, {"x-sequence": 1}, {"x-producer-id": 5}]
    for headers in alone:
        properties = codec.encode_properties({"headers": headers})
        for _ in range(2):
            assert client.publish("q", properties=properties) == c.OK
    assert depth(client) == 6


def test_numbers_are_refused_in_transactions(client: Client) -> None:
    publishes = [
        c.TxPublish("", "q", c.PERSISTENT, properties, b"x")
        for properties in (b"\x00\x00", numbered(1))
    ]
    assert client.commit(publishes) == 406
    assert "are not taken in a transaction" in client.error()
    assert depth(client) == 0


def test_producers_are_separate_by_user_and_virtual_host(client: Client) -> None:
    send(client, 1)
    rig = client.rig
    opened = c.ConnectionOpen(c.CONNECTION_OPEN, 9, "/", "ada", "a:1")
    rig.apply(client.session, opened)
    assert send(Client(rig, client.session, 9, 0).channel(1), 1) == c.OK
    elsewhere = rig.client(vhost="v")
    elsewhere.queue("q")
    assert send(elsewhere, 1) == c.OK
    before = rig.machine.root()
    send(elsewhere, 2)
    assert rig.machine.root() != before
    elsewhere.close()
    rig.define("vhost", "", "v", None)
    rig.tick("a", 1)
    assert "v" not in rig.machine.vhosts
    again = rig.client(vhost="v")
    again.queue("q")
    assert send(again, 1) == c.OK


def test_the_producer_silent_for_longest_is_forgotten(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.machine.publishing.producers.PRODUCERS_MAX", 2)
    for producer in ("one", "two"):
        send(client, 1, producer=producer)
    send(client, 2, producer="one")
    send(client, 1, producer="three")
    assert send(client, 2, producer="one") == c.REPEATED
    assert send(client, 1, producer="two") == c.OK


def test_a_cold_start_drops_numbers_with_their_messages(client: Client) -> None:
    client.queue("loose", durable=False)
    sent = [(1, "q", c.PERSISTENT), (2, "q", 0), (3, "loose", c.PERSISTENT), (4, "q", 0)]
    for number, key, flags in sent:
        send(client, number, key=key, flags=flags)
    client.rig.activate(*"abc", cold=True)
    again = client.rig.client()
    again.queue("loose", durable=False)
    outcomes = [send(again, number, key=key, flags=flags) for number, key, flags in sent]
    assert outcomes == [c.REPEATED, c.OK, c.OK, c.OK]
    assert depth(again) == 3


def test_a_snapshot_holds_the_numbers(client: Client) -> None:
    for number in (5, 3000, 17):
        send(client, number, flags=0)
    send(client, 1, producer="other", epoch=7)
    rig = client.rig
    chunks = list(rig.machine.snapshot())
    rig.machines["b"] = copy = Machine.restore("b", chunks)
    copy.invariants()
    assert list(copy.snapshot()) == chunks
    assert send(client, 4, flags=0) == c.OK
    assert send(client, 17, flags=0) == c.REPEATED
    assert send(client, 9000, flags=0) == c.OK
    assert send(client, 1, producer="other", epoch=6) == 406
    assert list(rig.machines["b"].snapshot()) == list(rig.machines["c"].snapshot())


def test_a_scrub_finds_a_corrupted_number(client: Client) -> None:
    send(client, 1)
    machine = client.rig.machine
    producer = machine.vhosts["/"].producers["guest"]["p"]
    producer.entries[0] ^= 8
    scrub = Scrub(machine)
    faults = [scrub.step(10) for _ in range(3)]
    (fault,) = [one for one in faults if one is not None]
    assert "producer 'p' in vhost '/'" in fault.where
