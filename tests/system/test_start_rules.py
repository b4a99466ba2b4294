"""How stores start again: backups, a lost majority, mixed members; the manual's commands typed."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.options.addresses import Address
from store.lmdb_store import LmdbStore
from tests.manual_pages import chapter
from tests.system.support.clusters import running_cluster, wait_until
from tests.system.test_cluster_faults import channel_of, contents, publish, status_word
from tests.system.test_cluster_faults import closed_connections as closed_connections
from tools.client.amqp_client import AmqpConnection
from tools.client.management import ManagementError
from tools.demo.local_cluster import HOST, BrokerProcess, LocalCluster, command, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

MARK = "<!-- a test runs these commands -->"


def typed_commands(heading: str) -> list[str]:
    """Return the commands that are indented behind the mark in one chapter of the manual."""
    block = re.match(r"\s*\n((?: {4}.*\n)+)", chapter(heading).split(MARK, 1)[1])
    assert block is not None
    return [line.strip() for line in block[1].splitlines()]


def run_typed(line: str) -> str:
    """Run one of our commands as typed, answer yes if it asks, and return its output."""
    name, *arguments = shlex.split(line, comments=True)
    done = subprocess.run(
        [*command(name), *arguments],
        input="y\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def test_the_manuals_backup_commands_work(tmp_path: Path) -> None:
    """A live copy at one position, and a new cluster made from it, typed as the page says."""
    port, ring = free_ports(2)
    with running_cluster(tmp_path / "shop", 3, "shop") as shop:
        publish(channel_of(shop[0]), 1, 30)
        places = {
            "/var/lib/qpidd": str(shop[0].data_dir),
            "/backup": str(tmp_path),
            "/var/lib/trial": str(tmp_path / "new" / "trial"),
            "127.0.0.1:26672": f"{HOST}:{ring}",
            "--port 6672": f"--port {port}",
        }
        lines = typed_commands("Backups")
        for old, new in places.items():
            assert any(old in line for line in lines), f"the page does not name {old} any more"
            lines = [line.replace(old, new) for line in lines]
        *tools, start = lines
        said = [run_typed(line) for line in tools]
        publish(channel_of(shop[0]), 31, 40)  # later than the copy
        assert "marker:      backup" in said[1]
        assert start.startswith("qpidd ")
        assert start.endswith(" &")
        trial = BrokerProcess("trial", tmp_path / "new", port, shlex.split(start[:-1])[1:])
        trial.start()
        try:
            wait_until(lambda: status_word(trial) == "ACTIVE", 20, "the new cluster")
            ids = {str(one.status().raw["cluster_id"]) for one in (trial, shop[0])}
            assert len(ids) == 2
            assert contents(trial) == [(number, True) for number in range(1, 31)]
        finally:
            trial.kill()
        assert [number for number, _ in contents(shop[1])] == list(range(1, 41))


@pytest.mark.logs_tell_of_it("an operator declares a loss: the new primary has no old majority")
@pytest.mark.parametrize("emptied", [False, True])
def test_a_minority_is_told_the_command_that_helps(tmp_path: Path, *, emptied: bool) -> None:
    """The command runs exactly as printed, and the survivor's data are there.  The same holds where
    the others are back with empty disks: they are no majority, and nobody fills them."""
    with running_cluster(tmp_path) as cluster:
        publish(channel_of(cluster[0]), 1, 20)
        for member in cluster.members:
            member.kill()
        alone = cluster[1]
        for other in (cluster[0], cluster[2]) if emptied else ():
            shutil.rmtree(other.data_dir)
            other.start()
        alone.start()
        wait_until(lambda: "FOR GOOD" in reason_of(alone), 30, "the advice")
        told = reason_of(alone)
        for missing in (cluster[0], cluster[2]):
            assert ring_of(missing) in told.split("This has been so since")[0]
        assert ("here without a state" in told) is emptied
        # A client that asks is told at once, the log at the next beat.
        wait_until(lambda: told in alone.log_path.read_text(encoding="utf-8"), 30, "its log line")
        printed = re.search(r"run: (qpid-cluster-store .*) - then start it again", told)
        assert printed is not None
        alone.terminate()
        run_typed(printed[1])
        alone.start()
        wait_until(lambda: status_word(alone) == "ACTIVE", 100, "the survivor alone")
        if emptied:
            cluster.wait_active()
        assert [number for number, _ in contents(alone)] == list(range(1, 21))


def test_after_a_power_cut_the_order_of_the_starts_does_not_matter(tmp_path: Path) -> None:
    """G8: killed one after the other under load, started in the same order and in reverse."""
    with running_cluster(tmp_path) as cluster:
        expected = 0
        for order in ((0, 1, 2), (2, 1, 0)):
            channel = channel_of(cluster[2])
            publish(channel, expected + 1, expected + 50)
            expected += 50
            for place in order:
                cluster[place].kill()
            for place in order:
                cluster[place].start()
                wait_until(lambda at=place: status_word(cluster[at]) != "silent", 20, "a start")  # type: ignore[misc]
            cluster.wait_active()
        assert [number for number, _ in contents(cluster[0])] == list(range(1, expected + 1))


def accepts(address: Address) -> bool:
    """Whether a port is open."""
    try:
        socket.create_connection((address.host, address.port), 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("size", [1, 3])
def test_a_program_that_waits_for_the_port_is_served(tmp_path: Path, size: int) -> None:
    """As scripts do that start a broker and then the programs that use it."""
    with LocalCluster(tmp_path, size, "begin") as cluster:
        for member in cluster.members:
            member.start()
        for member in cluster.members:
            wait_until(partial(accepts, member.address), 60.0, "its port")
            AmqpConnection(member.address).close()


def test_with_cman_a_member_without_quorum_stops(tmp_path: Path) -> None:
    """It waits for the quorum at start; when it loses it, it stops at once."""
    with LocalCluster(tmp_path, 3, "cman", extra={"cluster-cman": "yes"}) as cluster:
        first, *others = cluster.members
        first.start()
        wait_until(lambda: "Waiting for cluster quorum." in log_of(first), 20, "the wait")
        for member in others:
            member.start()
        cluster.wait_active()
        publish(channel_of(others[0]), 1, 5)
        for member in others:
            member.kill()
        assert first.wait(60) == Exit.QUORUM
        assert "CRITICAL" in log_of(first)
        assert "Lost contact with cluster quorum." in log_of(first)
        cluster.start()
        assert [number for number, _ in contents(first)] == [1, 2, 3, 4, 5]


def test_a_truncated_member_is_refilled_and_its_old_store_kept(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        publish(channel_of(cluster[0]), 1, 10)
        wiped = cluster[2]
        wiped.kill()
        arguments, wiped.arguments = wiped.arguments, (*wiped.arguments, "--truncate")
        wiped.start()
        cluster.wait_active()
        wiped.arguments = arguments
        assert "starting empty; the store is kept as" in log_of(wiped)
        assert (wiped.data_dir / "_cluster.bak.0001" / "data.mdb").is_file()
        cluster[0].kill()
        cluster.wait_active(cluster.members[1:])
        assert [number for number, _ in contents(wiped)] == list(range(1, 11))


def test_a_transient_member_does_not_mix_with_persistent_ones(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, voters=2) as cluster:
        first, second, comer = cluster.members
        at = comer.arguments.index("--data-dir")
        comer.arguments = (
            *comer.arguments[:at], "--no-data-dir", "yes", *comer.arguments[at + 2 :]
        )  # fmt: skip
        first.start()
        second.start()
        cluster.wait_active([first, second])
        comer.start()
        assert comer.wait(60) == Exit.DATA
        assert "Mixing transient and persistent brokers in a cluster" in log_of(comer)
        cluster.wait_active([first, second])


def test_the_log_shows_each_state_once_in_the_manuals_form(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        member = cluster[2]
        shown = member.status().raw["member_state"]
        assert shown == "READY"
        assert f"cluster({ring_of(member)} PRE_INIT) " in log_of(member)
        member.kill()
        before = len(log_of(member))
        member.start()
        cluster.wait_active()
        wait_until(lambda: " READY, was " in log_of(member)[before:], 10, "READY")
        # Only lines of this incarnation: the kill may precede the previous one's READY line.
        lines = [line for line in log_of(member)[before:].splitlines() if ", was " in line]
        assert f"cluster({ring_of(member)} READY) READY, was " in lines[-1]
        states = [line.split(") ")[1].split(",")[0] for line in lines]
        assert states[0] == "INIT"
        assert all(one != other for one, other in pairwise(states))


def test_a_mistyped_address_is_named_in_the_log_and_the_status(tmp_path: Path) -> None:
    """At its first start, of an arbitrator too.  Once no message named the address, and all just
    waited."""
    port, ring, nobody, third = free_ports(4)
    both = {"cluster-name": "shop", "cluster-size": 2, "cluster-arbitrator": f"{HOST}:{third}",
            "cluster-nodes": ",".join(f"{HOST}:{one}" for one in (ring, nobody, third)),
            "management-port": "off"}  # fmt: skip
    alone, arbitrator = (
        BrokerProcess(name, tmp_path, port, [
            part for name, value in (both | {"cluster-bind": f"{HOST}:{at}", **more}).items()
            for part in (f"--{name}", str(value))
        ])
        for name, at, more in (
            ("alone", ring, {"data-dir": tmp_path / "alone", "port": port}),
            ("arbitrator", third, {"data-dir": tmp_path / "arbitrator"}),
        )
    )  # fmt: skip
    alone.start()
    arbitrator.start()
    try:
        lack = f"there is no connection to {HOST}:{nobody}; this member listens at {HOST}:"
        told = {
            one: f"waiting for the first start: {lack}{at}. Do the others run"
            for one, at in ((alone, ring), (arbitrator, third))
        }
        both_told = lambda: all(said in one.log_tail(50) for one, said in told.items())  # noqa: E731
        wait_until(both_told, 30, "the sentence in both logs")
        for one in told:
            assert one.log_tail(50).count("waiting for the first start: ") == 1
        assert reason_of(alone).endswith(f"; {lack}{ring}")
    finally:
        alone.kill()
        arbitrator.kill()


def reason_of(member: BrokerProcess) -> str:
    try:
        return str(member.status().raw["reason"])
    except ManagementError:
        return ""


def log_of(member: BrokerProcess) -> str:
    return member.log_path.read_text(encoding="utf-8", errors="replace")


def ring_of(member: BrokerProcess) -> str:
    return member.arguments[member.arguments.index("--cluster-bind") + 1]


def test_a_member_with_an_earlier_start_than_it_had_is_told_so(tmp_path: Path) -> None:
    """Its data directory was emptied and its clock set back: the others alone can know."""
    with running_cluster(tmp_path) as cluster:
        late = cluster[2]
        assert late.terminate() == Exit.OK
        store = LmdbStore(late.data_dir / "store")
        in_an_hour = int((time.time() + 3600) * 1000)
        store.put_meta(replace(store.meta, incarnation=in_an_hour))
        store.close()
        late.start()  # as by a clock that is an hour ahead
        cluster.wait_active()
        late.kill()
        shutil.rmtree(late.data_dir)
        late.start()
        wait_until(
            lambda: "drops the frames of this member" in late.log_tail(200), 60, "what to do"
        )
        assert "set it right and start this member again" in late.log_tail(200)
        others = [one.log_tail(200) for one in cluster.members[:2]]
        assert any("are dropped: it started at" in log for log in others)
