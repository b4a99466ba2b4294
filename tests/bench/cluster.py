"""Throughput and latency of three brokers on this machine: `make bench`.

Starts three brokers with stores in a temporary directory and runs the standard matrix: 256 B
persistent messages, 1/1 and 4/4 producers and consumers, confirm windows of 100 and 1000, prefetch
100.  The cells run one after the other on the same cluster.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import tempfile
from pathlib import Path

import click

from tests.bench.load import BACKLOG_MESSAGES, run_load, sentence
from tests.bench.support.load_clients import Load
from tests.commits import commit
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.demo.local_cluster import ClusterTrouble, LocalCluster

MATRIX = [(1, 100), (1, 1000), (4, 100), (4, 1000)]
"""Producers (and as many consumers), and the confirm window of each producer."""


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes; 0 where unknown."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return 0.0
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def matrix(cluster: LocalCluster, seconds: float, body_bytes: int) -> list[dict[str, object]]:
    """Run every cell and add the brokers' own resource use."""
    reports = []
    pids = [member.pid for member in cluster.members]
    for clients, window in MATRIX:
        load = Load(
            addresses=tuple(member.address for member in cluster.members),
            producers=clients,
            consumers=clients,
            window=window,
            prefetch=100,
            body_bytes=body_bytes,
            persistent=True,
            rate=0.0,
            backlog=BACKLOG_MESSAGES,
            seconds=seconds,
            warmup_seconds=2.0,
            queue=f"bench-{clients}-{window}",
        )
        before = cpu_seconds(pids)
        report = run_load(load)
        used = cpu_seconds(pids) - before
        total = report["total_messages"]
        assert isinstance(total, int)
        report["brokers_cpu_us_per_message"] = round(used / total * 1e6, 1) if total else None
        report["commit"], report["cpus"] = commit(), os.cpu_count()
        reports.append(report)
    return reports


@click.command(name="bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=10.0, help="Seconds of measurement per cell.")
@click.option("--size", default=256, help="Body bytes.")
@click.option("--memory", is_flag=True, help="Brokers without a data directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def bench(seconds: float, size: int, memory: bool, as_json: bool) -> None:
    """Start three brokers, run the standard matrix, and stop them."""
    with tempfile.TemporaryDirectory(prefix="qpid-bench-") as folder, ended_by(signal.SIGTERM):
        try:
            with LocalCluster(
                Path(folder), 3, "bench", stores=not memory, log_level="warning"
            ) as cluster:
                cluster.start()
                reports = matrix(cluster, seconds, size)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None
    if not as_json:
        print(f"commit {commit()}, Python {platform.python_version()}, {os.cpu_count()} CPUs")
    for report in reports:
        if as_json:
            print(json.dumps(report))
        else:
            print(sentence(report) + f", brokers {report['brokers_cpu_us_per_message']} CPU-us")


if __name__ == "__main__":
    run_command(bench)
