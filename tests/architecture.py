"""The rooms of the project and the arrows between them, read from the imports.

    python -m tests.architecture            # fails when docs/reference/rooms.md is behind the code
    python -m tests.architecture --write    # rewrites its picture and its table of rooms
    python -m tests.architecture --sizes    # lines and files by room, and long files

A room is a folder of product code.  A folder that has rooms in it is two rooms itself: the modules
on which its inner rooms are built, and those built on them (`vsync.types` and `vsync` itself).  An
import for type checking only is an arrow like any other.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.generated_blocks import bring_up_to_date

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
ROOMS = ROOT / "docs" / "reference" / "rooms.md"
PRODUCT = ("vsync", "store", "broker", "tools")
BASE, TOP = "(base)", "(top)"
Arrows = dict[str, set[str]]
LONG_FILE = 400
_PATH = re.compile(r"^## The life of (.*)$|^\| `([\w/]+\.py)` \| (`.*?) \|", re.MULTILINE)


@cache
def modules() -> dict[str, Path]:
    """Every module of the product except an `__init__` that only describes its room."""
    found = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                if len(ast.parse(path.read_text(encoding="utf-8")).body) < 2:
                    continue
                parts = parts[:-1]
            found[".".join(parts)] = path
    return found


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement of a tree, at any depth: a tenth of the nodes that `ast.walk` visits."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += getattr(node, field, ())


def imports_of(source: str, known: Collection[str]) -> set[str]:
    """The known modules that a source imports.

    The package of an imported module does not count: its `__init__` runs first, but no name of it
    is used.
    """
    found: set[str] = set()
    for node in statements(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(origin), names=names):
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    found.add(inner if inner in known else origin)
            case _:
                pass
    return found & set(known)


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of the product that a module imports."""
    source = modules()[module].read_text(encoding="utf-8")
    return frozenset(imports_of(source, modules().keys()) - {module})


@cache
def importers(module: str) -> frozenset[str]:
    """The modules of the product that import this module."""
    return frozenset(other for other in modules() if module in imported(other))


def folder(module: str) -> str:
    """The dotted name of a module's folder."""
    return ".".join(modules()[module].parent.relative_to(ROOT).parts)


@cache
def room(module: str) -> str:
    """The room of a module."""
    home = folder(module)
    if not any(other.startswith(f"{home}.") for other in map(folder, modules())):
        return home
    seen, todo = {module}, [module]
    while todo:
        for other in imported(todo.pop()) - seen:
            if folder(other).startswith(f"{home}."):
                return f"{home} {TOP}"
            if folder(other) == home:
                seen.add(other)
                todo.append(other)
    return f"{home} {BASE}"


def arrows() -> Arrows:
    """For each room, the rooms that it imports."""
    found: Arrows = {room(module): set() for module in modules()}
    for module in modules():
        found[room(module)] |= {room(other) for other in imported(module)} - {room(module)}
    return found


def reachable(graph: Arrows, start: str) -> set[str]:
    """All rooms that a room needs, directly or indirectly."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def package(one: str) -> str:
    """The package of a room."""
    return one.split(" ")[0].split(".")[0]


def cycles(graph: Arrows) -> list[list[str]]:
    """Sets of rooms or modules that need each other; empty where arrows go one way."""
    needs = {one: reachable(graph, one) for one in graph}
    found = {tuple(sorted({o for o in needs[one] if one in needs[o]})) for one in graph}
    return [list(one) for one in sorted(found) if one]


def culprits(rooms: list[str]) -> list[str]:
    """The imports between the rooms of a cycle."""
    return [
        f"{module} -> {other}"
        for module in modules()
        for other in sorted(imported(module))
        if room(module) != room(other) and {room(module), room(other)} <= set(rooms)
    ]


def reduced(graph: Arrows) -> Arrows:
    """The arrows without those that follow from others."""
    return {
        one: {
            other
            for other in others
            if not any(other in reachable(graph, via) for via in others - {other})
        }
        for one, others in graph.items()
    }


def ordered(graph: Arrows) -> list[str]:
    """The rooms package by package, each behind all that it imports."""
    needs = {one: len(reachable(graph, one)) for one in graph}
    return sorted(graph, key=lambda one: (PRODUCT.index(package(one)), needs[one], one))


def contents(one: str) -> list[str]:
    """The names of a room's files."""
    return [m.split(".")[-1] for m in modules() if room(m) == one]


