"""The cost of a turn of the ring, by kind of turn, in figures that no load on the machine disturbs.

    python -m tests.bench.ringturns                       # all workloads
    python -m tests.bench.ringturns --work one --cpu      # with CPU-us of a turn, too
    python -m tests.bench.ringturns --work one --profile  # which functions

A *turn* is one callback of the event loop, or one call from the application; its kind is its caller
and the frames that it sent.  `calls` are Python functions entered, `codes` the byte codes executed,
on average: equal in every run of one tree.  CPU-us are medians over the turns of a kind, of
`--rounds` runs.  `frames` is a digest of all frames sent: trees that differ only in cost have the
same one.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tests.bench.ringturns.members import RingMember, World, cluster
from vsync.wire.messages import FrameKind

if TYPE_CHECKING:
    from _typeshed import TraceFunction

MESSAGES = 300
WARM_UP = 100
PACE_S = 0.01
IDLE_S = 0.03
KINDS_SHOWN = 24


class Turns(ABC):
    """Figures of all turns, by kind."""

    def __init__(self) -> None:
        self.of: defaultdict[str, list[float]] = defaultdict(list)
        self.frames = hashlib.blake2b(digest_size=8)

    def turn(self, cause: str, work: Callable[[], None], sent: list[bytes]) -> None:
        figure = self.measure(work)
        for frame in sent:
            self.frames.update(frame)
        kinds = " ".join(FrameKind(frame[1]).name for frame in sent)
        self.of[f"{cause} > {kinds or '-'}"].append(figure)

    def typical(self, kind: str) -> float:
        """The typical cost of a turn of this kind."""
        return statistics.mean(self.of[kind])

    @property
    def digest(self) -> str:
        """A digest of all frames sent, and when: a change of cost alone leaves it as it is."""
        return self.frames.hexdigest()

    @abstractmethod
    def measure(self, work: Callable[[], None]) -> float:
        """Run a turn and return its figure."""


def is_of_the_ring(frame: FrameType) -> bool:
    """Whether it is code of the ring, or of the library on its behalf, and not of this bench."""
    return "/tests/bench/" not in frame.f_code.co_filename


class Cpu(Turns):
    """Microseconds of processor time."""

    def typical(self, kind: str) -> float:
        return statistics.median(self.of[kind])

    def measure(self, work: Callable[[], None]) -> float:
        began = time.thread_time_ns()
        work()
        return (time.thread_time_ns() - began) / 1000


class Counted(Turns):
    """Events of the interpreter while a turn runs."""

    watch: Callable[[Callable[..., Any] | None], None]
    """`sys.settrace` or `sys.setprofile`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def measure(self, work: Callable[[], None]) -> float:
        self.count = 0
        self.watch(self.told_of)
        work()
        self.watch(None)
        return self.count

    @abstractmethod
    def told_of(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        """Count an event, if it is one of those that are looked for."""


class Codes(Counted):
    """Byte codes."""

    watch = staticmethod(sys.settrace)

    def told_of(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._code if is_of_the_ring(frame) else None

    def _code(self, _: FrameType, event: str, __: object) -> TraceFunction:
        self.count += event == "opcode"
        return self._code


class Calls(Counted):
    """Python functions entered."""

    watch = staticmethod(sys.setprofile)

    def told_of(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event == "call" and is_of_the_ring(frame)


class Profiled(Turns):
    """No figures of single turns: a profile of them all."""

    def __init__(self) -> None:
        super().__init__()
        self.profile = cProfile.Profile()

    def measure(self, work: Callable[[], None]) -> float:
        self.profile.runcall(work)
        return 0.0


def one(world: World, members: dict[str, RingMember], count: int) -> None:
    """One message after the other, each when the last one is confirmed; a consumer's acks."""
    producer = members["b"]
    members["c"].acks = True
    for _ in range(count):
        wanted = producer.position + 1
        producer.submit(bytes(300))
        world.run(lambda: producer.confirmed >= wanted)  # noqa: B023


def slow(world: World, members: dict[str, RingMember], count: int) -> None:
    """A hundred messages a second."""
    members["c"].acks = True
    for _ in range(count):
        members["b"].submit(bytes(300))
        world.run_for(PACE_S * world.rng.uniform(0.5, 1.5))


def idle(world: World, _: dict[str, RingMember], count: int) -> None:
    """Nothing to do, for about as many rotations."""
    world.run_for(count * IDLE_S)


WORKS: dict[str, Callable[[World, dict[str, RingMember], int], None]] = {
    "one": one,
    "slow": slow,
    "idle": idle,
}


def run(work: str, turns: Turns, seed: int, count: int = MESSAGES) -> None:
    world, members = cluster(seed)
    one(world, members, WARM_UP)  # so that nothing is done for the first time
    for member in members.values():
        member.acks = False
    gc.collect()
    world.recorder = turns
    gc.disable()
    WORKS[work](world, members, count)
    gc.enable()
    world.close()


def told(work: str, figures: dict[str, Turns]) -> str:
    """A row for each kind, those with the most work first."""
    first = next(iter(figures.values()))
    kinds = sorted(first.of, key=lambda kind: -sum(first.of[kind]))
    lines = [f"{f'{work}, frames {first.digest}':44}{'turns':>7}" + "".join(map(_cell, figures))]
    for kind in kinds[:KINDS_SHOWN]:
        row = "".join(_cell(turns.typical(kind)) for turns in figures.values())
        lines.append(f"  {kind:42}{len(first.of[kind]):>7}{row}")
    number = sum(map(len, first.of.values()))
    row = "".join(
        _cell(sum(turns.typical(kind) * len(first.of[kind]) for kind in kinds) / number)
        for turns in figures.values()
    )
    return "\n".join([*lines, f"  {'all':42}{number:>7}{row}"])


def _cell(what: str | float) -> str:
    return f"{what:>9}" if isinstance(what, str) else f"{what:>9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", choices=WORKS, action="append")
    parser.add_argument("--cpu", action="store_true", help="CPU-us, too")
    parser.add_argument("--rounds", type=int, default=3, help="of --cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print cProfile's table instead")
    options = parser.parse_args()
    for work in options.work or WORKS:
        if options.profile:
            profiled = Profiled()
            run(work, profiled, options.seed)
            profiled.profile.print_stats("tottime")
            continue
        figures: dict[str, Turns] = {"calls": Calls(), "codes": Codes()}
        for turns in figures.values():
            run(work, turns, options.seed)
        if options.cpu:
            figures["CPU-us"] = Cpu()
            for _ in range(options.rounds):
                run(work, figures["CPU-us"], options.seed)
        sys.stdout.write(told(work, figures) + "\n")


if __name__ == "__main__":
    main()
