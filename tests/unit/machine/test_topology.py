"""Exchanges, bindings, routing, and the texts of refusals."""

from collections.abc import Callable

import pytest

from broker.machine import commands as c
from broker.machine.publishing.routing import topic_matches
from broker.machine.queueing.bindings import topic_words
from broker.machine.requests.properties import encode_value, short_string
from broker.machine.state import BODY, FAILOVER
from tests.support.three_machines import EMPTY, Client, Rig


@pytest.fixture
def client() -> Client:
    return Rig().client()


def with_headers(headers: c.Table) -> bytes:
    table = b"".join(short_string(name) + encode_value(value) for name, value in headers.items())
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


def bodies(client: Client, queue: str) -> list[bytes]:
    return [bytes(message[BODY]) for message in client.rig.machine.vhosts["/"].queues[queue].ready]


def test_predeclared_exchanges_exist_and_cannot_be_declared_or_deleted(client: Client) -> None:
    for name, kind in (("amq.direct", "direct"), ("amq.match", "headers"), ("amq.topic", "topic")):
        assert client.exchange(name, kind) == c.OK
        assert client.replies() == [("exchange.declare-ok", (), True)]
    assert client.exchange("amq.mine") == 403
    assert client.error() == (
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    )
    assert client.channel(1).delete_exchange("amq.direct") == 403


def test_amq_failover_exists_and_only_members_publish_to_it(client: Client) -> None:
    """The member that a client is connected to refuses the client's publishes: see
    test_permissions."""
    client.queue("list")
    assert client.bind("list", FAILOVER) == c.OK
    assert client.publish("", b"", FAILOVER) == c.OK
    assert client.exchange("inner", "fanout", internal=True) == c.OK
    assert client.publish("", b"", "inner") == 403
    client.channel(1)
    assert bodies(client, "list") == [b""]
    assert client.channel(2).delete_exchange(FAILOVER) == 403
    client.rig.define("vhost", "", "new", {"description": "", "tags": ()})
    assert FAILOVER in client.rig.machine.vhosts["new"].exchanges


def test_the_default_exchange_cannot_be_changed(client: Client) -> None:
    client.queue("q")
    attempts: list[Callable[[], int]] = [
        lambda: client.exchange(""),
        lambda: client.delete_exchange(""),
        lambda: client.bind("q", ""),
        lambda: client.bind_exchange("amq.direct", ""),
    ]
    for attempt in attempts:
        assert attempt() == 403
        assert client.error().endswith("operation not permitted on the default exchange")
        client.channel(1)


def test_declaring_again_must_be_equivalent(client: Client) -> None:
    assert client.exchange("x", "topic", {"note": 1}) == c.OK
    assert client.exchange("x", "topic", {"note": 1}) == c.OK
    assert client.exchange("x", "direct", {"note": 1}) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': "
        "received 'direct' but current is 'topic'"
    )
    again = client.channel(1)
    assert again.exchange("x", "topic", {"note": 1}, durable=False) == 406
    assert "received 'false' but current is 'true'" in client.error()
    assert client.channel(1).exchange("x", "topic", {"alternate-exchange": "y"}) == 406
    assert client.error().endswith("received the value 'y' of type 'longstr' but current is none")


def test_passive_declare_finds_or_says_404(client: Client) -> None:
    assert client.exchange("x", "topic", passive=True) == 404
    assert client.error() == "NOT_FOUND - no exchange 'x' in vhost '/'"
    again = client.channel(1)
    again.exchange("x", "fanout")
    assert again.exchange("x", "", passive=True) == c.OK


def test_unknown_type_ends_the_connection(client: Client) -> None:
    assert client.exchange("x", "magic") == 503
    assert client.error() == "COMMAND_INVALID - unknown exchange type 'magic'"
    assert client.exchange("x") == c.IGNORED
    assert not client.rig.machine.connections


def test_an_alternate_exchange_must_be_a_name(client: Client) -> None:
    assert client.exchange("x", "direct", {"alternate-exchange": 1}) == 406


