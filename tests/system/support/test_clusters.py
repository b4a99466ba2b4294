"""The system tests' own helpers: they retry when they should, and leave evidence behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.options.addresses import Address
from tests.support.toy_broker import HOST, ToyCluster
from tests.system.support.clusters import admitted, wait_until
from tests.system.support.load_clients import Load
from tools.demo.local_cluster import ROOT

REFUSED = Exception("(320) CONNECTION_FORCED - not part of the primary view")

SAMPLE = """
import sys
from pathlib import Path
import pytest
from tools.demo.local_cluster import BrokerProcess

class Talker(BrokerProcess):
    def program(self):
        return [sys.executable, "-c", f"for n in range(150): print('{self} said', n, flush=True)"]

def talk(label):
    process = Talker(label, Path(sys.argv[-1]), 1, [])
    process.start()
    process.wait()

def test_that_passes():
    talk("passed-one")

@pytest.fixture
def broken():
    talk("fixture-one")
    assert False

def test_that_cannot_begin(broken):
    pass

def test_that_fails():
    talk("failed-one")
    assert False
"""


def answers(*each: Exception | str) -> tuple[Callable[[], str], list[Exception | str]]:
    """A connect function with these outcomes in turn, and the outcomes not yet used."""
    left = list(each)

    def connect() -> str:
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    return connect, left


def test_a_client_told_to_retry_does() -> None:
    connect, left = answers(REFUSED, ConnectionRefusedError(111, "Connection refused"), "open")
    assert admitted(connect) == "open"
    assert left == []


def test_another_refusal_is_final() -> None:
    connect, left = answers(Exception("(403) ACCESS_REFUSED"), "open")
    with pytest.raises(Exception, match="403"):
        admitted(connect)
    assert left == ["open"]


def test_a_lasting_refusal_is_raised() -> None:
    connect, left = answers(REFUSED, Exception("320 again"), "open")
    with pytest.raises(Exception, match="320 again"):
        admitted(connect, 0.05)
    assert left == ["open"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest on the sample, with the fixtures of this folder."""
    folder = tmp_path_factory.mktemp("sample")
    sample = folder / "test_sample.py"
    sample.write_text(SAMPLE.replace("sys.argv[-1]", repr(str(folder))))
    words = ["-c", "/dev/null", "-p", "tests.system.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(sample)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("process", ["failed-one", "fixture-one"])
def test_the_report_of_a_failed_test_has_its_processes_logs(told: str, process: str) -> None:
    assert f"log of {process} (exit code 0)" in told
    assert f"{process} said 149" in told
    assert f"{process} said 50\n" in told
    assert f"{process} said 49\n" not in told
    assert told.count(f"log of {process}") == 1


def test_the_report_of_a_failed_test_says_how_busy_the_machine_was(told: str) -> None:
    assert told.count("machine since the test began") == 2
    assert "\nload " in told


def test_the_report_has_nothing_on_passed_tests(told: str) -> None:
    assert "passed-one said" not in told


def test_a_load_leaves_a_member_that_does_not_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All publishers of a load may happen to be at the member that was cut off, which is alive but
    sends nothing."""
    monkeypatch.setattr("tests.system.support.load_clients.SILENCE_S", 0.3)
    with ToyCluster(3) as toy:
        toy.silent = {0, 1, 2}
        brokers = [Address(HOST, int(one.rpartition(":")[2])) for one in toy.addresses]
        load = Load(brokers, 1, publishers=1, rate=100.0, histories=tmp_path)
        load.start()
        wait_until(lambda: toy.published > 0, 10, "a first publish")
        toy.silent = {link.place for link in toy.links if link.publishes}
        wait_until(lambda: len(load.confirmed) > 5, 10, f"confirms elsewhere than {toy.silent}")
        assert load.stop() == []
    assert 0 not in load.confirmed
