"""Bounds that keep a file readable: length of functions, imports, files of a room.

Each bound has a table of exceptions that may only shrink: a change that improves one lowers or
removes its row. The length of a file is not bounded; `python -m tests.architecture --sizes` lists
the long ones and asks which two subjects each contains.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import folder, imported, importers, modules, statements
from tests.unit.project.test_tidy import PACKAGES, name, sources

FUNCTION_LINES = 60
LONG_FUNCTIONS = {
    "tools/commands/qpid_cluster_verify.py qpid_cluster_verify": 89,
    "broker/process/member.py __init__": 66,
    "broker/amqp/frame_reader.py on_frames": 61,
    "tests/properties/test_machine_model.py command": 119,
    "tests/unit/verify/contract/test_contract.py wander": 63,
    "tests/sim/run/plan.py make_plan": 64,
    "tests/bench/support/verifylogs.py _write_member": 66,
    "tests/bench/scaling.py measure": 62,
}
"""Tables written as code, command lines with their help, and loops that are fast as one piece."""

IMPORTS = 20
MANY_IMPORTS = {"broker.process.member": 26}

IMPORTERS = 16
VOCABULARY = {
    "vsync.types", "vsync.errors", "vsync.wire.messages", "vsync.totem.events",
    "vsync.quorum.voter_set",
    "store.api", "store.errors",
    "broker.amqp.errors", "broker.amqp.fields", "broker.exit_codes",
    "broker.machine.commands", "broker.machine.effects",
    "broker.machine.limits", "broker.machine.move_log", "broker.machine.version",
    "broker.machine.requests.refusals",
    "broker.machine.state", "broker.machine.digest", "broker.memberlog.records",
    "tools.cli.failures", "tools.cli.options", "tools.cli.shared_options", "tools.verify.findings",
    "tools.verify.input.rows", "tools.verify.format.moves", "tools.verify.format.records",
    "tools.verify.checks.views_and_segments",
}  # fmt: skip
"""Modules that hold words of many others: values, records, names; not what anything does, except
how each command ends (`run_command` of tools.cli.options)."""

SMALL_LINES = 60
SMALL_FILES = {
    "vsync/totem/ordering/flow_control.py": "arithmetic with a section of the paper to itself",
    "broker/amqp/heartbeat.py": "a value that the connection polls; its file is long enough",
}
"""Small files that only one other file imports, and why they stand alone."""

ROOM_FILES, TEST_ROOM_FILES = 12, 16


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file, and its length in lines."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{name(path)} {node.name}", node.end_lineno - node.lineno + 1


def off_the_ratchet(found: dict[str, int], allowed: dict[str, int], bound: int) -> list[str]:
    """Values above the bound without an exception, and exceptions that are no longer needed."""
    over = [f"{one}: {size}, allowed {allowed.get(one, bound)}" for one, size in found.items()
            if size > allowed.get(one, bound)]  # fmt: skip
    spare = [f"{one}: {found.get(one, 0)} by now, lower or drop its {leave} in the table"
             for one, leave in allowed.items() if found.get(one, 0) < leave]  # fmt: skip
    return over + spare


def test_the_ratchet_works_both_ways() -> None:
    found = {"long": 9, "short": 2, "listed": 7, "mended": 6}
    allowed = {"listed": 7, "mended": 8, "gone": 8}
    seen = off_the_ratchet(found, allowed, 5)
    assert [line.partition(":")[0] for line in seen] == ["long", "mended", "gone"]


def test_functions_fit_on_a_screen() -> None:
    found: dict[str, int] = {}
    for path in sources(*PACKAGES):
        for one, size in functions(path):
            found[one] = max(size, found.get(one, 0))  # a file may have several of one name
    wrong = off_the_ratchet(found, LONG_FUNCTIONS, FUNCTION_LINES)
    assert not wrong, "\n".join(["lines of functions:", *wrong])


def test_a_module_imports_few_others() -> None:
    found = {module: len(imported(module)) for module in modules()}
    wrong = off_the_ratchet(found, MANY_IMPORTS, IMPORTS)
    assert not wrong, "\n".join(["modules of the project that one imports:", *wrong])


def test_only_vocabulary_is_imported_everywhere() -> None:
    """A module with behaviour that all others need becomes the centre that swallows everything."""
    wide = {module for module in modules() if len(importers(module)) > IMPORTERS}
    assert wide <= VOCABULARY, f"imported by more than {IMPORTERS}: {sorted(wide - VOCABULARY)}"
    assert modules().keys() >= VOCABULARY


def test_small_files_imported_by_only_one_other_are_merged_into_it() -> None:
    small = {
        name(path): min(importers(module))
        for module, path in modules().items()
        if len(importers(module)) == 1
        and len(path.read_text(encoding="utf-8").splitlines()) < SMALL_LINES
    }
    lone = [
        f"{path}: join it to {other}" for path, other in small.items() if path not in SMALL_FILES
    ]
    spare = [f"{path}: drop it from the table" for path in SMALL_FILES if path not in small]
    assert not lone + spare, "\n".join(lone + spare)


def test_a_room_has_few_files() -> None:
    product = Counter(folder(module).replace(".", "/") for module in modules())
    tests = Counter(name(path.parent) for path in sources("tests") if path.name != "__init__.py")
    full = [f"{one}: {count} files" for one, count in product.items() if count > ROOM_FILES]
    full += [f"{one}: {count} files" for one, count in tests.items() if count > TEST_ROOM_FILES]
    assert not full, "\n".join(full)
