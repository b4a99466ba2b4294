"""Real members on a network that is cut, by a relay or between network namespaces.

After every test those checks of qpid-cluster-verify that need no Spark judge the members' logs; one
run of the hardship command uses all of them.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.compare.hosts import DistantHosts
from tests.system.support import network_namespaces
from tests.system.support.clusters import wait_until
from tests.system.support.load_clients import Load, take_the_rest
from tests.system.support.network_namespaces import RING_PORT, Network, SpacedCluster, host
from tests.system.support.tcp_relay import RelayedCluster
from tests.system.support.undisturbed import Undisturbed
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.client_checks_without_spark import compare_clients
from tools.client.management import ManagementError
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import Finding
from tools.verify.input.segments import find_segments

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

START_SECONDS = 60.0
ESTABLISHED = "01"
"""Of /proc/net/tcp."""
FIRST = 50
"""This many confirmed messages show that the load is served."""


def findings(root: Path) -> list[Finding]:
    """Judge the logs below a directory with the checks that need no Spark."""
    judged = check_control_rows(rows_in(find_segments([root])))
    shown = sum(life.publishes for life in judged.incarnations)
    assert shown >= FIRST, "the logs hold next to nothing"
    return judged.findings


class Watched:
    """A started cluster under load; when the block ends, its logs are judged."""

    def __init__(self, cluster: LocalCluster, root: Path) -> None:
        self._cluster = cluster
        self._root = root
        self._histories = root / "clients"
        brokers = [one.address for one in cluster.members]
        self.load = Load(brokers, 1, publishers=2, rate=200.0, histories=self._histories)

    def __enter__(self) -> Watched:
        self._cluster.start(START_SECONDS)
        self.load.start()
        self.goes_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        wrong = self.load.stop()
        if kind is not None:
            return
        assert wrong == []
        self._cluster.wait_active(timeout_seconds=START_SECONDS)
        take_the_rest(self._cluster[0].address, self._histories, self.load.received)
        assert self.load.confirmed <= self.load.received, "confirmed messages are lost"
        for member in self._cluster.members:
            member.terminate(START_SECONDS)
        assert findings(self._root) == []
        heard = compare_clients([self._root])
        assert heard.mismatches == []
        assert heard.confirmed >= len(self.load.confirmed) >= FIRST
        assert heard.received >= len(self.load.received)

    def goes_on(self) -> None:
        """Wait until more messages are confirmed."""
        goal = len(self.load.confirmed) + FIRST
        wait_until(lambda: len(self.load.confirmed) >= goal, START_SECONDS, "confirms")


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[RelayedCluster]:
    with RelayedCluster(tmp_path, seed=1) as cluster:
        yield cluster


def need_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    """Skip the test, and say so, if this process may not create any."""
    if reason := network_namespaces.why_not():
        with capsys.disabled():
            print(f"\nskipped, as network namespaces cannot be made here: {reason}")
        pytest.skip(f"no network namespaces here: {reason}")


@pytest.fixture
def spaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Iterator[SpacedCluster]:
    """Three members in network namespaces; a number as its parameter is that of their networks."""
    need_namespaces(capsys)
    networks = getattr(request, "param", 1)
    with SpacedCluster(tmp_path, Network(3, networks)) as cluster:
        yield cluster


def is_minority(member: BrokerProcess) -> bool:
    try:
        return member.status().status == "INQUORATE"
    except ManagementError:
        return False


def log_says(member: BrokerProcess, words: str) -> None:
    def said() -> bool:
        return words in member.log_path.read_text("utf-8")

    wait_until(said, START_SECONDS, f"the log to say: {words}")


def links_down(member: BrokerProcess) -> list[str]:
    found = member.status().raw["links_down"]
    assert isinstance(found, list)
    return [str(link) for link in found]


def connections(member: BrokerProcess, *, to_here: bool) -> int:
    """How many connections of the ring are open in a member's namespace, to or from its port."""
    lines = Path(f"/proc/{member.pid}/net/tcp").read_text("ascii").splitlines()[1:]
    rows = (line.split() for line in lines)
    ports = [row[1 if to_here else 2].partition(":")[2] for row in rows if row[3] == ESTABLISHED]
    return ports.count(f"{RING_PORT:04X}")


