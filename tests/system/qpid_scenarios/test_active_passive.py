"""Qpid's HA scenarios of an active member and its backups, under their names."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from broker.exit_codes import Exit
from broker.machine.commands import ACTIVATE, DEMOTE, OK, PROMOTE, PUBLISH
from broker.memberlog.reader import TornTail, read_segment
from broker.memberlog.records import Active, Batch, ConfirmRecord, Record
from tests.system.qpid_scenarios.clients import send, take
from tests.system.support.clusters import role_told, wait_until
from tests.system.support.undisturbed import Undisturbed
from tests.system.test_start_rules import log_of, ring_of, run_typed
from tools.client.management import ManagementError
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

FAILOVER_S = 60.0
"""Far above the usual 1.5 s on an idle machine; the time is reported, not judged."""


@contextlib.contextmanager
def ha_cluster(root: Path, size: int = 3, **more: str) -> Iterator[LocalCluster]:
    """A cluster in active-passive mode; options by their names with `_` for `-`."""
    extra = {"ha-cluster": "yes", **{name.replace("_", "-"): one for name, one in more.items()}}
    with LocalCluster(root, size, "ha", extra=extra, management=True) as cluster:
        cluster.start()
        yield cluster


def ha(member: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """`qpid-ha` at a member."""
    typed = [*command("qpid-ha"), "-b", str(member.address), *words]
    return subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def role(member: BrokerProcess) -> str:
    """A member's role, in one word."""
    return str(role_told(member).get("status", ""))


def becomes(word: str, *members: BrokerProcess) -> None:
    """Wait until each of these members has this role."""
    for member in members:
        wait_until(lambda one=member: role(one) == word, 20, f"{member} to be {word}")  # type: ignore[misc]


def active_of(cluster: LocalCluster, seconds: float = 20.0) -> BrokerProcess:
    """The active member, once all running members name it, and it says so itself."""
    found: list[BrokerProcess] = []

    def is_there() -> bool:
        alive = [one for one in cluster.members if one.alive]
        named = {named_by(one) for one in alive}
        found[:] = [one for one in alive if {ring_of(one)} == named and role(one) == "active"]
        return bool(found)

    wait_until(is_there, seconds, "an active member")
    (active,) = found
    return active


def named_by(member: BrokerProcess) -> str:
    """The member that this one takes for the active one; "" if it knows of none."""
    try:
        roles = member.status().raw["ha"]
    except ManagementError:
        return ""
    assert isinstance(roles, dict)
    return str(roles["active"])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close all connections at the end, also those to dead members."""
    yield
    for connection in OPENED:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
    OPENED.clear()


OPENED: list[pika.BlockingConnection] = []


def connect(
    *members: BrokerProcess, properties: dict[str, object] | None = None
) -> pika.BlockingConnection:
    """A client with a list of hosts, as pika has it."""
    connection = pika.BlockingConnection(
        [
            pika.ConnectionParameters(
                *one.address, heartbeat=0, client_properties=properties, socket_timeout=5,
                blocked_connection_timeout=20,
            )
            for one in members
        ]
    )  # fmt: skip
    OPENED.append(connection)
    return connection


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    channel: BlockingChannel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    return channel


def refusal_of(member: BrokerProcess, **properties: object) -> str:
    """The reason with which a client is refused."""
    with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
        connect(member, properties=properties or None)
    return repr(refused.value)


def test_failover_python(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A backup refuses clients and names the active member, but admits administrators; clients find
    the active member, and the next one after it was killed (G25, G8).
    """
    with ha_cluster(tmp_path) as cluster:
        active = active_of(cluster)
        backups = [one for one in cluster.members if one is not active]
        becomes("ready", *backups)
        for backup in backups:
            text = refusal_of(backup)
            assert "320" in text
            assert f"connect to amqp:tcp:{active.address}" in text
            operator = connect(backup, properties={"qpid.ha-admin": 1})
            send(confirming(operator), "q", b"by an operator")
            operator.close()
        client = connect(*backups, active)
        send(confirming(client), "q", b"by a client")
        assert roles_in_the_api(backups[0]) == {
            ring_of(active): "active", **{ring_of(one): "ready" for one in backups}
        }  # fmt: skip
        for one in cluster.members:
            assert ("qpidd_ha_active", 1.0 if one is active else 0.0) in gauges_of(one)
        active.kill()
        began = time.monotonic()
        found = None
        while found is None:
            assert time.monotonic() - began < FAILOVER_S, "no member admits clients"
            with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                found = connect(*cluster.members)
        record_property("clients were let in again after, s", f"{time.monotonic() - began:.2f}")
        kept = [b"by an operator", b"by an operator", b"by a client"]
        assert take(confirming(found), "q") == kept
        new = active_of(cluster)
        assert new is not active
        active.start()
        cluster.wait_active()
        becomes("ready", active)
        assert active_of(cluster) is new
        assert found.is_open


