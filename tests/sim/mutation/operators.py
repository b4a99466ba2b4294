"""Generates mutants of the protocol: small wrong changes made by rule.

A mutant is one change at one place of one module.  Its name is a digest of the change (module,
function, operator, the text before, and which of equal places in that function), not of its line,
so results stay valid while the code around it moves.  Statements that only describe, count, note or
assert are left alone: no promise depends on them.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    "vsync.totem.ordering.ring",
    "vsync.totem.ordering.window",
    "vsync.totem.ordering.flow_control",
    "vsync.totem.ordering.token_passing",
    "vsync.totem.ordering.operational",
    "vsync.totem.membership.protocol",
    "vsync.totem.membership.gather_sets",
    "vsync.totem.membership.gather",
    "vsync.totem.membership.merge",
    "vsync.totem.membership.commit",
    "vsync.totem.membership.recovery",
    "vsync.totem.node",
    "vsync.primary.state_exchange",
    "vsync.primary.unstable",
    "vsync.primary.component",
)
SILENT_FUNCTIONS = {"describe", "invariants", "__str__", "__repr__", "status"}
SILENT_CALLS = {"_count", "_note", "_miss", "_tell", "count", "note", "Note", "format", "join"}
TEXT_MAX = 90


class Mutant(NamedTuple):
    """One change: `after` replaces `before` (source text, shortened) in `function` at `line`."""

    name: str
    module: str
    function: str
    line: int
    operator: str
    before: str
    after: str


Change = tuple[str, ast.AST, ast.AST]  # operator, the present node, its replacement

_BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPPED = {"min": "max", "max": "min"}


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a block is a guard: it ends by leaving."""
    return isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def _compared(node: ast.Compare) -> Iterator[Change]:
    for index, operator in enumerate(node.ops):
        for kind, table in (("bound", _BOUNDS), ("compare", _OPPOSITES)):
            other = table.get(type(operator))
            if other is not None:
                changed = copy.deepcopy(node)
                changed.ops[index] = other()
                yield kind, node, changed


def _joined(node: ast.BoolOp) -> Iterator[Change]:
    """Drop one condition of several, or swap `and` and `or`."""
    for index in range(len(node.values)):
        rest = [copy.deepcopy(v) for i, v in enumerate(node.values) if i != index]
        yield "drop-condition", node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    changed = copy.deepcopy(node)
    changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and-or", node, changed


def _branched(node: ast.If) -> Iterator[Change]:
    if _leaves(node.body) and not node.orelse:
        yield "drop-guard", node.test, ast.Constant(False)
    match node.test:
        case ast.Compare(ops=[operator]) if type(operator) in _OPPOSITES:
            pass  # the operator on comparisons makes the same mutant
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield "negate", node.test, copy.deepcopy(inner)
        case _:
            yield "negate", node.test, ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))


def _callee(node: ast.expr) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def _silent(node: ast.AST) -> bool:
    """Whether a statement only counts, notes or describes."""
    match node:
        case ast.Expr(value=ast.Call(args=arguments) as call):
            return _callee(call) in SILENT_CALLS or any(map(_silent_value, arguments))
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
        case ast.AugAssign(target=ast.Subscript(value=ast.Attribute(attr="counters"))):
            return True
        case _:
            return False


def _silent_value(node: ast.expr) -> bool:
    return _callee(node) in SILENT_CALLS


def _stated(node: ast.AST) -> Iterator[Change]:
    """Skip a statement that stores or does something."""
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "skip-assignment", node, ast.Pass()
        case ast.AugAssign():
            yield "skip-assignment", node, ast.Pass()
        case ast.Expr(value=ast.Call() as call) if _callee(call):
            yield "skip-call", node, ast.Pass()
        case ast.Return(value=ast.Constant(value=bool(value))):
            yield "return", node, ast.Return(ast.Constant(not value))
        case _:
            pass


def _counted(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield "off-by-one", node, copy.deepcopy(node.left)
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and 2 <= value <= 16:
            yield "off-by-one", node, ast.Constant(value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            changed = copy.deepcopy(node)
            assert isinstance(changed.func, ast.Name)
            changed.func.id = _SWAPPED[name]
            yield "min-max", node, changed
        case _:
            pass


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _compared(node)
        case ast.BoolOp():
            yield from _joined(node)
        case ast.If():
            yield from _branched(node)
        case _:
            yield from _stated(node)
            yield from _counted(node)


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node that may be changed, with the function around it."""
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            if child.name in SILENT_FUNCTIONS:
                continue
            inside = f"{function}.{child.name}" if function else child.name
        if _silent(child) or isinstance(child, ast.arguments | ast.JoinedStr):
            continue
        if isinstance(child, ast.AnnAssign) and child.value is None:
            continue
        yield inside, child
        yield from _walk(child, inside)


def source_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _found(module: str, tree: ast.Module) -> Iterator[tuple[Mutant, ast.AST, ast.AST]]:
    seen: Counter[str] = Counter()
    for function, node in _walk(tree, ""):
        if not function:
            continue
        for operator, before, after in _changes(node):
            if operator == "skip-assignment" and function.endswith("__init__"):
                continue  # a missing attribute stops the first run and shows nothing
            text = f"{module}|{function}|{operator}|{ast.dump(before)}|{ast.dump(after)}"
            seen[text] += 1
            digest = hashlib.sha256(f"{text}|{seen[text]}".encode()).hexdigest()[:8]
            line = getattr(before, "lineno", 0)
            shown = _shown(before), _shown(after)
            yield Mutant(digest, module, function, line, operator, *shown), before, after


def generate(module: str) -> list[Mutant]:
    """All mutants of a module in the order of their places; [] when there is no such module."""
    path = source_of(module)
    if not path.exists():
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [mutant for mutant, _, _ in _found(module, tree)]


def generate_all() -> list[Mutant]:
    return [mutant for module in MODULES for mutant in generate(module)]


class _Replace(ast.NodeTransformer):
    def __init__(self, before: ast.AST, after: ast.AST) -> None:
        self.before, self.after = before, after

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.before:
            return ast.copy_location(self.after, node)
        return self.generic_visit(node)


def mutated(module: str, name: str) -> ast.Module:
    """Return the module's tree with one mutant in it.  Raises KeyError when the code has no such
    place."""
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    for mutant, before, after in _found(module, tree):
        if mutant.name == name:
            changed = _Replace(before, after).visit(tree)
            assert isinstance(changed, ast.Module)
            return ast.fix_missing_locations(changed)
    raise KeyError(f"{module} has no mutant {name}")


def sample(mutants: list[Mutant], count: int) -> list[Mutant]:
    """The first `count` mutants of a fixed order that mixes all modules and operators.

    It takes one of each (module, operator) pair in turn, within the pair by name, which is a
    digest.
    """
    pairs: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in sorted(mutants, key=lambda m: m.name):
        pairs.setdefault((mutant.module, mutant.operator), []).append(mutant)
    turns = {m.name: turn for pair in pairs.values() for turn, m in enumerate(pair)}
    return sorted(mutants, key=lambda m: (turns[m.name], m.name))[:count]
