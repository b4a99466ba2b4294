"""The cost of groups above the ring: members in one process, over sockets, futures included.

    python -m tests.bench.groups --members 3 --size 64 --messages 20000      # flood
    python -m tests.bench.groups --level safe --one-by-one --messages 500    # latency of an answer

All members share one core here, so judge by CPU time per message, not by the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.bench.support.ring_member import percentiles
from vsync import Cluster, Group, Level
from vsync.api.group import Received


def ignore(_: Received) -> None:
    """The application of a bench."""


async def flood(group: Group, payload: bytes, level: Level, messages: int) -> None:
    """Submit as fast as messages are accepted."""
    accepted = []
    for _ in range(messages):
        while (one := group.try_mcast(payload, level)) is None:  # noqa: ASYNC110 - as a flood does
            await asyncio.sleep(0)
        accepted.append(one)
    await asyncio.gather(*accepted)


async def one_by_one(group: Group, payload: bytes, level: Level, messages: int) -> list[int]:
    """Submit each after the answer to the one before: nanoseconds from call to answer."""
    found = []
    for _ in range(messages):
        began = time.monotonic_ns()
        await group.mcast(payload, level)
        found.append(time.monotonic_ns() - began)
    return found


async def measure(options: argparse.Namespace) -> str:
    """One line of figures."""
    members: list[Cluster] = []
    for number in range(options.members):
        one = Cluster("bench", f"m{number}", peers=[m.address for m in members])
        await one.start()
        members.append(one)
    for one in members:
        await one.until(lambda one=one: len(one.members) == options.members)  # type: ignore[misc]
    groups = [await one.join("bench", ignore) for one in members]
    payload, level = bytes(options.size), Level[options.level.upper()]
    began, cpu = time.perf_counter(), time.process_time()
    if options.one_by_one:
        places = percentiles(await one_by_one(groups[0], payload, level, options.messages))
        text = " ".join(f"{name} {value:.0f} us" for name, value in places.items())
    else:
        share = options.messages // len(groups)
        await asyncio.gather(*(flood(g, payload, level, share) for g in groups))
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        each = 1e6 * spent / (share * len(groups) * len(groups))
        text = (
            f"{share * len(groups) / seconds:.0f} msg/s, {each:.1f} us of CPU a message and member"
        )
    await asyncio.gather(*(one.close() for one in members))
    return f"{options.members} members, {options.size} B, {options.level}: {text}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="bytes per payload")
    parser.add_argument("--messages", type=int, default=20000)
    parser.add_argument("--level", choices=["agreed", "safe"], default="agreed")
    parser.add_argument("--one-by-one", action="store_true", help="wait for each answer")
    sys.stdout.write(asyncio.run(measure(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
