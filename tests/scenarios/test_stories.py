"""Each scenario file prints what it says (`pytest tests/scenarios --rewrite` rewrites it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.broker_stage import BrokerStage
from tests.scenarios.engine import Stage, compare
from tests.scenarios.primary_stage import PrimaryStage
from tests.scenarios.ring_stage import RingStage

STAGES: dict[str, type[Stage]] = {
    stage.subject: stage for stage in (RingStage, PrimaryStage, BrokerStage)
}
HERE = Path(__file__).parent
README = HERE / "README.md"
STORIES = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("*/*.txt"))


@pytest.mark.parametrize("story", STORIES)
def test_story(story: str, request: pytest.FixtureRequest) -> None:
    path = HERE / story
    stage = STAGES[path.parent.name]()
    difference = compare(path, stage, rewrite=request.config.getoption("--rewrite", default=False))
    assert not difference, f"\n{difference}"
