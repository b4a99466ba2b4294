"""How long a message takes on a ring whose members are far from each other, in virtual time.

    python -m tests.bench.ringturns.distance
    python -m tests.bench.ringturns.distance --far 0.5 --far 2 --messages 1000

Three members in one process, whose frames take `--far` milliseconds longer each way than between
processes of one machine; a commit takes 0.6 ms, a turn of a member no time.  A producer at one
member sends, and a consumer acknowledges each message, at the same member or at another one.
*ordered* is the time until the producer's member may deliver a message, *confirmed* the time until
it knows that a majority has it on disk.  The same in every run of one tree.
"""

from __future__ import annotations

import statistics
import sys

import click

from tests.bench.ringturns.members import RingMember, World, cluster
from tools.cli.options import run_command

PRODUCER = "b"
WARM_UP = 50
SEED = 1
COLUMNS = "{:>8} {:>10} {:>8} {:>9} {:>6} {:>11} {:>6}"


class Sent:
    """The messages of the producer: how long each took to be ordered, and to be confirmed."""

    def __init__(self, world: World, member: RingMember) -> None:
        self.ordered: list[float] = []
        self.confirmed: list[float] = []
        self._world, self._member = world, member
        self._number = 0
        self._waiting: dict[bytes, float] = {}
        self._positions: list[tuple[int, float]] = []
        member.applied = self._applied
        member.durable = self._durable

    def send(self) -> None:
        """Send the next message."""
        self._number += 1
        payload = self._number.to_bytes(300)
        self._waiting[payload] = self._world.now
        self._member.submit(payload)

    def _applied(self, payload: bytes, position: int) -> None:
        if (began := self._waiting.pop(payload, None)) is not None:
            self.ordered.append(self._world.now - began)
            self._positions.append((position, began))

    def _durable(self, position: int) -> None:
        while self._positions and self._positions[0][0] <= position:
            self.confirmed.append(self._world.now - self._positions.pop(0)[1])


def measured(far_s: float, consumer: str, rate: int, messages: int) -> Sent:
    """Send messages, at a rate or (0) each when the last one is confirmed."""
    world, members = cluster(SEED, far_s)
    members[consumer].acks = True
    sent = Sent(world, members[PRODUCER])
    for count in range(1, WARM_UP + messages + 1):
        sent.send()
        if rate:
            world.run_for(world.rng.uniform(0.5, 1.5) / rate)
        else:
            world.run(lambda: len(sent.confirmed) >= count)  # noqa: B023
    world.run(lambda: len(sent.confirmed) == WARM_UP + messages)
    world.close()
    del sent.ordered[:WARM_UP], sent.confirmed[:WARM_UP]
    return sent


def row(far_ms: float, consumer: str, rate: int, messages: int) -> str:
    sent = measured(far_ms / 1000, consumer, rate, messages)
    cells = []
    for times in (sent.ordered, sent.confirmed):
        twentieths = statistics.quantiles(times, n=20)
        cells += [f"{1000 * twentieths[9]:.1f}", f"{1000 * twentieths[18]:.1f}"]
    place = "beside" if consumer == PRODUCER else "apart"
    return COLUMNS.format(far_ms, place, rate or "one", *cells)


@click.command(name="distance", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--far", multiple=True, type=click.FloatRange(0), default=(0.0, 0.5, 1.0, 2.0),
    help="Milliseconds, one way; may be repeated.",
)  # fmt: skip
@click.option(
    "--rate", multiple=True, type=click.IntRange(0), default=(0, 100, 1000),
    help="Messages a second; 0: each when the last one is confirmed.",
)  # fmt: skip
@click.option("--messages", default=300, type=click.IntRange(20), help="Of each row.")
def main(far: tuple[float, ...], rate: tuple[int, ...], messages: int) -> None:
    """How long a message takes between distant members, in virtual milliseconds."""
    heads = ("far", "consumer", "rate", "ordered", "p95", "confirmed", "p95")
    sys.stdout.write(COLUMNS.format(*heads) + "\n")
    for far_ms in far:
        for consumer in (PRODUCER, "c"):
            for each in rate:
                sys.stdout.write(row(far_ms, consumer, each, messages) + "\n")


if __name__ == "__main__":
    run_command(main)
