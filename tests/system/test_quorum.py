"""Votes with real processes: an arbitrator, a voter replaced for good, a late awakening."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pika.exceptions
import pytest

from broker.exit_codes import Exit
from tests.system.support.clusters import wait_until
from tests.system.test_cluster_faults import channel_of, contents, publish, status_word
from tests.system.test_cluster_faults import closed_connections as closed_connections
from tools.client.management import ManagementError
from tools.demo.local_cluster import BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]


def voters(member: BrokerProcess) -> list[str]:
    found = member.status().raw["voter_set"]
    assert isinstance(found, list)
    return [str(term) for term in found]


def reason(member: BrokerProcess) -> str:
    try:
        return str(member.status().raw["reason"])
    except ManagementError:
        return ""


def ring_of(member: BrokerProcess) -> str:
    return member.arguments[member.arguments.index("--cluster-bind") + 1]


def ask(member: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command("qpid-cluster"), *arguments, str(member.address)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def ringtrace(trace: Path) -> str:
    shown = subprocess.run(
        [*command("ringtrace"), str(trace)], capture_output=True, text=True, check=True, timeout=60
    )
    return shown.stdout


def test_either_of_two_continues_with_an_arbitrator_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """G8: kill one, continue; the one that was away must not form with the arbitrator."""
    cluster = LocalCluster(tmp_path, 2, "pair", arbitrator=True, extra={"cluster-two-node": "yes"})
    with cluster as pair:
        pair.start()
        a, b = pair.members
        publish(channel_of(a), 1, 20)
        b.kill()
        pair.wait_active([a])
        publish(channel_of(a), 21, 40)  # b does not get these
        a.kill()
        b.start()
        wait_until(lambda: "votes only beside" in reason(b), 20, "the arbitrator's refusal")
        assert status_word(b) == "INQUORATE"
        a.start()
        pair.wait_active()
        a.kill()  # now b has everything
        pair.wait_active([b])
        assert [number for number, _ in contents(b)] == list(range(1, 41))


def test_the_arbitrator_may_be_away_while_both_members_run(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 2, "pair", arbitrator=True)
    with cluster as pair:
        pair.start()
        a, b = pair.members
        assert pair.arbitrator is not None
        pair.arbitrator.kill()
        pair.wait_active()
        publish(channel_of(b), 1, 5)
        b.kill()
        wait_until(lambda: status_word(a) == "INQUORATE", 20, "a alone to stop")
        trace = tmp_path / "arbitrator.trace"
        pair.arbitrator.arguments = (*pair.arbitrator.arguments, "--trace", str(trace))
        pair.arbitrator.start()
        pair.wait_active([a])
        assert ring_of(a) in ringtrace(trace)
        assert [number for number, _ in contents(a)] == [1, 2, 3, 4, 5]
        assert ask(a, "-k", "-f").returncode == 0
        assert a.wait() == Exit.OK
        assert pair.arbitrator.wait() == Exit.OK


def test_a_dead_voter_is_replaced_for_good(tmp_path: Path) -> None:
    """G7, G8: c's disk is lost; d joins and votes in its place, and then b may die."""
    cluster = LocalCluster(tmp_path, 4, "shop", voters=3)
    with cluster as shop:
        a, b, c, d = shop.members
        for member in (a, b, c):
            member.start()
        shop.wait_active([a, b, c])
        publish(channel_of(a), 1, 10)
        c.kill()
        shutil.rmtree(c.data_dir)
        shop.wait_active([a, b])
        too_early = ask(a, "--replace-voter", ring_of(c), ring_of(d))
        assert too_early.returncode == 1
        assert "start it first" in too_early.stderr
        d.start()
        shop.wait_active([a, b, d])
        done = ask(b, "--replace-voter", ring_of(c), ring_of(d))
        assert done.returncode == 0, done.stderr
        expected = sorted(map(ring_of, (a, b, d)))
        assert voters(b) == expected
        for member in (a, d):  # b was asked; the others apply it when it reaches them
            wait_until(lambda one=member: voters(one) == expected, 10, "the change")  # type: ignore[misc]
        again = ask(a, "--add-voter", ring_of(d))
        assert "votes already" in again.stderr
        last = ask(a, "--expected-votes", "1")
        assert "two groups could act apart" in last.stderr
        publish(channel_of(d), 11, 20)
        b.kill()
        shop.wait_active([a, d])
        publish(channel_of(d), 21, 30)
        a.kill()
        d.kill()
        a.start()
        d.start()
        shop.wait_active([a, d])
        assert voters(a) == expected
        assert [number for number, _ in contents(a)] == list(range(1, 31))


def test_options_that_contradict_the_cluster_are_refused(tmp_path: Path) -> None:
    """A member started with another rule than the store's gets both in its error; no other is
    affected."""
    cluster = LocalCluster(tmp_path, 2, "pair", extra={"cluster-auto-tie-breaker": "lowest"})
    with cluster as pair:
        pair.start()
        a, b = sorted(pair.members, key=ring_of)  # a is the one that can continue alone
        assert b.terminate() == Exit.OK
        b.arguments = (*b.arguments, "--cluster-auto-tie-breaker", "highest")
        b.start()
        assert b.wait() == Exit.DATA
        assert "--cluster-auto-tie-breaker=highest" in b.log_tail(200)
        assert "--cluster-auto-tie-breaker=lowest" in b.log_tail(200)
        pair.wait_active([a])


def test_a_member_that_wakes_up_late_sends_nothing_it_owed(tmp_path: Path) -> None:
    """G7: confirms and deliveries that were due when it was stopped never leave it."""
    cluster = LocalCluster(tmp_path, 3, "shop")
    with cluster as shop:
        shop.start()
        a, b, c = shop.members
        publish(channel_of(a), 1, 3)
        connection = channel_of(c)
        heard: list[int] = []

        def on_message(*parts: object) -> None:
            body = parts[3]
            assert isinstance(body, bytes)
            heard.append(int(body))

        connection.basic_qos(prefetch_count=1)
        connection.basic_consume("work", on_message)

        def first_came() -> bool:
            connection.connection.process_data_events(time_limit=0.1)
            return heard == [1]

        wait_until(first_came, 20, "the first message")
        c.signal(signal.SIGSTOP)
        # Publishes for c's socket while it sleeps: an ack would release the next delivery.
        connection.basic_ack(1)
        shop.wait_active([a, b])
        assert [number for number, _ in contents(b)] == [1, 2, 3]  # the others continued without it
        c.signal(signal.SIGCONT)
        with suppress(pika.exceptions.AMQPError):  # its connection is void: closed or cut off
            for _ in range(20):
                connection.connection.process_data_events(time_limit=0.1)
        assert heard == [1]
        shop.wait_active([a, b, c])
