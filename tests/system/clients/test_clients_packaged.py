"""Client libraries of other languages, as Debian packages them, while their member is killed.

Each program of `programs/` publishes with confirms on one connection and consumes with acks on
another.  Every confirmed number arrives at least once (G1), and both connections fail over: by the
automatic recovery of the library where it has one (Java, Ruby), else as its manual says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.clients.test_clients_through_a_kill import Clients, more_came, process, told
from tests.system.support.clusters import START_SECONDS, running_cluster, wait_until
from tools.demo.local_cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
JAVA, GO = Path("/usr/share/java"), Path("/usr/share/gocode")
GO_CLIENT, GO_LEAK = GO / "src/github.com/rabbitmq/amqp091-go", GO / "src/go.uber.org/goleak"
JARS = ":".join(str(JAVA / name) for name in ("amqp-client.jar", "slf4j-api.jar"))
Command = list[str]


def java(place: Path) -> Command:
    """The compiled programs."""
    source = PROGRAMS / "FailingOver.java"
    subprocess.run(["javac", "-cp", JARS, "-d", str(place), str(source)], check=True, timeout=120)
    return ["java", "-Xmx64m", "-cp", f"{JARS}:{place}", source.stem]


def go(place: Path) -> Command:
    """The programs compiled against the packaged sources."""
    program = place / "failing_over"
    compile_go("build", "-o", str(program), str(PROGRAMS / "failing_over.go"), folder=place)
    return [str(program)]


def compile_go(*build: str, folder: Path) -> None:
    """Run `go` in the folder; what it compiles of the packaged sources is kept between runs."""
    cache = Path(tempfile.gettempdir()) / f"qpid-cluster-py-go-{os.getuid()}"
    environment = {
        **os.environ, "GO111MODULE": "off", "GOPATH": str(GO), "GOCACHE": str(cache),
        "GOFLAGS": "", "CGO_ENABLED": "0",
    }  # fmt: skip
    subprocess.run(["go", *build], cwd=folder, env=environment, check=True, timeout=300)


class Library(NamedTuple):
    """A library, and what its program needs."""

    packages: str
    tools: tuple[str, ...]
    found: Callable[[], bool]
    """Whether the library is installed."""
    command: Callable[[Path], Command]


LIBRARIES = {
    "java": Library(
        "librabbitmq-client-java default-jdk-headless", ("javac", "java"),
        lambda: all(Path(jar).exists() for jar in JARS.split(":")), java,
    ),
    "bunny": Library(
        "ruby-bunny", ("ruby",),
        lambda: not subprocess.run(
            ["ruby", "-e", "require 'bunny'"], check=False, capture_output=True, timeout=60
        ).returncode,
        lambda _: ["ruby", str(PROGRAMS / "failing_over.rb")],
    ),
    "php-amqplib": Library(
        "php-cli php-amqplib", ("php",), Path("/usr/share/php/PhpAmqpLib/autoload.php").exists,
        lambda _: ["php", str(PROGRAMS / "failing_over.php")],
    ),
    "amqp091-go": Library(
        "golang-go golang-github-rabbitmq-amqp091-go-dev", ("go",),
        GO_CLIENT.exists, go,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members for all libraries in turn; each test leaves them as they were."""
    with running_cluster(tmp_path_factory.mktemp("packaged")) as started:
        yield started


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """The name of a library that is installed here."""
    name: str = request.param
    _, tools, found, _ = wanted = LIBRARIES[name]
    if not all(map(shutil.which, tools)) or not found():
        pytest.skip(f"no {name}: apt-get install {wanted.packages}")
    return name


def test_it_fails_over_and_loses_nothing_confirmed(
    library: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    command = LIBRARIES[library].command(tmp_path)
    with ExitStack() as stack:
        members = [str(member.address) for member in cluster.members]
        clients = Clients(members)
        stack.callback(clients.stop)  # after the processes have ended
        program = stack.enter_context(process(tmp_path / "client.log", [*command, *members]))
        places: dict[str, int] = {}
        numbers = clients.run(library, lambda numbers: told(program, numbers, places))
        clients.wait(more_came, "the beginning")
        for who in ("publisher at", "consumer at"):
            at = places[who]
            (hit,) = [member for member in cluster.members if member.address.port == at]
            hit.kill()
            wait_until(lambda who=who, at=at: places[who] != at, 120, f"{who} elsewhere")  # type: ignore[misc]
            clients.wait(more_came, f"continuing without the member that had the {who[:-3]}")
            cluster.start(START_SECONDS)
            clients.wait(more_came, "continuing with the member")
        numbers.enough.set()
        clients.wait(
            lambda numbers, _: numbers.confirmed <= numbers.arrived, "all confirmed numbers"
        )


@pytest.mark.skipif(
    not (shutil.which("go") and GO_CLIENT.exists() and GO_LEAK.exists()),
    reason=f"apt-get install {LIBRARIES['amqp091-go'].packages} golang-uber-goleak-dev",
)
def test_amqp091_go_passes_its_own_integration_tests(cluster: LocalCluster, tmp_path: Path) -> None:
    """Three of them end at once, with their connections left open, as our product is not RabbitMQ.
    So the exit code, which counts these, is not looked at."""
    tests = tmp_path / "tests"
    compile_go("test", "-tags", "integration", "-c", "-o", str(tests), ".", folder=GO_CLIENT)
    url = f"amqp://guest:guest@{cluster.members[1].address}/"
    done = subprocess.run(
        [str(tests), "-test.v", "-test.run", "Integration|RabbitMQ"], cwd=GO_CLIENT,
        env={**os.environ, "AMQP_URL": url}, check=False, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert not re.findall(
        r"^ *--- (?:FAIL|SKIP): .*|^panic.*", done.stdout + done.stderr, re.MULTILINE
    )
    assert len(re.findall(r"^--- PASS: Test", done.stdout, re.MULTILINE)) > 30
