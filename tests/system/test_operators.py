"""Operators' commands against real brokers: qpid-cluster; spout and drain in a rolling kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pika
import pytest

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tools.client.management import ManagementError, MemberStatus, Target
from tools.demo.local_cluster import ROOT, BrokerProcess, LocalCluster, command
from tools.demo.stream import Arrivals, write_input

pytestmark = pytest.mark.system


def run(name: str, *arguments: str) -> tuple[int, str, str]:
    """Run one command to its end."""
    ended = subprocess.run(
        [*command(name), *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_any_member_shows_the_cluster(cluster: LocalCluster) -> None:
    ids = []
    head = ["  Cluster Name: test", "Cluster Status: ACTIVE", "  Cluster Size: 3"]
    for member in cluster.members:

        def lines_of(place: str = str(member.address)) -> list[str]:
            code, shown, said = run("qpid-cluster", place)
            assert (code, said) == (0, "")
            return shown.splitlines()

        # A view change may be in progress at any time.
        wait_until(lambda ask=lines_of: ask()[:3] == head, 20, "three active members")  # type: ignore[misc]
        lines = lines_of()
        own = [line for line in lines if "(local)" in line]
        assert len(own) == 1
        assert f"URL=amqp:tcp:{member.address}" in own[0]
        ids.append([line.split("ID=")[1].split()[0] for line in lines[3:]])
    assert ids[0] == ids[1] == ids[2]


def test_json_has_the_documented_keys(cluster: LocalCluster) -> None:
    _, shown, _ = run("qpid-cluster", "--json", str(cluster[1].address))
    status = json.loads(shown)
    assert {
        "cluster", "cluster_id", "status", "size", "epoch", "position", "members", "voters",
        "reason", "version",
    } <= status.keys()  # fmt: skip
    for member in status["members"]:
        assert {"id", "url", "state", "voter", "position", "local"} <= member.keys()
    assert sorted(status["voters"]) == sorted(member["id"] for member in status["members"])


def test_counters_are_whole_numbers(cluster: LocalCluster) -> None:
    counters = Target(cluster[0].address).ask(op="counters")["counters"]
    assert isinstance(counters, dict)
    assert counters
    assert all(isinstance(value, int) for value in counters.values())


@pytest.mark.parametrize("request_", [{"op": "format-disk"}, {"op": 7}, {}])
def test_unknown_operations_are_refused(
    cluster: LocalCluster, request_: dict[str, str | int]
) -> None:
    """G15: the sender gets a sentence, the broker continues."""
    with pytest.raises(ManagementError, match="knows no operation"):
        Target(cluster[0].address).ask(**request_)
    wait_until(lambda: cluster[0].status().status == "ACTIVE", 20, "it to continue")


def test_closing_the_terminal_ends_no_member(cluster: LocalCluster) -> None:
    member = cluster.members[0]
    os.kill(member.pid, signal.SIGHUP)
    wait_until(lambda: "SIGHUP: read again" in member.log_tail(20), 10, "the line in the log")
    assert member.alive


def test_limits_of_a_running_broker_can_be_changed(tmp_path: Path) -> None:
    """G21: changed by its option file and SIGHUP; a file with a mistake changes nothing."""
    file = tmp_path / "broker.conf"
    file.write_text("port = 0\nmemory-limit = 0\n")
    broker = subprocess.Popen(
        [*command("qpidd"), "--config", str(file)], stderr=subprocess.PIPE, text=True
    )
    assert broker.stderr is not None

    def until(word: str) -> None:
        assert broker.stderr is not None
        assert any(word in line for line in broker.stderr), word

    try:
        until("listening for clients")
        for text, said in (
            ("port = 0\nmemory-limit = 1MB\n", "low on memory"),
            ("port = 0\nmemory-limit = lots\n", "everything stays as it is"),
            ("port = 0\nmemory-limit = 0\n", "memory of"),
        ):
            file.write_text(text)
            broker.send_signal(signal.SIGHUP)
            until(said)
        broker.terminate()
        assert broker.wait(60) == 0
    finally:
        broker.kill()
        broker.stderr.close()


def answering(broker: BrokerProcess) -> MemberStatus:
    """A member's answer about itself."""
    (own,) = [one for one in broker.status().members if one.local]
    return own


