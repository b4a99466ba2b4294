"""Run the check over the logs of simulated clusters under faults: it must accuse none of them.

    python -m tests.system.false_alarms --seeds 1-100 [--stack oracle]

Each seed's brokers write their member logs; one Spark session checks them all, one cluster after
the other.  A seed that the simulator itself finds wrong does not count.  Prints what was accused,
and the number of seeds, lives and records looked at; exit status 1 when there was an alarm.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.sim.campaign import Options, run_seed
from tools.verify.findings import BadInput
from tools.verify.job import Report, verify
from tools.verify.session import spark_session


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-20", help="A-B, both included")
    parser.add_argument("--stack", choices=("broker", "oracle"), default="oracle")
    parser.add_argument("--keep", type=Path, help="keep the logs of alarms in this directory")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    looked = lives = records = alarms = 0
    began = time.monotonic()
    with spark_session("local[2]", verbose=False) as spark:
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="false-alarms-") as scratch:
                logs = Path(scratch)
                result = run_seed(seed, Options(stack=arguments.stack, memberlog=str(logs)))
                if not result.ok:
                    print(f"seed {seed}: the simulation itself failed")
                    continue
                try:
                    report = verify(spark, [logs])
                except BadInput as error:
                    print(f"seed {seed}: no verdict: {error}")
                    continue
                looked += 1
                lives += report.counts.lives
                records += report.counts.records
                if not report.consistent:
                    alarms += 1
                    _tell(seed, report)
                    if arguments.keep is not None:
                        shutil.copytree(logs, arguments.keep / str(seed), dirs_exist_ok=True)
    took = time.monotonic() - began
    print(f"{looked} clusters, {lives} lives, {records} records: {alarms} alarms in {took:.0f} s")
    return 1 if alarms else 0


def _tell(seed: int, report: Report) -> None:
    print(f"seed {seed}: {len(report.findings)} findings")
    for finding in report.findings[:4]:
        print(f"    {finding}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
