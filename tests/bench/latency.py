"""The latency of a message at a modest rate, from submit to its own delivery, by level.

    python -m tests.bench.latency                  # agreed and safe at 500 msg/s, and the targets
    python -m tests.bench.latency --members 5
    python -m tests.bench.latency --compare hold   # which setting adds how much
    python -m tests.bench.latency --compare lead

The rate is that of all members together, and messages come at random times.  Runs of the variants
alternate, so that other load on the machine affects all alike; medians are shown, beside the time
of one rotation of the token, which determines latency: an agreed message waits half a rotation for
the token, a safe one another full rotation.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.bench.ring import about, measure, parser
from tests.bench.support.ring_member import Result

TARGETS_US = {"agreed": {"p50": 500.0, "p99": 5000.0}, "safe": {"p50": 1000.0, "p99": 5000.0}}
AXES = {
    "hold": ("hold_after", (10, 3, 30, 1_000_000)),
    "lead": ("lead", (2, 0)),
    "frame": ("frame", (262144, 32768)),
    "curve": ("curve", (False, True)),
    "size": ("size", (64, 1024, 8192)),
}


def middle(runs: list[list[Result]], key: str) -> float:
    """The median over all members and rounds, in microseconds."""
    return statistics.median(r["latency_us"][key] for results in runs for r in results)


def rotation(runs: list[list[Result]]) -> float:
    return statistics.median(r["rotation_us"] for results in runs for r in results)


def main() -> None:
    made = parser(__doc__.partition("\n")[0])
    made.set_defaults(rate=500.0, seconds=4.0)
    made.add_argument("--compare", choices=AXES, default="", help="compare values of one setting")
    options = made.parse_args()
    options.rate = (options.rate or 500.0) / options.members
    name, values = AXES.get(options.compare, ("hold_after", (options.hold_after,)))
    variants = [(level, value) for level in TARGETS_US for value in values]
    runs: dict[tuple[str, int | bool], list[list[Result]]] = {v: [] for v in variants}
    for _ in range(options.rounds):
        for level, value in variants:
            chosen = argparse.Namespace(**{**vars(options), "guarantee": level, name: value})
            runs[level, value].append(measure(chosen))
    sys.stdout.write(
        f"{about(options)}\nmedians of {options.rounds}; times in us\n"
        f"{'level':8}{name:>12}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}{'rotation':>10}"
        f"{'p50/rot':>9}{'cpu %':>7}  against the targets\n"
    )
    for (level, value), found in runs.items():
        turn = rotation(found)
        told = {key: middle(found, key) for key in ("p50", "p90", "p99", "max")}
        missed = [
            f"{key} above {limit:.0f}"
            for key, limit in TARGETS_US[level].items()
            if told[key] > limit
        ]
        percent = statistics.median(r["cpu_percent"] for results in found for r in results)
        sys.stdout.write(
            f"{level:8}{value!s:>12}{told['p50']:>8.0f}{told['p90']:>8.0f}{told['p99']:>8.0f}"
            f"{told['max']:>8.0f}{turn:>10.0f}{told['p50'] / turn:>9.2f}{percent:>7.1f}"
            f"  {', '.join(missed) or 'met'}\n"
        )


if __name__ == "__main__":
    main()
