"""PROTOCOL.md and its tables in docs/reference match the code; cited tests exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.protocol_tables import PAGES, REFERENCE
from tests.support.generated_blocks import renewed
from tests.unit.vsync.totem.test_pitfalls_bite import BITES
from vsync.totem.config import RingConfig
from vsync.totem.phases import MOVES
from vsync.wire.messages import FrameKind

TEXT = "\n".join(
    path.read_text(encoding="utf-8")
    for path in (
        REFERENCE.parent / "PROTOCOL.md",
        *PAGES,
        REFERENCE / "pitfalls.md",
    )
)
SOURCES = {
    path.stem.removeprefix("test_"): path.read_text(encoding="utf-8")
    for path in Path(__file__).parents[1].rglob("test_*.py")
}


def rows(columns: int) -> list[tuple[str, ...]]:
    found = []
    for line in TEXT.splitlines():
        cells = tuple(c.strip() for c in line.strip("|").split("|"))
        if line.startswith("|") and len(cells) == columns:
            found.append(cells)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_generated_blocks_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert renewed(text, PAGES[page]) == text, "python -m tests.protocol_tables --write"


def test_the_blocks_hold_every_transition_and_every_default() -> None:
    """A check of the generator too: what it draws is the code's own table."""
    written = [r for r in rows(3) if r[0].isupper() and r[2].isupper()]
    assert written == [(p.name, r.name, after.name) for (p, r), after in MOVES.items()]
    drawn = set(re.findall(r"^    ([A-Z]+) --> ([A-Z]+):", TEXT, re.MULTILINE))
    assert drawn == {(p.name, after.name) for (p, _), after in MOVES.items()}
    config = RingConfig()
    names = [f.name for f in fields(config)]
    defaults = {r[0]: r[1] for r in rows(3) if r[0] in names}
    assert defaults == {name: str(getattr(config, name)) for name in names}
    relations = {r[0]: r[1] for r in rows(2)}
    assert all(relations[r.name] == r.required for r in config.relations())


def test_every_frame_kind_is_in_the_table_of_frames() -> None:
    written = {r[0].partition(",")[0] for r in rows(5) if r[0].partition(",")[0].isupper()}
    assert written == {kind.name for kind in FrameKind}


def cited(cell: str) -> list[tuple[str, str]]:
    return re.findall(r"`(\w+): (test_\w+)`", cell)


def test_all_pitfalls_cite_an_existing_test() -> None:
    found = [r for r in rows(4) if r[0].isdigit()]
    assert [int(r[0]) for r in found] == list(range(1, 38))
    for number, _, _, tests in found:
        assert cited(tests), f"pitfall {number} has no test"
    for module, test in cited(TEXT):
        assert f"def {test}(" in SOURCES[module], f"{module}: {test} is cited and does not exist"


def test_all_pitfalls_have_a_mistake_that_their_test_catches() -> None:
    """Except those of the process groups, whose tests are in `cpg/test_cpg.py`."""
    assert {bite.pitfall for bite in BITES} == set(range(1, 38)) - {16, 29}