def wait_minority(member: BrokerProcess) -> None:
    wait_until(lambda: is_minority(member), START_SECONDS, f"{member} to know that it is alone")


@pytest.mark.parametrize("member", [0, 2])
def test_a_member_behind_a_held_relay_is_excluded_and_returns(
    relayed: RelayedCluster, tmp_path: Path, member: int
) -> None:
    """G7, G8: the relay delivers held data after the healing, when its view is over."""
    others = [one for one in relayed.members if one is not relayed[member]]
    with Watched(relayed, tmp_path) as watched:
        relayed.relay.isolate(member)
        relayed.wait_active(others, START_SECONDS)
        wait_minority(relayed[member])
        watched.goes_on()
        relayed.relay.heal()
        relayed.wait_active(timeout_seconds=START_SECONDS)
        watched.goes_on()


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (2, 1)])
def test_a_link_that_fails_one_way_does_not_stop_the_cluster(
    relayed: RelayedCluster, tmp_path: Path, source: int, target: int
) -> None:
    """G6, G7: the members decide who must leave; a majority serves meanwhile."""
    with Watched(relayed, tmp_path) as watched:
        relayed.relay.hold(source, target)
        watched.goes_on()
        relayed.relay.heal()
        relayed.wait_active(timeout_seconds=START_SECONDS)
        watched.goes_on()


def test_broken_and_slow_connections_cost_only_time(
    relayed: RelayedCluster, tmp_path: Path
) -> None:
    """G1, G8: data are lost, delayed, and overtaken by another member's; the ring repairs it."""
    with Watched(relayed, tmp_path) as watched:
        for member in (0, 1, 2):
            relayed.relay.sever(member)
            watched.goes_on()
        relayed.relay.slow(1, 0.02)
        watched.goes_on()
        relayed.relay.heal()
        relayed.wait_active(timeout_seconds=START_SECONDS)


def test_repeated_and_late_frames_cost_only_time(relayed: RelayedCluster, tmp_path: Path) -> None:
    """G1, G5, G8: whole frames are repeated, as TCP never does; the ring promises to tolerate
    it."""
    with Watched(relayed, tmp_path) as watched:
        for member in (0, 1, 2):
            relayed.relay.confuse(member, 0.1)
            watched.goes_on()
        relayed.relay.heal()
        relayed.wait_active(timeout_seconds=START_SECONDS)
        assert relayed.relay.doubled
        assert relayed.relay.overtaken


def test_a_partitioned_member_is_excluded_and_returns(
    spaced: SpacedCluster, tmp_path: Path
) -> None:
    """G7, G8: packets vanish in silence, both ways; later the cable is pulled; then both are
    undone."""
    network = spaced.network
    with Watched(spaced, tmp_path) as watched:
        for lone in (2, 0):
            others = [place for place in range(3) if place != lone]
            for other in others:
                network.part(lone, other)
            spaced.wait_active([spaced[place] for place in others], START_SECONDS)
            wait_minority(spaced[lone])
            watched.goes_on()
            for other in others:
                network.join(lone, other)
            spaced.wait_active(timeout_seconds=START_SECONDS)
        network.pull(1)
        spaced.wait_active([spaced[0], spaced[2]], START_SECONDS)
        watched.goes_on()
        network.plug(1)
        spaced.wait_active(timeout_seconds=START_SECONDS)
        watched.goes_on()


