"""Settings of all tests: properties have no deadline of their own, long tests may take turns."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.commits import day, waiting
from tools.demo import local_cluster
from vsync.quorum.voter_set import parse

# An example takes as long as the machine needs, and pytest-timeout ends one that hangs.  The other
# settings stay: where CI is set, hypothesis draws the same examples each time.
settings.register_profile(
    "tests", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _votes_are_judged_anew() -> None:
    """Forget cached voter sets, so that a test which patches their rules leaves none behind."""
    parse.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: slow tests of some rooms always judge logs; everyday ones have no time for
    it."""
    parser.addoption(
        "--judge-logs", action="store_true", help="check the member logs that every test leaves"
    )
    parser.addoption(
        "--every-case", action="store_true", help="run all cases of tests that take turns"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep of a test with the mark `turns` as many cases as it says; each day's commits get others.

    A run that names a test, or selects by name, gets all its cases.
    """
    named = any("::" in one for one in config.args) or config.option.keyword
    if named or config.option.every_case:
        return
    marks = {item.nodeid: item.get_closest_marker("turns") for item in items}
    counts = {name: int(mark.args[0]) for name, mark in marks.items() if mark}
    left_out = waiting(counts, by=day())
    config.hook.pytest_deselected(items=[one for one in items if one.nodeid in left_out])
    items[:] = [one for one in items if one.nodeid not in left_out]


def pytest_configure() -> None:
    """Give each of two processes its own ports: a free port is bound only after it was chosen."""
    if half := os.environ.get("TEST_HALF"):
        local_cluster.PORTS = local_cluster.PORTS[int(half) :: 2]


IN_PHASE, STRUCK = pytest.StashKey[bool](), pytest.StashKey[Callable[[], object]]()
"""Whether setup, call or teardown of a test runs; its time limit, which struck outside of them."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Let the time limit of a test strike within its phases only.

    It raises where the process happens to be. Between two phases, as a report is made or shown,
    nothing catches that: it would end the whole run with an INTERNALERROR of pytest.
    """
    answer = yield
    strike = signal.getsignal(signal.SIGALRM)

    def strike_in_phase(number: int, frame: FrameType | None) -> None:
        assert callable(strike)
        if item.stash.get(IN_PHASE, False):
            strike(number, frame)
        else:
            item.stash[STRUCK] = lambda: strike(number, frame)

    if callable(strike):  # else it is a thread that waits, or the test is debugged
        signal.signal(signal.SIGALRM, strike_in_phase)
    return answer


def _strike(item: pytest.Item) -> None:
    """Do what the time limit did not do outside of a phase."""
    if STRUCK in item.stash:
        strike = item.stash[STRUCK]
        del item.stash[STRUCK]
        strike()


@contextmanager
def _phase(item: pytest.Item) -> Iterator[None]:
    item.stash[IN_PHASE] = True
    try:
        yield
    finally:
        item.stash[IN_PHASE] = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """The first phase."""
    with _phase(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The second one."""
    with _phase(item):
        _strike(item)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The last one, which is done all the same: the next test needs it."""
    with _phase(item):
        answer = yield
        _strike(item)
        return answer


def pytest_keyboard_interrupt() -> None:
    """Name the interrupted test, for whoever ended a hanging run."""
    print(f"\ninterrupted: {os.environ.get('PYTEST_CURRENT_TEST', 'between two tests')}")
