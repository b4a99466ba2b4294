"""The cost of one message at the machine: publish + deliver + ack, and a snapshot of many.

    python -m tests.bench.machine [messages [waiting]]

Prints JSON: microseconds per message for a member that owns the connections and for one that does
not, milliseconds to write and to restore a snapshot of 100,000 messages of 256 bytes, and the pause
of a full garbage collection with them.  `tick_us` is the cost of one tick, and `mortal_us` that of
the only message that can expire, published and got at once.  With `waiting` (1000000, say) also how
long a checkpoint of this many waiting messages keeps the loop from its token: `whole_ms` if made in
one piece, `cut_ms` and `step_ms_max` as it is made; and its milliseconds of CPU.  `scrub_us` is the
cost of rereading one message at rest, `scrub_ms_max` the longest slice.
"""

import gc
import json
import platform
import sys
import time

from broker.machine import commands as c
from broker.machine.commands import Command, Table
from broker.machine.image.scrub import Scrub
from broker.machine.machine import Machine
from broker.selfcheck.scrubber import SLICE_MESSAGES_MAX
from tests.bench.support.numbers import numbers

BODY = bytes(range(256))
DATE_US = 1_700_000_000_000_000
PROPERTIES = b"\x90\x00\x0aapplicatio\x02"


def opened(local: str) -> tuple[Machine, int]:
    """A machine with member `a` and its connection 1 with channels 1 (publish) and 2 (consume)."""
    machine = Machine(local)
    members = (c.ActiveMember("a", 1, True), c.ActiveMember("b", 1, True))
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, ("a", "b"), "c"))
    session = machine.sessions["a"].session
    setup: list[Command] = [
        c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "host:1"),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 1),
        c.ChannelOpen(c.CHANNEL_OPEN, 1, 2),
        declare("q", {}),
    ]
    for position, command in enumerate(setup, 2):
        assert machine.apply(position, session, 0, command) == 0
    machine.take_effects()
    return machine, session


def declare(name: str, arguments: Table) -> Command:
    return c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, name, False, True, False, False, False, arguments)


def publish(no: int) -> Command:
    # Plain tuples, like those decoded from a blob.
    return (c.PUBLISH, 1, 1, no, "", "q", c.PERSISTENT, PROPERTIES, BODY)  # type: ignore[return-value]


def flow(local: str, count: int, no_ack: bool) -> float:
    """Batches of 64 publishes, then 64 acknowledgements, as blobs bring them."""
    machine, session = opened(local)
    consume = c.Consume(c.CONSUME, 1, 2, "q", "t", False, no_ack, False, False, {}, 500)
    assert machine.apply(10, session, 0, consume) == 0
    position = 11
    batches: list[list[Command]] = []
    for start in range(1, count, 64):
        numbers = range(start, start + 64)
        batches.append([publish(no) for no in numbers])
        if no_ack:
            batches.append([(c.SENT, 1, 2, start + 63)])  # type: ignore[list-item]
        else:
            batches.append([(c.ACK, 1, 2, no, False) for no in numbers])  # type: ignore[misc]
    apply = machine.apply
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    for batch in batches:
        for command in batch:
            apply(position, session, 0, command)
            position += 1
        machine.take_effects()
        machine.take_moves()
    elapsed = time.perf_counter() - started
    gc.unfreeze()
    assert machine.root() == machine.recompute_root()
    assert not machine.vhosts["/"].queues["q"].unacked
    return elapsed / count * 1e6


