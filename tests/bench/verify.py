"""What checking member logs costs, beside simpler ways to compute one part of it.

    python -m tests.bench.verify --records 1000000 [--engines fast,python,duckdb,plain,check]

Logs of about that many records a member (three members) are written by the real writer, with one
randomly planted lie.  Each engine runs in a process of its own, over the same files:

    fast     qpid-cluster-verify --fast: only the ends of segments
    python   one process: the same item and state at each position, in a dict
    duckdb   the same in DuckDB, from the same parser (pip install duckdb)
    plain    the same as one plain group-by in Spark
    check    all checks of qpid-cluster-verify, in Spark

CPU time and memory are of all processes of an engine, as the kernel accounts them (Linux); on a
busy machine CPU time tells more than wall time.  Exit status 1 when an engine that looks at every
record does not find the lie.
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

from broker.memberlog.reader import read_segment
from broker.memberlog.records import Batch, Kind
from tests.bench.verifylogs import write_logs
from tools.verify.fast import compare_ends
from tools.verify.job import verify
from tools.verify.rows import signed
from tools.verify.segments import find_segments
from tools.verify.session import spark_session

ENGINES = ("fast", "python", "duckdb", "plain", "check")
MASTER = f"local[{os.cpu_count() or 1}]"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
Fact = tuple[int, bytes, bytes, int, int]  # position, chain, outcomes, root, seq


class Outcome(NamedTuple):
    """What an engine says: positions that differ (first, how many), and its own seconds."""

    found: list[int]
    seconds: float  # without the start of the process and of Spark


def facts(directory: Path) -> Iterator[Fact]:
    """Yield what must be the same at each position."""
    for path in find_segments([directory]):
        for entry in read_segment(path.read_bytes(), str(path)):
            record = entry.record
            if isinstance(record, Batch):
                last = record.first_position + record.commands - 1
                yield last, record.chain, record.outcomes, signed(record.root), record.seq


def by_fast(directory: Path) -> Outcome:
    """Compare the ends."""
    began = time.perf_counter()
    compare_ends([directory])
    return Outcome([], time.perf_counter() - began)


def by_python(directory: Path) -> Outcome:
    """Compare in a dict."""
    began = time.perf_counter()
    seen: dict[int, tuple[bytes, bytes, int, int]] = {}
    wrong = {one[0] for one in facts(directory) if seen.setdefault(one[0], one[1:]) != one[1:]}
    return Outcome(sorted(wrong), time.perf_counter() - began)


def by_duckdb(directory: Path) -> Outcome:
    """Compare in DuckDB, which gets Arrow batches."""
    import duckdb  # type: ignore[import-not-found,unused-ignore]

    began = time.perf_counter()
    kinds = (pyarrow.int64(), pyarrow.binary(), pyarrow.binary(), pyarrow.int64(), pyarrow.int64())
    names = ("last", "chain", "outcomes", "root", "seq")
    schema = pyarrow.schema(list(zip(names, kinds, strict=True)))

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
    differ = " or ".join(f"min({name}) <> max({name})" for name in names[1:])
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

    from tools.verify.source import read_records

    with spark_session(MASTER, verbose=False) as spark:
        began = time.perf_counter()
        rows = read_records(spark, find_segments([directory]))
        differ = f.lit(False)
        for name in ("chain", "outcomes", "root", "seq"):
            differ = differ | (f.min(name) != f.max(name))
        grouped = rows.filter(f.col("kind") == int(Kind.BATCH)).groupBy("last")
        found = grouped.agg(differ.alias("differ")).filter("differ").select("last").collect()
        return Outcome(sorted(row[0] for row in found), time.perf_counter() - began)


def by_check(directory: Path) -> Outcome:
    """Run everything."""
    with spark_session(MASTER, verbose=False) as spark:
        began = time.perf_counter()
        report = verify(spark, [directory])
        found = [finding.position for finding in report.findings]
        return Outcome(found, time.perf_counter() - began)


def run(engine: str, directory: Path) -> tuple[Outcome, float, int]:
    """Run an engine in a process of its own; return its outcome, CPU seconds and peak bytes."""
    at = str(directory)
    command = [sys.executable, "-m", "tests.bench.verify", "--engine", engine, "--at", at]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    cpu: dict[int, float] = {}
    peak = 0
    while child.poll() is None:
        used = dict(_usage(child.pid))
        cpu |= {pid: seconds for pid, (seconds, _) in used.items()}
        peak = max(peak, sum(held for _, held in used.values()))
        time.sleep(0.1)
    said = child.stdout.read()
    child.stdout.close()
    if child.returncode:
        raise RuntimeError(f"{engine} ended with {child.returncode}")
    found, seconds = json.loads(said)
    return Outcome(found, seconds), sum(cpu.values()), peak


def _usage(root: int) -> Iterator[tuple[int, tuple[float, int]]]:
    """Yield (CPU seconds, private and shared resident bytes) of a process and those below it."""
    parents: dict[int, tuple[int, float, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
            parents[int(entry.name)] = int(fields[1]), seconds, int(fields[21]) * PAGE
    for pid, (_, seconds, held) in parents.items():
        above = pid
        while above not in (0, root):
            above = parents[above][0] if above in parents else 0
        if above == root:
            yield pid, (seconds, held)


def main() -> int:
    """Run the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000, help="of each of three members")
    parser.add_argument("--seed", type=int, default=0, help="of the lie; 0 = from the clock")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        outcome: Outcome = _BY[options.engine](options.at)
        print(json.dumps(outcome))
        return 0
    seed = options.seed or time.time_ns() % 1_000_000
    missed = 0
    with tempfile.TemporaryDirectory(prefix="bench-verify-") as scratch:
        directory = Path(scratch)
        began = time.perf_counter()
        lie = write_logs(directory, options.records, seed)
        ends = compare_ends([directory])
        print(
            f"{ends.records:,} records, {ends.segments} segments, {ends.bytes / 1e6:,.0f} MB, "
            f"written in {time.perf_counter() - began:.0f} s; seed {seed}: {lie}"
        )
        print("| engine | wall s | CPU s | records/s | records/CPU s | peak MB | the lie |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for engine in options.engines.split(","):
            outcome, cpu, peak = run(engine, directory)
            # The plain ones name the position that the batch ends at, up to 8 commands on.
            hit = any(lie.position <= position < lie.position + 8 for position in outcome.found)
            told = "not looked for" if engine == "fast" else "found" if hit else "MISSED"
            missed += told == "MISSED"
            rate = ends.records / max(outcome.seconds, 1e-6)
            print(
                f"| {engine} | {outcome.seconds:.2f} | {cpu:.1f} | {rate:,.0f} | "
                f"{ends.records / max(cpu, 0.01):,.0f} | {peak / 1e6:,.0f} | {told} |",
                flush=True,
            )
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
