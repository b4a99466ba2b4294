"""Makes docs/reference/mutants.md from the ledger of mutation runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.sim.mutation.equivalents import EQUIVALENT, UNSEEN
from tests.sim.mutation.operators import ROOT, generate_all

PATH = ROOT / "docs" / "reference" / "mutants.md"
HAND = "by hand"
NOTICED = ("killed", "hangs")

HEAD = """# Mutants of the protocol and their verdicts

Written by `python -m tests.sim.mutation.run --table` from `tests/sim/mutation/mutants.jsonl`.
What a mutant is, and what the verdicts mean: [MUTANTS.md](../MUTANTS.md).
"""


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _row(record: dict[str, Any]) -> str:
    verdict = "equivalent" if record["name"] in EQUIVALENT else record["verdict"]
    if verdict in NOTICED:
        found = f"seed {record['seed']} ({record.get('stack', '-')}): {record.get('rule', '')}"
    elif verdict == "equivalent":
        found = EQUIVALENT[record["name"]]
    else:
        found = f"{record['seed']} seeds: {UNSEEN.get(record['name'], 'not looked into')}"
    if record["module"] == HAND:
        what = record["before"]
    else:
        what = f"{record['operator']}: `{record['before']}` -> `{record['after']}`"
    where = HAND if record["module"] == HAND else f"{record['module']} {record['function']}"
    cells = (record["name"], where, what, verdict, found)
    return "| " + " | ".join(map(_cell, cells)) + " |"


def write_table(ledger: dict[str, dict[str, Any]]) -> int:
    """Write the page; results of mutants that the code no longer has are left out."""
    present = {mutant.name for mutant in generate_all()}
    records = [r for r in ledger.values() if r["module"] == HAND or r["name"] in present]
    records.sort(key=lambda r: (r["module"] != HAND, r["module"], r["function"], r["line"]))
    verdicts: Counter[str] = Counter()
    for record in records:
        name = record["name"]
        verdicts["equivalent" if name in EQUIVALENT else record["verdict"]] += 1
    noticed = sum(verdicts[verdict] for verdict in NOTICED)
    real = len(records) - verdicts["equivalent"]
    made = sum(r["module"] != HAND and r["verdict"] in NOTICED for r in records)
    seeds = sorted(int(r["seed"]) for r in records if r["verdict"] in NOTICED)
    half = seeds[len(seeds) // 2] if seeds else 0
    lines = [
        HEAD,
        f"Run so far: {len(records)} mutants, of {len(present)} generated ones and those by hand."
        f" Of the {real} that are not equivalent, {noticed} were noticed"
        f" ({verdicts['killed']} killed, {verdicts['hangs']} hanging; {made} of them generated)"
        f" and {verdicts['survived']} survived; {verdicts['equivalent']} are equivalent."
        f" Half of those noticed were noticed by seed {half} or an earlier one.",
        "",
        "| mutant | where | change | verdict | found by, what hides it, or why equivalent |",
        "|---|---|---|---|---|",
        *map(_row, records),
    ]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PATH.relative_to(ROOT)}: {len(records)} mutants, {noticed} of {real} noticed")
    return 0
