"""`qpid-route` between two clusters of real processes: its routes carry messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.system.links.federation_support import (
    bound,
    exchange,
    put,
    send,
    settled,
    wait_for_bindings,
)
from tests.system.links.support import api, publish, rows, take, uri
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

COMMAND = (sys.executable, "-m", "tools.operate.qpid_route")
Pair = tuple[BrokerProcess, BrokerProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters of one member."""
    root = tmp_path_factory.mktemp("routes")
    with (
        LocalCluster(root / "near", 1, "near", management=True) as near,
        LocalCluster(root / "far", 1, "far", management=True) as far,
    ):
        near.start(START_SECONDS)
        far.start(START_SECONDS)
        yield near[0], far[0]


def qpid_route(*words: str, code: int = 0) -> str:
    """Run it; return its output, and its error if the exit code is not 0."""
    done = subprocess.run(
        [*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done.stdout if not code else done.stderr


def at(member: BrokerProcess) -> str:
    """The address of its management API."""
    assert member.management is not None
    return f"guest/guest@{member.management}"


def peer(member: BrokerProcess) -> str:
    """The address at which it is reached."""
    return f"guest/guest@{member.address}"


def state(member: BrokerProcess) -> str:
    """The state of its only link."""
    (row,) = json.loads(qpid_route("--json", "link", "list", at(member)))
    return str(row["state"])


def test_a_dynamic_route(pair: Pair) -> None:
    near, far = pair
    exchange(near, "news")
    bound(near, "reader", "news", "eu.#")
    qpid_route("dynamic", "add", at(near), peer(far), "news")
    wait_for_bindings(far, "news", "eu.#")
    send(far, "news", "eu.fr", range(5))
    assert take(near, "reader", 5) == list(range(5))
    here, there = str(near.management), str(far.address)
    assert qpid_route("route", "list", at(near)).split() == [here, there, "news", "<dynamic>"]
    wait_until(lambda: state(near) == "Operational", 20, "the state of the link")
    refused = qpid_route("link", "del", at(near), peer(far), code=64)
    assert "has routes: dynamic of 'news'" in refused
    qpid_route("dynamic", "del", at(near), peer(far), "news")
    wait_for_bindings(far, "news")
    assert state(near) == "Unused"
    qpid_route("link", "del", at(near), peer(far))
    assert json.loads(qpid_route("--json", "link", "list", at(near))) == []
    assert "qpid-route" not in repr(api(near).get("policies"))


def test_static_routes_pull_and_push(pair: Pair) -> None:
    near, far = pair
    for member in pair:
        exchange(member, "logs")
        bound(member, "log", "logs", "warn.#")
    qpid_route("route", "add", at(near), peer(far), "logs", "warn.far")
    qpid_route("-s", "route", "add", peer(far), at(near), "logs", "warn.near")
    wait_until(lambda: state(near) == "Operational", 30, "the shovels")
    send(far, "logs", "warn.far", [1])
    send(near, "logs", "warn.near", [2])
    settled(pair, "log", 2)
    for member in pair:
        assert sorted(take(member, "log", 2)) == [1, 2]
    listed = qpid_route("route", "list", at(near)).splitlines()
    here, there = str(near.management), str(far.address)
    assert sorted(listed) == sorted(
        [f"{here} {there} logs warn.far", f"{there} {here} logs warn.near"]
    )
    mapped = qpid_route("route", "map", at(near), "--at", f"{far.address}={far.management}")
    assert f"{far.address}... Ok" in mapped
    assert f"{here} <= {there}  exchange logs  key warn.far" in mapped
    alone = qpid_route("route", "map", at(near))  # all members on one machine share that port
    assert f"{there}... Not asked: {here} is {here}; give --at {there}=..." in alone
    assert f"{there} <= {there}" not in alone
    assert "no such route" in qpid_route(
        "route", "del", at(near), peer(far), "logs", "warn.near", code=64
    )
    assert "2 routes" in subprocess.run(
        [*COMMAND, "route", "flush", at(near)], cwd=ROOT, capture_output=True,
        text=True, timeout=60, check=True,
    ).stderr  # fmt: skip
    assert qpid_route("route", "list", at(near)) == ""
    assert not [name for name in rows(near, "queues") if name.startswith("qpid-route")]


def test_a_route_of_a_queue(pair: Pair) -> None:
    near, far = pair
    exchange(near, "jobs", "fanout")
    bound(near, "job", "jobs", "")
    publish(far, "all jobs", range(20))
    qpid_route("queue", "add", at(near), peer(far), "jobs", "all jobs")
    assert take(near, "job", 20) == list(range(20))
    assert "queue=all jobs" in qpid_route("route", "list", at(near))
    qpid_route("queue", "del", at(near), peer(far), "jobs", "all jobs")


def test_impossible_routes_are_refused_with_the_reason(pair: Pair) -> None:
    near, far = pair
    assert "no exchange 'nothing'" in qpid_route(
        "dynamic", "add", at(near), peer(far), "nothing", code=64
    )
    exchange(near, "limited")
    body = {"pattern": "^limited$", "definition": {"alternate-exchange": "amq.fanout"}}
    put(near, "policies/%2F/other", body)
    assert "has the policy 'other'" in qpid_route(
        "dynamic", "add", at(near), peer(far), "limited", code=64
    )
    assert "not by 'DIGEST-MD5'" in qpid_route(
        "link", "add", at(near), peer(far), "digest-md5", code=64
    )
    assert "loops by the names" in qpid_route(
        "dynamic", "add", at(near), peer(far), "news", "tag1", code=64
    )
    assert "leave --src-local out" in qpid_route(
        "-s", "dynamic", "add", peer(far), at(near), "news", code=64
    )
    assert "Examples:" in qpid_route("--help")


def shovel(member: BrokerProcess, name: str, **value: object) -> None:
    """Define a shovel from here; `_` in keys stands for `-`."""
    keys = {key.replace("_", "-"): one for key, one in value.items()}
    put(member, f"parameters/shovel/%2F/{name}", {"value": {"src-uri": "amqp://", **keys}})


def pushes_what_nobody_wants(pair: Pair, name: str, kind: str, policy: str) -> None:
    """An exchange at both, and a shovel for messages that no queue of the near one gets."""
    near, far = pair
    for member in pair:
        exchange(member, name, kind)
    away = f"{name}.away"
    exchange(near, away, "fanout")
    bound(near, away, away, "")
    definition = {"alternate-exchange": away}
    put(near, f"policies/%2F/{policy}", {"pattern": f"^{name}$", "definition": definition})
    shovel(near, policy, src_queue=away, dest_uri=uri(far), dest_exchange=name)


def test_unmatched_messages_are_pushed_as_in_the_manual(pair: Pair) -> None:
    """OpenAMQ's forward-mode, unmatched only: docs/operations/federation.md."""
    near, far = pair
    pushes_what_nobody_wants(pair, "orders", "topic", "unmatched")
    bound(near, "local", "orders", "eu.#")
    bound(far, "remote", "orders", "us.#")
    send(near, "orders", "eu.fr", range(5))
    send(near, "orders", "us.ny", range(5, 10))
    assert take(near, "local", 5) == list(range(5))
    assert take(far, "remote", 5) == list(range(5, 10))
    settled(near, "local", 0, 0.5)


def test_a_queue_at_a_host(pair: Pair) -> None:
    """OpenAMQ's addresses: a message sent to `work@far` here arrives in `work` there."""
    near, far = pair
    publish(far, "work", ())
    publish(near, "work@far", range(10))
    shovel(near, "at-far", src_queue="work@far", dest_uri=uri(far), dest_queue="work")
    assert take(far, "work", 10) == list(range(10))


def test_a_default_route(pair: Pair) -> None:
    """A message published here to a missing queue takes the default route."""
    near, far = pair
    pushes_what_nobody_wants(pair, "to", "direct", "default-route")
    bound(near, "here", "to", "here")
    bound(far, "there", "to", "there")
    send(near, "to", "here", range(5))
    send(near, "to", "there", range(5, 10))
    assert take(near, "here", 5) == list(range(5))
    assert take(far, "there", 5) == list(range(5, 10))
