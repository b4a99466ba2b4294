"""Definitions of replicas of queues, and who may consume from a replica."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from broker.admin.definitions import parameter_fault
from broker.machine.commands import Table
from broker.machine.machine import Machine
from broker.machine.state import Vhost
from broker.shovels.definition import BadShovel
from broker.shovels.place_ranges import as_text, count, parse, places, ranges_of, union, without
from broker.shovels.replicas import REPLICAS_MAX, Row, Stopping, parse_replica
from tests.support.gateway_loop import Loop

URI = "amqp://copier:secret@far"


def test_a_replica_is_named_after_its_own_queue() -> None:
    found = parse_replica("/", "orders", {"src-uri": URI})
    assert (found.source_queue, found.destination_queue) == ("orders", "orders")
    assert found.key == ("/", "replica", "orders")
    assert "secret" not in repr((found.title, found.row()))
    other = parse_replica("/", "spare", {"src-uri": [URI, "amqp://b"], "src-queue": "orders",
                                         "queue-args": {"x-max-priority": 3}})  # fmt: skip
    assert other.source_queue == "orders"
    assert other.destination_queue_arguments == {"x-max-priority": 3}
    elsewhere = parse_replica("/", "orders", {"src-uri": "amqp:///other"})
    assert elsewhere.source_queue == "orders", "of another virtual host of this cluster"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("q", {}, "'src-uri' is missing"),
        ("q", [], "JSON object"),
        ("amq.q", {"src-uri": URI}, "does not begin with 'amq.'"),
        ("q", {"src-uri": "amqp://"}, "that is the queue itself"),
        ("q", {"src-uri": URI, "ack-mode": "no-ack"}, "there is no key 'ack-mode'"),
        ("q", {"src-uri": URI, "reconnect-delay": 0}, "'reconnect-delay' is a whole number from 1"),
    ],
)
def test_an_invalid_definition_is_explained(name: str, value: object, says: str) -> None:
    with pytest.raises(BadShovel, match=says):
        parse_replica("/", name, value)


def test_the_number_of_replicas_is_bounded() -> None:
    parameters: dict[tuple[str, str], Table] = {
        ("/", f"queue-replica/{number}"): {} for number in range(REPLICAS_MAX)
    }
    there = cast("Machine", SimpleNamespace(definitions={"parameter": parameters}))
    value = {"src-uri": URI}
    assert parameter_fault(there, "/", "queue-replica/0", value) == ""
    assert "there are 100" in parameter_fault(there, "/", "queue-replica/new", value)
    assert "'src-uri' is missing" in parameter_fault(there, "/", "queue-replica/0", {})


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("basic.get", ("q", False)),
        ("basic.consume", ("q", "t", False, False, False, False, {})),
        ("queue.purge", ("q", False)),
    ],
)  # fmt: skip
def test_a_replica_has_no_consumers_until_it_is_promoted(
    method: str, args: tuple[str | bool | Table, ...]
) -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    loop.define("parameter", "/", "queue-replica/q", {"value": {"src-uri": URI}})
    ((closed, code, text, *_),) = peer.call(1, method, *args)
    assert (closed, code) == ("channel.close", 405)
    assert "qpid-ha replicate q --stop" in str(text)
    loop.define("parameter", "/", "queue-replica/q", None)
    peer = loop.connect().open(1)
    ((answer, *_),) = peer.call(1, method, *args)
    assert answer != "channel.close"


def test_ranges() -> None:
    some = ranges_of([0, 1, 1, 2, 5, 7, 8])
    assert as_text(some) == "0-2,5,7-8"
    assert parse(as_text(some)) == some
    assert (count(some), list(places(some))) == (6, [0, 1, 2, 5, 7, 8])
    assert parse("") == []
    for bad in ("a", "3-1", "1-4,4-5", "5,1"):
        with pytest.raises(ValueError, match=r"range|literal"):
            parse(bad)


def test_ranges_are_sets() -> None:
    random = Random(1)
    for _ in range(300):
        one, other = (
            {random.randrange(20) for _ in range(random.randrange(12))} for _ in range(2)
        )  # fmt: skip
        first, second = ranges_of(sorted(one)), ranges_of(sorted(other))
        assert list(places(union(first, second))) == sorted(one | other)
        assert list(places(without(first, second))) == sorted(one - other)


def test_a_stopped_replica_is_shown_until_others_may_consume() -> None:
    """Otherwise a client that sees an ordinary queue is refused with 403 for a moment."""
    copier, program = object(), object()
    held = SimpleNamespace(exclusive_consumer=True, consumers={1: copier})
    vhosts = cast("dict[str, Vhost]", {"/": SimpleNamespace(queues={"orders": held})})
    row: Row = {"vhost": "/", "queue": "orders", "state": "running", "level": True, "node": "a"}
    stopping = Stopping()

    def shown(listed: list[Row]) -> list[object]:
        return [one["state"] for one in stopping.rows(listed, vhosts)]

    stopping.begin(("/", "orders"), [row], vhosts)
    assert shown([row]) == ["running"]  # ordered, but not in force
    assert shown([]) == ["stopping"]
    held.consumers = {2: program}  # it may be consumed, even exclusively
    assert shown([]) == []
    held.consumers = {1: copier}
    assert shown([]) == []  # a released replica stays released
    held.exclusive_consumer = False
    stopping.begin(("/", "orders"), [row], vhosts)
    stopping.begin(("gone", "orders"), [row], vhosts)
    assert shown([]) == []
