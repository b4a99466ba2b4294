"""The leader of a shared store and a waiting broker, each killed, stopped, cut off from the store's
lease, or with a full disk, with the lease in files, in PostgreSQL and in SQLite (G7, G8).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from tests.system.roles.hardship import Clients, Record
from tests.system.sharing.test_shared_store import TAKEOVER_S, Sharing, said, serves
from tests.system.support.clusters import wait_until
from tests.system.support.postgresql import PostgresServer, programs, running
from tests.system.support.small_disks import SmallDisk, mounted
from tests.system.support.tcp_relay import Relay
from tools.demo.local_cluster import HOST, BrokerProcess, free_ports

BIN = programs()
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]
COUNT = 2
DISK_MIB = 160
FULL_S = 3.0
"""How long a disk stays full."""
NOBODY = f"{HOST}:1"
AWAY = """
import os, sys, time
from broker.durability.store_writer import StoreWriter
from broker.memberlog.segment_file import SegmentFile
from broker.sharing.lease_directory import LeaseDirectory
from store.lmdb_store import LmdbStore
sign = {sign!r}
def hold(owner, name):
    real = getattr(owner, name)
    def held(*arguments, **more):
        while os.path.exists(sign):
            time.sleep(0.01)
        return real(*arguments, **more)
    setattr(owner, name, held)
for name in ("_highest_number", "read", "claim", "renew", "newest"):
    hold(LeaseDirectory, name)
