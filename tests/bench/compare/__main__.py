"""Workloads of `tests.bench.load` against our brokers and RabbitMQ's, in turns on one machine.

Three brokers of each system run all the time on loopback.  Each round runs every workload on every
system, one after the other and in another order each round, so that other load on the machine
affects all alike.  The figures are medians of the rounds; only ratios carry over to another
machine.  With `--far` each broker has a host of its own, with a distance between them, and the
clients are on the first one.  A tree of another commit is a system too (`--tree`), to measure a
change; and so are these brokers run by another interpreter (`--python`).
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import click

from broker.options.addresses import Address
from tests.bench.cluster import cpu_seconds
from tests.bench.compare.hosts import DistantHosts
from tests.bench.compare.rabbitmq import MIRRORED, RabbitCluster, scripts
from tests.bench.compare.works import WORKS, Work, chosen
from tests.bench.load import run_load
from tests.commits import commit
from tests.system.support.network_namespaces import CLIENT_PORT, SpacedBroker, SpacedCluster
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.demo.local_cluster import HOST, BrokerProcess, ClusterTrouble, LocalCluster
from vsync.types import record

SYSTEMS = ("ours", "quorum", "mirrored")
COLUMNS = (
    ("messages/s", 0), ("confirm p50", 2), ("p99", 2), ("end to end p50", 2), ("cores", 2),
    ("CPU-us a message", 0), ("flushes a message", 3),
)  # fmt: skip
Row = dict[str, object]


@record
class System:
    """A running cluster, and the kind of queue that is measured there."""

    name: str
    addresses: tuple[Address, ...]
    pids: Callable[[], list[int]]
    queue: str = "compare"
    queue_type: str = ""
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    """Where its clients run."""


class OtherBroker(BrokerProcess):
    """A broker of the sources in another folder, or run by another interpreter."""

    tree = python = ""

    def program(self) -> list[str]:
        where = ["env", f"--chdir={self.tree}", f"PYTHONPATH={self.tree}"] if self.tree else []
        return [
            *where,
            *([self.python, "-m", "tools.commands.qpidd"] if self.python else super().program()),
        ]


class OtherSpacedBroker(SpacedBroker, OtherBroker):
    """The same on a host of its own."""


def our_cluster(
    stack: ExitStack, folder: Path, name: str, far_ms: float, tree: str = "", python: str = ""
) -> System:
    """Start brokers of this tree, or of another one, or run by another interpreter."""
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    addresses: tuple[Address, ...]
    if far_ms:
        hosts = DistantHosts(folder, far_ms)
        cluster: LocalCluster = SpacedCluster(folder / name, hosts, OtherSpacedBroker)
        stack.enter_context(cluster)
        inside = hosts.inside
        addresses = (Address(HOST, CLIENT_PORT),)
    else:
        cluster = stack.enter_context(
            LocalCluster(folder / name, 3, "compare", log_level="warning")
        )
        cluster.members = [
            OtherBroker(one.label, folder / name, one.address.port, one.arguments)
            for one in cluster.members
        ]
        addresses = tuple(member.address for member in cluster.members)
    for member in cluster.members:
        assert isinstance(member, OtherBroker)
        member.tree, member.python = tree, python
    cluster.start()
    pids = [member.pid for member in cluster.members]
    return System(name, addresses, lambda: pids, inside=inside)


def started(
    stack: ExitStack,
    folder: Path,
    names: Sequence[str],
    trees: Sequence[str],
    pythons: Sequence[str],
    rabbitmq: str,
    far_ms: float,
) -> list[System]:
    """Start all requested systems; `far_ms`: how long a frame takes between their hosts."""
    systems: list[System] = []
    theirs = [name for name in names if name != "ours"]
    sbin = scripts(rabbitmq) if theirs else None
    if "ours" in names:
        systems.append(our_cluster(stack, folder, "ours", far_ms))
    for number, tree in enumerate(trees, 1):
        where = str(Path(tree).resolve())
        systems.append(our_cluster(stack, folder, f"tree-{number}", far_ms, where))
    for number, python in enumerate(pythons, 1):
        systems.append(our_cluster(stack, folder, f"python-{number}", far_ms, python=python))
    if sbin is not None:
        hosts = stack.enter_context(DistantHosts(folder, far_ms)) if far_ms else None
        rabbit = RabbitCluster(folder / "rabbitmq", sbin, hosts=hosts)
        stack.callback(rabbit.close)
        inside = hosts.inside if hosts else nullcontext
        addresses = rabbit.addresses[:1] if hosts else rabbit.addresses
        kinds = {"quorum": ("compare", "quorum"), "mirrored": (MIRRORED, "")}
        for name in theirs:
            queue, queue_type = kinds[name]
            label = f"{name} {rabbit.version}"
            systems.append(System(label, addresses, lambda: rabbit.pids, queue, queue_type, inside))
    return systems


def disk_flushes(folder: Path) -> float:
    """Flushes of the device below this folder since the machine started; 0 where none counts."""
    device = folder.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return float(fields[18]) if len(fields) > 18 else 0.0
    return 0.0


def measured(system: System, work: Work, seconds: float, folder: Path) -> Row:
    """One run of one workload on one system."""

    def used() -> dict[str, float]:
        return {"broker_cpu_s": cpu_seconds(system.pids()), "flushes": disk_flushes(folder)}

    queue = f"{system.queue}-{time.monotonic_ns()}"
    load = work.load(system.addresses, queue, system.queue_type, seconds)
    row: Row = {"system": system.name, "work": str(work), "at": time.time()}
    with system.inside():
        row |= run_load(load, used=used)
    return row


def figures(row: Row) -> list[float | None]:
    """One run, in the order of COLUMNS; None where there is nothing to measure."""
    confirm, end_to_end = row["confirm_ms"], row["end_to_end_ms"]
    assert isinstance(confirm, dict)
    assert isinstance(end_to_end, dict)
    messages, seconds, cpu, flushes = (
        float(str(row[name])) for name in ("messages", "seconds", "broker_cpu_s", "flushes")
    )
    each = (lambda count: count / messages) if messages else (lambda _count: None)
    return [
        messages / seconds, confirm.get("p50"), confirm.get("p99"), end_to_end.get("p50"),
        cpu / seconds, each(cpu * 1e6), each(flushes),
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Medians of each workload and system, as Markdown, with ratios to the first system."""
    names = [name for name, _ in COLUMNS]
    lines = ["| work | system | " + " | ".join(names) + " | times the first |"]
    lines.append("| --- " * (len(COLUMNS) + 3) + "|")
    for work in dict.fromkeys(row["work"] for row in rows):
        first = 0.0
        for system in dict.fromkeys(row["system"] for row in rows):
            runs = [figures(r) for r in rows if r["work"] == work and r["system"] == system]
            if not runs:
                continue
            cells = [
                [one for one in column if one is not None] for column in zip(*runs, strict=True)
            ]
            medians = [statistics.median(cell) if cell else None for cell in cells]
            texts = [
                "" if median is None else f"{median:,.{digits}f}"
                for median, (_, digits) in zip(medians, COLUMNS, strict=True)
            ]
            rate = medians[0] or 0.0
            first = first or rate
            ratio = f"{rate / first:.2f}" if first else ""
            lines.append(f"| {work} | {system} | {' | '.join(texts)} | {ratio} |")
    return "\n".join(lines)


