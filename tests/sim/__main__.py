"""`python -m tests.sim`: replay one seed, shrink it, or run many; see docs/SIMULATOR.md."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.sim.run import gate, shrink
from tests.sim.run.campaign import (
    STACKS,
    Options,
    Outcome,
    Summary,
    collect_seldom,
    command_for,
    options_for,
    outcome_of,
    run_line,
    run_seed,
)
from tests.sim.run.coverage import lines as coverage_lines
from tests.sim.run.plan import ALL_FAULTS
from tests.sim.run.runner import Result

LINES_ON_FAILURE = 60


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and report on it")
    parser.add_argument("--seeds", help="run the seeds A-B")
    parser.add_argument("--count", type=int, help="run this many seeds, from --start")
    parser.add_argument("--start", type=int, default=1, help="first seed of --count")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run seeds in")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    parser.add_argument("--frames", action="store_true", help="with --trace: frames as well")
    parser.add_argument("--last", type=int, default=LINES_ON_FAILURE, help="trace lines shown")
    parser.add_argument("--without", default="", help="faults to leave out, separated by commas")
    parser.add_argument("--only", default=None, help="the only faults to keep, separated by commas")
    parser.add_argument(
        "--stack", choices=(*STACKS, "mixed"), default="replica",
        help="the layers above the ring: none, the primary layer over a toy log, real brokers,"
        " brokers on a ring without frames whose view changes all the time, process groups;"
        " mixed is replica, with brokers on every third seed",
    )  # fmt: skip
    parser.add_argument("--ring-only", action="store_true", help="the same as --stack ring")
    parser.add_argument(
        "--coverage", action="store_true", help="show which faults hit members in which stages"
    )
    parser.add_argument(
        "--shrink", type=int, metavar="SEED", help="find the smallest scenario that still fails"
    )
    parser.add_argument(
        "--to", type=Path, default=None, help="with --shrink: write the scenario to this file"
    )
    parser.add_argument(
        "--budget", type=float, default=300.0, help="with --shrink: time limit in seconds"
    )
    parser.add_argument("--replay", type=Path, default=None, help="run a file that --shrink wrote")
    parser.add_argument("--gate", type=int, metavar="SEEDS", help="the run of CI: all stacks, fixed"
                        " and fresh seeds until so many count, a fifth run twice")  # fmt: skip
    parser.add_argument("--again-by", default=sys.executable, metavar="PYTHON", help="with --gate: "
                        "another interpreter for the repeated seeds")  # fmt: skip
    parser.add_argument("--soak", type=float, metavar="HOURS", help="run fresh seeds for this long")
    parser.add_argument("--ledger", type=Path, default=Path("soak.jsonl"), help="of --soak")
    parser.add_argument(
        "--verbose", action="store_true", help="with --gate: print a line for each seed"
    )
    parser.add_argument("--memberlog", default=None, help="write member logs into this directory")
    parser.add_argument(
        "--ringtrace", default=None, help="write traces for tools.commands.ringtrace there"
    )
    parser.add_argument("--faults", action="store_true", help="list all faults")
    return parser.parse_args(arguments)


def names(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    unknown = [name for name in found if name not in ALL_FAULTS]
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(unknown)}")
    return found


def tell(result: Result, arguments: argparse.Namespace) -> None:
    """Print everything about one run."""
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
    if arguments.gate is not None:
        return gate.gate(
            arguments.gate, arguments.jobs, arguments.verbose, arguments.coverage,
            arguments.again_by,
        )  # fmt: skip
    if arguments.soak is not None:
        first = arguments.start if arguments.start > 1 else None
        return gate.soak(arguments.soak, arguments.jobs, arguments.ledger, first)
    if arguments.shrink is not None:
        return shrink_seed(arguments)
    if arguments.replay is not None:
        result = shrink.read(arguments.replay).run(arguments.trace)
        tell(result, arguments)
        return 0 if result.ok else 1
    if arguments.ring_only:
        arguments.stack = "ring"
    options = replace(
        options_for(arguments.stack),
        without=names(arguments.without),
        only=None if arguments.only is None else names(arguments.only),
        keep_trace=arguments.trace or arguments.frames,
        frames=arguments.frames,
        memberlog=arguments.memberlog,
        ringtrace=arguments.ringtrace,
    )
    if arguments.seed is not None:
        result = run_seed(arguments.seed, options)
        tell(result, arguments)
        return 0 if result.ok else 1
    return many(seeds_of(arguments), options, arguments)


def shrink_seed(arguments: argparse.Namespace) -> int:
    """Print the smallest scenario that still fails, and the command that runs it."""
    shrinker = shrink.Shrinker(arguments.budget, lambda text: print(text, flush=True))
    found = shrinker.shrink(arguments.shrink, arguments.stack)
    if found is None:
        print(f"{command_for(arguments.stack, arguments.shrink)} does not fail")
        return 1
    path = arguments.to or Path(f"{arguments.stack}-{arguments.shrink}.json")
    shrink.write(found, path)
    result = found.run()
    print("\n".join(result.trace.lines(arguments.last)))
    print(run_line(result))
    print("\n".join(f"  {violation}" for violation in result.violations))
    print(f"again: python -m tests.sim --replay {path} --trace")
    return 0


def seeds_of(arguments: argparse.Namespace) -> Iterable[int]:
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        return range(int(first), int(last or first) + 1)
    return range(arguments.start, arguments.start + (arguments.count or 20))


def many(seeds: Iterable[int], options: Options, arguments: argparse.Namespace) -> int:
    """Print one line a seed, the tail of the trace for a failing one, and a summary."""
    summary = Summary()
    work = [(seed, options, arguments.stack, arguments.last) for seed in seeds]
    if arguments.jobs > 1:
        with multiprocessing.Pool(arguments.jobs) as pool:
            for text, outcome in pool.imap_unordered(_job, work):
                print(text, flush=True)
                summary.add(outcome)
    else:
        for one in work:
            text, outcome = _job(one)
            print(text, flush=True)
            summary.add(outcome)
    if arguments.coverage:
        print("\n".join(coverage_lines(summary.pairs)))
    print(summary)
    for failed in summary.failed:
        print(f"again: {command_for(failed.stack, failed.seed)}")
    return 1 if summary.failed else 0


def _job(work: tuple[int, Options, str, int]) -> tuple[str, Outcome]:
    seed, options, stack, last = work
    result = run_seed(seed, options)
    lines = [run_line(result)]
    if not result.ok:
        lines += [*result.trace.lines(last), *(f"  {violation}" for violation in result.violations)]
    return "\n".join(lines), outcome_of(stack, result)


if __name__ == "__main__":
    collect_seldom()
    sys.exit(main(sys.argv[1:]))
