"""No two modules of the product import each other, however far around.

Every import counts: those inside functions and those under TYPE_CHECKING too, since a reader has to
know the other module all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("vsync", "broker", "store", "tools")
Graph = Mapping[str, frozenset[str]]


def module_name(path: Path) -> str:
    """The dotted name of a file below ROOT."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, modules: frozenset[str]) -> frozenset[str]:
    """The modules of the product that a file imports.

    The package of an imported module does not count: its `__init__` runs first, but nothing of it
    is used by name.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else str(node.module))
    return frozenset(found & modules)


def product_graph() -> Graph:
    """What each module of the product imports."""
    paths = {
        module_name(path): path
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    modules = frozenset(paths)
    return {
        name: imported(ast.parse(path.read_text(encoding="utf-8")), modules)
        for name, path in paths.items()
    }


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of modules that can reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or name in graph[name]:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_import_cycle() -> None:
    graph = product_graph()
    assert len(graph) > 200
    found = [", ".join(group) for group in cycles(graph)]
    assert not found, "\n".join(["these import each other:", *found])


def test_the_check_sees_a_cycle() -> None:
    graph = {
        "a": frozenset({"b"}),
        "b": frozenset({"c"}),
        "c": frozenset({"a", "d"}),
        "d": frozenset({"d"}),
        "e": frozenset({"a"}),
    }
    assert cycles(graph) == [["d"], ["a", "b", "c"]]


def test_the_check_sees_every_import() -> None:
    source = (
        "from typing import TYPE_CHECKING\nimport broker.exit_codes\n"
        "if TYPE_CHECKING:\n    from broker.amqp import codec\n"
        "def f() -> None:\n    from store.errors import StoreError\n"
    )
    modules = frozenset({"broker.exit_codes", "broker.amqp", "broker.amqp.codec", "store.errors"})
    expected = {"broker.exit_codes", "broker.amqp.codec", "store.errors"}
    assert imported(ast.parse(source), modules) == expected
