"""A test that runs into its time limit fails, wherever the process is: the others go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
import signal, time, pytest

def strike():
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    time.sleep(0.2)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if item.name == f"test_{call.when}_report":
        strike()
    return report
"""
TESTS = """
import pytest
from conftest import strike

@pytest.fixture
def late():
    yield
    strike()

@pytest.mark.timeout(60)
def test_setup_report(): pass
@pytest.mark.timeout(60)
def test_call_report(): pass
@pytest.mark.timeout(60)
def test_teardown_report(): pass
@pytest.mark.timeout(60)
def test_in_call(): strike()
@pytest.mark.timeout(60)
def test_in_teardown(late): pass
@pytest.mark.timeout(60)
def test_afterwards(): pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="time limits are signals on Linux")
def test_a_time_limit_that_strikes_as_a_report_is_made_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_limits.py").write_text(TESTS)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
         "--rootdir", str(tmp_path), "-c", "/dev/null", "-rA", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert "INTERNALERROR" not in ended.stdout + ended.stderr
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)(.*)$", ended.stdout, re.MULTILINE)
    outcomes = {(what, name) for what, name, _ in found}
    assert outcomes == {
        ("FAILED", "test_setup_report"), ("PASSED", "test_call_report"),
        ("ERROR", "test_call_report"), ("PASSED", "test_teardown_report"),
        ("FAILED", "test_in_call"), ("PASSED", "test_in_teardown"), ("ERROR", "test_in_teardown"),
        ("PASSED", "test_afterwards"),
    }, ended.stdout  # fmt: skip
    assert all("Timeout" in why for what, _, why in found if what != "PASSED")
