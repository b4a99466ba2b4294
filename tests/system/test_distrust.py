"""Real brokers with a wrong state: they are detected, named, stopped, and repaired (G10, G16)."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker.exit_codes import Exit
from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.test_cluster_faults import (
    PERSISTENT,
    QUEUE,
    channel_of,
    contents,
    publish,
    status_word,
)
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three brokers, not started; each may be given a fault when it is started."""
    monkeypatch.setattr(
        "tools.demo.local_cluster.command",
        lambda _: [sys.executable, "-m", "tests.system.support.faulty_broker"],
    )
    with LocalCluster(tmp_path, 3, "distrust", extra={"scrub-rate": "0"}) as made:
        yield made


def start(member: BrokerProcess, monkeypatch: pytest.MonkeyPatch, how: str = "") -> None:
    monkeypatch.setenv("SABOTAGE", how)
    member.start()


def send(member: BrokerProcess, body: bytes) -> None:
    channel = channel_of(member)
    channel.basic_publish("", QUEUE, body, PERSISTENT)
    channel.connection.close()


def evidence(member: BrokerProcess, kind: str) -> list[dict[str, object]]:
    found = sorted((member.data_dir / "evidence").glob(f"*-{kind}/facts.json"))
    return [json.loads(path.read_text("utf-8")) for path in found]


def test_a_command_that_kills_all_members_does_not_kill_them_twice(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G16, G9: confirmed messages are still there, and the client that repeats the command is
    refused."""
    monkeypatch.setenv("SABOTAGE", "raise")
    cluster.start(START_SECONDS)
    publish(channel_of(cluster[0]), 1, 5)
    with contextlib.suppress(pika.exceptions.AMQPError):
        send(cluster[0], b"POISON")
    wait_until(
        lambda: sum(member.exit_code == Exit.INTERNAL for member in cluster.members) >= 2,
        20, "a majority to stop before it replies",
    )  # fmt: skip
    for member in cluster.members:
        if member.alive:  # the last one alone never learnt that the message was safe
            member.kill()
    killed = [member for member in cluster.members if evidence(member, "quarantine")]
    assert len(killed) >= 2
    assert evidence(killed[0], "quarantine")[0]["command"] == "Publish"
    cluster.start(START_SECONDS)
    wait_until(
        lambda: refused_code(cluster[1]) == Exit.OK or refused_code(cluster[1]) == 541,
        20, "the refusal",
    )  # fmt: skip
    assert refused_code(cluster[2]) == 541
    assert all(member.alive for member in cluster.members)
    assert [number for number, _ in contents(cluster[0])] == [1, 2, 3, 4, 5]


def refused_code(member: BrokerProcess) -> int:
    """The broker's reply code to the client that sends the deadly message again."""
    try:
        send(member, b"POISON")
    except pika.exceptions.ConnectionClosedByBroker as closed:
        return int(closed.reply_code)
    return 0


def test_corrupted_memory_is_found_by_the_scrubber(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: the scrubber finds it before a client gets the message; the disk still has it right."""
    for number, member in enumerate(cluster.members):
        member.arguments = (*member.arguments, "--scrub-rate", "2000")
        start(member, monkeypatch, "rot" if number == 2 else "")
    cluster.wait_active(timeout_seconds=START_SECONDS)
    publish(channel_of(cluster[0]), 1, 3)
    send(cluster[0], b"4 ROT")
    assert cluster[2].wait(60) == Exit.INTERNAL
    (found,) = evidence(cluster[2], "scrub")
    assert QUEUE in str(found["where"])
    start(cluster[2], monkeypatch)
    cluster.wait_active(timeout_seconds=START_SECONDS)
    channel = channel_of(cluster[2])
    bodies = [channel.basic_get(QUEUE, auto_ack=True)[2] for _ in range(4)]
    assert bodies[3] == b"4 ROT"


@pytest.mark.logs_tell_of_it("memory of one member is changed: its state is another one (G14)")
def test_of_two_members_the_wrong_one_is_named_and_stops(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: without a majority the member that cannot reproduce its own state stops, and is
    repaired."""
    for number, member in enumerate(cluster.members):
        start(member, monkeypatch, "rot" if number == 1 else "")
    cluster.wait_active(timeout_seconds=START_SECONDS)
    cluster[2].kill()
    cluster.wait_active(cluster.members[:2])
    channel = channel_of(cluster[0])
    channel.basic_publish("", QUEUE, b"ROT", PERSISTENT)
    method, _, _ = channel.basic_get(QUEUE, auto_ack=False)
    assert method is not None
    channel.basic_ack(method.delivery_tag)
    with contextlib.suppress(pika.exceptions.AMQPError):
        hurried = channel.connection.channel()  # no confirms are given once they have voted
        for number in range(1, 101):
            hurried.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)
    assert cluster[1].wait(60) == Exit.INTERNAL
    assert "cannot reproduce the state" in cluster[1].log_tail(200)
    assert evidence(cluster[1], "dispute")
    assert cluster[0].alive
    wait_until(lambda: status_word(cluster[0]) == "INQUORATE", 20, "one of three to be silent")
    start(cluster[1], monkeypatch)
    cluster.wait_active(cluster.members[:2])
    numbers = [number for number, _ in contents(cluster[1])]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.logs_tell_of_it("one member is made to refuse a publish that others took (G14)")
def test_a_member_with_wrong_outcomes_is_outvoted_and_returns_by_transfer(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: its store recorded the wrong outcome, so it is set aside and never executed again."""
    for number, member in enumerate(cluster.members):
        start(member, monkeypatch, "odd" if number == 0 else "")
    cluster.wait_active(timeout_seconds=START_SECONDS)
    send(cluster[1], b"1 ODD")
    publish(channel_of(cluster[1]), 2, 100)
    assert cluster[0].wait(60) == Exit.INTERNAL
    assert "computed something else" in cluster[0].log_tail(200)
    start(cluster[0], monkeypatch)
    cluster.wait_active(timeout_seconds=START_SECONDS)
    assert (cluster[0].data_dir / "_cluster.bak.0001").is_dir()