def test_direct_and_fanout(client: Client) -> None:
    client.queue("one")
    client.queue("two")
    client.exchange("fan", "fanout")
    client.bind("one", "amq.direct", "k")
    client.bind("two", "amq.direct", "k")
    client.bind("two", "amq.direct", "other")
    client.bind("two", "fan")
    assert client.publish("k", b"1", "amq.direct") == c.OK
    assert client.publish("other", b"2", "amq.direct") == c.OK
    assert client.publish("nobody", b"3", "amq.direct") == c.UNROUTABLE
    assert client.publish("any", b"4", "fan") == c.OK
    assert bodies(client, "one") == [b"1"]
    assert bodies(client, "two") == [b"1", b"2", b"4"]
    client.unbind("two", "amq.direct", "k")
    assert client.replies() == [("queue.unbind-ok", (), True)]
    client.publish("k", b"5", "amq.direct")
    assert bodies(client, "one") == [b"1", b"5"]
    assert bodies(client, "two") == [b"1", b"2", b"4"]


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("*.#.c", "c", False),
        ("a.#.c.#.e", "a.c.c.d.e.e", True),
        ("a.#.c.#.e", "a.b.d.e", False),
        ("*.*.#", "a.b", True),
        ("#.*", "", False),
        ("*", "", False),
        ("*.*", ".", True),
        ("a.*", "a.", True),
    ],
)
def test_topic_patterns(pattern: str, key: str, matches: bool) -> None:
    assert topic_matches(topic_words(pattern), topic_words(key)) == matches


def test_topic_exchange_delivers_once_per_queue(client: Client) -> None:
    client.queue("q")
    for key in ("a.#", "#", "a.b", "a.*"):
        client.bind("q", "amq.topic", key)
    client.publish("a.b", b"1", "amq.topic")
    client.publish("z", b"2", "amq.topic")
    assert bodies(client, "q") == [b"1", b"2"]
    client.unbind("q", "amq.topic", "#")
    assert client.publish("z", b"3", "amq.topic") == c.UNROUTABLE


def test_headers_exchange(client: Client) -> None:
    for name, mode in (("all", "all"), ("any", "any")):
        client.queue(name)
        client.bind(name, "amq.headers", "", {"x-match": mode, "n": 1, "s": "x", "x-skip": 1})
    client.publish("", b"both", "amq.headers", properties=with_headers({"n": 1, "s": "x"}))
    client.publish("", b"one", "amq.headers", properties=with_headers({"n": 1, "s": "y"}))
    client.publish("", b"none", "amq.headers", properties=with_headers({"n": True}))
    client.publish("", b"bare", "amq.headers", properties=EMPTY)
    assert bodies(client, "all") == [b"both"]
    assert bodies(client, "any") == [b"both", b"one"]
    client.bind("any", "amq.match", "", {"present": None})
    assert client.publish("", b"", "amq.match", properties=with_headers({"present": 9})) == c.OK
    assert client.bind("any", "amq.match", "", {"x-match": "some"}) == 406
    assert 'Invalid x-match field value <<"some">>' in client.error()


def test_exchange_to_exchange_bindings_even_in_a_ring(client: Client) -> None:
    client.queue("q")
    client.exchange("first", "fanout")
    client.exchange("second", "direct")
    client.bind_exchange("second", "first")
    client.bind_exchange("first", "second", "k")
    client.bind_exchange("second", "second", "k")
    client.bind("q", "second", "k")
    client.publish("k", b"1", "first")
    client.publish("k", b"2", "second")
    assert bodies(client, "q") == [b"1", b"2"]
    client.unbind_exchange("second", "first")
    assert client.publish("k", b"3", "first") == c.UNROUTABLE
    client.delete_exchange("second")
    assert client.rig.machine.vhosts["/"].exchanges["first"].bindings == {}


def test_unroutable_messages_go_to_the_alternate_exchange(client: Client) -> None:
    client.queue("q")
    client.queue("lost")
    client.exchange("alt", "fanout")
    client.bind("lost", "alt")
    client.exchange("x", "direct", {"alternate-exchange": "alt"})
    client.bind("q", "x", "k")
    client.publish("k", b"1", "x")
    client.publish("other", b"2", "x")
    assert bodies(client, "q") == [b"1"]
    assert bodies(client, "lost") == [b"2"]


def test_internal_exchange_refuses_clients(client: Client) -> None:
    client.queue("q")
    client.exchange("in", "fanout", internal=True)
    client.exchange("out", "fanout")
    client.bind_exchange("in", "out")
    client.bind("q", "in")
    assert client.publish("", b"1", "out") == c.OK
    assert client.publish("", b"2", "in") == 403
    assert "cannot publish to internal exchange 'in'" in client.error()


