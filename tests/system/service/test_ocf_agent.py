"""The OCF agent over real brokers, its verbs called as Pacemaker calls them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika
import pytest

from tests.system.support.clusters import wait_until
from tests.unit.service.test_ocf_agent import AGENT
from tools.demo.local_cluster import HOST, ROOT, command, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

RUNNING, CONFIGURED, NOT_RUNNING, PROMOTED, GENERIC = 0, 6, 7, 8, 1


class Instance:
    """One instance of the resource: a member, and Pacemaker's environment for it."""

    def __init__(self, root: Path, name: str, port: int, options: dict[str, object]) -> None:
        self.port, self.name = port, name
        self.config = root / f"{name}.conf"
        self.pid_file, self.scores = root / f"{name}.pid", root / f"{name}.scores"
        options = {"port": port, "interface": HOST, "data-dir": root / name, **options}
        self.config.write_text("".join(f"{name} = {one}\n" for name, one in options.items()))
        self._environment = os.environ | {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "OCF_RESOURCE_INSTANCE": name,
            "OCF_RESKEY_config": str(self.config),
            "OCF_RESKEY_broker": f"{HOST}:{port}",
            "OCF_RESKEY_user": self.config.owner(),
            "OCF_RESKEY_log": str(root / f"{name}.log"),
            "OCF_RESKEY_pidfile": str(self.pid_file),
            "SCORES": str(self.scores),
        }

    def do(self, verb: str, **more: str) -> tuple[int, str]:
        """Return the exit code of a verb, and its output."""
        done = subprocess.run(
            [AGENT, verb], env=self._environment | more, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=ROOT,
        )  # fmt: skip
        return done.returncode, done.stderr

    def does(self, verb: str) -> None:
        """Repeat it as Pacemaker does, in case the view changed meanwhile."""
        wait_until(lambda: self.do(verb)[0] == RUNNING, 30, f"{self.name} to {verb}")

    def refuses(self, verb: str, sentence: str) -> bool:
        """Whether a verb fails for this reason."""
        code, said = self.do(verb)
        assert code == GENERIC
        return sentence in said

    def becomes_ready(self) -> None:
        self.becomes(RUNNING)
        wait_until(lambda: self.do("monitor")[0] == 0 and self.score().endswith("-v 10"), 30, "10")

    def becomes(self, code: int) -> None:
        wait_until(lambda: self.do("monitor")[0] == code, 30, f"{self.name} to be {code}")

    def score(self) -> str:
        """The last score that Pacemaker was told."""
        return self.scores.read_text().splitlines()[-1]

    def signal(self, number: signal.Signals) -> None:
        os.kill(int(self.pid_file.read_text()), number)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with the commands, and a `crm_attribute` that records its arguments."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("qpidd", "qpid-ha", "qpid-cluster"):
        words = " ".join(command(name))
        (path / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (path / "crm_attribute").write_text('#!/bin/sh\necho "$*" >>"$SCORES"\n')
    for file in path.iterdir():
        file.chmod(0o755)
    return path


@pytest.fixture
def instances(tmp_path: Path, programs: Path) -> Iterator[list[Instance]]:
    ports = free_ports(6)
    rings = [f"{HOST}:{port}" for port in ports[3:]]
    made = [
        Instance(tmp_path, f"qpidd:{index}", ports[index], {
            "cluster-name": "ocf", "cluster-bind": rings[index], "cluster-size": 3,
            "cluster-nodes": ",".join(rings), "ha-cluster": "yes", "ha-promotion": "manual",
            "management-port": "off",
        })
        for index in range(3)
    ]  # fmt: skip
    yield made
    for one in made:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            one.signal(signal.SIGKILL)


def channel(one: Instance) -> pika.adapters.blocking_connection.BlockingChannel:
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(HOST, one.port, heartbeat=0, blocked_connection_timeout=20)
    )
    made = connection.channel()
    made.queue_declare("q", durable=True)
    made.confirm_delivery()
    return made


def test_the_role_is_assigned_moved_and_taken_over(instances: list[Instance]) -> None:
    """start, promote, demote, promote elsewhere, kill -9, promote a third, SIGSTOP, stop."""
    first, second, third = instances
    assert first.do("monitor")[0] == NOT_RUNNING
    with ThreadPoolExecutor() as at_once:
        assert [code for code, _ in at_once.map(lambda one: one.do("start"), instances)] == [0] * 3
    assert first.do("start")[0] == RUNNING, "it is already"
    for one in instances:
        one.becomes_ready()

    first.does("promote")
    first.becomes(PROMOTED)
    assert first.score() == "-p qpidd:0 -v 100"
    wait_until(lambda: second.refuses("promote", "is the active member"), 30, "a refusal")
    channel(first).basic_publish("", "q", b"1")
    first.does("demote")
    first.becomes_ready()
    second.does("promote")
    channel(second).basic_publish("", "q", b"2")

    second.signal(signal.SIGKILL)
    second.becomes(NOT_RUNNING)
    assert second.score() == "-p qpidd:1 -D"
    first.does("promote")
    found = [channel(first).basic_get("q", auto_ack=True)[2] for _ in range(2)]
    assert found == [b"1", b"2"]

    third.signal(signal.SIGSTOP)
    assert third.do("stop", OCF_RESKEY_CRM_meta_timeout="1500") == (
        0, "qpidd agent: the broker did not end in 1 s: it is killed\n",
    )  # fmt: skip
    assert third.do("monitor")[0] == NOT_RUNNING
    assert first.do("stop") == (0, "")
    assert first.do("monitor")[0] == NOT_RUNNING
    assert first.do("stop") == (0, ""), "it is already"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ha-cluster": "yes", "cluster-name": "ocf", "cluster-size": 1}, "promotion = manual"),
        ({"no-such-option": "yes"}, "the broker ended with code 78"),
    ],
)
def test_a_wrong_configuration_is_reported(
    options: dict[str, object], sentence: str, tmp_path: Path, programs: Path
) -> None:
    """No process is left running."""
    port, ring = free_ports(2)
    if "cluster-name" in options:
        options = options | {"cluster-bind": f"{HOST}:{ring}", "cluster-nodes": f"{HOST}:{ring}"}
    one = Instance(tmp_path, "qpidd:0", port, options | {"management-port": "off"})
    code, said = one.do("start")
    assert code == CONFIGURED, said
    assert sentence in said
    assert one.do("monitor")[0] == NOT_RUNNING
