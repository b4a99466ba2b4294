"""Brokers that share one store: one leads, the others wait, and a paused leader does no harm.

Real processes and pika.  Times are reported; they are judged only by generous limits.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.exit_codes import Exit
from broker.sharing.lease_directory import LeaseDirectory
from tests.system.support.clusters import wait_until
from tests.system.support.load_clients import TROUBLE, hang_up
from tools.demo.local_cluster import HOST, BrokerProcess, command, free_ports
from tools.verify.job import verify

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(240)]

QUEUE = "shared"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
TAKEOVER_S = 60.0
"""Far above the two seconds of an idle machine, as this one may be overloaded."""


class Sharing:
    """Some brokers over one directory, each a process."""

    def __init__(self, root: Path, count: int, *more: str) -> None:
        self.store = root / "store"
        self.brokers = [
            BrokerProcess(
                f"broker-{index + 1}", root, port,
                ["--shared-store", str(self.store), "--port", str(port), "--interface", HOST,
                 "--management-port", "off", "--cluster-name", "shop", *more],
            )
            for index, port in enumerate(free_ports(count))
        ]  # fmt: skip

    def start(self) -> None:
        """Start all; the first one leads."""
        for one in self.brokers:
            one.start()
            wait_until(partial(said, one, " leads "), TAKEOVER_S, "the first to lead")

    def token(self) -> int:
        """The newest token, where the lease is in files."""
        return LeaseDirectory(self.store, "shop").newest_token() if self.store.exists() else 0

    def led(self) -> bool:
        return any(serves(one) for one in self.brokers)

    def leader(self) -> BrokerProcess:
        """Wait for the one that admits clients, and return it; there are never two."""
        wait_until(self.led, TAKEOVER_S, "a leader")
        (found,) = [one for one in self.brokers if serves(one)]
        return found

    def close(self) -> None:
        for one in self.brokers:
            if one.alive:
                one.kill()

    def judge_logs(self, terms: int) -> None:
        """Leaders by the logs: at least this many (G38), and the logs are consistent."""
        self.close()
        report = verify(None, [self.store / "memberlog"])
        assert report.findings == []
        (seen,) = [one.rows for one in report.checks if one.promise == "G38"]
        assert seen >= terms


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    """Three brokers, with a lease that a busy machine does not let expire by itself."""
    running = Sharing(tmp_path, 3, "--shared-store-lease", "1500")
    yield running
    running.close()


def connect(one: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            one.address.host, one.address.port, socket_timeout=2.0, stack_timeout=4.0,
            heartbeat=4,  # the only sign of a stopped process
        )
    )  # fmt: skip


def serves(one: BrokerProcess) -> bool:
    """Whether it admits a client and answers it."""
    if not one.alive:
        return False
    try:
        connection = connect(one)
        connection.channel().queue_declare(QUEUE, durable=True)
    except TROUBLE:
        return False
    with contextlib.suppress(*TROUBLE):
        connection.close()
    return True


def said(one: BrokerProcess, words: str) -> bool:
    """Whether its log has all these words."""
    return words in one.log_path.read_text(encoding="utf-8")


class Publisher(threading.Thread):
    """Publishes numbers to the leader, and remembers which were confirmed, and when."""

    def __init__(self, sharing: Sharing) -> None:
        super().__init__(daemon=True)
        self._sharing = sharing
        self.confirmed: dict[int, float] = {}
        self.last = 0
        self._connection: pika.BlockingConnection | None = None
        self._done = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self._done.is_set():
            turn += 1
            one = self._sharing.brokers[turn % len(self._sharing.brokers)]
            with contextlib.suppress(*TROUBLE):
                self._publish_to(connect(one))
            self._done.wait(0.02)

    def _publish_to(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(QUEUE, durable=True)
        while not self._done.is_set():
            self.last += 1
            channel.basic_publish("", QUEUE, b"%d" % self.last, PERSISTENT)
            self.confirmed[self.last] = time.monotonic()
        connection.close()

    def longest_gap(self) -> float:
        times = sorted(self.confirmed.values())
        return max(after - before for before, after in pairwise(times))

    def wait_for_more(self, count: int) -> None:
        goal = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= goal, TAKEOVER_S, f"{count} confirms more")

    def gives_up(self) -> None:
        """Stop waiting for the broker that it is connected to."""
        hang_up(self._connection)

    def stop(self) -> None:
        self._done.set()
        self.join(TAKEOVER_S)
        assert not self.is_alive()


def drain(one: BrokerProcess) -> list[int]:
    """Empty the queue."""
    connection = connect(one)
    channel = connection.channel()
    found: list[int] = []
    while (message := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
        assert message[2] is not None
        found.append(int(message[2]))
    connection.close()
    return found


def depth(one: BrokerProcess) -> int:
    """The number of ready messages."""
    connection = connect(one)
    found: int = connection.channel().queue_declare(QUEUE, passive=True).method.message_count
    connection.close()
    return found


def settle(channel: BlockingChannel, count: int) -> set[int]:
    """Consume some messages in a transaction, which settles them for good."""
    channel.tx_select()
    found = set()
    for _ in range(count):
        method, _, body = channel.basic_get(QUEUE)
        assert method is not None
        assert body is not None
        channel.basic_ack(method.delivery_tag)
        found.add(int(body))
    channel.tx_commit()
    return found


def check(sharing: Sharing, publisher: Publisher, settled: set[int], terms: int) -> None:
    """No confirmed message is lost, no settled one returns, none is there twice; the logs name at
    least this many leaders."""
    left = drain(sharing.leader())
    assert len(left) == len(set(left))
    assert not settled & set(left)
    missing = set(publisher.confirmed) - set(left) - settled
    assert not missing, f"{len(missing)} confirmed messages are lost: {sorted(missing)[:10]}"
    sharing.judge_logs(terms)


def test_leaders_are_killed_one_after_the_other(
    sharing: Sharing, record_property: Callable[[str, object], None]
) -> None:
    """G8, G9, G38: kill -9 of two leaders under load; waiters take over, the killed ones wait."""
    sharing.start()
    publisher = Publisher(sharing)
    publisher.start()
    settled: set[int] = set()
    for _ in range(2):
        publisher.wait_for_more(50)
        leader = sharing.leader()
        settled |= settle(connect(leader).channel(), 10)
        token = sharing.token()
        leader.kill()
        publisher.wait_for_more(50)
        assert sharing.token() > token
        assert sharing.leader() is not leader
        leader.start()
    publisher.stop()
    record_property("longest time without a confirm, s", f"{publisher.longest_gap():.2f}")
    check(sharing, publisher, settled, 3)


def test_a_stopped_leader_returns_and_does_no_harm(
    sharing: Sharing, record_property: Callable[[str, object], None]
) -> None:
    """G7, G8, G38: SIGSTOP under load, SIGCONT when another one serves: it confirms nothing, and
    ends with the code on which it is restarted; its successor's store is whole."""
    sharing.start()
    publisher = Publisher(sharing)
    publisher.start()
    settled: set[int] = set()
    for _ in range(2):
        publisher.wait_for_more(50)
        leader = sharing.leader()
        token = sharing.token()
        client = connect(leader)
        channel = client.channel()
        channel.confirm_delivery()
        settled |= settle(connect(leader).channel(), 5)
        leader.signal(signal.SIGSTOP)
        publisher.gives_up()
        publisher.wait_for_more(50)
        assert sharing.token() > token
        leader.signal(signal.SIGCONT)
        with pytest.raises(TROUBLE):
            channel.basic_publish("", QUEUE, b"-1", PERSISTENT)
        assert leader.wait(TAKEOVER_S) == Exit.FENCED
        assert "leads" in leader.log_tail(200)
        publisher.wait_for_more(20)
        leader.start()
    publisher.stop()
    record_property("longest time without a confirm, s", f"{publisher.longest_gap():.2f}")
    check(sharing, publisher, settled, 3)


