"""Tests named by pages exist, and no input of the product is executed as code."""

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


@pytest.mark.parametrize(
    "page", ["security-tests.md", "dashboard-tests.md", "compatibility-tests.md"]
)
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


def first_column(page: str) -> list[str]:
    """All names in the first column of the tables."""
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]


def test_every_client_feature_is_shown_by_a_test() -> None:
    """Except in the sections about a kind of queue, which name the tests themselves."""
    page = (ROOT / "docs" / "COMPATIBILITY.md").read_text(encoding="utf-8")
    names, kinds = page.split("\n## Browsing\n")
    kinds, more_names = kinds.split("\n## Headers and properties of messages\n")
    tests = (PAGES / "compatibility-tests.md").read_text(encoding="utf-8")
    assert first_column(names + more_names) == first_column(tests)
    for kind in kinds.split("\n## "):
        paths = re.findall(r"`(tests/[\w/]+\.py)`", kind.partition("\n| --- |")[0])
        assert paths, kind[:40]
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_no_input_becomes_code() -> None:
    """No format that creates objects from input, and no text that is executed."""
    for room in ("vsync", "store", "broker"):
        for path in sorted((ROOT / room).rglob("*.py")):
            found = _CODE.search(path.read_text(encoding="utf-8"))
            assert found is None, (path, found)
