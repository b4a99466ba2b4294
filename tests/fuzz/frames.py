"""Millions of broken frames against the ring's decoder and against live nodes in every phase.

    python -m tests.fuzz.frames --count 10000000 --seed 1
    python -m tests.fuzz.frames --seed 1 --batch 4711       # repeat one batch

Each frame has a good envelope of a member that the victim knows, as an insider could send it, or a
bug of ours.  The decoder may raise `FrameError` and nothing else; the node may raise nothing at all
and must keep its invariants.  A batch that takes longer than its limit is a hang.  A batch depends
on seed and number alone.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from types import FrameType
from typing import NoReturn

from tests.fuzz.mutate import Forger
from tests.fuzz.victims import record
from vsync.errors import FrameError
from vsync.totem.node import Node

BATCH_FRAMES = 64
LONG_BATCH_FRAMES = 4_096
"""One batch in 64 is long: a node's memory must stay bounded."""
BATCH_SECONDS_MAX = 60
"""For a machine under any load; a batch takes some milliseconds."""
GROWTH_MIB_MAX = 64
PROGRESS_SECONDS = 5.0


class Failure(Exception):
    """A failure, with the command that repeats it."""


class Fuzz:
    """One campaign: counts the results of the decoder and the nodes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.victims, self.corpus = record()
        self.frames = 0
        self.outcomes: Counter[str] = Counter()
        self.drops: Counter[str] = Counter()

    def batch(self, number: int) -> None:
        """Attack one victim.  Raises Failure."""
        rng = random.Random(f"{self.seed}:{number}")
        # Each victim has long batches in turn, too.
        victim = self.victims[(number + number // 64) % len(self.victims)]
        size = LONG_BATCH_FRAMES if number % 64 == 63 else BATCH_FRAMES
        frame = b""
        node = victim.fresh()
        now = victim.now
        forger = Forger(victim, self.corpus)
        try:
            for index in range(size):
                frame = forger.frame(rng, node)
                self.decode(node, frame)
                node.receive(frame, now)
                if index % 4 == 0:
                    node.drained(now)
                if index % 16 == 0:
                    now += rng.choice((0.0, 0.0, 0.001, 0.3))
                    node.wake(now)
                    node.take()
                    node.invariants()
            node.drained(now)
            node.take()
        except Exception as error:
            raise Failure(
                f"{victim.label}: {type(error).__name__} {error}\n  frame {frame[:200].hex()}\n"
                f"  again: python -m tests.fuzz.frames --seed {self.seed} --batch {number}"
            ) from error
        self.frames += size
        self.drops.update(node.counters)

    def decode(self, node: Node, frame: bytes) -> None:
        """The decoder alone, which must raise `FrameError` or return a message."""
        codec = node.codec
        try:
            envelope = codec.open(frame)
            message = codec.decode(frame, envelope)
        except FrameError as error:
            self.outcomes[error.code] += 1
        else:
            self.outcomes[f"read {type(message).__name__}"] += 1


def resident_mib() -> float:
    """The present memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / (1 << 20)


def hang(number: int, frame: FrameType | None) -> NoReturn:
    """The watchdog: report where it hangs."""
    traceback.print_stack(frame)
    raise Failure(f"a batch took more than {BATCH_SECONDS_MAX} s of processor time")


def campaign(count: int, seed: int) -> Fuzz:
    """Run `count` frames and print the progress.  Raises Failure."""
    fuzz = Fuzz(seed)
    # Of processor time: a process that is stopped for a while does not hang.
    signal.signal(signal.SIGVTALRM, hang)
    began = reported = time.monotonic()
    number, before = 0, 0.0
    slowest = 0.0
    while fuzz.frames < count:
        signal.setitimer(signal.ITIMER_VIRTUAL, BATCH_SECONDS_MAX)
        start = time.monotonic()
        fuzz.batch(number)
        slowest = max(slowest, time.monotonic() - start)
        number += 1
        if number == 4 * len(fuzz.victims):
            before = resident_mib()  # memos and caches are full by now
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            rate = fuzz.frames / (reported - began)
            print(
                f"{fuzz.frames:>12,} frames {rate:>9,.0f}/s {resident_mib():>8.1f} MiB", flush=True
            )
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.monotonic() - began
    after = resident_mib()
    print(
        f"{fuzz.frames:,} frames in {seconds:.1f} s ({fuzz.frames / seconds:,.0f}/s), "
        f"{number} batches, slowest {1000 * slowest:.0f} ms, memory {before:.1f} -> {after:.1f} MiB"
    )
    if before and after - before > GROWTH_MIB_MAX:
        raise Failure(f"memory grew by {after - before:.0f} MiB")
    return fuzz


def report(title: str, counts: Counter[str]) -> None:
    print(title)
    for name, times in counts.most_common():
        print(f"  {times:>12,}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000, help="frames (default 200000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, help="only this batch, with a traceback if it fails")
    options = parser.parse_args()
    try:
        if options.batch is not None:
            fuzz = Fuzz(options.seed)
            fuzz.batch(options.batch)
        else:
            fuzz = campaign(options.count, options.seed)
    except Failure as failure:
        if options.batch is not None:
            traceback.print_exception(failure.__cause__ or failure)
        print(f"FAILED {failure}", file=sys.stderr)
        return 1
    report("outcomes of the decoder:", fuzz.outcomes)
    report("what the nodes counted:", fuzz.drops)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