hold(SegmentFile, "carry_out")
hold(LmdbStore, "_write")
hold(LmdbStore, "_to_journal")
from tools.commands.qpidd import main
main()
"""
"""A broker whose accesses to the store all wait while a file exists, as with an NFS server that the
machine cannot reach."""


class Reaching(BrokerProcess):
    """A broker that can be cut off from the files of the store."""

    def __init__(self, plain: BrokerProcess, sign: Path) -> None:
        root, port = plain.log_path.parent, plain.address.port
        super().__init__(plain.label, root, port, plain.arguments)
        self.sign = sign

    def program(self) -> list[str]:
        return [sys.executable, "-c", AWAY.format(sign=str(self.sign))]


class Hardship:
    """Some brokers of a store, and the faults of one of them."""

    def __init__(self, root: Path, disk: SmallDisk | None, relay: Relay | None, *more: str) -> None:
        self.sharing = Sharing(root, COUNT, *more)
        self._disk, self._relay = disk, relay
        brokers = self.sharing.brokers
        if relay is None:
            brokers[:] = [Reaching(one, root / f"{one}.away") for one in brokers]
        else:
            for place, one in enumerate(brokers):
                door = relay.detours(place).rpartition("=")[2]
                one.arguments += ("--shared-store-lock", PostgresServer.url_at(door))

    def befall(self, one: BrokerProcess, fault: str) -> None:
        if fault == "kill":
            one.kill()
        elif fault == "stop":
            one.signal(signal.SIGSTOP)
        elif fault == "partition" and self._relay is not None:
            self._relay.isolate(self.sharing.brokers.index(one))
        elif fault == "partition":
            assert isinstance(one, Reaching)
            one.sign.touch()

    def mend(self, one: BrokerProcess, fault: str) -> None:
        if fault == "stop":
            one.signal(signal.SIGCONT)
        elif self._relay is not None:
            self._relay.heal()
        elif isinstance(one, Reaching):
            one.sign.unlink(missing_ok=True)

    def fill(self) -> None:
        assert self._disk is not None
        self._disk.fill()

    def relieve(self) -> None:
        assert self._disk is not None
        self._disk.relieve()

    def comes_back(self) -> None:
        """As by a service manager: brokers that ended are started again, and wait or lead."""
        for one in self.sharing.brokers:
            if not one.alive:
                assert one.exit_code in (Exit.FENCED, Exit.FULL, -signal.SIGKILL), one.log_tail()
                one.start()
        wait_until(self.sharing.led, TAKEOVER_S, "a serving broker")


@contextlib.contextmanager
def a_store(root: Path, lock: str, fault: str) -> Iterator[Hardship]:
    """Two brokers, of which the first one leads."""
    with contextlib.ExitStack() as stack:
        disk = relay = None
        if fault == "disk full":
            (disk,) = stack.enter_context(mounted([root / "store"], DISK_MIB))
        if lock == "postgresql":
            if BIN is None:
                pytest.skip("PostgreSQL (initdb, postgres) is not installed")
            (port,) = free_ports(1)
            stack.enter_context(running(BIN, port))
            relay = stack.enter_context(Relay([NOBODY] * COUNT + [f"{HOST}:{port}"], 1))
        more = ("--shared-store-lock", f"sqlite://{root}/lease.db") if lock == "sqlite" else ()
        made = Hardship(root, disk, relay, *more)
        stack.callback(made.sharing.close)
        made.sharing.start()
        yield made


LOCKS = pytest.mark.parametrize("lock", ["files", "postgresql"])


@pytest.mark.turns(6)
@pytest.mark.parametrize(
    ("which", "fault", "lock"),
    [
        *product(("leader", "waiting"), ("kill", "stop", "partition"), ("files", "postgresql")),
        *product(("leader",), ("kill", "stop"), ("sqlite",)),
    ],
)
def test_a_broker(
    tmp_path: Path, which: str, fault: str, lock: str, record_property: Record
) -> None:
    """G7, G8, G38: another one leads, the old leader confirms nothing more; a waiter is not
    missed."""
    with a_store(tmp_path, lock, fault) as hard:
        sharing = hard.sharing
        leader = sharing.leader()
        (waiter,) = [one for one in sharing.brokers if one is not leader]
        ill = leader if which == "leader" else waiter
        with Clients(sharing.brokers, tmp_path) as clients:
            began = time.monotonic()
            hard.befall(ill, fault)
            clients.go_on()
            if which == "leader":
                wait_until(lambda: serves(waiter), TAKEOVER_S, "the other broker to serve")
                clients.go_on()
            silent = clients.silent_since(began)
            record_property("silent, s", f"{silent:.2f}")
            print(f"{lock}, {which}, {fault}: {silent:.2f} s without a confirm")
            hard.mend(ill, fault)
            if which == "leader" and fault != "kill":
                assert ill.wait(TAKEOVER_S) == Exit.FENCED
            hard.comes_back()
            clients.go_on()
        hard.comes_back()
        clients.judge(sharing.leader(), sharing.brokers)
        sharing.judge_logs(2 if which == "leader" else 1)


@pytest.mark.turns(2)
@LOCKS
@pytest.mark.parametrize("which", ["leader", "waiting"])
def test_a_full_disk(tmp_path: Path, which: str, lock: str) -> None:
    """G21, G8: all have the same disk.  A leader continues when there is space; a waiting broker
    does not take over without space for a copy, says so, and changes nothing."""
    with a_store(tmp_path, lock, "disk full") as hard:
        sharing = hard.sharing
        leader = sharing.leader()
        (waiter,) = [one for one in sharing.brokers if one is not leader]
        with Clients(sharing.brokers, tmp_path) as clients:
            until = time.monotonic() + FULL_S
            while time.monotonic() < until or not said(leader, "publishers are blocked"):
                hard.fill()  # also the reserve that the leader gives up
                time.sleep(0.1)
            if which == "waiting":
                leader.kill()
                wait_until(
                    lambda: said(waiter, "No space left"),
                    TAKEOVER_S,
                    "the missing space to be reported",
                )
                if lock == "postgresql":  # its token needs no space there
                    assert waiter.wait(TAKEOVER_S) == Exit.FULL
                assert not any(map(serves, sharing.brokers))
            hard.relieve()
            if which == "leader":
                assert leader.alive
            hard.comes_back()
            clients.go_on()
        hard.comes_back()
        clients.judge(sharing.leader(), sharing.brokers, whole=which == "leader")
