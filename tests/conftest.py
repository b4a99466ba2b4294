"""How all tests run: properties have no time limits of their own, long ones may take turns."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.commits import day, waiting
from tools.demo import local_cluster
from vsync.quorum.voter_set import parse

# An example takes as long as the machine lets it, and pytest-timeout ends what hangs.  The rest
# stays as it is: where CI is set, hypothesis draws the same examples each time.
settings.register_profile(
    "tests", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _votes_are_judged_anew() -> None:
    """Voter sets are kept, with whom they judged: a test with a mistake in that leaves none."""
    parse.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Slow tests of some rooms always do that; everyday ones have no time for it."""
    parser.addoption(
        "--judge-logs", action="store_true", help="check the member logs that every test leaves"
    )
    parser.addoption(
        "--every-case", action="store_true", help="of no test only the cases of this day"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave of a test with the mark `turns` so many cases, others for the commits of each day.

    Who names a test, or looks for names, gets all of it.
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
    """Give each of two processes ports of its own: a free one is bound only after it was chosen."""
    if half := os.environ.get("TEST_HALF"):
        local_cluster.PORTS = local_cluster.PORTS[int(half) :: 2]


def pytest_keyboard_interrupt() -> None:
    """Say which test is interrupted: whoever ended a run that hangs wants to know."""
    print(f"\ninterrupted: {os.environ.get('PYTEST_CURRENT_TEST', 'between two tests')}")
