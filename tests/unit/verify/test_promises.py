"""Each rule has a promise that findings can name, and is in a file headed by that promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from tools.verify.contract.job import RULES
from tools.verify.findings import PROPERTIES, Finding

HERE = Path(__file__).parents[3] / "tools" / "verify"
ROOMS = "checks", "contract", "clients"
FILES = [path for room in ROOMS for path in sorted((HERE / room).glob("*.py"))]


def promised(tree: ast.Module) -> set[str]:
    """Return the promises that a file names as broken; a comparison with one does not count."""
    compared = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for one in ast.walk(node)}  # fmt: skip
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"G\d+|LOG", node.value) and id(node) not in compared
    }


def test_a_finding_of_each_rule_can_be_reported() -> None:
    """A finding about streams ended the check with an error: its promise had no title."""
    for rule in RULES.values():
        assert PROPERTIES[rule.promise] in str(Finding(rule.promise, "", 0, 1, rule.sentence))


@pytest.mark.parametrize("path", [*FILES, HERE / "input" / "parse.py"], ids=lambda path: path.stem)
def test_a_file_of_rules_is_headed_by_its_promises(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    head = (ast.get_docstring(tree) or "").partition(":")[0]
    broken = promised(tree)
    assert broken <= PROPERTIES.keys()
    assert broken <= set(head.split(", "))