def test_in_namespaces_a_stopped_and_a_killed_member_return(
    spaced: SpacedCluster, tmp_path: Path
) -> None:
    """G7, G8: SIGSTOP while the network is cut in one direction, and SIGKILL, under load."""
    with Watched(spaced, tmp_path) as watched:
        spaced.network.cut(0, 1)
        watched.goes_on()
        spaced.network.mend(0, 1)
        spaced.wait_active(timeout_seconds=START_SECONDS)
        spaced[2].signal(signal.SIGSTOP)
        spaced.wait_active([spaced[0], spaced[1]], START_SECONDS)
        watched.goes_on()
        spaced[2].signal(signal.SIGCONT)
        spaced.wait_active(timeout_seconds=START_SECONDS)
        spaced[1].kill()
        spaced.wait_active([spaced[0], spaced[2]], START_SECONDS)
        watched.goes_on()
        spaced.start(START_SECONDS)
        watched.goes_on()


def test_connections_of_a_partition_are_given_back(spaced: SpacedCluster) -> None:
    """Who sends gives a cut connection up, and its farewell is lost: the receiver must notice."""
    spaced.start(START_SECONDS)
    lone, members = 2, spaced.members
    usual = [connections(one, to_here=True) for one in members]
    for other in (0, 1):
        spaced.network.part(lone, other)
    wait_until(lambda: connections(members[lone], to_here=False) == 0, START_SECONDS, "no answer")
    for other in (0, 1):
        spaced.network.join(lone, other)
    spaced.wait_active(timeout_seconds=START_SECONDS)

    def given_back() -> bool:
        return [connections(one, to_here=True) for one in members] == usual

    wait_until(given_back, START_SECONDS, "the connections of before the cut to be closed")


@pytest.mark.parametrize("spaced", [2], indirect=True)
def test_losing_one_of_two_networks_is_logged_and_changes_no_view(
    spaced: SpacedCluster, tmp_path: Path
) -> None:
    """G6: a pulled cable, then silence on the other network; each is repaired before the next."""
    network, pulled = spaced.network, spaced[1]

    losses: tuple[tuple[int, Callable[[], None], Callable[[], None]], ...] = (
        (0, lambda: network.pull(1, 0), lambda: network.plug(1, 0)),
        (1, lambda: network.part(1, 2, 1), lambda: network.join(1, 2, 1)),
    )
    with Watched(spaced, tmp_path) as watched, Undisturbed(spaced):
        for net, lose, give in losses:
            lost = f"{host(2, net)}:{RING_PORT}"
            lose()
            log_says(pulled, f"the link to {lost} is down; its member has another one")
            watched.goes_on()
            assert lost in links_down(pulled)
            give()
            # Each direction of a link recovers by itself, and no member may lose both networks.
            wait_until(lambda: not any(map(links_down, spaced.members)), START_SECONDS, "links")
            watched.goes_on()


@pytest.mark.spark
def test_hosts_of_the_benchmark_are_as_far_from_each_other_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_namespaces(capsys)
    if shutil.which("cc") is None or not Path("/dev/net/tun").exists():
        pytest.skip("there is no C compiler (cc), or no /dev/net/tun")
    with DistantHosts(tmp_path, 20.0) as hosts:
        with hosts.inside(2):
            door = socket.create_server((host(2), RING_PORT))
        with hosts.inside(0):
            began = time.monotonic()
            near = socket.create_connection((host(2), RING_PORT), 10.0)
            took = time.monotonic() - began
        with near, door:
            near.sendall(bytes(100_000))
            far, _ = door.accept()
            with far:
                assert len(far.recv(100_000, socket.MSG_WAITALL)) == 100_000
    assert took >= 0.04


def test_a_short_hardship_run_passes() -> None:
    """The command itself ends, runs the full check, and reports its verdict."""
    pytest.importorskip("pyspark")
    words = [sys.executable, "-m", "tests.system.support.soak", "--minutes", "0.2", "--seed", "3"]
    words += ["--only", "three"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: held" in done.stdout.splitlines()[-1]
