"""Pages that name the tests of what they say name tests that exist, and nothing that is read
becomes code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "reference"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_CODE = re.compile(
    r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill|yaml)\b"
    r"|(?<![\w.])(?:eval|exec|__import__)\(|\bpickle\.loads?\(",
    re.MULTILINE,
)


@pytest.mark.parametrize("page", ["security-tests.md", "dashboard-tests.md"])
def test_every_named_test_exists(page: str) -> None:
    rows = [
        line for line in (PAGES / page).read_text(encoding="utf-8").splitlines() if "::" in line
    ]
    assert len(rows) > 15
    for row in rows:
        assert _TEST.search(row), row
        for path, name in _TEST.findall(row):
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {name}(" in text, (path, name)


def test_nothing_that_is_read_becomes_code() -> None:
    """No format that makes objects of what it reads, and no text that is executed."""
    for room in ("vsync", "store", "broker"):
        for path in sorted((ROOT / room).rglob("*.py")):
            found = _CODE.search(path.read_text(encoding="utf-8"))
            assert found is None, (path, found)
