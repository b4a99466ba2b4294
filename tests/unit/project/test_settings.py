"""Every option has a kind, and the page for operators says the same."""

from __future__ import annotations

import re
from pathlib import Path

from broker.options.broker import DEFAULTS, broker_options
from broker.options.equality import KINDS, Kind

PAGE = Path(__file__).resolve().parents[3] / "docs" / "OPERATIONS.md"


def test_every_option_may_or_may_not_differ() -> None:
    """Who adds an option decides it: broker/options/equality.py."""
    assert KINDS.keys() == DEFAULTS.keys()


def test_the_page_has_the_same_kinds() -> None:
    chapter = PAGE.read_text(encoding="utf-8").partition("### Settings that must be equal\n")[2]
    chapter = chapter.partition("\n## ")[0]
    for kind in Kind:
        (row,) = re.findall(rf"^\| {kind.value} \|(.*)$", chapter, re.MULTILINE)
        named = set(re.findall(r"`--([a-z-]+)`", row))
        assert named == {option for option, one in KINDS.items() if one is kind}, kind


def test_passwords_are_not_compared() -> None:
    given = {"cluster-name": "c", "no-data-dir": "yes", "clock-bound": "5"}
    secret = {"cluster-username": "u", "cluster-password": "geheim"}
    settings = broker_options(given | secret).settings
    assert ("clock-bound", "5", False) in settings
    assert "geheim" not in str(settings)