def snapshots(count: int) -> dict[str, float]:
    machine, session = opened("a")
    started = time.perf_counter()
    for no in range(count):
        machine.apply(10 + no, session, 0, publish(no))
    filled = time.perf_counter()
    machine.take_effects()
    gc.collect()
    collected = time.perf_counter()
    gc.collect()
    paused = time.perf_counter()
    chunks = list(machine.snapshot())
    written = time.perf_counter()
    copy = Machine.restore("b", chunks)
    restored = time.perf_counter()
    assert copy.root() == machine.root()
    scrub, slowest = Scrub(machine), 0.0
    scrubbing = time.perf_counter()
    while not scrub.done:
        before = time.perf_counter()
        assert scrub.step(SLICE_MESSAGES_MAX) is None
        slowest = max(slowest, time.perf_counter() - before)
    scrubbed = time.perf_counter()
    return {
        "scrub_us": round((scrubbed - scrubbing) / count * 1e6, 2),
        "scrub_ms_max": round(slowest * 1e3, 1),
        "enqueue_us": round((filled - started) / count * 1e6, 2),
        "gc_pause_ms": round((paused - collected) * 1e3, 2),
        "snapshot_ms": round((written - paused) * 1e3, 1),
        "restore_ms": round((restored - written) * 1e3, 1),
        "snapshot_bytes": sum(map(len, chunks)),
        "chunk_bytes_max": max(map(len, chunks)),
    }


def timed(count: int) -> dict[str, float]:
    """Microseconds of CPU: a tick, and publish + get of the only message that can expire."""
    machine, session = opened("b")
    machine.apply(6, session, DATE_US, declare("mortal", {"x-message-ttl": 3_600_000}))
    sessions = []
    for name, record in machine.sessions.items():
        assert machine.accept_blob(name, record.session, 1)
        sessions.append(record.session)
    expiring: Command = (c.PUBLISH, 1, 1, 0, "", "mortal", 0, b"", b"m")  # type: ignore[assignment]
    got: Command = (c.GET, 1, 1, "mortal", True)  # type: ignore[assignment]
    started = time.process_time()
    for no in range(count):
        machine.apply(7, session, DATE_US + no, expiring)
        machine.apply(8, session, DATE_US + no, got)
        machine.moves.clear()
    took_s = time.process_time() - started
    machine.apply(9, session, DATE_US, expiring)
    ticks = [
        (session, c.Tick(c.TICK, no, no, 9))
        for no in range(0, 500 * count, 1000)
        for session in sessions
    ]
    started = time.process_time()
    for session, tick in ticks:
        machine.apply(10, session, DATE_US, tick)
    tick_s = time.process_time() - started
    assert machine.now_us
    return {
        "tick_us": round(tick_s / len(ticks) * 1e6, 1),
        "mortal_us": round(took_s / count * 1e6, 1),
    }


def stalls(count: int) -> dict[str, float]:
    """Milliseconds; nothing else runs meanwhile."""
    machine, session = opened("a")
    for no in range(count):
        machine.apply(10 + no, session, 0, publish(no))
    machine.take_effects()
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    size = sum(map(len, machine.snapshot()))
    whole = time.perf_counter()
    steps = (chunk or b"" for chunk in machine.snapshot_in_steps())
    cut = time.perf_counter()
    longest = 0.0
    before = cut
    for chunk in steps:
        now = time.perf_counter()
        longest = max(longest, now - before)
        before = now
        size -= len(chunk)
    assert size == 0
    gc.unfreeze()
    return {
        "waiting": count,
        "whole_ms": round((whole - started) * 1e3, 1),
        "cut_ms": round((cut - whole) * 1e3, 1),
        "step_ms_max": round(longest * 1e3, 1),
        "in_steps_ms": round((before - cut) * 1e3, 1),
    }


def main() -> None:
    count, waiting = numbers(__doc__, messages=64 * 1000, waiting=0)
    figures = {
        "python": platform.python_version(),
        "owner_us": min(round(flow("a", count, False), 2) for _ in range(3)),
        "other_us": min(round(flow("b", count, False), 2) for _ in range(3)),
        "owner_no_ack_us": min(round(flow("a", count, True), 2) for _ in range(3)),
        "other_no_ack_us": min(round(flow("b", count, True), 2) for _ in range(3)),
        **timed(10_000),
        **snapshots(100_000),
    }
    if waiting:
        figures |= stalls(waiting)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
