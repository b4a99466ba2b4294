"""Real pairs: HAC and master/slave, with members that are killed, stopped, and cut off."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from tests.system.pairs.pair_cluster import (
    Publisher,
    client,
    confirming,
    let_in,
    pair,
    paired,
    send,
    standing,
    stands,
    started,
    taken,
)
from tests.system.support.clusters import wait_until
from tests.system.support.load_clients import TROUBLE
from tests.system.support.tcp_relay import RelayedCluster
from tests.system.test_start_rules import ring_of
from tools.demo.local_cluster import ROOT, BrokerProcess, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(360)]
MODES = pytest.mark.parametrize("mode", ["hac", "master-slave"])
Record = Callable[[str, object], None]


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one of our commands; the check starts its own Spark."""
    return subprocess.run(
        [*command(words[0]), *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip


def is_whole(*members: BrokerProcess) -> None:
    """Wait until each knows that both members count."""

    def has_both() -> bool:
        said = [one.status().raw.get("voter_set") for one in members]
        return all(isinstance(one, list) and len(one) == 3 for one in said)

    wait_until(has_both, 30, "both to count")


def has_all(member: BrokerProcess, confirmed: list[str]) -> None:
    """G8: confirmed messages are there in order, and none is there twice that was sent once."""
    connection = let_in(member)
    found = taken(confirming(connection))
    connection.close()
    assert [one for one in found if one in set(confirmed)] == confirmed
    assert len(found) == len(set(found))


@MODES
def test_either_member_is_killed_and_returns_without_loss(
    tmp_path: Path, mode: str, record_property: Record
) -> None:
    """O1, A1, A4, A5, A8: kill -9, takeover, return by a live resync, and the same the other way.

    The client has a list of both and is not restarted.  The check judges the members' logs.
    """
    with started(tmp_path, mode) as cluster:
        first, second = cluster.members
        with Publisher(first, second) as publisher:
            for dies, stays in ((first, second), (second, first)):
                dies.kill()
                stands(stays, "active")
                publisher.goes_on()
                dies.start()
                stands(dies, "passive")
                is_whole(first, second)
                publisher.goes_on()
        record_property("longest_s", publisher.longest_s)
        print(f"{mode}: the longest time without a confirm was {publisher.longest_s:.2f} s")
        has_all(first, publisher.confirmed)
        assert typed("qpid-cluster", "-k", "-f", str(first.address)).returncode == Exit.OK
        cluster.wait_stopped()
    verdict = typed("qpid-cluster-verify", str(tmp_path))
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@MODES
def test_each_member_is_restarted_cleanly_under_load(tmp_path: Path, mode: str) -> None:
    """O3: in turn, with clients that continue."""
    with started(tmp_path, mode) as cluster:
        first, second = cluster.members
        with Publisher(first, second) as publisher:
            for member, other in ((second, first), (first, second)):
                assert member.terminate() == Exit.OK
                stands(other, "active")
                said = standing(other)
                assert said["alone"] is True, "it was told, and needed no vote"
                publisher.goes_on()
                member.start()
                stands(member, "passive")
                is_whole(first, second)
        has_all(second, publisher.confirmed)


@MODES
def test_a_stalled_active_member_finds_the_other_active(tmp_path: Path, mode: str) -> None:
    """G7, G25: it has confirmed nothing that the other one lacks, and follows it."""
    with started(tmp_path, mode) as cluster:
        first, second = cluster.members
        with Publisher(first, second) as publisher:
            first.signal(signal.SIGSTOP)
            publisher.gives_up()
            stands(second, "active", 60)
            publisher.goes_on(60)
            first.signal(signal.SIGCONT)
            stands(first, "passive")
            is_whole(first, second)
            publisher.goes_on()
            assert not standing(first)["apart"]
        has_all(second, publisher.confirmed)


def test_a_restarted_member_does_not_continue_with_an_old_state(tmp_path: Path) -> None:
    """G28: the other one had continued alone, and only its disk has the messages that it confirmed.

    Operators see both all the time (O4).  A client is held while the member is pending (O5).
    """
    with started(tmp_path, "hac") as cluster:
        first, second = cluster.members
        first.kill()
        send(confirming(let_in(first, second)), "only at the second")
        second.kill()
        first.start()
        stands(first, "pending")
        with pytest.raises(TROUBLE):
            client(first, patience_s=2.0)
        assert standing(first)["standing"] == "pending"
        assert typed("qpid-ha", "-b", str(first.address), "promote").returncode == 1
        second.start()
        stands(second, "passive", 60)  # both are there, none was active: the primary becomes it
        stands(first, "active")
        has_all(first, ["only at the second"])


def test_a_member_that_was_alone_serves_again_when_a_client_comes(tmp_path: Path) -> None:
    """G28, O9: it knows this from its own record, and still waits for a client."""
    with started(tmp_path, "hac") as cluster:
        first, second = cluster.members
        first.kill()
        send(confirming(let_in(first, second)), "one")
        second.kill()
        second.start()
        stands(second, "pending")
        wait_until(lambda: standing(second).get("role") == "ready", 30, "a view of its own")
        assert standing(second)["standing"] == "pending"
        has_all(second, ["one"])
        stands(second, "active")


def test_an_operator_declares_the_other_member_lost(tmp_path: Path) -> None:
    """G28: the other one is lost for good, with any messages that it confirmed alone."""
    with started(tmp_path, "master-slave") as cluster:
        first, second = cluster.members
        send(confirming(client(first)), "of both")
        second.signal(signal.SIGSTOP)  # it does not notice that the first one is gone
        first.kill()
        second.kill()
        second.start()
        stands(second, "pending")
        assert second.terminate() == Exit.OK
        declared = typed("qpid-cluster-store", "-c", "--sole-voter", "-f", str(second.data_dir))
        assert declared.returncode == Exit.OK, declared.stderr
        second.start()
        stands(second, "active")
        has_all(second, ["of both"])
        first.start()
        stands(first, "passive")
        is_whole(first, second)


def test_the_slave_ends_with_its_master_if_configured(tmp_path: Path) -> None:
    """A3; restarted it waits, and both continue when both are there."""
    with started(tmp_path, "master-slave", shutdown_on_master_failure="yes") as cluster:
        master, slave = cluster.members
        send(confirming(client(master)), "one")
        master.kill()
        assert slave.wait() == Exit.OK
        assert "the master is lost (--shutdown-on-master-failure yes)" in slave.log_tail(100)
        slave.start()
        stands(slave, "pending")
        master.start()
        stands(master, "active")
        stands(slave, "passive")
        slave.kill()
        has_all(master, ["one"])


def test_an_operator_makes_the_active_member_passive(tmp_path: Path) -> None:
    """O8, O10: under load, and back; both admit the console."""
    with started(tmp_path, "hac") as cluster:
        first, second = cluster.members
        with Publisher(first, second) as publisher:
            for old, new in ((first, second), (second, first)):
                forced = typed("qpid-ha", "-b", str(old.address), "passive")
                assert forced.returncode == Exit.OK, forced.stderr
                stands(new, "active")
                stands(old, "passive")
                publisher.goes_on()
        again = typed("qpid-ha", "-b", str(second.address), "passive")
        assert again.returncode == 1
        assert "this member is passive" in again.stderr
        has_all(first, publisher.confirmed)


def test_an_undrained_member_can_serve_alone(tmp_path: Path) -> None:
    """An operator undrains it while it is in no primary view, since it can only be in one then."""
    with started(tmp_path, "master-slave") as cluster:
        first, second = cluster.members
        send(confirming(client(first)), "of both")
        address = str(second.address)
        drained = typed("qpid-cluster", "--drain", ring_of(second), address)
        assert drained.returncode == Exit.OK, drained.stderr
        first.kill()
        wait_until(lambda: standing(second).get("peer_seen") == "gone", 30, "the first to be lost")
        time.sleep(2.0)  # twice the time of a slave
        assert standing(second)["standing"] == "passive"
        undrained = typed("qpid-cluster", "--undrain", ring_of(second), address)
        assert undrained.returncode == Exit.OK, undrained.stderr
        stands(second, "active")
        has_all(second, ["of both"])


def test_a_partition_with_clients_on_both_sides(tmp_path: Path) -> None:
    """Exception 1 of G28: both continue; then one history is kept, and the other set aside, loudly.

    The backup's history is kept, as a primary that finds it active must be passive.
    """
    with paired(RelayedCluster(tmp_path, 2, "pair"), "hac") as cluster:
        for member in cluster.members:
            member.start()
        first, second = cluster.members
        stands(first, "active")
        stands(second, "passive")
        cluster.relay.isolate(0)
        sides = {}
        for member in (first, second):
            sides[member] = confirming(let_in(member))
            send(sides[member], f"at {member}")
        send(sides[first], "one more, so that its history is the longer one")
        cluster.relay.heal()
        stands(first, "passive", 60)
        stands(second, "active")
        is_whole(first, second)
        for member in (first, second):
            assert f"the history of {ring_of(second)} is kept" in str(standing(member)["apart"])
            assert "both members of the pair went on alone" in member.log_path.read_text("utf-8")
        has_all(second, [f"at {second}"])
        assert list(first.data_dir.glob("_cluster.bak*")), "the evidence"
        assert typed("qpid-cluster", "-k", "-f", str(second.address)).returncode == Exit.OK
        cluster.wait_stopped()
    verdict = typed("qpid-cluster-verify", str(tmp_path))
    assert verdict.returncode == 1
    assert "exception 1 of G28" in verdict.stdout
    assert "had gone on alone before" in verdict.stdout


def test_contradictory_options_change_nothing_on_disk(tmp_path: Path) -> None:
    """One sentence and an exit code; and two members with contradictory options wait, and say
    so."""
    wrong = typed(
        "qpidd", "--hac", "primary", "--cluster-name", "x", "--data-dir", str(tmp_path / "d")
    )
    assert wrong.returncode == Exit.USAGE
    assert "it needs --hac-peer" in wrong.stderr
    assert not (tmp_path / "d").exists()
    with pair(tmp_path, "hac") as cluster:
        first, second = cluster.members
        second.arguments = tuple("primary" if one == "backup" else one for one in second.arguments)
        first.start()
        second.start()
        for member in (first, second):
            wait_until(
                lambda one=member: "disagree" in one.log_tail(100),  # type: ignore[misc]
                30, "the reason of the wait",
            )  # fmt: skip
