"""Each bench that the documentation names says what it does, and measures nothing, with --help."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = sorted(
    {name for page in PAGES for name in re.findall(r"-m (tests\.bench[\w.]*\w)", page.read_text())}
)


def program(name: str) -> str:
    """The module that `python -m NAME` runs."""
    package = hasattr(importlib.import_module(name), "__path__")
    return f"{name}.__main__" if package else name


@pytest.mark.parametrize("name", NAMED)
def test_help_is_shown(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = program(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)  # as at the start of a process
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out.lower().startswith("usage:")