def test_a_dead_letter_opens_no_way_through_an_internal_exchange(client: Client) -> None:
    """A route that is found for the dead letter must not be remembered for a client."""
    client.exchange("in", "fanout", internal=True)
    client.queue("buried")
    client.bind("buried", "in")
    client.queue("source", {"x-dead-letter-exchange": "in", "x-dead-letter-routing-key": "k"})
    client.publish("source", b"dies")
    client.get("source")
    client.nack(1, requeue=False)
    assert bodies(client, "buried") == [b"dies"]
    assert client.publish("k", b"", "in") == 403
    assert "cannot publish to internal exchange 'in'" in client.error()


def test_auto_delete_exchanges_fall_like_dominoes(client: Client) -> None:
    client.queue("q")
    client.exchange("outer", "fanout", auto_delete=True)
    client.exchange("inner", "fanout", auto_delete=True)
    client.bind_exchange("inner", "outer")
    client.bind("q", "inner")
    client.delete("q")
    assert not client.rig.has_exchange("inner")
    assert not client.rig.has_exchange("outer")


def test_exchanges_deleted_together_fall_in_the_same_order_on_a_restored_member(
    client: Client,
) -> None:
    """G14: a snapshot lists the bindings of an end by their sources, whichever came first. The rig
    compares the moves."""
    for name in ("one", "two"):
        client.exchange(f"before {name}", "fanout", auto_delete=True)
        client.exchange(name, "x-delayed-message", {"x-delayed-type": "fanout"}, auto_delete=True)
    for name in ("two", "one"):
        client.bind_exchange(name, f"before {name}")
    client.queue("q")
    client.exchange("x", "fanout")
    for name in ("two", "one"):
        client.bind("q", name)
        client.bind_exchange("x", f"before {name}")
    client.rig.restore()
    client.delete("q")
    assert not client.rig.has_exchange("one")
    client.delete_exchange("x")
    assert not client.rig.has_exchange("before one")


def test_exchanges_that_fall_with_another_do_so_in_the_same_order_on_a_restored_member(
    client: Client,
) -> None:
    client.exchange("x", "fanout")
    for name in ("one", "two"):
        client.exchange(name, "x-delayed-message", {"x-delayed-type": "fanout"}, auto_delete=True)
    for name in ("two", "one"):
        client.bind_exchange("x", name)
    client.rig.restore()
    client.delete_exchange("x")
    assert not client.rig.has_exchange("one")


def test_delete_if_unused_and_delete_of_a_missing_exchange(client: Client) -> None:
    client.queue("q")
    client.exchange("x")
    client.bind("q", "x", "k")
    assert client.delete_exchange("x", if_unused=True) == 406
    assert client.error() == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    again = client.channel(1)
    assert again.delete_exchange("x") == c.OK
    assert again.delete_exchange("x", if_unused=True) == c.OK
    assert client.replies() == [("exchange.delete-ok", (), False)]


def test_binding_needs_both_ends(client: Client) -> None:
    client.queue("q")
    assert client.bind("q", "nowhere") == 404
    assert client.channel(1).bind("nothing", "amq.direct") == 404
    assert client.error() == "NOT_FOUND - no queue 'nothing' in vhost '/'"
    assert client.channel(1).bind_exchange("amq.direct", "nowhere") == 404
    assert client.channel(1).unbind("q", "amq.direct", "never bound") == c.OK


def test_virtual_hosts_are_separate(client: Client) -> None:
    client.queue("q")
    other = client.rig.client("b", "/other")
    assert other.queue("q", passive=True) == 404
    assert "in vhost '/other'" in other.error()


def test_queues_share_one_copy_of_a_message(client: Client) -> None:
    for name in ("one", "two"):
        client.queue(name)
        client.bind(name, "amq.fanout")
    client.publish("", b"x", "amq.fanout")
    queues = client.rig.machine.vhosts["/"].queues
    assert queues["one"].ready.first is queues["two"].ready.first


def test_an_unroutable_key_becomes_routable(client: Client) -> None:
    """A route is cached only until the topology changes."""
    assert client.publish("q") == c.UNROUTABLE
    client.queue("q")
    assert client.publish("q") == c.OK
    client.exchange("x", "direct", {"alternate-exchange": "later"})
    assert client.publish("k", exchange="x") == c.UNROUTABLE
    client.exchange("later", "fanout")
    client.bind("q", "later")
    assert client.publish("k", exchange="x") == c.OK
    client.delete_exchange("later")
    assert client.publish("k", exchange="x") == c.UNROUTABLE
    client.delete("q")
    assert client.publish("q") == c.UNROUTABLE
