"""The cost of checking member logs, beside simpler ways to compute one part of it.

    python -m tests.bench.verify --records 1000000,10000000 [--engines fast,plain,check]
    python -m tests.bench.verify --logs DIRECTORY [--engines fast,check]

For each size logs of about that many records of each of three members are written, with one
randomly planted fault; a record is a row of the log, such as a batch, a confirm, a move of a
message.  A hundred million need 11 GB below --scratch.  With --logs the logs are those that brokers
wrote, which should be consistent.  Each engine runs in its own process over the same files, so that
none is warm:

    fast     qpid-cluster-verify --fast: only the ends of segments
    python   one process: the same item, state and moves at each position, in a dict
    duckdb   the same in DuckDB, from the same parser (pip install duckdb)
    plain    the same as one plain group-by in Spark
    check    all checks of qpid-cluster-verify, in Spark

CPU time and memory are those of all processes of an engine, as the kernel accounts them (Linux),
and the peak is the resident memory of Java and of Python; on a busy machine CPU time is more
meaningful than wall time.  The wall time of an engine excludes the start of Spark and of Python.
Exit status 1 if an engine that reads every record misses the fault, or finds anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow
from xxhash import xxh3_64_intdigest

from broker.memberlog.reader import read_segment
from broker.memberlog.records import Batch, RecordKind
from tests.bench.support.verifylogs import Planted, write_logs
from tools.verify.fast import compare_ends
from tools.verify.input.rows import signed
from tools.verify.input.segments import find_segments
from tools.verify.job import verify
from tools.verify.spark_session import spark_session

ENGINES = ("fast", "python", "duckdb", "plain", "check")
MASTER = f"local[{os.cpu_count() or 1}]"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
FACTS = ("last", "chain", "outcomes", "root", "seq", "moves_hash")
Fact = tuple[int, bytes, bytes, int, int, int]


class Outcome(NamedTuple):
    """An engine's findings: the differing positions, and its own seconds."""

    found: list[int]
    seconds: float  # without the start of the process and of Spark
    coverage: tuple[str, ...] = ()  # by check: how much it examined


class Cost(NamedTuple):
    """The resources that an engine used."""

    cpu: float  # seconds
    java: int  # bytes at the peak
    python: int


def facts(directory: Path) -> Iterator[Fact]:
    """Yield the values that must be equal at each position."""
    for path in find_segments([directory]):
        for entry in read_segment(path.read_bytes(), str(path)):
            record = entry.record
            if isinstance(record, Batch):
                last = record.first_position + record.commands - 1
                moves = signed(xxh3_64_intdigest(record.moves))
                yield last, record.chain, record.outcomes, signed(record.root), record.seq, moves


def by_fast(directory: Path) -> Outcome:
    """Compare only the ends of segments."""
    began = time.perf_counter()
    compare_ends([directory])
    return Outcome([], time.perf_counter() - began)


def by_python(directory: Path) -> Outcome:
    """Compare in a dict."""
    began = time.perf_counter()
    seen: dict[int, tuple[bytes, bytes, int, int, int]] = {}
    wrong = {one[0] for one in facts(directory) if seen.setdefault(one[0], one[1:]) != one[1:]}
    return Outcome(sorted(wrong), time.perf_counter() - began)


def by_duckdb(directory: Path) -> Outcome:
    """Compare in DuckDB, which gets Arrow batches."""
    import duckdb  # type: ignore[import-not-found,unused-ignore]

    began = time.perf_counter()
    number, some = pyarrow.int64(), pyarrow.binary()
    kinds = (number, some, some, number, number, number)
    schema = pyarrow.schema(list(zip(FACTS, kinds, strict=True)))

    def batches() -> Iterator[pyarrow.RecordBatch]:
        rows: list[Fact] = []
        for fact in facts(directory):
            rows.append(fact)
            if len(rows) == 1 << 16:
                yield _arrow(rows, schema)
                rows = []
        if rows:
            yield _arrow(rows, schema)

    connection = duckdb.connect()
    connection.register("facts", pyarrow.RecordBatchReader.from_batches(schema, batches()))
    differ = " or ".join(f"min({name}) <> max({name})" for name in FACTS[1:])
    found = connection.execute(f"select last from facts group by last having {differ}").fetchall()
    return Outcome(sorted(row[0] for row in found), time.perf_counter() - began)


