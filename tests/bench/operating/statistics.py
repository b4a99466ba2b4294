"""The cost of statistics for a member: the sweep, the figures, and scrapes, by number of queues.

    python -m tests.bench.operating.statistics [queues ...]

Prints JSON for each number of queues: `sweep_ms` is the processor time of one whole sweep with a
tenth of the queues in use, `sweep_s` its duration in slices, `loop_percent` the share of the loop's
time that all steps of a minute took, figures and datagrams included, and `step_ms_max` the longest.
`scrape_ms` is a scrape of sums, `per_object_ms` one of each queue.  tests.bench.machine, beside a
release without counting, shows the cost of counting itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time

from broker.statistics.observation import SLICE_S
from broker.watchdogs.watchdogs import BEAT_S
from tests.bench.machine import DATE_US, declare, publish
from tests.support.observed import Observed

MINUTE_S = 60.0


def busy(queues: int) -> Observed:
    """A member with this many queues and one client."""
    seen = Observed()
    client = seen.rig.client()
    machine, session = seen.machine, client.session
    for number in range(queues):
        machine.apply(100 + number, session, DATE_US, declare(f"queue {number}", {}))
    machine.take_effects()
    machine.take_moves()
    return seen


def use(seen: Observed, queues: int) -> None:
    """Publish to a tenth of them."""
    machine = seen.machine
    session = next(iter(machine.connections))[0]
    for number in range(0, queues, 10):
        command = list(publish(0))
        command[5] = f"queue {number}"
        machine.apply(1 << 30, session, DATE_US, tuple(command))  # type: ignore[arg-type]
    machine.take_effects()
    machine.take_moves()


def measured(queues: int) -> dict[str, float]:
    """The figures for one number of queues."""
    seen = busy(queues)
    gc.collect()
    gc.freeze()  # the measurements must not include the setup
    clock = time.process_time
    seen.sweep()
    use(seen, queues)
    began = clock()
    seen.sweep(2.0)
    sweep_s = clock() - began
    spent = longest = 0.0
    sweeps = seen.statistics.sampler.sweeps
    for step in range(int(MINUTE_S / BEAT_S)):
        if step % 10 == 0:
            use(seen, queues)
        seen.now += BEAT_S
        began = clock()
        deadline = began + SLICE_S
        seen.statistics.step(seen.now, lambda end=deadline: clock() < end)  # type: ignore[misc]
        seen.members.step(seen.now)
        took = clock() - began
        spent += took
        longest = max(longest, took)
    sweeps = seen.statistics.sampler.sweeps - sweeps
    metrics = seen.metrics()
    began = clock()
    for _ in range(10):
        "".join(metrics.aggregated())
    aggregated = (clock() - began) / 10
    began = clock()
    size = sum(map(len, metrics.per_object()))
    return {
        "queues": queues,
        "sweep_ms": round(sweep_s * 1e3, 2),
        "sweep_s": round(MINUTE_S / max(sweeps, 1), 1),
        "loop_percent": round(spent / MINUTE_S * 100, 3),
        "step_ms_max": round(longest * 1e3, 2),
        "scrape_ms": round(aggregated * 1e3, 2),
        "per_object_ms": round((clock() - began) * 1e3, 1),
        "per_object_bytes": size,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queues", nargs="*", type=int, default=[10, 10_000, 100_000])
    for queues in parser.parse_args().queues:
        sys.stdout.write(json.dumps(measured(queues)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
