"""The process of an attempt, with a program of the test's in place of a shovel's."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.access.access import SYSTEM
from broker.frontend.connections import ClientPorts, Connections, Options
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.machine.commands import ConnectionClose, ConnectionOpen, Table
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits
from broker.replication.ports import MemberState
from broker.shovels import worker_process
from broker.shovels.definition import Link, parse_shovel
from broker.shovels.member_shovels import _name, shovels_of
from broker.shovels.supervisor import Event, Job
from broker.shovels.upstreams import link_of, parse_upstream
from broker.shovels.worker_process import WorkerProcess
from tests.support.amqp_peer import method
from tests.support.gateway_loop import Loop
from tools.shovel.__main__ import _on_signal

VALUE: Table = {
    "src-uri": "amqp://a", "src-queue": "a", "dest-uri": "amqp://b", "dest-queue": "b",
}  # fmt: skip
ENDS_LATE = """
import json, os, sys, time
given = json.loads(sys.stdin.readline())
os.write(1, json.dumps({"event": "ended", "why": "read " + given["name"]}).encode() + b"\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
RAISES = """
import sys, tools.shovel.__main__ as program
def run(_):
    raise OverflowError("sesame")
program.Mover.run = run
program.main()
sys.stderr.write(program.OOM_SCORE.read_text())
"""
RUNS = """
import os, sys, tools.shovel.__main__ as program
def run(_):
    program._tell({"event": "running"})
    os.read(0, 1)
    return {"why": "its input ended"}
program.Mover.run = run
sys.exit(program.main())
"""
GIVEN = {
    "vhost": "/", "name": "s", "value": VALUE, "number": 0, "doubtful": {}, "cluster": "near",
    "source": {"descriptor": None}, "destination": {"descriptor": None},
    "cluster_id": "", "link": None, "here": None, "replica": False,
}  # fmt: skip


def test_a_failure_of_the_process_is_reported_in_a_sentence() -> None:
    """It was a traceback in the log of its member, and no reason."""
    raised = {
        json.dumps(GIVEN): "OverflowError", json.dumps({**GIVEN, "value": 3}): "BadShovel",
        "no JSON": "JSONDecodeError",
    }  # fmt: skip
    for line, error in raised.items():
        ended = subprocess.run(
            [sys.executable, "-c", RAISES], input=line + "\n", capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        event = json.loads(ended.stdout)
        assert event["event"] == "ended"
        assert re.fullmatch(rf"this is a fault of .*: {error} in [\w<>.]+ line \d+", event["why"])
        assert ended.stderr.strip() == "500", (
            "no traceback, and the process ends before a member does"
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_service_leaves_the_end_to_the_member(
    number: signal.Signals,
) -> None:
    """`systemctl stop` sends one to each. The process died of it, with all that it had in flight,
    while its member waited for confirms and acknowledgements."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(GIVEN).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"event": "running"}
        process.send_signal(number)
        process.stdin.close()
        said = process.stdout.read()
    assert process.returncode == 0
    assert json.loads(said) == {"event": "ended", "why": "its input ended"}
    _on_signal(os.getppid(), number, None)
    with pytest.raises(SystemExit):  # its member is gone: a service begins anew once all have ended
        _on_signal(-1, number, None)


def test_an_attempt_that_reported_its_end_is_kept_until_its_process_is_gone(tmp_path: Path) -> None:
    """It was garbage-collected, with a traceback in the log, and its process was not waited for."""
    faults: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        machine = SimpleNamespace(
            defined=1, sessions={"a": None}, ending=(), vhosts={},
            definitions={"parameter": {("/", "shovel/s"): {"value": VALUE}}},
        )  # fmt: skip
        mark = SimpleNamespace(without_data=frozenset())
        view = SimpleNamespace(members=(), caught_up_names=frozenset("a"), mark=mark)
        controller = SimpleNamespace(
            me=SimpleNamespace(name="a"), replica=SimpleNamespace(machine=machine), serving=True,
            primary=view,
        )  # fmt: skip
        gateway = SimpleNamespace(identity=SimpleNamespace(cluster_id=""))
        program = sys.executable, "-c", ENDS_LATE, str(tmp_path / "end")
        shovels = shovels_of(
            program, cast("MemberState", controller),
            cast("Connections", SimpleNamespace(gateway=gateway)), lambda *_: asyncio.sleep(0),
            "near", lambda *_: None, loop,
        )  # fmt: skip
        shovels.wake(1.0)
        async with asyncio.timeout(30):
            while shovels.rows()[0]["state"] != "terminated":  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        assert shovels.rows()[0]["reason"] == "read s"
        gc.collect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(others) == 1, "its process is still waited for"
        (tmp_path / "end").touch()
        await asyncio.wait_for(next(iter(others)), 20)
        shovels.close()

    asyncio.run(run())
    assert not faults


IS_DONE = """
import json, os, sys
sys.stdin.readline()
os.write(1, json.dumps({"event": "ended", "why": "all is moved", "done": True}).encode() + b"\\n")
"""


@pytest.mark.parametrize("defined_anew", [False, True])
def test_a_finished_shovel_is_deleted_unless_it_was_defined_anew(defined_anew: bool) -> None:
    deleted: list[object] = []

    async def define(*what: object) -> None:
        deleted.append(what)

    async def run() -> None:
        parameters = {("/", "shovel/s"): {"value": VALUE}}
        machine = SimpleNamespace(
            defined=1, sessions={"a": None}, ending=(), vhosts={},
            definitions={"parameter": parameters},
        )  # fmt: skip
        controller = SimpleNamespace(
            me=SimpleNamespace(name="a"), replica=SimpleNamespace(machine=machine), serving=True,
            primary=SimpleNamespace(
                members=(), caught_up_names=frozenset("a"),
                mark=SimpleNamespace(without_data=frozenset()),
            ),
        )  # fmt: skip
        gateway = SimpleNamespace(identity=SimpleNamespace(cluster_id="", cluster="near"))
        shovels = shovels_of(
            (sys.executable, "-c", IS_DONE), cast("MemberState", controller),
            cast("Connections", SimpleNamespace(gateway=gateway)), define, "near", lambda *_: None,
            asyncio.get_running_loop(),
        )  # fmt: skip
        shovels.wake(1.0)
        async with asyncio.timeout(30):
            while shovels.rows()[0]["state"] != "terminated":  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        shovels.wake(2.0)
        if defined_anew:
            parameters["/", "shovel/s"] = {"value": {**VALUE, "dest-queue": "c"}}
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shovels.close()

    asyncio.run(run())
    assert deleted == ([] if defined_anew else [("parameter", "/", "shovel/s", None, "shovel")])


OPENS = """
import os, sys, json
end = json.loads(sys.stdin.readline())["source"]["descriptor"]
os.write(end, bytes.fromhex(sys.argv[1]))
os.read(end, 1)
"""


class Member(Loop):
    """A broker that serves clients; their commands are ordered when the test says so."""

    def make_parts(self, cert_login_from: str) -> tuple[Gateway, Outbox]:
        options = SimpleNamespace(
            cluster_name="near", access=AccessOptions(), clients=ClientLimits()
        )
        ports = SimpleNamespace(log=lambda *_: None, negotiate_s=10.0, backends=self._backends)
        del cert_login_from
        self.clients = Connections(
            "a", cast("Options", options), self._on_work, lambda *_: None,
            cast("ClientPorts", ports), lambda _: None, lambda: self.machine,
        )  # fmt: skip
        return self.clients.gateway, self.clients.outbox

    def _on_work(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.clients.flush(may_reply=True))


def test_an_attempt_ends_when_the_close_of_its_connection_is_ordered() -> None:
    """G24: until then it holds messages; another member that was told that it may begin took later
    ones first."""

    async def run() -> None:
        member = Member()
        opens = method(0, "connection.open", "/").hex()
        shovel = parse_shovel("/", "s", {**VALUE, "src-uri": "amqp://"})
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", OPENS, opens), "near", member.clients, Job(shovel, 0, {}),
                lambda _: None, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            await asyncio.wait_for(attempt.task, 30)
        assert [type(one) for one in member.gateway.commands] == [ConnectionOpen, ConnectionClose]
        assert not attempt.ended
        member.turn()
        assert attempt.ended

    asyncio.run(run())


ANSWERS = """
import json, os, sys
lines = [sys.stdin.readline() for _ in range(3)]
os.write(1, json.dumps({"event": "ended", "why": "".join(lines[1:])}).encode() + b"\\n")
"""


def test_a_process_is_told_what_changed_while_it_was_started() -> None:
    """A binding made in that moment was never made at the upstream."""
    events: list[Event] = []

    async def run() -> None:
        shovel = parse_shovel("/", "s", VALUE)
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", ANSWERS), "near", Member().clients, Job(shovel, 0, {}),
                events.append, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            attempt.tell({"bind": ["a"]})
            attempt.tell({"bind": ["b"]})
            await asyncio.wait_for(attempt.task, 30)

    asyncio.run(run())
    assert events == [{"event": "ended", "why": '{"bind": ["a"]}\n{"bind": ["b"]}\n'}]


MUTE = """
import os, sys, time
sys.stdin.readline()
os.close(1)
while True:
    time.sleep(1)
"""


def test_a_process_that_closes_its_output_and_goes_on_is_ended() -> None:
    """Nobody hears of it any more, and the next attempt waits for its end."""
    events: list[Event] = []

    async def run() -> None:
        shovel = parse_shovel("/", "s", VALUE)
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", MUTE), "near", Member().clients, Job(shovel, 0, {}),
                events.append, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            await asyncio.wait_for(attempt.task, 30)
            assert attempt.ended

    asyncio.run(run())
    assert events == [{"event": "ended", "why": "its process ended with code -9"}]


def test_a_process_that_cannot_be_killed_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sleeps in the kernel, on a file system that does not answer. Waiting for some such
    processes took all threads, and no shovel of the member could start."""
    kill = subprocess.Popen.kill
    kept: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: kept.append(process))

    async def run() -> None:
        shovel = parse_shovel("/", "s", VALUE)
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads:
            stuck, other = [
                WorkerProcess(
                    (sys.executable, "-c", program), "near", Member().clients, Job(shovel, 0, {}),
                    lambda _: None, loop, threads,
                )
                for program in (MUTE, "input()")
            ]  # fmt: skip
            await asyncio.wait_for(other.task, 30)
            assert other.ended
            assert not stuck.ended
            async with asyncio.timeout(30):
                while len(kept) < 2:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)
            for one in kept:
                kill(one)
            await asyncio.wait_for(stuck.task, 30)

    asyncio.run(run())


def test_the_end_of_its_input_asks_a_process_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has in flight is then confirmed: it is not killed, and writes nothing off."""
    monkeypatch.setattr(worker_process, "ORDERLY_S", 600.0)

    async def run() -> None:
        shovel = parse_shovel("/", "s", VALUE)
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", "import sys; sys.stdin.read()"), "near", Member().clients,
                Job(shovel, 0, {}), lambda _: None, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            async with asyncio.timeout(30):
                while attempt._process is None:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)
            attempt.stop(at_once=False)
            await asyncio.wait_for(attempt.task, 30)
            assert attempt._process.returncode == 0

    asyncio.run(run())


def test_a_process_that_does_not_read_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs before it has read what it is to do, which is more than a pipe holds. A member that
    does not serve any more ends it at once: an orderly end is not waited for."""
    monkeypatch.setattr(worker_process, "ORDERLY_S", 600.0)

    async def run() -> None:
        shovel = parse_shovel("/", "s", VALUE)
        here: dict[str, object] = {"bind": [["a" * 200, ""]] * 2000}
        program = "import time\nwhile True: time.sleep(1)"
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", program), "near", Member().clients,
                Job(shovel, 0, {}, here), lambda _: None, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            attempt.stop(at_once=True)
            await asyncio.wait_for(attempt.task, 30)
            assert attempt.ended

    asyncio.run(run())


@pytest.mark.parametrize(("uri", "user"), [("amqp://", SYSTEM), ("amqp://bob@/", "bob")])
def test_an_end_at_this_cluster_is_of_its_user_and_goes_with_the_process(
    uri: str, user: str
) -> None:
    """It may do what that user may. A member that takes nothing, because its memory is full, does
    not read the end, and so would not see it closed."""

    async def run() -> None:
        member = Member()
        shovel = parse_shovel("/", "s", {**VALUE, "src-uri": uri})
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", "input()"), "near", member.clients, Job(shovel, 0, {}),
                lambda _: None, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            async with asyncio.timeout(30):
                while not member.clients.links():  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0)
            (link,) = member.clients.links()
            assert link.client.connection.user == user
            told = link.client.connection.client_properties
            assert told["connection_name"] == "Shovel s"
            able = told["capabilities"]
            assert able == {"consumer_cancel_notify": True, "connection.blocked": True}
            assert not link.client.unlimited, "nor may it announce addresses, as members do"
            (end,) = attempt._locals
            assert end.transport is not None
            cast("asyncio.ReadTransport", end.transport).pause_reading()
            await asyncio.wait_for(attempt.task, 30)
            await asyncio.sleep(0)
        assert not member.clients.links()

    asyncio.run(run())


