"""Helpers of the tests of federation: clusters that federate."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from urllib.parse import quote

import pika

from tests.system.links.support import answered, channel, depth, uri
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import BrokerProcess

DURABLE = pika.BasicProperties(delivery_mode=2)


def put(member: BrokerProcess, path: str, body: object) -> None:
    """Define an object; the member must accept it."""
    found = answered(member, "PUT", path, body)
    assert found.status in (201, 204), (path, found)


def upstream(member: BrokerProcess, name: str, at: BrokerProcess, **keys: object) -> None:
    """A `federation-upstream` of the virtual host `/`; `_` in keys stands for `-`."""
    value = {key.replace("_", "-"): one for key, one in keys.items()}
    value = {"uri": uri(at), "reconnect-delay": 1, **value}
    put(member, f"parameters/federation-upstream/%2F/{name}", {"value": value})


def federate(member: BrokerProcess, pattern: str, *, kind: str = "exchanges", **keys: str) -> None:
    """Set a policy; without keys, one with all upstreams."""
    definition = {key.replace("_", "-"): one for key, one in keys.items()}
    body = {
        "pattern": pattern, "apply-to": kind,
        "definition": definition or {"federation-upstream-set": "all"},
    }  # fmt: skip
    put(member, f"policies/%2F/{quote('federate ' + pattern, safe='')}", body)


def stop_federating(member: BrokerProcess, pattern: str) -> None:
    """Delete that policy."""
    name = quote("federate " + pattern, safe="")
    assert answered(member, "DELETE", f"policies/%2F/{name}").status == 204


def links(member: BrokerProcess) -> list[dict[str, object]]:
    """The rows of all links."""
    found = answered(member, "GET", "federation-links")
    assert found.status == 200, found
    assert isinstance(found.body, list)
    return found.body


def link(member: BrokerProcess, name: str, upstream_name: str = "") -> dict[str, object]:
    """The row of the link of an exchange or queue; empty if it has none."""
    for row in links(member):
        named = name in (row.get("exchange"), row.get("queue"))
        if named and upstream_name in ("", row["upstream"]):
            return row
    return {}


def wait_for_link(
    member: BrokerProcess, name: str, upstream_name: str = "", status: str = "running"
) -> None:
    """Wait until the row shows this status."""
    wait_until(
        lambda: link(member, name, upstream_name).get("status") == status, 40,
        f"link of {name}: {status}",
    )  # fmt: skip


def exchange(member: BrokerProcess, name: str, kind: str = "topic") -> None:
    """Declare a durable exchange."""
    with channel(member) as one:
        one.exchange_declare(name, kind, durable=True)


def bound(member: BrokerProcess, queue: str, source: str, *keys: str) -> None:
    """Declare a durable queue and bind it."""
    with channel(member) as one:
        one.queue_declare(queue, durable=True)
        for key in keys:
            one.queue_bind(queue, source, key)


def unbind(member: BrokerProcess, queue: str, source: str, key: str) -> None:
    """Remove one binding."""
    with channel(member) as one:
        one.queue_unbind(queue, source, key)


def send(member: BrokerProcess, source: str, key: str, numbers: Sequence[int]) -> None:
    """Publish durable messages with these numbers as bodies, in one transaction."""
    with channel(member) as one:
        one.tx_select()
        for number in numbers:
            one.basic_publish(source, key, str(number).encode(), DURABLE)
        one.tx_commit()


def bindings_of_links(member: BrokerProcess, source: str) -> list[str]:
    """The keys by which links of other clusters are bound to an exchange; none if there are
    none."""
    found = answered(member, "GET", f"exchanges/%2F/{source}/bindings/source")
    if found.status == 404:
        return []
    assert isinstance(found.body, list), found
    return sorted(
        row["routing_key"]
        for row in found.body
        if row["destination_type"] == "exchange" and row["destination"].startswith("federation: ")
    )


def wait_for_bindings(member: BrokerProcess, source: str, *keys: str) -> None:
    """Wait until links of other clusters are bound by exactly these keys."""
    wait_until(
        lambda: bindings_of_links(member, source) == sorted(keys), 30, f"bindings of {source}"
    )


def settled(
    members: BrokerProcess | Collection[BrokerProcess], queue: str, count: int, seconds: float = 2.0
) -> None:
    """Wait until each member's queue holds this many messages and no more arrive for a moment."""
    asked = [members] if isinstance(members, BrokerProcess) else [*members]
    for member in asked:
        wait_until(lambda one=member: depth(one, queue) == count, 60, f"{count} in {queue}")  # type: ignore[misc]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for member in asked:
            found = depth(member, queue)
            assert found == count, f"{queue} at {member}: {found} instead of {count}"
        time.sleep(0.2)