def picture(_old: str) -> str:
    """The diagram of all rooms, without arrows that follow from others."""
    graph = reduced(arrows())
    ids = {one: re.sub(r"\W+", "_", one).strip("_") for one in graph}
    down = list(reversed(ordered(arrows())))
    lines = ["```mermaid", "flowchart TD"]
    for name in reversed(PRODUCT):
        inside = [f'{ids[one]}["{label(one)}"]' for one in down if package(one) == name]
        lines += [f"    subgraph {name}_ [{name}]", *packed(inside), "    end"]
    below = {one: " & ".join(ids[other] for other in sorted(graph[one])) for one in down}
    lines += packed([f"{ids[one]} --> {others}" for one, others in below.items() if others])
    return "\n".join([*lines, "```", ""])


def packed(statements: list[str]) -> list[str]:
    """Join many short statements into few lines."""
    text = "; ".join(statement.replace(" ", "\0") for statement in statements)
    lines = textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False)
    return [f"    {line}".replace("\0", " ") for line in lines]


def label(one: str) -> str:
    """A room's name within its package; for a folder with inner rooms, its own files."""
    path, _, part = one.partition(" ")
    inner = path.partition(".")[2] or path
    if part:
        return f"{inner}: {', '.join(contents(one))}"
    return inner


def sentence(one: str) -> str:
    """What a room is: the first sentence of its `__init__`."""
    path, _, part = one.partition(" ")
    if part == BASE:
        return ", ".join(f"`{file}`" for file in contents(one))
    source = (ROOT / path.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def rooms(_old: str) -> str:
    """One row for each room: what it is, and what it imports."""
    graph = arrows()
    near = reduced(graph)
    lines = ["| room | what it is | stands on |", "| --- | --- | --- |"]
    for one in ordered(graph):
        below = ", ".join(sorted(near[one])) or "-"
        lines.append(f"| {one} | {sentence(one)} | {below} |")
    return "\n".join([*lines, ""])


class Step(NamedTuple):
    """A function named in a table of the page: its file, and its name there."""

    path: str
    function: str


def paths() -> dict[str, list[Step]]:
    """The tables of the page that follow an event through the code, by event."""
    found: dict[str, list[Step]] = {}
    steps: list[Step] = []
    for heading, path, functions in _PATH.findall(PAGE.read_text(encoding="utf-8")):
        if heading:
            steps = found.setdefault(heading.partition(" (")[0], [])
        else:
            steps += [Step(path, name) for name in re.findall(r"`([\w.]+)`", functions)]
    return found


def functions(path: Path) -> set[str]:
    """The names of all functions and methods of a file, as in tracebacks."""

    def within(body: list[ast.stmt], prefix: str) -> set[str]:
        found = set()
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name, body=inner):
                    found |= within(inner, f"{prefix}{name}.")
                case _:
                    pass
        return found

    return within(ast.parse(path.read_text(encoding="utf-8")).body, "")


def lines(path: Path) -> int:
    """The number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes() -> str:
    """Files and lines of each package and folder, and long files, which may have two subjects."""
    found: dict[str, list[int]] = defaultdict(list)
    long = []
    for path in sorted(p for one in (*PRODUCT, "tests") for p in (ROOT / one).rglob("*.py")):
        place, count = path.relative_to(ROOT), lines(path)
        for one in {place.parts[0], f"  {place.parent.as_posix()}"}:
            found[one].append(count)
        if count > LONG_FILE:
            long.append(f"{place}: {count} lines; which two subjects are in here?")
    rows = sorted((one.strip(), one[0] == " ", one, counts) for one, counts in found.items())
    table = [f"{sum(counts):7} lines {len(counts):4} files  {one}" for _, _, one, counts in rows]
    return "\n".join([*table, *long])


BLOCKS = {"rooms": rooms, "picture": picture}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="change the page")
    parser.add_argument("--sizes", action="store_true", help="list lines by room, and long files")
    options = parser.parse_args()
    if options.sizes:
        print(sizes())
        return
    bring_up_to_date(ROOMS, BLOCKS, "tests.architecture", write=options.write)


if __name__ == "__main__":
    main()
