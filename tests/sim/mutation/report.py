"""docs/MUTANTS.md, made of the ledger of mutation runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.sim.mutation.equivalents import EQUIVALENT, UNSEEN
from tests.sim.mutation.operators import ROOT, generate_all

PATH = ROOT / "docs" / "MUTANTS.md"
HAND = "by hand"
NOTICED = ("killed", "hangs")

HEAD = """# Mutants: would the simulator notice?

A mutant is the protocol with one small bug. Those *by hand* (`tests/sim/mutation/by_hand.py`) are
bugs that real implementations had; the others are made by operators over the syntax trees of the
ring's and the primary layer's modules (`tests/sim/mutation/operators.py`): bounds off by one,
comparisons turned round, guards and single conditions dropped, minimum and maximum swapped,
assignments and calls skipped. Each runs the seeds 1, 2, 3, ..., cut to 4,000 events, in a process
of its own until one fails that the real code passes.

    python -m tests.sim.mutation.run --list                      # what can be generated, what is
    known python -m tests.sim.mutation.run --run --sample 200 --budget 120 --seeds-max 1000 --jobs 2
    python -m tests.sim.mutation.run --run --survivors --budget 900    # survivors again, with more
    time python -m tests.sim.mutation.run --table                     # this file, from
    tests/sim/mutants.jsonl

A run takes up where the last one stopped: what has a result is not run again. A mutant is named by
what it changes, so its result holds while the code around it moves, and is dropped when that place
is gone. `hangs` means that a seed did not end within its processor time, which a campaign reports
as a failure. *Survived* says how many seeds it outlived so far, and what hides it; with *time* or
*load* as the reason it is slower than the real one, and no bound is tight enough to show it.
*Equivalent* ones change nothing that is promised. Both kinds of reasons are in
`tests/sim/mutation/equivalents.py`. `--survivors` goes on behind the seeds that were outlived;
`--killed` runs again what was killed, to see that it still is. `--budget` is in seconds of
processor time, so results do not depend on what else the machine does.
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
    """Write the file; results of mutants that the code has not any more are left out."""
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
        "## Score",
        "",
        f"{len(records)} mutants run of {len(present)} that can be generated and those by hand;"
        f" {noticed} of {real} that are not equivalent were noticed"
        f" ({verdicts['killed']} killed, {verdicts['hangs']} hanging; {made} of them generated),"
        f" {verdicts['survived']} survived so far, {verdicts['equivalent']} are equivalent."
        f" Half of those noticed fell to seed {half} or an earlier one.",
        "",
        "| mutant | where | change | verdict | found by, what hides it, or why equivalent |",
        "|---|---|---|---|---|",
        *map(_row, records),
    ]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PATH.relative_to(ROOT)}: {len(records)} mutants, {noticed} of {real} noticed")
    return 0
