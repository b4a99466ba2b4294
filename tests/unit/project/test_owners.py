"""Each attribute has one owner: it is assigned in the file of its class and nowhere else.

Nor is a class split over files by inheritance: an attribute that a base class assigns in one file
is not assigned by a derived class in another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture import statements

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("vsync", "store")

EXCEPTIONS: Mapping[str, frozenset[str]] = {
    "vsync/io/transport.py": frozenset(("refused",)),
    "vsync/primary/component.py": frozenset(("complete", "caught_up", "marks")),
}
"""By file: attributes of another file's class that it assigns all the same.  May only shrink."""


class Classes(NamedTuple):
    """What one file defines: the bases of each class, and the attributes that it assigns."""

    bases: dict[str, list[str]]
    own: dict[str, set[str]]


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that one statement assigns."""
    match node:
        case ast.Assign(targets=found):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            found = [target]
        case _:
            return
    for one in found:
        for inner in ast.walk(one):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                yield inner


def through_self(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def classes_of(tree: ast.Module) -> Classes:
    found = Classes({}, {})
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            found.bases[node.name] = [b.id for b in node.bases if isinstance(b, ast.Name)]
            own = found.own[node.name] = set[str]()
            for inner in statements(node):
                own |= {target.attr for target in assigned(inner) if through_self(target)}
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    own.add(inner.target.id)  # a field of a record
    return found


def assigned_from_outside(tree: ast.Module) -> set[str]:
    """Attributes that a file assigns to objects of classes that it does not define."""
    own = set[str]().union(*classes_of(tree).own.values())
    return {
        target.attr
        for node in statements(tree)
        for target in assigned(node)
        if not through_self(target) and target.attr not in own and not target.attr.startswith("__")
    }


def cut_by_inheritance(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Classes that assign an attribute that a base class in another file assigns too."""
    found = {path: classes_of(tree) for path, tree in trees.items()}
    homes = {name: path for path, classes in found.items() for name in classes.bases}
    for path, classes in found.items():
        for name, bases in classes.bases.items():
            line = [base for base in bases if base in homes]
            for base in line:  # grows during the iteration
                home = found[homes[base]]
                line += [up for up in home.bases[base] if up in homes and up not in line]
                both = classes.own[name] & home.own[base]
                if homes[base] != path and both:
                    yield f"{path}: {name} assigns {sorted(both)} of {base} in {homes[base]}"


@cache
def product() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def test_every_attribute_is_assigned_in_the_file_of_its_class() -> None:
    found = {path: assigned_from_outside(tree) for path, tree in product().items()}
    assert {path: names for path, names in found.items() if names} == EXCEPTIONS


def test_no_class_is_split_over_files_by_inheritance() -> None:
    assert list(cut_by_inheritance(product())) == []


def test_the_checks_find_what_they_should() -> None:
    """A core in two files, and a third file that assigns its attributes."""
    base = ast.parse("class Core:\n    def __init__(self):\n        self.phase = 0\n")
    part = ast.parse(
        "class Gathering(Core):\n    def enter(self):\n        self.phase, self.sets = 1, 2\n"
    )
    last = ast.parse("class Node(Gathering):\n    def f(self, core):\n        self.phase += 1\n")
    outside = ast.parse("def f(node):\n    node.core.sets |= {1}\n    node.counters['x'] += 1\n")
    trees = {"core.py": base, "gather.py": part, "node.py": last}
    assert [line.split(" in ")[0] for line in cut_by_inheritance(trees)] == [
        "gather.py: Gathering assigns ['phase'] of Core",
        "node.py: Node assigns ['phase'] of Gathering",
        "node.py: Node assigns ['phase'] of Core",
    ]
    assert assigned_from_outside(outside) == {"sets"}
    assert assigned_from_outside(part) == set()
