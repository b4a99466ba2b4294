"""An active member and a backup, each killed, stopped, cut off, or with a full disk (G8, G25)."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from tests.system.qpid_scenarios.test_active_passive import (
    active_of,
    becomes,
    one_active_at_a_time,
    role,
)
from tests.system.roles.hardship import Clients, Record
from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.support.small_disks import SmallDisk, mounted
from tests.system.support.tcp_relay import RelayedCluster
from tests.system.test_start_rules import ring_of
from tools.demo.local_cluster import BrokerProcess, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]
DISK_MIB = 96
HA = {"ha-cluster": "yes"}


class Member:
    """The faults of one member, and their end."""

    def __init__(self, cluster: LocalCluster, disks: list[SmallDisk], one: BrokerProcess) -> None:
        self._cluster, self._one = cluster, one
        self._place = cluster.members.index(one)
        self._disks = disks

    def befall(self, fault: str) -> None:
        if fault == "kill":
            self._one.kill()
        elif fault == "stop":
            self._one.signal(signal.SIGSTOP)
        elif fault == "partition":
            assert isinstance(self._cluster, RelayedCluster)
            self._cluster.relay.isolate(self._place)
        else:
            wait_until(self._filled, START_SECONDS, f"{self._one} to leave")
            assert self._one.exit_code == Exit.FULL

    def _filled(self) -> bool:
        """Fill its disk, including the reserve that it gives up."""
        self._disks[self._place].fill()
        return not self._one.alive

    def mend(self, fault: str) -> None:
        if fault == "stop":
            self._one.signal(signal.SIGCONT)
        elif fault == "partition":
            assert isinstance(self._cluster, RelayedCluster)
            self._cluster.relay.heal()
        else:
            if fault == "disk full":
                self._disks[self._place].relieve()
            self._one.start()


@contextlib.contextmanager
def a_cluster(root: Path, fault: str) -> Iterator[tuple[LocalCluster, list[SmallDisk]]]:
    """Three members, with disks that can be filled or a network that can be cut."""
    with contextlib.ExitStack() as stack:
        made: LocalCluster
        if fault == "partition":
            made = RelayedCluster(root, name="ha", extra=HA)
        else:
            made = LocalCluster(root, 3, "ha", extra=HA)
        disks: list[SmallDisk] = []
        if fault == "disk full":
            disks = stack.enter_context(mounted([one.data_dir for one in made.members], DISK_MIB))
        cluster = stack.enter_context(made)
        cluster.start(START_SECONDS)
        yield cluster, disks


@pytest.mark.turns(4)
@pytest.mark.parametrize("fault", ["kill", "stop", "partition", "disk full"])
@pytest.mark.parametrize("which", ["active", "backup"])
def test_a_member(tmp_path: Path, which: str, fault: str, record_property: Record) -> None:
    """G8, G25: confirmed messages are there, and members are active one after the other.

    The number of role moves is not judged: a machine that starves a member moves the role.
    """
    with a_cluster(tmp_path, fault) as (cluster, disks):
        active = active_of(cluster)
        others = [one for one in cluster.members if one is not active]
        becomes("ready", *others)
        ill = active if which == "active" else others[0]
        well = [one for one in cluster.members if one is not ill]
        with Clients(cluster.members, tmp_path) as clients:
            began = time.monotonic()
            Member(cluster, disks, ill).befall(fault)
            wait_until(lambda: any(role(one) == "active" for one in well), START_SECONDS, "one")
            cluster.wait_active(well, START_SECONDS)
            clients.go_on()
            record_property("silent, s", f"{clients.silent_since(began):.2f}")
            print(f"{which}, {fault}: {clients.silent_since(began):.2f} s without a confirm")
            Member(cluster, disks, ill).mend(fault)
            cluster.wait_active(timeout_seconds=START_SECONDS)
            becomes("ready", ill)
            clients.go_on()
        serving = active_of(cluster)
        clients.judge(serving, cluster.members)
        in_turn = one_active_at_a_time(cluster)
        assert ring_of(active) in in_turn
        assert which == "backup" or len(set(in_turn)) > 1
