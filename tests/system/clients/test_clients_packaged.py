"""RabbitMQ's Java client while its member is killed and rejoins, by its own automatic recovery.

The program is `programs/FailingOver.java`.  What was confirmed arrives at least once (G1), and the
program goes on, without a line of its own about connections that are lost.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.system.clients.failing_over import Numbers
from tests.system.clients.test_clients_through_a_kill import Clients, more_came, process
from tests.system.support.clusters import START_SECONDS, running_cluster, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parent / "programs" / "FailingOver.java"
JARS = [Path("/usr/share/java") / name for name in ("amqp-client.jar", "slf4j-api.jar")]
PACKAGES = "apt-get install librabbitmq-client-java default-jdk-headless"


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """The command that runs it, compiled."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        pytest.skip(f"no Java compiler: {PACKAGES}")
    if missing := [jar for jar in JARS if not jar.exists()]:
        pytest.skip(f"no {missing[0]}: {PACKAGES}")
    classes = tmp_path / "classes"
    jars = ":".join(map(str, JARS))
    subprocess.run(["javac", "-cp", jars, "-d", classes, SOURCE], check=True, timeout=120)
    return ["java", "-Xmx64m", "-cp", f"{jars}:{classes}", SOURCE.stem]


def told(java: subprocess.Popen[str], numbers: Numbers, places: dict[str, int]) -> None:
    """Read what the program says, and tell it to publish no more when that is enough."""
    assert java.stdout is not None
    assert java.stdin is not None
    for line in java.stdout:
        ((what, number),) = json.loads(line).items()
        if what == "confirmed":
            numbers.confirmed.add(number)
        elif what == "arrived":
            numbers.arrived.add(number)
        else:
            places[what] = number
        if numbers.enough.is_set() and not java.stdin.closed:
            java.stdin.write("enough\n")
            java.stdin.close()


def test_it_recovers_by_itself_and_nothing_confirmed_is_lost(
    program: list[str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(tmp_path / "cluster"))
        members = [str(member.address) for member in cluster.members]
        clients = Clients(members)
        stack.callback(clients.stop)  # when the process is gone
        java = stack.enter_context(process(tmp_path / "java.log", [*program, *members]))
        places: dict[str, int] = {}
        numbers = clients.run("java", lambda numbers: told(java, numbers, places))
        clients.wait(more_came, "the beginning")
        for who in ("publisher", "consumer"):
            recovered = f"{who} recovered at"
            at = places.pop(recovered, places[f"{who} at"])
            (hit,) = [member for member in cluster.members if member.address.port == at]
            hit.kill()
            wait_until(partial(places.__contains__, recovered), 120, f"the {who} elsewhere")
            assert places[recovered] != at
            clients.wait(more_came, f"going on without the {who}'s member")
            cluster.start(START_SECONDS)
            clients.wait(more_came, "going on with the member")
        numbers.enough.set()
        clients.wait(
            lambda numbers, _: numbers.confirmed <= numbers.arrived, "all that was confirmed"
        )
