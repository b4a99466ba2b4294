"""Shovels between two clusters of real processes: everything arrives, in order, once (G24)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import pika
import pytest

from tests.system.links.support import (
    api,
    channel,
    define,
    depth,
    end,
    processes,
    publish,
    runner_of,
    shovel,
    take,
    uri,
    wait_for_state,
    waiting,
)
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import ROOT, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]


def row_names(cluster: LocalCluster) -> set[str]:
    """The names of its members' rows."""
    return set(api(cluster[0]).rows("nodes"))


def test_messages_go_to_another_cluster_in_order(clusters: tuple[LocalCluster, ...]) -> None:
    near, far = clusters
    publish(near[0], "orders", range(300))
    define(near[1], "to-far", src_uri="amqp://", src_queue="orders", dest_uri=uri(far[0]),
           dest_queue="orders")  # fmt: skip
    for member in near.members:
        wait_for_state(member, "to-far", "running")
    assert take(far[0], "orders", 300) == list(range(300))
    row = shovel(near[0], "to-far")
    assert row["node"] in row_names(near)
    assert "guest" not in repr(row)
    end(near, "to-far")
    publish(near[2], "orders", [300])
    assert waiting(far[0], "orders") == 0
    assert take(near[0], "orders", 1) == [300]


def test_the_death_of_its_member_neither_loses_nor_repeats_messages(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """G24: numbers by places let the destination take messages once that the dead member had
    sent."""
    near, far = clusters
    count = 4000
    publish(near[0], "flow", ())
    define(near[0], "flow", src_uri="amqp://", src_queue="flow", dest_uri=uri(far[0]),
           dest_queue="flow", src_prefetch_count=500)  # fmt: skip
    wait_for_state(near[0], "flow", "running")
    first = runner_of(near, "flow")  # asked before messages flow: all might have passed by now
    others = [member for member in near.members if member is not first]
    publish(near[0], "flow", range(count))
    wait_until(lambda: waiting(far[0], "flow") >= 300, 60, "messages to flow")
    first.kill()
    assert waiting(far[0], "flow") < count, "it was not killed in time"
    assert take(far[0], "flow", count) == list(range(count))
    wait_for_state(others[0], "flow", "running")
    # Messages acknowledged twice, or not at all, would arrive now.
    wait_until(lambda: depth(others[0], "flow") == 0, 30, "the acknowledgements")
    assert waiting(far[0], "flow") == 0
    first.start()
    near.wait_active(timeout_seconds=START_SECONDS)
    end(near, "flow")


def test_a_paused_member_repeats_nothing(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """Its process continues for a moment beside that of the member that took over."""
    near, far = clusters
    count = 4000
    publish(near[0], "paused", ())
    define(near[0], "paused", src_uri="amqp://", src_queue="paused", dest_uri=uri(far[0]),
           dest_queue="paused", src_prefetch_count=500)  # fmt: skip
    wait_for_state(near[0], "paused", "running")
    first = runner_of(near, "paused")  # asked before messages flow: all might have passed by now
    others = [member for member in near.members if member is not first]
    publish(near[0], "paused", range(count))
    wait_until(lambda: waiting(far[0], "paused") >= 300, 60, "messages to flow")
    first.signal(signal.SIGSTOP)
    try:
        assert waiting(far[0], "paused") < count, "it was not stopped in time"
        wait_until(lambda: waiting(far[0], "paused") == count, 90, "another member's shovel")
    finally:
        first.signal(signal.SIGCONT)
    near.wait_active(timeout_seconds=START_SECONDS)
    wait_until(lambda: depth(others[0], "paused") == 0, 30, "the acknowledgements")
    assert take(far[0], "paused", count) == list(range(count))
    assert waiting(far[0], "paused") == 0
    end(near, "paused")


def test_a_restart_beside_a_slow_destination_keeps_the_order(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """(Regression: the previous attempt kept the messages it had, and the new one took later
    ones.)"""
    near, far = clusters
    count = 3000
    value = {"src_uri": "amqp://", "src_queue": "slow", "dest_uri": uri(far[0]),
             "dest_queue": "slow"}  # fmt: skip
    publish(near[0], "slow", range(count))
    define(near[0], "slow", **value, src_prefetch_count=500)
    wait_until(lambda: waiting(far[0], "slow") >= 200, 60, "messages to flow")
    far[0].signal(signal.SIGSTOP)
    try:
        assert api(near[0]).ask("DELETE", "shovels/vhost/%2F/slow/restart").status == 204
        define(near[0], "slow", **value, src_prefetch_count=600)
        wait_for_state(near[0], "slow", "starting")
        assert len(processes(near)) <= 1, "it was started while the previous one runs"
    finally:
        far[0].signal(signal.SIGCONT)
    assert take(far[0], "slow", count) == list(range(count))
    wait_until(lambda: depth(near[0], "slow") == 0, 30, "the acknowledgements")
    assert waiting(far[0], "slow") == 0
    end(near, "slow")


def test_a_cleanly_stopped_member_repeats_nothing(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """Even without numbers: messages under way are confirmed and acknowledged before it ends."""
    near, far = clusters
    count = 8000
    publish(near[0], "orderly", ())
    define(near[0], "orderly", src_uri="amqp://", src_queue="orderly", dest_uri=uri(far[0]),
           dest_queue="orderly", dest_add_timestamp_header=True)  # fmt: skip
    wait_for_state(near[0], "orderly", "running")
    first = runner_of(near, "orderly")  # asked before messages flow: all might have passed by now
    others = [member for member in near.members if member is not first]
    publish(near[0], "orderly", range(count))
    wait_until(lambda: waiting(far[0], "orderly") >= 300, 60, "messages to flow")
    moving = processes(near)
    first.signal(signal.SIGTERM)
    for process in moving:  # `systemctl stop` signals all processes of a unit
        os.kill(process, signal.SIGTERM)
    assert waiting(far[0], "orderly") < count, "it was not stopped in time"
    assert take(far[0], "orderly", count) == list(range(count))
    wait_until(lambda: depth(others[0], "orderly") == 0, 30, "the acknowledgements")
    assert waiting(far[0], "orderly") == 0
    wait_until(lambda: not first.alive, 30, "its end")
    first.start()
    near.wait_active(timeout_seconds=START_SECONDS)
    end(near, "orderly")


def test_a_returning_destination_gets_everything_once(
    clusters: tuple[LocalCluster, ...],
) -> None:
    near, far = clusters
    count = 3000
    publish(near[0], "away", range(count))
    define(near[0], "away", src_uri="amqp://", src_queue="away", dest_uri=uri(far[0]),
           dest_queue="away", src_prefetch_count=500, reconnect_delay=1)  # fmt: skip
    wait_until(lambda: waiting(far[0], "away") >= 300, 60, "messages to flow")
    far[0].kill()
    wait_for_state(near[0], "away", "terminated")
    assert "destination" in str(shovel(near[0], "away")["reason"])
    far[0].start()
    wait_for_state(near[0], "away", "running", 60)
    assert take(far[0], "away", count) == list(range(count))
    wait_until(lambda: depth(near[0], "away") == 0, 30, "the acknowledgements")
    assert waiting(far[0], "away") == 0
    end(near, "away")


def test_wrong_credentials_are_reported_without_the_password(
    clusters: tuple[LocalCluster, ...],
) -> None:
    near, far = clusters
    publish(near[0], "private", range(3))
    define(near[0], "private", src_uri="amqp://", src_queue="private", dest_queue="private",
           dest_uri=uri(far[0], "guest:sesame-open"), reconnect_delay=1)  # fmt: skip
    wait_for_state(near[0], "private", "terminated")
    assert "ACCESS_REFUSED" in str(shovel(near[0], "private")["reason"])
    for path in ("shovels", "parameters", "parameters/shovel"):
        assert "sesame" not in repr(api(near[0]).get(path)), path
    for member in (*near.members, *far.members):
        assert "sesame" not in member.log_path.read_text(encoding="utf-8")
    for path in ("definitions", "parameters/shovel/%2F/private"):
        assert "sesame-open" in repr(api(near[0]).get(path)), "it is to be defined again from this"
    assert depth(near[0], "private") == 3, "messages were taken without a destination"
    define(near[0], "private", src_uri="amqp://", src_queue="private", dest_queue="private",
           dest_uri=uri(far[0]), reconnect_delay=1)  # fmt: skip
    wait_for_state(near[0], "private", "running")
    assert take(far[0], "private", 3) == [0, 1, 2]
    end(near, "private")


def test_a_finished_shovel_deletes_itself(clusters: tuple[LocalCluster, ...]) -> None:
    near, far = clusters
    publish(near[0], "once", range(50))
    define(near[1], "once", src_uri="amqp://", src_queue="once", dest_uri=uri(far[0]),
           dest_queue="once", src_delete_after=20)  # fmt: skip
    wait_until(lambda: not shovel(near[0], "once"), 30, "20 messages to be moved")
    assert take(far[0], "once", 20) == list(range(20))
    assert waiting(near[0], "once") == 30
    define(near[1], "rest", src_uri="amqp://", src_queue="once", dest_uri="amqp://",
           dest_queue="elsewhere", src_delete_after="queue-length")  # fmt: skip
    wait_until(lambda: not shovel(near[0], "rest"), 30, "the rest to be moved")
    assert take(near[2], "elsewhere", 30) == list(range(20, 50))
    assert "rest" not in repr(api(near[0]).get("parameters/shovel"))


def test_a_stopped_peer_costs_bounded_memory_and_delays_nothing_else(
    clusters: tuple[LocalCluster, ...],
) -> None:
    near, far = clusters
    count, size = 400, 250_000  # 100 MB wait
    durable = pika.BasicProperties(delivery_mode=2)
    with channel(near[0], confirms=True) as one:
        one.queue_declare("heavy", durable=True)
        define(near[0], "heavy", src_uri="amqp://", src_queue="heavy", dest_uri=uri(far[0]),
               dest_queue="heavy", reconnect_delay=1)  # fmt: skip
        wait_for_state(near[0], "heavy", "running")
        far[0].signal(signal.SIGSTOP)
        try:
            for number in range(count):
                one.basic_publish("", "heavy", str(number).encode().ljust(size), durable)
            (worker,) = processes(near)
            resident = Path(f"/proc/{worker}/statm").read_text().split()[1]
            megabytes = int(resident) * resource.getpagesize() // 1_000_000
            assert megabytes < 120, "a process of some 30 MB, some messages and the sockets' share"
        finally:
            far[0].signal(signal.SIGCONT)
    assert take(far[0], "heavy", count) == list(range(count))
    end(near, "heavy")


def test_a_full_destination_gets_all_messages_as_it_is_emptied(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """A refused message's number is answered for good, so it is sent again without one."""
    near, far = clusters
    with channel(far[0]) as one:
        arguments = {"x-max-length": 20, "x-overflow": "reject-publish"}
        one.queue_declare("small", durable=True, arguments=arguments)
    publish(near[0], "small", range(50))
    define(near[0], "small", src_uri="amqp://", src_queue="small", dest_uri=uri(far[0]),
           dest_queue="small", reconnect_delay=1)  # fmt: skip
    found = take(far[0], "small", 50)
    assert set(found) <= set(range(50))
    while missing := set(range(50)) - set(found):
        wait_until(lambda: waiting(far[0], "small") > 0, 90, f"{missing} to arrive")
        found += take(far[0], "small", waiting(far[0], "small"))
    wait_until(lambda: depth(near[0], "small") == 0, 30, "the acknowledgements")
    end(near, "small")


def test_a_shovel_from_a_remote_exchange_survives_a_drain(
    clusters: tuple[LocalCluster, ...],
) -> None:
    near, far = clusters
    with channel(near[0]) as one:
        one.queue_declare("pulled", durable=True)
        one.queue_bind("pulled", "amq.topic", "new.#")
    define(near[0], "pull", src_uri=uri(far[0]), src_exchange="amq.topic", src_exchange_key="a.#",
           dest_uri="amqp://", dest_exchange="amq.topic", dest_exchange_key="new.key",
           dest_add_forward_headers=True, dest_publish_properties={"app_id": "link"})  # fmt: skip
    wait_for_state(near[0], "pull", "running")
    node = str(shovel(near[0], "pull")["node"])
    admin = api(near[0])
    assert admin.ask("PUT", f"qpid/members/{node}/drain").status == 204
    with channel(far[0], confirms=True) as one:
        for key in ("a.b", "b.b", "a.c"):
            one.basic_publish("amq.topic", key, key.encode())
    assert admin.ask("DELETE", f"qpid/members/{node}/drain").status == 204
    with channel(near[0]) as one:
        came = one.consume("pulled", auto_ack=True, inactivity_timeout=30)
        for wanted in (b"a.b", b"a.c"):
            method, properties, body = next(came)
            assert (body, method.routing_key, properties.app_id) == (wanted, "new.key", "link")
            (way,) = properties.headers["x-shovelled"]
            assert (way["shovelled-by"], way["src-exchange"]) == ("near", "amq.topic")
        one.cancel()
    end(near, "pull")


def test_operators_see_links_and_restart_them(clusters: tuple[LocalCluster, ...]) -> None:
    near, far = clusters
    bad = api(near[0]).ask("PUT", "parameters/shovel/%2F/bad", {"value": {"src-uri": "amqp://"}})
    assert bad.status == 400
    assert "'dest-uri' is missing" in str(bad.body)
    publish(near[0], "again", [0])
    define(near[0], "again", src_uri="amqp://", src_queue="again", dest_uri=uri(far[0]),
           dest_queue="again")  # fmt: skip
    wait_for_state(near[0], "again", "running")
    (before,) = processes(near)
    others = [member for member in near.members if member is not runner_of(near, "again")]
    assert api(others[0]).ask("DELETE", "shovels/vhost/%2F/again/restart").status == 204
    wait_until(lambda: processes(near) not in ([], [before]), 30, "another process")
    wait_for_state(near[0], "again", "running")
    host, port = near[0].management or ("", 0)
    shown = subprocess.run(
        [*command("qpidctl"), "--broker", f"{host}:{port}", "shovel_status", "--user", "guest",
         "--password", "guest"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "again" in shown.stdout, shown
    assert "running" in shown.stdout
    end(near, "again")


def test_messages_requeued_much_later_are_moved_at_once_and_once(
    clusters: tuple[LocalCluster, ...],
) -> None:
    """Ten that another consumer held while 5,990 passed: their numbers are too old by then."""
    near, far = clusters
    count, held = 6000, 10
    publish(near[0], "held", range(count))
    with channel(near[0]) as other:
        for _ in range(held):
            other.basic_get("held")
        define(near[0], "held", src_uri="amqp://", src_queue="held", dest_uri=uri(far[0]),
               dest_queue="held", reconnect_delay=60)  # fmt: skip
        wait_until(lambda: waiting(far[0], "held") == count - held, 120, "all others")
    wait_until(lambda: depth(near[0], "held") == 0, 30, "the returned messages, without a pause")
    assert waiting(far[0], "held") == count
    assert sorted(take(far[0], "held", count)) == list(range(count))
    end(near, "held")
