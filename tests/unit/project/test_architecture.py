"""docs/reference/rooms.md shows the rooms as they are, and ARCHITECTURE.md follows calls through
functions that exist.
"""

from __future__ import annotations

import pytest

from tests.architecture import (
    BLOCKS,
    PAGE,
    ROOMS,
    ROOT,
    arrows,
    culprits,
    cycles,
    functions,
    imported,
    imports_of,
    modules,
    paths,
    reduced,
)
from tests.support.generated_blocks import renewed

PAGE_LINES = 180


def test_arrows_between_rooms_go_one_way() -> None:
    found = cycles(arrows())
    back = [f"{' and '.join(rooms)}: {', '.join(culprits(rooms))}" for rooms in found]
    assert not back, "\n".join(["rooms that need each other:", *back])


def test_no_two_modules_import_each_other_even_indirectly() -> None:
    """Imports inside functions and under TYPE_CHECKING count: a reader must know both modules."""
    graph = {module: set(imported(module)) for module in modules()}
    assert len(graph) > 200
    found = [", ".join(group) for group in cycles(graph)]
    assert not found, "\n".join(["these import each other:", *found])


def test_every_kind_of_import_is_found() -> None:
    source = (
        "from typing import TYPE_CHECKING\nimport broker.exit_codes\n"
        "if TYPE_CHECKING:\n    from broker.amqp import codec\n"
        "def f() -> None:\n    from store.errors import StoreError\n"
    )
    known = frozenset({"broker.exit_codes", "broker.amqp", "broker.amqp.codec", "store.errors"})
    assert imports_of(source, known) == known - {"broker.amqp"}


def test_a_cycle_is_found_and_a_shortcut_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert cycles(graph) == []
    assert reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}
    graph["c"].add("a")
    assert cycles(graph) == [["a", "b", "c"]]
    assert cycles({"d": {"d"}, "e": {"d"}}) == [["d"]]


def test_the_picture_is_up_to_date() -> None:
    text = ROOMS.read_text(encoding="utf-8")
    assert renewed(text, BLOCKS) == text, "make docs, or python -m tests.architecture --write"


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= PAGE_LINES


@pytest.mark.parametrize("what", ["a publish", "a view change", "a join"])
def test_the_page_follows_functions_that_exist(what: str) -> None:
    """`tests/system/test_paths.py` checks the order of the calls."""
    steps = paths()[what]
    assert len(steps) >= 10
    gone = [
        f"{step.path}: {step.function}"
        for step in steps
        if not (ROOT / step.path).exists() or step.function not in functions(ROOT / step.path)
    ]
    assert not gone, "\n".join(["not there any more:", *gone])
