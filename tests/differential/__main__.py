"""`python -m tests.differential --seeds 1-1000`: the differences from RabbitMQ, each shrunk.

Starts a broker of ours and a node of the installed RabbitMQ, or uses running ones.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import click

from broker.options.addresses import parse_address
from tests.bench.compare.rabbitmq import MANAGEMENT, RabbitCluster, scripts
from tests.differential import lockstep, program, wire
from tools.cli.options import run_command
from tools.demo.local_cluster import LocalCluster


def two_brokers(stack: ExitStack, folder: Path, sbin: Path) -> lockstep.Lockstep:
    """A broker of ours without a data directory, and a node of RabbitMQ."""
    ours = stack.enter_context(
        LocalCluster(folder / "ours", 1, "differential", stores=False, management=True)
    )
    theirs = RabbitCluster(folder / "theirs", sbin, 1, [MANAGEMENT])
    stack.callback(theirs.close)
    ours.start()
    apis = ours[0].management, theirs.management
    return lockstep.Lockstep(ours[0].address, theirs.addresses[0], apis)


def compare(brokers: lockstep.Lockstep, seeds: range) -> list[str]:
    """The programs that differ, shrunk, in words."""
    found, rules, steps, began = [], Counter[str](), 0, time.monotonic()
    for seed in seeds:
        whole = program.program(seed)
        result = brokers.run(whole)
        rules, steps = rules + result.rules, steps + result.steps
        difference = result.difference and brokers.holds(whole)
        if difference:
            small = brokers.smallest(whole, difference)
            difference = brokers.holds(small) or difference  # if waiting less made it too small
            lines = [f"seed {seed}:", *(f"  {step!r}," for step in small.steps)]
            found.append("\n".join([*lines, str(difference)]))
            click.echo(found[-1])
    took = time.monotonic() - began
    click.echo(f"{len(seeds)} programs, {steps} steps, {took:.0f} s: {len(found)} differ")
    for name, count in rules.most_common():
        click.echo(f"  {count} times by rule: {name}")
    return found


@click.command()
@click.option("--seeds", default="1-100", metavar="A-B", help="the programs to run")
@click.option(
    "--wire", "of_wire", is_flag=True, help="send bytes that no library sends, instead of programs"
)
@click.option("--rabbitmq", default="", help="the folder of RabbitMQ's scripts")
@click.option(
    "--at",
    nargs=2,
    default=None,
    metavar="OURS THEIRS",
    help="running brokers, with their management APIs at these ports + 10000",
)
def main(seeds: str, of_wire: bool, rabbitmq: str, at: tuple[str, str] | None) -> int:
    """Run the same random programs at our broker and at RabbitMQ."""
    first, _, last = seeds.partition("-")
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        if at:
            ours, theirs = map(parse_address, at)
            apis = [one._replace(port=one.port + 10_000) for one in (ours, theirs)]
            brokers = lockstep.Lockstep(ours, theirs, apis)
        else:
            brokers = two_brokers(stack, Path(root), scripts(rabbitmq))
        if of_wire:
            found = brokers.wire()
            click.echo("\n".join(map(str, found)) or f"{len(wire.CASES)} cases as they should be")
            return 1 if found else 0
        return 1 if compare(brokers, range(int(first), int(last or first) + 1)) else 0


if __name__ == "__main__":
    run_command(main)
