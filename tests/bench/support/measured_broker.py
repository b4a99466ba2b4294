"""A broker that records each rotation of the token; on request one that keeps no statistics.

    python -m tests.bench.support.measured_broker FILE [options of qpidd]
    python -m tests.bench.support.measured_broker --no-statistics FILE [options of qpidd]

Writes the seconds of all rotations into FILE at each SIGUSR2, as an array of doubles, and starts
over.  Without statistics the machine is compiled from its source without the lines that count, and
nothing is sampled or sent to other members: the difference is the cost of statistics.
"""

from __future__ import annotations

import ast
import signal
import sys
from array import array
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from broker.machine.tally import COUNTS

COUNTERS = ("count_delivery", "count_get")
COUNTED = tuple(f"broker.machine.{room}" for room in ("handlers", "publishing", "queueing"))


class Uncounted(ast.NodeTransformer):
    """Removes the statements that count for statistics."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target = node.target
        counts = isinstance(target, ast.Attribute) and target.attr in COUNTS
        return ast.copy_location(ast.Pass(), node) if counts else node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value.func if isinstance(node.value, ast.Call) else None
        counts = isinstance(call, ast.Name) and call.id in COUNTERS
        return ast.copy_location(ast.Pass(), node) if counts else node


def keep_no_statistics() -> None:
    """Turn statistics off; to be called before the machine is imported."""
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if not fullname.startswith(COUNTED):
            return original(self, fullname)
        source = self.get_source(fullname)
        assert source is not None
        code: CodeType = compile(Uncounted().visit(ast.parse(source)), self.path, "exec")
        return code

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    from broker.statistics.observation import Observation

    Observation.wake = lambda self: None  # type: ignore[method-assign]


def note_rotations(file: Path) -> None:
    from vsync.totem.ordering.tempo import Tempo

    noted = array("d")
    original = Tempo.rotation

    def rotation(self: Tempo, seconds: float, now: float, *, held: bool = False) -> None:
        noted.append(seconds)
        original(self, seconds, now, held=held)

    def report(_number: int, _frame: object) -> None:
        part = file.with_suffix(".part")
        part.write_bytes(noted.tobytes())
        part.rename(file)
        del noted[:]

    Tempo.rotation = rotation  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR2, report)


def main() -> None:
    if sys.argv[1] == "--no-statistics":
        del sys.argv[1]
        keep_no_statistics()
    note_rotations(Path(sys.argv.pop(1)))
    from tools.commands.qpidd import main as qpidd

    qpidd()


if __name__ == "__main__":
    main()