def got(member: BrokerProcess, path: str) -> bytes:
    """What the management API gives an administrator."""
    request = urllib.request.Request(f"http://{member.management}{path}")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=20) as reply:
        body: bytes = reply.read()
    return body


def roles_in_the_api(member: BrokerProcess) -> dict[str, str]:
    return {row["name"]: row["ha_role"] for row in json.loads(got(member, "/api/nodes"))}


def gauges_of(member: BrokerProcess) -> list[tuple[str, float]]:
    lines = got(member, "/metrics").decode().splitlines()
    plain = [line.split() for line in lines if not line.startswith("#")]
    return [(words[0], float(words[-1])) for words in plain if len(words) == 2]


class Publisher(threading.Thread):
    """Publishes numbers with confirms until it is stopped, to any member that accepts it."""

    def __init__(self, members: list[BrokerProcess]) -> None:
        super().__init__(daemon=True)
        self.members, self.confirmed = members, list[int]()
        self.refusals = 0
        self._ends = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ends.is_set():
            try:
                channel = confirming(connect(*self.members))
                while not self._ends.is_set():
                    number += 1
                    send(channel, "q", b"%d" % number)
                    self.confirmed.append(number)
            except (pika.exceptions.AMQPError, AMQPConnectorException, OSError):
                self.refusals += 1  # at a stalled member the handshake times out
                time.sleep(0.02)

    def end(self) -> list[int]:
        self._ends.set()
        self.join(30)
        assert not self.is_alive()
        return self.confirmed


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_failover_send_receive(tmp_path: Path, how: signal.Signals) -> None:
    """The active member is killed, or stalls, again and again while messages are confirmed: none of
    these is lost, and members are active one after the other (G8, G25).
    """
    with ha_cluster(tmp_path) as cluster:
        active_of(cluster)
        publisher = Publisher(cluster.members)
        publisher.start()
        for _ in range(3):
            before = len(publisher.confirmed)
            wait_until(lambda: len(publisher.confirmed) > before + 50, 30, "confirms")  # noqa: B023
            active = active_of(cluster)
            active.signal(how)
            if how is signal.SIGKILL:
                active.wait()
            others = [one for one in cluster.members if one is not active]
            wait_until(lambda: any(role(one) == "active" for one in others), 20, "another")  # noqa: B023
            if how is signal.SIGSTOP:
                active.signal(signal.SIGCONT)
            else:
                active.start()
            cluster.wait_active()
            becomes("ready", active)
        confirmed = publisher.end()
        channel = confirming(connect(active_of(cluster)))
        there = {int(body) for body in take(channel, "q")}
        lost = sorted(set(confirmed) - there)
        assert not lost, f"{len(lost)} of {len(confirmed)} confirmed messages are lost: {lost[:9]}"
    assert len(set(one_active_at_a_time(cluster))) > 1


