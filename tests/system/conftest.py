"""Shared fixtures of the system tests, and the evidence that a failed one leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.system.evidence.failure_logs import Evidence
from tests.system.evidence.left_logs import MARKER, LeftLogs
from tests.system.support.clusters import running_cluster
from tools.demo.local_cluster import LocalCluster

HERE = Path(__file__).parent
EVIDENCE = pytest.StashKey[Evidence]()
LEFT = pytest.StashKey[LeftLogs]()
JUDGED = ("clients", "qpid_scenarios")
"""The rooms whose slow tests always judge the members' logs: these kill, stop and restart members,
and break no promise except where a marker says so.  docs/reference/false-alarms.md names the others
that were checked with `--judge-logs`; they have no time for it in every run.
"""
TOLD = 5
"""The most findings of a module's logs that are reported."""


def pytest_configure(config: pytest.Config) -> None:
    """Watch the clusters that are started, also by fixtures of modules and of the session."""
    config.stash[EVIDENCE] = evidence = Evidence()
    patch = pytest.MonkeyPatch()
    evidence.watch(patch)
    config.stash[LEFT] = left = LeftLogs()
    left.watch(patch)
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the sockets that client libraries leave open.

    pika and others leave one open when a broker dies or refuses at the wrong moment; the warning
    comes when it is collected, and would fail whichever test runs then.  The product's own sockets
    are in other processes here.
    """
    forgotten = pytest.mark.filterwarnings("ignore:unclosed <(ssl|socket)[.]:ResourceWarning")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(forgotten)


@pytest.fixture(scope="package", autouse=True)
def _collected() -> Iterator[None]:
    """Collect garbage, so that what a test leaves behind is collected in its own teardown."""
    yield
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Mark the begin of a test, behind its fixtures."""
    item.config.stash[EVIDENCE].test_begins()
    slow = item.path.parent.name in JUDGED and item.get_closest_marker("slow") is not None
    wanted = slow or item.config.getoption("--judge-logs", default=False)
    item.config.stash[LEFT].excused = not wanted or item.get_closest_marker(MARKER) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Judge the logs that a module's tests left: where all promises were kept, nothing is found."""
    yield
    if nextitem is None or nextitem.path != item.path:
        wrong = item.config.stash[LEFT].judge()
        assert not wrong, "\n".join(["the members' logs are not consistent:", *wrong[:TOLD]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of all logs to the report of a failed test."""
    report = yield
    if report.failed:
        report.sections += item.config.stash[EVIDENCE].sections()
    return report


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members with stores: one cluster for all tests of a module that do not break it."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
