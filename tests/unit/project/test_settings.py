"""Every option has a kind, and the page for operators says the same."""

from __future__ import annotations

import re

import click

from broker.options.broker import broker_options
from broker.options.table import DEFAULTS, OPTIONS
from broker.options.values import Kind
from tests.manual_pages import FOLDER, chapter
from tools.commands.qpidd import qpidd

PAGE = FOLDER / "options.md"


def test_the_page_has_the_same_kinds() -> None:
    settings = chapter("Settings that must be equal", PAGE)
    for kind in Kind:
        (row,) = re.findall(rf"^\| {kind.value} \|(.*)$", settings, re.MULTILINE)
        named = set(re.findall(r"`--([a-z-]+)`", row))
        assert named == {name for name, option in OPTIONS.items() if option.kind is kind}, kind


def test_help_and_page_name_the_actual_default() -> None:
    """Where it is a word of its own; defaults that follow from other options are described in
    prose."""
    page = PAGE.read_text(encoding="utf-8")
    helps = {one.opts[0]: one.help or "" for one in qpidd.params if isinstance(one, click.Option)}
    said: dict[str, list[tuple[str, str]]] = {"help": [], "page": []}
    for option, default in DEFAULTS.items():
        found = re.search(r"Default ([^ ,;]+?)[.:,;]?(?= |$)", helps.get(f"--{option}", ""))
        row = re.search(rf"^\| `--{option}[ `][^|]*\| ([^|]*?) \|", page, re.MULTILINE)
        if default and found is not None:
            said["help"].append((option, found[1]))
        if default not in ("", "auto") and row is not None:
            said["page"].append((option, row[1]))
    for where, defaults in said.items():
        assert len(defaults) > 25, f"{where}: the defaults are no longer found"
        assert dict(defaults) == {option: DEFAULTS[option] for option, _ in defaults}, where


def test_passwords_are_not_compared() -> None:
    given = {"cluster-name": "c", "no-data-dir": "yes", "clock-bound": "5"}
    secret = {"cluster-username": "u", "cluster-password": "geheim"}
    settings = broker_options(given | secret).settings
    assert ("clock-bound", "5", False) in settings
    assert "geheim" not in str(settings)
