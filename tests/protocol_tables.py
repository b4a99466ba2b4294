"""Makes the tables of docs/reference/ on the ring and the management API from the code.

    python -m tests.protocol_tables            # fails when a page is behind the code
    python -m tests.protocol_tables --write    # updates the pages

Names and defaults of settings come from the code; their meaning is written by hand in the page.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tests.support.generated_blocks import Blocks, run
from tests.support.management import demands
from vsync.totem.config import RingConfig
from vsync.totem.counters import table
from vsync.totem.phases import MOVES, Phase

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def diagram(_old: str) -> str:
    """One arrow for each pair of phases, with all reasons for the move."""
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, reason), after in MOVES.items():
        arrows.setdefault((phase, after), []).append(reason.value)
    lines = [f"    {a.name} --> {b.name}: {', '.join(why)}" for (a, b), why in arrows.items()]
    start = f"    [*] --> {Phase.IDLE.name}"
    end = f"    {Phase.LEFT.name} --> [*]"
    return "\n".join(["```mermaid", "stateDiagram-v2", start, *lines, end, "```", ""])


def moves(_old: str) -> str:
    """Every legal move, in the order of the code."""
    rows = [f"| {p.name} | {r.name} | {after.name} |" for (p, r), after in MOVES.items()]
    return "\n".join(["| from | reason | to |", "| --- | --- | --- |", *rows, ""])


def settings(old: str) -> str:
    """Every setting with its default; a setting that the page does not explain is an error."""
    meanings = {
        cells[1].strip(): cells[3].strip()
        for line in old.splitlines()
        if len(cells := line.split("|")) == 5
    }
    config = RingConfig()
    names = [f.name for f in fields(config)]
    unknown = [name for name in names if not meanings.get(name)]
    if unknown:
        raise SystemExit(f"ring-settings.md does not say what these mean: {', '.join(unknown)}")
    rows = [f"| {name} | {getattr(config, name)} | {meanings[name]} |" for name in names]
    return "\n".join(["| setting | default | meaning |", "| --- | --- | --- |", *rows, ""])


def relations(_old: str) -> str:
    """The relations between settings that are asserted when the record is built."""
    rows = [f"| {r.name} | {r.required} |" for r in RingConfig().relations()]
    return "\n".join(["| relation | asserted |", "| --- | --- |", *rows, ""])


def counters(_old: str) -> str:
    """Every counter, and what it counts."""
    return table()


PAGES: dict[Path, Blocks] = {
    REFERENCE / "ring-phases.md": {"diagram": diagram, "moves": moves},
    REFERENCE / "ring-settings.md": {"settings": settings, "relations": relations},
    REFERENCE / "counters.md": {"counters": counters},
    REFERENCE / "http-api.md": {"demands": lambda _old: demands.table()},
}

if __name__ == "__main__":
    run(PAGES, "tests.protocol_tables", __doc__.partition("\n")[0])