HANGS = """
import sys, time
sys.stdin.readline()
sys.stdout.write("{}\\n")
sys.stdout.flush()
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("gone", [False, True])
def test_a_process_that_does_not_end_is_killed_with_a_log_line(
    gone: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A link that is gone removes its queue at the upstream. If that hangs, nobody named it."""
    monkeypatch.setattr(worker_process, "ORDERLY_S", 0.0)

    async def run() -> None:
        link = Link("exchange", "x", "far", "x", "near", 1, False, True, "topic")
        shovel = link_of(parse_upstream("far", {"uri": "amqp://far"}), "/", link)
        with ThreadPoolExecutor(1) as threads:
            attempt = WorkerProcess(
                (sys.executable, "-c", HANGS), "near", Member().clients, Job(shovel, 0, {}),
                lambda _: None, asyncio.get_running_loop(), threads,
            )  # fmt: skip
            if gone:
                attempt.tell({"ends": True})
            attempt.stop(at_once=False)
            await asyncio.wait_for(attempt.task, 30)

    asyncio.run(run())
    assert "its process does not end, and is killed" in caplog.text
    assert ("'federation: x -> near' may be left at the upstream" in caplog.text) == gone


@pytest.mark.parametrize(("cluster", "name"), [("shop", "shop"), ("", "id")])
def test_other_brokers_know_a_cluster_by_its_name_or_else_its_id(cluster: str, name: str) -> None:
    """By which links detect loops."""
    identity = SimpleNamespace(cluster=cluster, cluster_id="id")
    clients = SimpleNamespace(gateway=SimpleNamespace(identity=identity))
    assert _name(cast("Connections", clients)) == name
