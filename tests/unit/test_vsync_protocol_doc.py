"""PROTOCOL.md says what the code does: moves, defaults and cited tests are compared with it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from vsync.config import RingConfig
from vsync.phases import MOVES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")


def rows(columns: int) -> list[tuple[str, ...]]:
    found = []
    for line in TEXT.splitlines():
        cells = tuple(c.strip() for c in line.strip("|").split("|"))
        if line.startswith("|") and len(cells) == columns:
            found.append(cells)
    return found


def test_the_table_of_moves_is_the_code() -> None:
    told = [r for r in rows(3) if r[0].isupper()]
    assert told == [(p.name, r.name, after.name) for (p, r), after in MOVES.items()]


def test_the_diagram_has_every_move() -> None:
    drawn = set(re.findall(r"^    ([A-Z]+) --> ([A-Z]+):", TEXT, re.MULTILINE))
    assert drawn == {(p.name, after.name) for (p, _), after in MOVES.items()}


def test_the_defaults_are_the_code() -> None:
    config = RingConfig()
    names = [f.name for f in fields(config)]
    told = {r[0]: r[1] for r in rows(3) if r[0] in names}
    assert told == {name: str(getattr(config, name)) for name in names}


def test_all_pitfalls_are_there_and_the_cited_tests_exist() -> None:
    found = [r for r in rows(3) if r[0].isdigit()]
    assert [int(r[0]) for r in found] == list(range(1, 38))
    sources = {
        path.stem.removeprefix("test_vsync_"): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests" / "unit").glob("test_vsync_*.py")
    }
    for number, _, here in found:
        for module, test in re.findall(r"`(\w+): (test_\w+)", here):
            assert f"def {test}" in sources[module], (number, module, test)
