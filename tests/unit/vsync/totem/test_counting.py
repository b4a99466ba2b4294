"""Every counter is explained in `vsync/totem/counters.py`, and every explanation has a counter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from vsync.totem.counters import DROPS, EVENTS
from vsync.totem.membership.failure_detector import ProbeResult
from vsync.totem.membership.gather_sets import JoinOutcome
from vsync.totem.phases import Phase

ROOT = Path(__file__).resolve().parents[4]
COUNTING_ENUMS: tuple[type[Enum], ...] = (JoinOutcome, ProbeResult)
NOT_COUNTED = {"bad_identity"}  # raised while the codec is built, for the caller's own name
WORD = re.compile(r"[a-z]+(_[a-z]+)+|void|turns|asked|malformed|retransmitted|suspected")


def literals(node: ast.AST) -> Iterator[str]:
    """The strings that an expression may evaluate to."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from literals(one)
            yield from literals(other)
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from literals(part)
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), ast.FormattedValue()]):
            known = {*DROPS, *EVENTS}
            if start in ("token_in_", "data_in_", "frame_in_", "phase_"):
                yield from (start + p.value for p in Phase if start + p.value in known)
            else:
                yield from (name for name in known if name.startswith(start))
        case _:
            return


def counted(path: Path) -> Iterator[str]:
    """Every string in a module that becomes the name of a counter."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr="count" | "_count"), args=[name, *_]):
                yield from literals(name)
            case ast.Call(func=ast.Name(id="FrameError"), args=[name, *_]):
                yield from literals(name)
            case ast.Subscript(value=ast.Attribute(attr="counters"), slice=name):
                yield from literals(name)
            case ast.Assign(targets=[ast.Name(id="code" | "odd")], value=name):
                yield from literals(name)
            case ast.Return(value=ast.expr() as name):
                yield from (text for text in literals(name) if WORD.fullmatch(text))
            case ast.Dict(keys=keys) if path.name in (
                "driver.py",
                "transport.py",
                "link_monitor.py",
            ):
                for key in keys:
                    yield from (t for t in literals(key or node) if WORD.fullmatch(t))
            case _:
                pass


def all_counted() -> dict[str, str]:
    """Counter names, each with the module that counts it."""
    found = {name: path.name for path in (ROOT / "vsync").rglob("*.py") for name in counted(path)
             if path.name != "counters.py"}  # fmt: skip
    for enum in COUNTING_ENUMS:
        found |= {str(one.value): enum.__name__ for one in enum}
    return {name: place for name, place in found.items() if name and name not in NOT_COUNTED}


def test_every_counter_is_explained() -> None:
    unknown = {n: where for n, where in all_counted().items() if n not in {**DROPS, **EVENTS}}
    assert not unknown, f"vsync/totem/counters.py lacks the meaning of: {unknown}"


def test_every_explanation_has_its_counter() -> None:
    unused = {*DROPS, *EVENTS} - all_counted().keys()
    assert not unused, f"nothing in vsync counts {sorted(unused)} any more"
    assert not DROPS.keys() & EVENTS.keys()