def records_of(member: BrokerProcess) -> Iterator[Record]:
    """All of a member's log, up to where it was killed."""
    for path in sorted((member.data_dir / "memberlog").glob("*.qml*")):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        with contextlib.suppress(TornTail):
            yield from (entry.record for entry in read_segment(data, path.name))


def one_active_at_a_time(cluster: LocalCluster) -> list[str]:
    """The active members, one after the other, according to the logs of all members.

    No member is promoted while another is active, and every publish or confirm there belongs to a
    client of the active member.
    """
    batches: dict[int, Batch] = {}
    views: dict[int, Active] = {}
    confirms: list[tuple[str, int]] = []
    for member in cluster.members:
        for record in records_of(member):
            if isinstance(record, Batch):
                known = batches.setdefault(record.first_position, record)
                assert known.chain == record.chain
            elif isinstance(record, Active):
                views[record.epoch] = record
            elif isinstance(record, ConfirmRecord):
                confirms += [(ring_of(member), position) for position in record.positions]
    active, in_turn, published = "", list[str](), 0
    at: dict[int, str] = {}
    for first, batch in sorted(batches.items()):
        if batch.kinds[0] == ACTIVATE:
            go_on = [name for name, _, fresh in views[batch.epoch].members if not fresh]
            active = active if active in go_on else ""
        for place, kind in enumerate(batch.kinds):
            outcome = int.from_bytes(batch.outcomes[2 * place : 2 * place + 2], "little")
            if kind == PROMOTE and outcome == OK:
                assert not active, f"{batch.origin} was promoted while {active} was active"
                active = batch.origin
                in_turn.append(active)
            elif kind == DEMOTE and outcome == OK:
                assert active == batch.origin
                active = ""
            elif kind == PUBLISH and outcome == OK:
                assert batch.origin == active, f"published through {batch.origin} at {first}"
                published += 1
            at[first + place] = active
    assert published
    wrong = [(name, position) for name, position in confirms if at[position] != name]
    assert not wrong, wrong[:9]
    return in_turn


def test_backup_failover(tmp_path: Path) -> None:
    """By hand, as a resource manager does it: no member is active until one is promoted; while one
    is, no other is promoted; once it is gone, a ready backup is (G25).
    """
    with ha_cluster(tmp_path, ha_promotion="manual") as cluster:
        first, second, third = cluster.members
        becomes("ready", *cluster.members)
        assert "qpid-ha promote" in refusal_of(first)
        assert ha(first, "ping").returncode == 0
        assert ha(first, "status").stdout == "ready\n"
        assert ha(first, "ready").returncode == 0
        assert ha(first, "status", "--is-primary").returncode == 1
        done = ha(second, "promote")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ha(second, "promote").returncode == 0, "it is already"
        assert ha(second, "status", "--is-primary").returncode == 0
        becomes("active", second)
        assert ha(second, "status", "--expect", "ready").returncode == 1
        assert ha(second, "ready").returncode == 1
        refused = ha(third, "promote")
        assert refused.returncode == 1
        assert f"{ring_of(second)} is the active member" in refused.stderr
        send(confirming(connect(*cluster.members)), "q", b"kept")
        second.kill()
        cluster.wait_active([first, third])
        becomes("ready", first, third)
        assert ha(second, "ping").returncode == 1
        answers = json.loads(ha(third, "promote", "--json").stdout)
        assert (answers["status"], answers["active"]) == ("active", ring_of(third))
        assert take(confirming(connect(first, third)), "q") == [b"kept"]
        second.start()
        cluster.wait_active()
        words = {first: "ready", second: "ready", third: "active"}
        lines = sorted(f"{ring_of(one)} {word}" for one, word in words.items())
        shown = [f"{'Status:':<20}active", f"{'Broker ID:':<20}{ring_of(third)}"]

        def all_tell_so() -> bool:
            """The active member is `recovering` while it may not reply, such as when the token is
            late."""
            told = sorted(ha(first, "status", "--all").stdout.splitlines())
            return told == lines and ha(third, "query").stdout.splitlines()[:2] == shown

        wait_until(all_tell_so, 20, f"{lines} and {shown}")
        first.kill()
        second.kill()
        becomes("joining", third)
        alone = ha(third, "promote")
        assert alone.returncode == 1
        assert "Joining active cluster, cannot be promoted" in alone.stderr
    assert one_active_at_a_time(cluster) == [ring_of(second), ring_of(third)]