def _arrow(rows: list[Fact], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    columns = list(zip(*rows, strict=True))
    arrays = [
        pyarrow.array(column, type=one.type) for column, one in zip(columns, schema, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def by_plain(directory: Path) -> Outcome:
    """Compare with one group-by in Spark."""
    from pyspark.sql import functions as f

    from tools.verify.input.source import read_table

    segments = find_segments([directory])
    with spark_session(MASTER, verbose=False) as spark:
        began = time.perf_counter()
        rows = read_table(spark, "records", segments)
        differ = f.lit(False)
        for name in FACTS[1:]:
            differ = differ | (f.min(name) != f.max(name))
        grouped = rows.filter(f.col("kind") == int(RecordKind.BATCH)).groupBy("last")
        found = grouped.agg(differ.alias("differ")).filter("differ").select("last").collect()
        return Outcome(sorted(row[0] for row in found), time.perf_counter() - began)


def by_check(directory: Path) -> Outcome:
    """Run all checks."""
    with spark_session(MASTER, verbose=False) as spark:
        began = time.perf_counter()
        report = verify(spark, [directory])
        found = [finding.position for finding in report.findings]
        coverage = tuple(
            f"{one.promise}, {one.check}: {one.rows:,} {one.of}" for one in report.checks
        )
        return Outcome(found, time.perf_counter() - began, coverage)


def run(engine: str, directory: Path) -> tuple[Outcome, Cost]:
    """Run an engine in its own process; return its outcome and cost."""
    at = str(directory)
    command = [sys.executable, "-m", "tests.bench.verify", "--engine", engine, "--at", at]
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(command, stdout=output)
        cpu: dict[int, float] = {}
        java = python = 0
        while child.poll() is None:
            used = list(_usage(child.pid))
            cpu |= {one.pid: one.seconds for one in used}
            java = max(java, sum(one.held for one in used if one.name == "java"))
            python = max(python, sum(one.held for one in used if one.name != "java"))
            time.sleep(0.1)
        if child.returncode:
            raise RuntimeError(f"{engine} ended with {child.returncode}")
        output.seek(0)
        outcome = Outcome(*json.load(output))
    return outcome, Cost(sum(cpu.values()), java, python)


class _Used(NamedTuple):
    pid: int
    name: str
    seconds: float
    held: int  # private and shared resident bytes


def _usage(root: int) -> Iterator[_Used]:
    """Yield the resources that a process and its descendants use."""
    parents: dict[int, int] = {}
    seen: list[_Used] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = tail.split()
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
            parents[int(entry.name)] = int(fields[1])
            name = head.partition("(")[2]
            seen.append(_Used(int(entry.name), name, seconds, int(fields[21]) * PAGE))
    for one in seen:
        above = one.pid
        while above not in (0, root):
            above = parents.get(above, 0)
        if above == root:
            yield one


def measure(
    directory: Path, engines: list[str], planted: Planted | None = None
) -> dict[str, float]:
    """Run the engines over logs, print a table; return records per second by engine.

    Engines that missed the planted fault, or found another one, are left out.
    """
    ends = compare_ends([directory])
    rows = ends.records + ends.moves
    print(
        f"\n{rows:,} records ({ends.moves:,} of them moves), {ends.segments} segments, "
        f"{ends.bytes / 1e6:,.0f} MB; planted: {planted}\n"
    )
    print("| engine | wall s | CPU s | records/s | per core | Java MB | Python MB | the fault |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rates: dict[str, float] = {}
    for engine in engines:
        outcome, cost = run(engine, directory)
        rate = rows / max(outcome.seconds, 1e-6)
        right, told = _judged(outcome.found, planted, engine)
        print(
            f"| {engine} | {outcome.seconds:.2f} | {cost.cpu:.1f} | {rate:,.0f} | "
            f"{rows / max(cost.cpu, 0.01):,.0f} | {cost.java / 1e6:,.0f} | "
            f"{cost.python / 1e6:,.0f} | {told} |",
            flush=True,
        )
        if right:
            rates[engine] = rate
        for line in outcome.coverage:
            print(f"  {line}", file=sys.stderr)
    if {"plain", "check"} <= rates.keys():
        share = rates["check"] / rates["plain"]
        print(f"\nAll checks run at {share:.2f} of the speed of one plain group-by.")
    return rates


def _judged(found: list[int], planted: Planted | None, engine: str) -> tuple[bool, str]:
    """Return whether an engine found what is there, and nothing else; and words for the table."""
    # The plain engines name the end of the batch, up to 8 commands later.
    wrong = [at for at in found if planted is None or abs(planted.position - at) >= 8]
    if wrong:
        return False, f"FALSE ALARM at {wrong[0]}"
    if planted is None or found:
        return True, "found" if found else "none"
    return (True, "not looked for") if engine == "fast" else (False, "MISSED")


def main() -> int:
    """Run the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records",
        default="1000000",
        help="records of each member; several sizes separated by commas",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the fault; 0 = from the clock")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--scratch", type=Path, help="the directory of the temporary logs")
    parser.add_argument("--logs", type=Path, help="logs to check, in place of written ones")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        outcome: Outcome = _BY[options.engine](options.at)
        print(json.dumps(outcome))
        return 0
    engines = options.engines.split(",")
    if options.logs:
        return int(len(measure(options.logs, engines)) < len(engines))
    missed = False
    before: dict[str, float] = {}
    for size in map(int, options.records.split(",")):
        seed = options.seed or time.time_ns() % 1_000_000
        with tempfile.TemporaryDirectory(prefix="bench-verify-", dir=options.scratch) as scratch:
            began = time.perf_counter()
            planted = write_logs(Path(scratch), size, seed)
            print(f"\nwritten in {time.perf_counter() - began:.0f} s; seed {seed}")
            rates = measure(Path(scratch), engines, planted)
        missed |= len(rates) < len(engines)
        for engine in before.keys() & rates.keys():
            print(f"{engine}: {rates[engine] / before[engine]:.2f} of the speed at the size before")
        before = rates
    return 1 if missed else 0


_BY = {
    "fast": by_fast,
    "python": by_python,
    "duckdb": by_duckdb,
    "plain": by_plain,
    "check": by_check,
}

if __name__ == "__main__":
    sys.exit(main())
