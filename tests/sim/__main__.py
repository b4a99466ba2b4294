"""`python -m tests.sim`: replay one seed, or run many."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable

from tests.sim.campaign import Options, Summary, run_line, run_seed, shrink
from tests.sim.plan import ALL_FAULTS
from tests.sim.runner import Result

LINES_ON_FAILURE = 60


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and tell what happened")
    parser.add_argument("--seeds", help="run the seeds A-B")
    parser.add_argument("--count", type=int, help="run this many seeds, from --start")
    parser.add_argument("--start", type=int, default=1, help="first seed of --count")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run seeds in")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    parser.add_argument("--frames", action="store_true", help="with --trace: frames as well")
    parser.add_argument("--last", type=int, default=LINES_ON_FAILURE, help="trace lines shown")
    parser.add_argument("--without", default="", help="faults to leave out, by comma")
    parser.add_argument("--only", default=None, help="the only faults to keep, by comma")
    parser.add_argument(
        "--stack", choices=("replica", "broker", "mixed", "oracle", "groups"), default="replica",
        help="what stands on the ring: the primary layer over a toy log, real brokers, both,"
        " brokers on a ring without frames that changes its view all the time, or process groups",
    )  # fmt: skip
    parser.add_argument("--ring-only", action="store_true", help="no primary layer on the ring")
    parser.add_argument("--shrink", action="store_true", help="find out which faults it takes")
    parser.add_argument("--memberlog", default=None, help="write member logs into this directory")
    parser.add_argument("--faults", action="store_true", help="list the faults that there are")
    return parser.parse_args(arguments)


def names(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    unknown = [name for name in found if name not in ALL_FAULTS]
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(unknown)}")
    return found


def tell(result: Result, arguments: argparse.Namespace) -> None:
    """Everything about one run."""
    print(result.plan.describe())
    if arguments.trace or arguments.frames:
        print("\n".join(result.trace.lines()))
    elif not result.ok:
        print("\n".join(result.trace.lines(arguments.last)))
    print("faults   " + " ".join(f"{k}={v}" for k, v in sorted(result.faults.items())))
    print("counters " + " ".join(f"{k}={v}" for k, v in sorted(result.counters.items())))
    print(run_line(result))
    for violation in result.violations:
        print(f"  {violation}")


def main(raw: list[str]) -> int:
    arguments = parse(raw)
    if arguments.faults:
        print("\n".join(ALL_FAULTS))
        return 0
    options = Options(
        without=names(arguments.without),
        only=None if arguments.only is None else names(arguments.only),
        ring_only=arguments.ring_only,
        keep_trace=arguments.trace or arguments.frames,
        frames=arguments.frames,
        memberlog=arguments.memberlog,
        stack=arguments.stack,
    )
    if arguments.seed is not None:
        result = run_seed(arguments.seed, options)
        tell(result, arguments)
        if arguments.shrink and not result.ok:
            print("it takes: " + (",".join(shrink(arguments.seed, options)) or "no fault at all"))
        return 0 if result.ok else 1
    return many(seeds_of(arguments), options, arguments)


def seeds_of(arguments: argparse.Namespace) -> Iterable[int]:
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        return range(int(first), int(last or first) + 1)
    return range(arguments.start, arguments.start + (arguments.count or 20))


def many(seeds: Iterable[int], options: Options, arguments: argparse.Namespace) -> int:
    """One line a seed, the tail of the trace for a failing one, and a summary."""
    summary = Summary()
    if arguments.jobs > 1:
        with multiprocessing.Pool(arguments.jobs) as pool:
            for line, ok, steps in pool.imap_unordered(_job, [(seed, options) for seed in seeds]):
                print(line, flush=True)
                summary.add(ok, steps)
    else:
        for seed in seeds:
            result = run_seed(seed, options)
            print(run_line(result), flush=True)
            if not result.ok:
                print("\n".join(result.trace.lines(arguments.last)))
                print("\n".join(f"  {violation}" for violation in result.violations))
            summary.add(result.ok, result.steps)
    print(summary)
    return 1 if summary.failed else 0


def _job(work: tuple[int, Options]) -> tuple[str, bool, int]:
    result = run_seed(*work)
    lines = [run_line(result), *(f"  {violation}" for violation in result.violations)]
    return "\n".join(lines), result.ok, result.steps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