def test_a_drained_active_member_hands_over(tmp_path: Path) -> None:
    """qpidd-primary is moved: clients are told 320, and find the next one (G25)."""
    with ha_cluster(tmp_path) as cluster:
        old = active_of(cluster)
        channel = confirming(connect(old))
        send(channel, "q", b"1")
        run_typed(f"qpid-cluster --drain {ring_of(old)} {old.address}")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            send(channel, "q", b"2")
        assert closed.value.reply_code == 320
        others = [one for one in cluster.members if one is not old]
        wait_until(lambda: any(role(one) == "active" for one in others), 10, "another one")
        run_typed(f"qpid-cluster --undrain {ring_of(old)} {others[0].address}")
        new = active_of(cluster)
        assert new in others
        send(confirming(connect(*cluster.members)), "q", b"3")
        wait_until(lambda: "is a backup" in refusal_of(old), 10, "the old one as a backup")
    assert one_active_at_a_time(cluster) == [ring_of(old), ring_of(new)]


def test_members_are_drained_one_after_the_other(tmp_path: Path) -> None:
    """Maintenance of all: each drained member hands over, including the first that is active again,
    and publishers lose nothing (G25, G8).
    """
    with ha_cluster(tmp_path) as cluster:
        held = [active_of(cluster)]
        publisher = Publisher(cluster.members)
        publisher.start()
        for _ in range(4):
            old = held[-1]
            others = [one for one in cluster.members if one is not old]
            run_typed(f"qpid-cluster --drain {ring_of(old)} {others[0].address}")
            wait_until(lambda: any(role(one) == "active" for one in others), 20, "another")  # noqa: B023
            held.append(active_of(cluster))
            before = len(publisher.confirmed)
            wait_until(lambda: len(publisher.confirmed) > before + 20, 30, "confirms")  # noqa: B023
            run_typed(f"qpid-cluster --undrain {ring_of(old)} {others[0].address}")
        confirmed = publisher.end()
        channel = confirming(connect(held[-1]))
        there = {int(body) for body in take(channel, "q")}
        assert not set(confirmed) - there
    in_turn = [ring_of(one) for one in held]
    assert len(set(in_turn)) < len(in_turn), "one of them was active twice"
    assert one_active_at_a_time(cluster) == in_turn


def test_a_member_of_the_other_mode_is_refused(tmp_path: Path) -> None:
    """The running members notice nothing."""
    with ha_cluster(tmp_path) as cluster:
        other = cluster[2]
        other.kill()
        cluster.wait_active(cluster.members[:2])
        other.arguments = (*other.arguments, "--ha-cluster", "no")
        with Undisturbed(cluster):
            other.start()
            assert other.wait() == Exit.PROTOCOL
        assert "ha-cluster is no here and yes at" in log_of(other)
        active_of(cluster)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--ha-cluster", "yes"), "--ha-cluster: it needs --cluster-name"),
        (("--ha-promotion", "manual"), "--ha-promotion: it needs --ha-cluster yes"),
        (("--ha-username", "u"), "--ha-username: it needs --ha-cluster yes"),
    ],
)
def test_refused_options_change_nothing(tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    """invalid_replication, and other contradictory options: one sentence and a code."""
    store = tmp_path / "store"
    typed = [*command("qpidd"), "--data-dir", str(store), "--port", "0", *given]
    done = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.USAGE
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not store.exists()
