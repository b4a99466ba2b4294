"""qpid-cluster against a small fake of the management protocol: layout, prompts, texts, codes."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest

from tools.client import failover, management
from tools.client.management import PREAMBLE, Json, Target
from tools.client.member_operations import client_lines
from tools.commands.qpid_cluster import main, members_of, parse_client, parse_target

ROOT = Path(__file__).resolve().parents[3]


def member(name: str, port: int, **more: Json) -> dict[str, Json]:
    """One member of an answer, ACTIVE and voting by default."""
    url = f"amqp:tcp:127.0.0.1:{port}"
    usual: dict[str, Json] = {
        "id": name, "url": url, "state": "ACTIVE", "voter": True, "position": 7, "local": False
    }  # fmt: skip
    return {**usual, **more}


STATUS: dict[str, Json] = {
    "ok": True,
    "cluster": "shop",
    "status": "ACTIVE",
    "size": 3,
    "members": [member("a", 5672, local=True), member("b", 5673), member("c", 5674)],
}


class FakeBroker:
    """Accepts management connections on a loopback port and gives canned answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Json]] = []
        self.greetings = 0
        self.answers: dict[str, bytes] = {"status": json.dumps(STATUS).encode() + b"\n"}
        self.after: dict[Json, dict[str, bytes]] = {}
        """By a request: the answers from then on."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                stream = connection.makefile("rb")
                assert stream.read(len(PREAMBLE)) == PREAMBLE
                line = stream.readline()
                if line == b"\n":
                    self.greetings += 1
                    connection.sendall(b'{"ok": false}\n')
                    stream.close()
                    continue
                request = json.loads(line)
                self.requests.append(request)
                connection.sendall(self.answers.get(request["op"], b""))
                self.answers |= self.after.get(request["op"], {})
                stream.close()

    def close(self) -> None:
        """Stop listening; the thread ends with its socket."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def ops(self) -> list[Json]:
        """The requests, in order."""
        return [request["op"] for request in self.requests]

    def run(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run qpid-cluster against this broker."""
        return qpid_cluster(*arguments, f"127.0.0.1:{self.port}", typed=typed)


def qpid_cluster(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, but in this process: starting an interpreter takes long."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["qpid-cluster", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(typed))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(arguments, ended.value.code, out.getvalue(), err.getvalue())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A fake broker that is closed after the test."""
    fake = FakeBroker()
    yield fake
    fake.close()


def test_the_overview_has_the_classic_layout(broker: FakeBroker) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.commands.qpid_cluster", f"127.0.0.1:{broker.port}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "  Cluster Name: shop\n"
        "Cluster Status: ACTIVE\n"
        "  Cluster Size: 3\n"
        "       Members: ID=a URL=amqp:tcp:127.0.0.1:5672 (local)\n"
        "              : ID=b URL=amqp:tcp:127.0.0.1:5673\n"
        "              : ID=c URL=amqp:tcp:127.0.0.1:5674\n"
    )
    assert broker.requests == [{"op": "status", "user": "guest", "password": "guest"}]


def test_alarms_are_listed_below_the_members(broker: FakeBroker) -> None:
    status = json.loads(broker.answers["status"]) | {"alarms": ["the disk lags"]}
    broker.answers["status"] = json.dumps(status).encode() + b"\n"
    assert broker.run().stdout.endswith("5674\n         Alarm: the disk lags\n")


def test_broken_links_are_listed_by_their_second_address(broker: FakeBroker) -> None:
    """From the view of the asked member: another member may still reach that address."""
    status = json.loads(broker.answers["status"]) | {"links_down": ["10.1.0.2:25672"]}
    broker.answers["status"] = json.dumps(status).encode() + b"\n"
    said = broker.run().stdout
    assert said.endswith("5674\n     Link down: 10.1.0.2:25672 (its member has another one)\n")


