"""Upstreams of federation and upstream sets: their keys, and which of them a policy selects."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.admin.definitions import parameter_fault
from broker.machine.commands import Table, Value
from broker.machine.machine import Machine
from broker.shovels.definition import NAME_BYTES_MAX, BadShovel, Link
from broker.shovels.upstreams import (
    PREFETCH,
    QUEUE_PREFETCH,
    Upstream,
    chosen_upstreams,
    link_of,
    parse_set,
    parse_upstream,
)
from tools.shovel.upstream import SUFFIXES

ROOT = Path(__file__).parents[3]


def test_defaults_are_those_of_rabbitmq() -> None:
    found = parse_upstream("far", {"uri": "amqp://far"})
    assert found == Upstream(
        "far", ("amqp://far",), "", "", -1, 5, "on-confirm", False, 1, 0, -1, "", True
    )


def test_all_keys_of_rabbitmq_are_known() -> None:
    found = parse_upstream("far", {
        "uri": ["amqp://a", "amqps://b"], "prefetch-count": 7, "reconnect-delay": 1,
        "ack-mode": "no-ack", "trust-user-id": True, "exchange": "x", "queue": "q", "max-hops": 3,
        "expires": 1000, "message-ttl": 0, "ha-policy": "all", "queue-type": "quorum",
        "bind-nowait": True, "channel-use-mode": "single", "consumer-tag": "t",
        "resource-cleanup-mode": "never",
    })  # fmt: skip
    assert found == Upstream(
        "far", ("amqp://a", "amqps://b"), "x", "q", 7, 1, "no-ack", True, 3, 1000, 0, "quorum",
        False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"uri": None}, "'uri' is missing"),
        ({"uri": "http://a"}, "'uri': it does not begin with amqp://"),
        ({"max-hops": 0}, "'max-hops' is a whole number from 1 to"),
        ({"message-ttl": "1"}, "'message-ttl' is a whole number"),
        ({"expires": -1}, "'expires' is a whole number"),
        ({"trust-user-id": "yes"}, "'trust-user-id' is true or false"),
        ({"bind-nowait": 1}, "'bind-nowait' is true or false"),
        ({"ack-mode": "maybe"}, "'ack-mode' is on-confirm or"),
        ({"src-queue": "a"}, "there is no key 'src-queue'"),
        ({"queue-type": "stream"}, "'queue-type' is"),
    ],
)
def test_an_error_is_explained_in_a_sentence(change: Table, fault: str) -> None:
    with pytest.raises(BadShovel) as bad:
        parse_upstream("far", {"uri": "amqp://u:sesame@far", **change})
    assert fault in str(bad.value)
    assert "sesame" not in str(bad.value)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("all", [{"upstream": "a"}], "is that of all upstreams"),
        ("s", {}, "is a list of 1 to"),
        ("s", [], "is a list of 1 to"),
        ("s", ["a"], "is an object"),
        ("s", [{"max-hops": 1}], "'upstream' is missing"),
        ("s", [{"upstream": "a", "uri": "amqp://b"}], "there is no key 'uri'"),
        ("s", [{"upstream": "a"}, {"upstream": "a", "exchange": "b"}], "'a' is named twice"),
    ],
)
def test_errors_of_a_set(name: str, value: Value, fault: str) -> None:
    with pytest.raises(BadShovel, match=fault):
        parse_set(name, value)


def test_a_parameter_is_refused_for_its_errors() -> None:
    machine = cast("Machine", SimpleNamespace())
    good = {"uri": "amqp://far"}
    where = "/", "federation-upstream/far"
    assert parameter_fault(machine, *where, good) == ""
    assert "'far'" in parameter_fault(machine, *where, {})
    assert "JSON object" in parameter_fault(machine, *where, 3)
    where_set = "/", "federation-upstream-set/s"
    assert parameter_fault(machine, *where_set, [{"upstream": "a"}]) == ""
    assert "is a list" in parameter_fault(machine, *where_set, 3)


def test_a_policy_names_one_upstream_a_set_or_all() -> None:
    defined: Table = {name: {"uri": f"amqp://{name}", "max-hops": 2} for name in "abc"}
    sets: Table = {"two": ({"upstream": "a", "max-hops": 5}, {"upstream": "gone"})}
    one = chosen_upstreams(defined, sets, {"federation-upstream": "b"})
    assert list(one) == ["b"]
    every = chosen_upstreams(defined, sets, {"federation-upstream-set": "all"})
    assert list(every) == ["a", "b", "c"]
    two = chosen_upstreams(defined, sets, {"federation-upstream-set": "two"})
    first, gone = two.values()
    assert isinstance(first, Upstream)
    assert (first.name, first.max_hops) == ("a", 5)
    assert isinstance(gone, BadShovel)
    assert "there is no federation-upstream 'gone'" in str(gone)
    (absent,) = chosen_upstreams(defined, sets, {"federation-upstream-set": "x"}).values()
    assert "there is no federation-upstream-set 'x'" in str(absent)
    assert chosen_upstreams(defined, sets, {"max-length": 1}) == {}


@pytest.mark.parametrize(
    ("uri", "vhost", "name", "resource", "queue"),
    [
        ("amqp://far", "/", "x", "x", "federation: x -> near"),
        ("amqp://far", "/", "x", "y", "federation: y -> near:x"),
        ("amqp://far", "v", "x", "x", "federation: x -> near:v:x"),
        ("amqp://", "v", "x", "y", "federation: y -> near:x"),
    ],
)
def test_the_queue_at_the_upstream_has_rabbitmqs_name(
    uri: str, vhost: str, name: str, resource: str, queue: str
) -> None:
    upstream = parse_upstream("far", {"uri": uri, "message-ttl": 5, "expires": 9})
    link = Link("exchange", name, "far", resource, "near", 1, False, True, "topic")
    shovel = link_of(upstream, vhost, link)
    assert shovel.source_queue == queue
    assert shovel.source_queue_arguments == {
        "x-internal-purpose": "federation", "x-single-active-consumer": True, "x-expires": 9,
        "x-message-ttl": 5,
    }  # fmt: skip
    assert shovel.key == (vhost, "exchange", name, "far")
    assert shovel.prefetch == PREFETCH
    of_queue = link_of(upstream, vhost, Link("queue", name, "far", name, "near", 1, False, True))
    assert of_queue.prefetch == QUEUE_PREFETCH


def test_a_link_whose_names_are_too_long_for_its_objects_there_says_so() -> None:
    """Its exchange there has a longer name than its queue, which alone was measured: such a link
    was shown as a fault of the broker's, again and again."""
    upstream = parse_upstream("far", {"uri": "amqp://far"})

    def link(length: int) -> Link:
        return Link("exchange", "x" * length, "far", "y", "near", 1, False, True)

    queue = link_of(upstream, "/", link(231)).source_queue
    assert len(f"{queue} {SUFFIXES[0]}") == NAME_BYTES_MAX
    with pytest.raises(BadShovel, match="too long"):
        link_of(upstream, "/", link(232))


def test_the_sample_file_is_valid() -> None:
    """conf/federation.json: everything that it defines is valid."""
    document = json.loads((ROOT / "conf" / "federation.json").read_text(encoding="utf-8"))
    machine = cast("Machine", SimpleNamespace())
    for one in document["parameters"]:
        where = one["vhost"], f"{one['component']}/{one['name']}"
        assert parameter_fault(machine, *where, one["value"]) == ""
    names = {one["name"] for one in document["parameters"]}
    for policy in document["policies"]:
        for key in ("federation-upstream", "federation-upstream-set"):
            assert policy["definition"].get(key, "all") in {*names, "all"}