@click.command(name="compare", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--work", multiple=True, type=click.Choice([*WORKS]), help="One or several workloads."
)
@click.option("--size", multiple=True, type=click.IntRange(20, 4_194_304), help="Body bytes.")
@click.option(
    "--window", multiple=True, type=click.IntRange(1), help="Unconfirmed messages per producer."
)
@click.option(
    "--rate", multiple=True, type=click.IntRange(0), help="Messages/s; 0 = as many as possible."
)
@click.option(
    "--persistent/--transient", default=None, help="Overrides the workload's own setting."
)
@click.option("--system", multiple=True, type=click.Choice(SYSTEMS), default=("ours", "quorum"))
@click.option(
    "--tree", multiple=True, metavar="DIR", help="Also measure the brokers of these sources."
)
@click.option(
    "--python", multiple=True, metavar="EXE", help="Also measure brokers run by this interpreter."
)
@click.option(
    "--far", default=0.0, type=click.FloatRange(0, 100), metavar="MS",
    help="Each broker on its own host, this many milliseconds from the others, one way; as root.",
)  # fmt: skip
@click.option("--rabbitmq", default="", metavar="DIR", help="RabbitMQ's own scripts.")
@click.option("--rounds", default=3, type=click.IntRange(1))
@click.option("--seconds", default=5.0, type=click.FloatRange(0.1), help="Seconds of each run.")
@click.option("--raw", metavar="FILE", help="Append every run as a line of JSON.")
def main(
    work: Sequence[str],
    size: Sequence[int],
    window: Sequence[int],
    rate: Sequence[int],
    persistent: bool | None,
    system: Sequence[str],
    tree: Sequence[str],
    python: Sequence[str],
    far: float,
    rabbitmq: str,
    rounds: int,
    seconds: float,
    raw: str | None,
) -> None:
    """Run workloads on systems in turns, and print medians and ratios."""
    works = chosen(work, size, window, rate, persistent)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as name,
        ended_by(signal.SIGTERM),
        ExitStack() as stack,
    ):
        folder = Path(name)
        try:
            names = list(dict.fromkeys(system))
            systems = started(stack, folder, names, tree, python, rabbitmq, far)
        except ClusterTrouble as trouble:
            raise ToolError(str(trouble)) from None
        turns = [(number, one) for number in range(rounds) for one in works]
        for number, one in turns:
            for place in range(len(systems)):
                row = measured(systems[(number + place) % len(systems)], one, seconds, folder)
                row |= {"round": number, "commit": commit()}
                rows.append(row)
                if raw:
                    with Path(raw).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    order = [one.name for one in systems]
    rows.sort(key=lambda row: order.index(str(row["system"])))
    print(
        f"commit {commit()}, Python {platform.python_version()}, {os.cpu_count()} CPUs,"
        f" {rounds} rounds of {seconds:g} s, milliseconds; flushes are those of the whole disk"
    )
    print(table(rows))


if __name__ == "__main__":
    run_command(main)