def test_a_hanging_member_of_a_list_is_skipped_with_one_notice(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel still accepts connections for a stopped process."""
    monkeypatch.setattr(failover, "NEXT_S", 0.05)
    broker.answers["connections"] = b'{"ok": true, "connections": []}\n'
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        silent, good = f"127.0.0.1:{hangs.getsockname()[1]}", f"127.0.0.1:{broker.port}"
        ended = qpid_cluster("-C", f"{silent},{good},127.0.0.1:1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == f"{silent} says nothing for 0.05 s: {good} is asked\n"
    assert (broker.ops(), broker.greetings) == (["status", "connections"], 2)


def test_credentials_are_sent(broker: FakeBroker) -> None:
    ended = qpid_cluster(f"ann/secret@127.0.0.1:{broker.port}")
    assert ended.returncode == 0
    assert broker.requests == [{"op": "status", "user": "ann", "password": "secret"}]


def test_credentials_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone on a machine can see a password on a command line."""
    monkeypatch.setenv("QPID_USER", "ada")
    monkeypatch.setenv("QPID_PASSWORD", "secret")
    asked = parse_target("localhost", 1.0)
    assert (asked.user, asked.password) == ("ada", "secret")
    asked = parse_target("bob/word@localhost", 1.0)
    assert (asked.user, asked.password) == ("bob", "word")


def test_json_output_is_the_answer_itself(broker: FakeBroker) -> None:
    ended = broker.run("--json")
    assert json.loads(ended.stdout) == STATUS


def test_a_join_shows_its_progress(broker: FakeBroker) -> None:
    joining = {**member("c", 5674, state="JOINING", voter=True), "received_percent": 41.5}
    answer = {**STATUS, "members": [member("a", 5672), joining]}
    broker.answers["status"] = json.dumps(answer).encode() + b"\n"
    assert "ID=c URL=amqp:tcp:127.0.0.1:5674 (JOINING, 41.5 % received)" in broker.run().stdout


def test_a_member_still_looking_for_others_has_received_nothing(broker: FakeBroker) -> None:
    alone = {**member("a", 5672, state="JOINING", local=True), "received_percent": 100.0}
    answer = {**STATUS, "member_state": "INIT", "members": [alone]}
    broker.answers["status"] = json.dumps(answer).encode() + b"\n"
    assert "URL=amqp:tcp:127.0.0.1:5672 (INIT, local)" in broker.run().stdout


def test_diagnose_names_a_member_that_does_not_answer(broker: FakeBroker, tmp_path: Path) -> None:
    there = [member("a", 5672, local=True), {**member("b", 5673), "url": "amqp:ssl:b.example:5671"}]
    broker.answers["status"] = json.dumps({**STATUS, "members": there}).encode() + b"\n"
    ended = broker.run("--diagnose", str(tmp_path / "report.tar.gz"))
    why = "b: status: its URL amqp:ssl:b.example:5671 has no address without TLS (--cluster-url)"
    assert why in ended.stdout + ended.stderr


def test_not_active_gives_the_reason_and_fails(broker: FakeBroker) -> None:
    answer = {
        **STATUS, "status": "INQUORATE", "size": 1, "reason": "1 of 3 voters is here",
        "members": [member("a", 5672, state="JOINING", voter=False), member("b", 1, state="DOWN")],
    }  # fmt: skip
    broker.answers["status"] = json.dumps(answer).encode() + b"\n"
    ended = broker.run()
    assert ended.returncode == 1
    assert "Cluster Status: INQUORATE\n" in ended.stdout
    assert "ID=a URL=amqp:tcp:127.0.0.1:5672 (JOINING, no vote)" in ended.stdout
    assert "1 of 3 voters is here" in ended.stderr
    assert ended.stderr.endswith("qpidctl check_cluster says what to do\n")


@pytest.mark.parametrize(
    ("own", "shown"),
    [("UPDATEE", "(UPDATEE, local)"), ("STALLED", "(STALLED, local)"), ("READY", "(local)")],
)
def test_the_asked_member_is_shown_with_its_own_state(
    broker: FakeBroker, own: str, shown: str
) -> None:
    broker.answers["status"] = json.dumps({**STATUS, "member_state": own}).encode() + b"\n"
    lines = broker.run().stdout.splitlines()
    assert lines[3].endswith(f"ID=a URL=amqp:tcp:127.0.0.1:5672 {shown}")
    assert lines[4].endswith("ID=b URL=amqp:tcp:127.0.0.1:5673")


def test_stop_one_asks_first(broker: FakeBroker) -> None:
    broker.answers["stop"] = b'{"ok": true, "id": "b"}\n'
    canceled = broker.run("-s", "b", typed="n\n")
    assert canceled.returncode == 1
    assert canceled.stdout == (
        "Warning: This command will shut down a cluster member. Are you sure? [N]: "
    )
    assert canceled.stderr == "qpid-cluster: Failed: Operation canceled\n"
    assert "stop" not in broker.ops()
    done = broker.run("-s", "b", typed="Yes\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.requests[-1]["id"] == "b"


def test_stopping_the_last_member_asks_another_question(broker: FakeBroker) -> None:
    down = [member("a", 5672, local=True), member("b", 5673, state="DOWN")]
    broker.answers["status"] = json.dumps({**STATUS, "size": 1, "members": down}).encode() + b"\n"
    ended = broker.run("-s", "a", typed="\n")
    assert "shut down the last running cluster member. Are you sure? [N]: " in ended.stdout
    for asked in (("-f", "-s"), ("--drain",), ("-c",)):
        assert broker.run(*asked, "b").stderr == (
            "qpid-cluster: Failed: b is DOWN; qpidctl check_cluster says what to do\n"
        )
    assert broker.run("-f", "-s", "x").stderr == (
        "qpid-cluster: Failed: No member with matching ID found\n"
    )


def test_one_of_two_is_not_the_last(broker: FakeBroker) -> None:
    two = [member("a", 5672, local=True), member("b", 5673), member("c", 5674, state="DOWN")]
    broker.answers["status"] = json.dumps({**STATUS, "members": two}).encode() + b"\n"
    assert "shut down a cluster member." in broker.run("-s", "a", typed="\n").stdout


def test_an_upgrade_ends_when_it_is_in_force(broker: FakeBroker) -> None:
    old = {**STATUS, "machine_version": 1, "machine_version_possible": 2}
    broker.answers["status"] = json.dumps(old).encode() + b"\n"
    broker.answers["upgrade"] = b'{"ok": true, "machine_version": 2}\n'
    late = broker.run("-t", "1", "-f", "--upgrade")
    assert (late.returncode, "not in force yet" in late.stderr) == (1, True)
    new = json.dumps({**old, "machine_version": 2}).encode() + b"\n"
    broker.after["upgrade"] = {"status": new}
    assert broker.run("-f", "--upgrade").stdout == "version 2 is in force\n"
    done = len(broker.requests)
    again = broker.run("--upgrade")
    assert again.stdout.startswith("version 2 is in force, the newest")
    assert broker.ops()[done:] == ["status"]


def test_members_are_asked_at_their_first_address_and_arbitrators_at_none(
    broker: FakeBroker,
) -> None:
    members = [
        member("a", 5672, local=True),
        {**member("b", 5673, votes=2), "url": "amqp:tcp:b.one:5673,tcp:b.two:5674"},
        member("c", 5674, arbitrator=True), member("d", 5675, state="DOWN"),
    ]  # fmt: skip
    broker.answers["status"] = json.dumps({**STATUS, "members": members}).encode() + b"\n"
    asked = members_of(parse_target(f"127.0.0.1:{broker.port}", 10.0))
    assert sorted(asked) == ["a", "b"]
    assert isinstance(asked["b"], Target)
    assert str(asked["b"].address) == "b.one:5673"
    assert ",tcp:b.two:5674 (2 votes)\n" in broker.run("-t", "0").stdout


def test_a_broken_connection_means_that_the_asked_member_stopped(broker: FakeBroker) -> None:
    ended = broker.run("-f", "-s", "a")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_stop_all(broker: FakeBroker) -> None:
    canceled = broker.run("-k", typed="")
    assert canceled.stdout == (
        "Warning: This command will shut down the entire cluster 'shop': a, b, c. "
        "Are you sure? [N]: "
    )
    assert canceled.returncode == 1
    order_is_carried_out(broker)
    done = broker.run("-k", "-f")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert broker.ops() == ["status", "status", "shutdown", "status"]


def order_is_carried_out(broker: FakeBroker, **state: Json) -> None:
    """After the order to stop all, the broker says that it is stopping."""
    document = alone(STATUS, broker)
    broker.answers["status"] = json.dumps(document).encode() + b"\n"
    broker.answers["shutdown"] = b'{"ok": true}\n'
    stopping = document | {"member_state": "LEFT"} | state
    broker.after["shutdown"] = {"status": json.dumps(stopping).encode() + b"\n"}


def alone(status: dict[str, Json], broker: FakeBroker, *others: Json) -> dict[str, Json]:
    """The status with this broker and others as the members."""
    return status | {"members": [member("a", broker.port, local=True), *others]}


def test_a_member_that_goes_on_fails_the_stop_of_all(broker: FakeBroker) -> None:
    order_is_carried_out(broker, member_state="STALLED")
    done = broker.run("-t", "0.2", "-k", "-f")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "qpid-cluster: Failed: still running: a: it is STALLED; end the process there before the "
        "cluster is started again\n"
    )


def test_each_process_is_looked_at_under_its_own_name(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another one of the list that the command was given."""
    looked: dict[str, Target] = {}
    monkeypatch.setattr(
        "tools.commands.qpid_cluster.await_end", lambda members, _: looked.update(members)
    )
    order_is_carried_out(broker)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listed = f"127.0.0.1:{free.getsockname()[1]},127.0.0.1:{broker.port}"
        assert qpid_cluster("-k", "-f", listed).returncode == 0
    (one,) = looked.values()
    assert (str(one.address), one.others) == (f"127.0.0.1:{broker.port}", ())


def test_a_member_that_hangs_fails_the_stop_of_all(broker: FakeBroker) -> None:
    """It is DOWN for the others, and its process listens. One that is dead is no fault."""
    with socket.create_server(("127.0.0.1", 0)) as hangs, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        others = [
            member("b", hangs.getsockname()[1], state="DOWN"),
            member("c", free.getsockname()[1], state="DOWN"),
        ]
        address = f"127.0.0.1:{hangs.getsockname()[1]}"
        order_is_carried_out(broker)
        document = alone(STATUS, broker, *others)
        broker.answers["status"] = json.dumps(document).encode() + b"\n"
        done = broker.run("-t", "0.2", "-k", "-f")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"qpid-cluster: Failed: still running: b: {address} did not answer in time; end the "
        "process there before the cluster is started again\n"
    )


@pytest.mark.parametrize(
    "action", [("-k", "-f"), ("-s", "a", "-f"), ("--upgrade", "-f"), ("--remove-voter", "c"), ()]
)
def test_a_cluster_of_another_name_is_not_stopped(
    broker: FakeBroker, action: tuple[str, ...]
) -> None:
    ended = broker.run(*action, "--cluster-name", "trial")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"qpid-cluster: Failed: 127.0.0.1:{broker.port} is of cluster 'shop', not of 'trial': "
        "nothing was done\n"
    )
    assert broker.ops() == ["status"]


def test_the_named_cluster_is_stopped(broker: FakeBroker) -> None:
    order_is_carried_out(broker)
    assert broker.run("-k", "-f", "--cluster-name", "shop").returncode == 0
    assert broker.ops() == ["status", "status", "shutdown", "status"]


def test_the_broker_may_be_given_by_an_option_but_only_once(broker: FakeBroker) -> None:
    place = f"127.0.0.1:{broker.port}"
    for option in ("--broker", "--brokers"):
        assert qpid_cluster(option, place).returncode == 0
    twice = qpid_cluster("--broker", place, "b:1")
    assert twice.returncode == 2
    assert f"the broker is named twice: b:1, and --broker {place}" in twice.stderr


def lists_clients(broker: FakeBroker) -> None:
    """Give it two clients on a, one of them without a name, and one on b."""
    clients: list[Json] = [
        {"member": "a", "address": "127.0.0.1:50001", "user": "guest", "channels": 2},
        {"member": "a", "address": "192.0.2.7:50002", "user": "guest", "channels": 0},
        {"member": "b", "address": "127.0.0.1:50003", "user": "ann", "channels": 1},
    ]
    answer: dict[str, Json] = {"ok": True, "connections": clients}
    broker.answers["connections"] = json.dumps(answer).encode() + b"\n"


def test_clients_of_all_members_in_the_classic_layout(broker: FakeBroker) -> None:
    lists_clients(broker)
    ended = broker.run("-C", "-n")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Clients on Member: ID=a:\n"
        "    127.0.0.1:50001\n"
        "    192.0.2.7:50002\n"
        "\n"
        "Clients on Member: ID=b:\n"
        "    127.0.0.1:50003\n"
        "\n"
        "Clients on Member: ID=c:\n"
        "\n"
    )


def test_clients_of_one_member(broker: FakeBroker) -> None:
    """Documented by the original, where it has been broken since 0.10."""
    lists_clients(broker)
    ended = broker.run("-n", "-c", "b")
    assert ended.stdout == "Clients on Member: ID=b:\n    127.0.0.1:50003\n\n"
    document = json.loads(broker.run("-c", "b", "--json").stdout)
    assert [one["user"] for one in document[0]["connections"]] == ["ann"]
    assert broker.run("-c", "x").stderr == (
        "qpid-cluster: Failed: No member with matching ID found\n"
    )


def test_hosts_are_resolved_unless_numbers_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"192.0.2.1": "shop.example"}

    def look_up(host: str) -> tuple[str, list[str], list[str]]:
        if host not in names:
            raise socket.herror(1, "Unknown host")
        return names[host], [], [host]

    monkeypatch.setattr("tools.client.member_operations.socket.gethostbyaddr", look_up)
    clients: list[Json] = [{"address": "192.0.2.1:5"}, {"address": "192.0.2.2:6"}]
    members: list[dict[str, Json]] = [{"id": "a", "connections": clients}]
    lines = list(client_lines(members, numeric=False))
    assert lines[1:] == ["    shop.example:5", "    192.0.2.2:6", ""]


def test_a_client_is_disconnected_once_no_list_shows_it(broker: FakeBroker) -> None:
    lists_clients(broker)
    broker.after["disconnect"] = {"connections": b'{"ok": true, "connections": []}\n'}
    broker.answers["disconnect"] = b'{"ok": true, "members": ["b"]}\n'
    ended = broker.run("-d", "localhost:50003")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "Closing connection from client: 127.0.0.1:50003\n"
    asked = [request for request in broker.requests if request["op"] == "disconnect"]
    assert [request["address"] for request in asked] == ["127.0.0.1:50003"]


def test_rebalance_closes_a_members_excess_connections(broker: FakeBroker) -> None:
    clients = [
        {"member": "a", "address": f"127.0.0.1:{port}", "number": number}
        for number, port in enumerate((5009, 5001, 5005, 5003, 5007), 8)
    ]
    alone = {"member": "b", "address": "127.0.0.1:5007", "number": 1}
    full, even = (
        json.dumps({"ok": True, "connections": found}).encode() + b"\n"
        for found in ([*clients, alone], [*clients[:2], alone])
    )
    broker.answers["connections"] = full
    broker.after["disconnect"] = {"connections": even}
    broker.answers["disconnect"] = b'{"ok": true, "members": ["a"]}\n'
    ended = broker.run("--rebalance")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("closed 3 at a; each client reconnects")
    asked = [request for request in broker.requests if request["op"] == "disconnect"]
    assert {(one["id"], one["address"]) for one in asked} == {
        ("a", "127.0.0.1:5005"), ("a", "127.0.0.1:5003"), ("a", "127.0.0.1:5007"),
    }  # fmt: skip
    broker.answers["connections"] = (
        json.dumps({"ok": True, "connections": [alone]}).encode() + b"\n"
    )
    assert "no member has more" in broker.run("--rebalance").stdout


def test_disconnecting_a_missing_client_and_one_that_stays(broker: FakeBroker) -> None:
    lists_clients(broker)
    ended = broker.run("-d", "127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (0, "Client connection '127.0.0.1:1' not found\n")
    assert "disconnect" not in broker.ops()
    broker.answers["disconnect"] = b'{"ok": true, "members": ["b"]}\n'
    stays = broker.run("-t", "1", "-d", "127.0.0.1:50003")
    assert stays.returncode == 1
    assert stays.stderr == (
        "qpid-cluster: Failed: the connection from 127.0.0.1:50003 is still there\n"
    )
    assert broker.run("-d", "127.0.0.1").returncode == 2


def test_the_host_of_a_client_may_be_in_brackets() -> None:
    assert parse_client("[::1]:5001") == parse_client("::1:5001") == ("::1", 5001)
    for wrong in (":5001", "a:", "a:x", f"a:{'9' * 5000}"):
        with pytest.raises(click.UsageError, match="must be of form"):
            parse_client(wrong)


def test_draining_polls_until_the_member_is_drained(broker: FakeBroker) -> None:
    broker.answers["drain"] = b'{"ok": true}\n'
    shown = json.dumps({**STATUS, "drained": ["b"]}).encode() + b"\n"
    broker.answers["status"] = json.dumps({**STATUS, "drained": []}).encode() + b"\n"
    broker.after["drain"] = {"status": shown}
    ended = broker.run("--drain", "b")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    request = next(one for one in broker.requests if one["op"] == "drain")
    assert (request["id"], request["on"], request["force"]) == ("b", True, False)
    assert "ID=b URL=amqp:tcp:127.0.0.1:5673 (drained)\n" in broker.run().stdout
    late = broker.run("-t", "1", "--undrain", "b")
    assert late.returncode == 1
    assert "b does not say that it is undrained" in late.stderr
    assert [one["on"] for one in broker.requests if one["op"] == "drain"][1:] == [False, False]
    assert broker.run("--drain", "x").stderr == (
        "qpid-cluster: Failed: No member with matching ID found\n"
    )


def test_awaiting_a_member(broker: FakeBroker) -> None:
    assert broker.run("--await", "b").returncode == 0
    down = [member("a", 5672, local=True), member("b", 5673, state="DOWN")]
    broker.answers["status"] = json.dumps({**STATUS, "size": 1, "members": down}).encode() + b"\n"
    ended = broker.run("-t", "1", "--await", "b")
    assert ended.returncode == 1
    assert ended.stderr == "qpid-cluster: Failed: b is not ACTIVE; see qpid-cluster\n"


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (("--add-voter", "d"), ("add", "d", "", 0)),
        (("--remove-voter", "c"), ("remove", "c", "", 0)),
        (("--replace-voter", "c", "d"), ("replace", "c", "d", 0)),
        (("--set-votes", "a", "2"), ("votes", "a", "", 2)),
        (("--expected-votes", "4"), ("expected", "", "", 4)),
    ],
)
def test_a_change_of_voters_ends_when_it_is_in_force(
    broker: FakeBroker, typed: tuple[str, ...], asked: tuple[object, ...]
) -> None:
    new: list[Json] = ["a", "b", "d"]
    broker.answers["voters"] = json.dumps({"ok": True, "voter_set": new}).encode() + b"\n"
    broker.answers["status"] = json.dumps({**STATUS, "voter_set": new}).encode() + b"\n"
    ended = broker.run(*typed)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "        Voters: a, b, d\n"
    request = broker.requests[0]
    assert tuple(request[key] for key in ("action", "id", "by", "votes")) == asked


def test_a_change_not_in_force_in_time_is_reported_as_ordered(broker: FakeBroker) -> None:
    broker.answers["voters"] = b'{"ok": true, "voter_set": ["a"]}\n'
    ended = broker.run("-t", "1", "--remove-voter", "b")
    assert ended.returncode == 1
    assert "the change is not in force yet" in ended.stderr
    assert broker.run("--set-votes", "a", "many").returncode == 2
    assert broker.run("--add-voter", "d", "--remove-voter", "b").returncode == 2
    assert broker.run("--add-voter", "d", "-k").returncode == 2


def test_a_refusal_is_passed_on(broker: FakeBroker) -> None:
    broker.answers["shutdown"] = b'{"ok": false, "code": "not-active", "error": "no quorum"}\n'
    ended = broker.run("-k", "-f")
    assert (ended.returncode, ended.stderr) == (1, "qpid-cluster: Failed: no quorum\n")
    broker.answers["status"] = json.dumps({**STATUS, "status": "INQUORATE"}).encode() + b"\n"
    assert "no quorum; nothing can be ordered: end each process by" in broker.run("-kf").stderr


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"\xff\0\0\0\0\0\0\0\1\x7f\3", "the port of a ring"),
        (b"\x15\3\3\0\2\2\x46", "a port for TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a port for HTTP"),
        (b"AMQP\0\0\x09\1", "an AMQP broker, but not one of this"),
    ],
)
def test_a_port_of_another_protocol_is_named_at_once(
    broker: FakeBroker, answer: bytes, what: str
) -> None:
    broker.answers["status"] = answer
    ended = broker.run("-t", "60")
    assert ended.returncode == 1
    assert f"127.0.0.1:{broker.port} is {what}" in ended.stderr


@pytest.mark.parametrize("answer", [b"nonsense\n", b"[]\n", b"\n", b"AMQP\x00\x00\x09\x01", b""])
def test_another_service_listens_there(broker: FakeBroker, answer: bytes) -> None:
    broker.answers["status"] = answer
    ended = broker.run()
    assert ended.returncode == 1
    assert ended.stderr.startswith("qpid-cluster: Failed: ")
    assert ended.stderr.count("\n") == 1


def test_an_endless_answer_is_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "ANSWER_BYTES_MAX", 150_000)
    asked: list[int] = []

    def recv(count: int) -> bytes:
        asked.append(count)
        return b"x" * count

    line = management._read_line(cast("socket.socket", SimpleNamespace(recv=recv)))
    assert (len(line), asked) == (3 * 65_536, [65_536] * 3)


def test_an_unreachable_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = qpid_cluster(f"127.0.0.1:{port}")
    assert ended.returncode == 1
    assert ended.stderr == (
        f"qpid-cluster: Failed: cannot connect to 127.0.0.1:{port}: connection refused; does the "
        "broker run, and is this its --port (amqps://: its --tls-port)? Any other member answers "
        "as well: name one, or several, of which the first that runs is asked: "
        "HOST:PORT,HOST:PORT\n"
    )


@pytest.mark.parametrize("form", ["{0},{1}", "failover:(tcp://{0},tcp://{1})?randomize=false"])
def test_of_a_list_the_first_running_member_is_asked(broker: FakeBroker, form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    ended = qpid_cluster(form.format(dead, f"127.0.0.1:{broker.port}"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert broker.ops() == ["status"]


def test_if_no_member_of_a_list_runs_each_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        ports = [taken.getsockname()[1] for taken in (one, two)]
    ended = qpid_cluster(",".join(f"127.0.0.1:{port}" for port in ports))
    assert ended.returncode == 1
    for port in ports:
        assert f"cannot connect to 127.0.0.1:{port}: connection refused" in ended.stderr


def test_a_list_needs_one_user() -> None:
    ended = qpid_cluster("ada:pw@a,eve:pw@b")
    assert (ended.returncode, "take the user and the virtual host" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments", [("--colour",), ("-s", "a", "-k"), ("-t", "x"), ("a", "b"), ("host:port",)]
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = qpid_cluster(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