def test_stop_one_member_by_its_id(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        leaving = answering(cluster[2])
        asked = str(cluster[0].address)
        code, _, said = run("qpid-cluster", "-f", "-s", "nobody", asked)
        assert (code, said) == (1, "qpid-cluster: Failed: No member with matching ID found\n")
        assert run("qpid-cluster", "-f", "-s", leaving.id, asked) == (0, "", "")
        assert cluster[2].wait() == Exit.OK
        cluster.wait_active([cluster[0], cluster[1]])
        code, shown, _ = run("qpid-cluster", asked)
        assert code == 0
        assert "Cluster Size: 2\n" in shown
        assert f"ID={leaving.id} " in shown
        assert "(DOWN)" in shown
        cluster[2].start()
        cluster.wait_active()


def test_a_hanging_member_fails_the_stop_of_all(tmp_path: Path) -> None:
    """It reads no order, so it would be there still when the cluster is started again."""
    with running_cluster(tmp_path) as cluster:
        hangs, asked = cluster[2], str(cluster[0].address)
        name = answering(hangs).id
        assert hangs.pid is not None
        os.kill(hangs.pid, signal.SIGSTOP)
        try:
            cluster.wait_active([cluster[0], cluster[1]])
            code, _, said = run("qpid-cluster", "-t", "5", "-k", "-f", asked)
            assert (code, said) == (
                1,
                f"qpid-cluster: Failed: still running: {name}: {hangs.address} did not answer in "
                "time; end the process there before the cluster is started again\n",
            )
            assert [cluster[0].wait(), cluster[1].wait()] == [Exit.OK, Exit.OK]
        finally:
            os.kill(hangs.pid, signal.SIGCONT)
        cluster[0].start()
        cluster[1].start()
        cluster.wait_active()
        assert run("qpid-cluster", "-t", "30", "-k", "-f", asked) == (0, "", "")
        cluster.wait_stopped()


def connected_to(member: BrokerProcess) -> pika.BlockingConnection:
    """A connection to this member and no other."""
    parameters = pika.ConnectionParameters(*member.address, connection_attempts=1)
    return admitted(lambda: pika.BlockingConnection(parameters))


def local_address(connection: pika.BlockingConnection) -> str:
    """The client's address as the broker sees it."""
    host, port = connection._impl._transport._sock.getsockname()[:2]
    return f"{host}:{port}"


def closed_with(connection: pika.BlockingConnection) -> str:
    """The broker's reason when it closed this connection."""
    with pytest.raises(pika.exceptions.ConnectionClosed) as closed:
        connection.process_data_events(20)
    assert closed.value.reply_code == 320
    return str(closed.value.reply_text)


def test_any_member_shows_and_disconnects_all_clients(
    cluster: LocalCluster,
) -> None:
    first, last = connected_to(cluster[0]), connected_to(cluster[2])
    with contextlib.closing(last):
        last.channel()
        address, asked = local_address(first), str(cluster[1].address)
        shown = ""

        def is_shown() -> bool:
            """The member that is asked learns of another member's client after a while."""
            nonlocal shown
            code, shown, said = run("qpid-cluster", "-C", "-n", asked)
            assert (code, said) == (0, "")
            return f"    {address}\n" in shown

        wait_until(is_shown, 20, "the other member's client to be shown")
        blocks = [block.splitlines() for block in shown.split("\n\n") if block.strip()]
        ids = [member.id for member in cluster[0].status().members]
        assert [block[0] for block in blocks] == [f"Clients on Member: ID={one}:" for one in ids]
        by_member = {block[0]: block[1:] for block in blocks}
        own = answering(cluster[0])
        assert f"    {address}" in by_member[f"Clients on Member: ID={own.id}:"]
        _, document, _ = run("qpid-cluster", "--json", "-c", own.id, str(cluster[0].address))
        mine = next(c for c in json.loads(document)[0]["connections"] if c["address"] == address)
        assert (mine["user"], mine["vhost"], mine["channels"]) == ("guest", "/", 0)
        assert "Pika" in mine["product"]
        code, shown, said = run("qpid-cluster", "-d", address, asked)
        assert (code, said) == (0, "")
        assert shown == f"Closing connection from client: {address}\n"
        assert "closed by an operator" in closed_with(first)
        gone = f"Client connection '{address}' not found\n"
        wait_until(lambda: run("qpid-cluster", "-d", address, asked)[1] == gone, 20, gone)
        assert last.is_open


def test_a_drained_member_disconnects_its_clients_and_still_votes(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        drained = answering(cluster[2])
        client, asked = connected_to(cluster[2]), str(cluster[0].address)
        assert run("qpid-cluster", "--drain", drained.id, asked) == (0, "", "")
        text = closed_with(client)
        assert "is drained for maintenance; try amqp:tcp:" in text
        with pytest.raises(pika.exceptions.AMQPConnectionError, match="drained"):
            pika.BlockingConnection(pika.ConnectionParameters(*cluster[2].address))
        for member in cluster.members:
            wait_until(
                lambda m=member: m.status().raw["drained"] == [drained.id],  # type: ignore[misc]
                20,
                "the drained member to be shown",
            )
        cluster[1].kill()
        cluster.wait_active([cluster[0], cluster[2]])
        with contextlib.closing(connected_to(cluster[0])) as other:
            other.channel().queue_declare("q", durable=True)
        serving = answering(cluster[0])
        code, _, said = run("qpid-cluster", "--drain", serving.id, asked)
        assert code == 1
        assert "no other member would take clients" in said
        assert run("qpid-cluster", "--undrain", drained.id, asked) == (0, "", "")
        connected_to(cluster[2]).close()
        assert run("qpid-cluster", "--drain", drained.id, asked)[0] == 0
        assert cluster[2].terminate() == Exit.OK
        cluster.start()
        connected_to(cluster[2]).close()
        wait_until(lambda: cluster[0].status().raw["drained"] == [], 20, "no member to be drained")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_member_killed_in_turn_under_load(tmp_path: Path) -> None:
    """G8, G11, G12: kill -9 of each member under a confirmed stream: all there, in order."""
    count, window = 60_000, 200
    source, output = tmp_path / "input.txt", tmp_path / "output.jsonl"
    digest = write_input(source, count)
    with running_cluster(tmp_path) as cluster:
        drain = subprocess.Popen(
            [
                *command("drain"), "-b", cluster.brokers(2), "-q", "q", "--create",
                "--format", "json", "--output", str(output), "--count", str(count), "--unique",
                "--timeout", "60",
            ],
            cwd=ROOT,
        )  # fmt: skip
        spout = subprocess.Popen(
            [
                *command("spout"), "-b", cluster.brokers(0), "-q", "q", "--file", str(source),
                "--sequence", "--window", str(window),
            ],
            cwd=ROOT,
        )  # fmt: skip
        arrivals = Arrivals(output)
        try:
            for turn, member in enumerate(cluster.members):

                def share_came(share: float = (turn + 1) / 5) -> bool:
                    arrivals.read()
                    return arrivals.different >= share * count

                wait_until(share_came, 60, f"the stream before kill {turn + 1}")
                member.kill()
                others = [one for one in cluster.members if one is not member]
                cluster.wait_active(others)
                member.start()
                cluster.wait_active()
            assert spout.wait(60) == 0
            assert drain.wait(60) == 0
        finally:
            for client in (spout, drain):
                client.kill()
                client.wait()
        arrivals.read()
        assert arrivals.different == count
        assert arrivals.first_digest.hexdigest() == digest
        assert arrivals.unflagged_repeats <= 3 * window
