"""Each kind of fault of the active member and of the passive one, while messages are confirmed.

No confirmed message is lost (G8, G9, G28), and the checks that need no Spark judge the members'
logs: one active member at a time, and never two that each continued alone.  The longest time that
the client waited for a confirm is measured.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from tests.system.pairs.pair_cluster import Publisher, pair, paired, standing, stands
from tests.system.pairs.test_pairs import MODES, has_all, is_whole, typed
from tests.system.roles.hardship import Clients
from tests.system.support.clusters import wait_until
from tests.system.support.small_disks import mounted
from tests.system.support.tcp_relay import RelayedCluster
from tests.system.test_network_faults import findings
from tests.system.test_sick_members import FROZEN, sick
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(360)]
ROLES = pytest.mark.parametrize("victim", [0, 1], ids=["active", "passive"])
Record = Callable[[str, object], None]


def serving(cluster: LocalCluster) -> BrokerProcess:
    """Wait until both count, and return the active one."""
    wait_until(lambda: all(map(standing, cluster.members)), 60, "both to answer")
    is_whole(*cluster.members)
    found: list[BrokerProcess] = []

    def one() -> bool:
        found[:] = [m for m in cluster.members if standing(m).get("role") == "active"]
        return len(found) == 1

    wait_until(one, 30, "one to be active")
    return found[0]


def judged(cluster: LocalCluster, publisher: Publisher, root: Path, record: Record) -> None:
    """All confirmed messages are there, and both logs are of one history."""
    active = serving(cluster)
    has_all(active, publisher.confirmed)
    record("longest_s", publisher.longest_s)
    print(f"the longest time without a confirm was {publisher.longest_s:.2f} s")
    assert typed("qpid-cluster", "-k", "-f", str(active.address)).returncode == Exit.OK
    cluster.wait_stopped()
    assert findings(root) == []


def begin(cluster: LocalCluster) -> None:
    for member in cluster.members:
        member.start()
    stands(cluster[0], "active")
    stands(cluster[1], "passive")


@pytest.mark.turns(2)
@MODES
@ROLES
def test_killed(tmp_path: Path, mode: str, victim: int, record_property: Record) -> None:
    with pair(tmp_path, mode) as cluster:
        begin(cluster)
        with Publisher(*cluster.members) as publisher:
            cluster[victim].kill()
            publisher.goes_on(60)
            cluster[victim].start()
            serving(cluster)
            publisher.goes_on(60)
        judged(cluster, publisher, tmp_path, record_property)


@pytest.mark.turns(2)
@MODES
@ROLES
def test_stalled(tmp_path: Path, mode: str, victim: int, record_property: Record) -> None:
    """With a client at each: a single one would only look for the other broker after its
    heartbeat."""
    with pair(tmp_path, mode) as cluster:
        begin(cluster)
        with Clients(cluster.members, tmp_path) as clients:
            began = time.monotonic()
            cluster[victim].signal(signal.SIGSTOP)
            clients.go_on(60)
            time.sleep(2.0)  # longer than any of its timers
            cluster[victim].signal(signal.SIGCONT)
            active = serving(cluster)
            clients.go_on(60)
        record_property("silent_s", clients.silent_since(began))
        print(f"the longest time without a confirm was {clients.silent_since(began):.2f} s")
        clients.judge(active, cluster.members)


@pytest.mark.parametrize("mode", ["hac", "the slave ends"])
def test_partitioned(tmp_path: Path, mode: str, record_property: Record) -> None:
    """The clients reach the active one alone: only that one continues; or the slave ends."""
    more = {} if mode == "hac" else {"shutdown_on_master_failure": "yes"}
    kind = "hac" if mode == "hac" else "master-slave"
    with paired(RelayedCluster(tmp_path, 2, "pair"), kind, **more) as cluster:
        begin(cluster)
        first, second = cluster.members
        with Publisher(first) as publisher:
            cluster.relay.isolate(0)
            publisher.goes_on(60)
            if more:
                assert second.wait(60) == Exit.OK
            else:
                assert standing(second)["standing"] == "passive"
            cluster.relay.heal()
            if more:
                second.start()
            serving(cluster)
            publisher.goes_on(60)
        judged(cluster, publisher, tmp_path, record_property)


@pytest.mark.turns(2)
@MODES
@ROLES
def test_full_disk(tmp_path: Path, mode: str, victim: int, record_property: Record) -> None:
    """G21, G28.  It ends with code 72, the other one continues, and it returns once it has
    space."""
    with contextlib.ExitStack() as stack:
        (disk,) = stack.enter_context(mounted([tmp_path / f"broker-{victim + 1}"]))
        cluster = stack.enter_context(pair(tmp_path, mode))
        begin(cluster)
        member = cluster[victim]
        with Publisher(*cluster.members) as publisher:

            def has_left() -> bool:
                """Take the reserve that the member gives up, so that it has nothing to write
                with."""
                disk.fill()
                return not member.alive

            wait_until(has_left, 60, "the member to leave")
            assert member.exit_code == Exit.FULL
            publisher.goes_on(60)
            disk.relieve()
            member.start()
            serving(cluster)
            publisher.goes_on(60)
        judged(cluster, publisher, tmp_path, record_property)


@pytest.mark.parametrize("mode", ["master-slave"])
@ROLES
def test_hanging_disk(tmp_path: Path, mode: str, victim: int, record_property: Record) -> None:
    """G28.  None of its writes ends: it leaves with code 81, the other one continues, and it
    returns when its disk works again."""
    with pair(tmp_path, mode, disk_lag_max="3") as cluster:
        member, other = cluster[victim], cluster[1 - victim]
        other.start()
        with sick(member, FROZEN) as process:
            stands(cluster[0], "active")
            stands(cluster[1], "passive")
            with Publisher(*cluster.members) as publisher:
                sign = member.data_dir.with_name(member.data_dir.name + ".frozen")
                sign.touch()
                wait_until(lambda: not process.alive, 60, "the member to leave")
                assert process.exit_code == Exit.LATE_DISK
                publisher.goes_on(60)
                sign.unlink()
                member.start()
                serving(cluster)
                publisher.goes_on(60)
        judged(cluster, publisher, tmp_path, record_property)