def test_one_continues_after_all_were_killed(sharing: Sharing) -> None:
    """G8: a start waits for the lease of the killed leader, and has all that it confirmed."""
    sharing.start()
    publisher = Publisher(sharing)
    publisher.start()
    publisher.wait_for_more(50)
    for one in sharing.brokers:
        one.kill()
    publisher.stop()
    sharing.brokers[2].start()
    check(sharing, publisher, set(), 2)


def test_a_client_with_a_failover_list_survives_a_takeover(sharing: Sharing) -> None:
    """G8: a list as ActiveMQ's clients write it; a client waiting for input returns once one
    leads."""
    sharing.start()
    leader = sharing.leader()
    places = ",".join(f"tcp://{one.address}" for one in sharing.brokers)
    spout = subprocess.Popen(
        [*command("spout"), "--quiet", "--durable", "--queue", QUEUE, "--broker",
         f"failover:({places})?randomize=false&initialReconnectDelay=50&timeout=60000"],
        stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert spout.stdin is not None
    numbers = [str(number) for number in range(200)]
    spout.stdin.write("\n".join(numbers[:100]) + "\n")
    spout.stdin.flush()
    wait_until(lambda: depth(leader) == 100, TAKEOVER_S, "the first hundred")
    leader.kill()
    spout.stdin.write("\n".join(numbers[100:]) + "\n")
    spout.stdin.close()
    assert spout.wait(TAKEOVER_S) == 0
    assert set(drain(sharing.leader())) == set(range(200))
    sharing.judge_logs(2)


def test_a_clean_stop_hands_over_and_a_shutdown_ends_all(sharing: Sharing) -> None:
    """SIGTERM: another one leads at once.  qpid-cluster -k: waiting brokers end too, with 0."""
    sharing.start()
    first = sharing.leader()
    assert first.terminate() == Exit.OK
    second = sharing.leader()
    assert second is not first
    assert "process" in subprocess.run(
        [*command("qpid-cluster"), str(second.address)],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    waiting = [one for one in sharing.brokers if one.alive and one is not second]
    subprocess.run([*command("qpid-cluster"), "-k", "-f", str(second.address)], check=True)
    assert second.wait() == Exit.OK
    assert [one.wait() for one in waiting] == [Exit.OK]
    first.start()
    assert sharing.leader() is first
    sharing.judge_logs(3)


def test_a_waiting_broker_refuses_clients_and_names_the_leader(sharing: Sharing) -> None:
    sharing.start()
    leader = sharing.leader()
    for one in sharing.brokers:
        if one is not leader:
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                connect(one)
            assert f"amqp:tcp:{leader.address} leads {sharing.store} since" in one.log_tail(200)
            assert one.terminate() == Exit.OK
    assert leader.alive


def test_a_broker_of_another_cluster_name_is_refused(sharing: Sharing) -> None:
    """It changes nothing, names both, and ends."""
    sharing.start()
    before = sorted(path.name for path in sharing.store.iterdir())
    done = subprocess.run(
        [*command("qpidd"), "--shared-store", str(sharing.store), "--port", "0",
         "--management-port", "off", "--cluster-name", "bank"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.DATA
    assert "cluster 'shop'" in done.stderr
    assert "cluster 'bank'" in done.stderr
    assert sorted(path.name for path in sharing.store.iterdir()) == before


def test_a_broker_on_all_interfaces_names_a_reachable_address(sharing: Sharing) -> None:
    one = sharing.brokers[0]
    one.arguments = tuple("0.0.0.0" if word == HOST else word for word in one.arguments)
    one.start()
    assert sharing.leader() is one
    typed = [*command("qpid-cluster"), str(one.address)]
    told = subprocess.run(typed, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"amqp:tcp:\S+:{one.address.port} \(token 1\)", told), told
    assert "0.0.0.0" not in told
