"""The largest cost of one command at the machine: each kind at its bound, in ms of processor time.

    python -m tests.bench.costs [waiting]

Prints JSON.  `waiting` (default 200000) is the number of messages in a queue that is purged,
deleted or forgotten.  The bounds are those of `broker.machine.limits`; the table of
docs/GUARANTEES.md (G15) has these figures.  `session_end_ms` has no bound: see there.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable

from broker.machine import commands as c
from broker.machine import limits
from broker.machine.commands import Command, Table
from tests.bench.machine import BODY, PROPERTIES, declare, opened
from tests.bench.support.numbers import numbers

CONNECTIONS = 2_000


class Bench:
    """A machine, and the cost of one command."""

    def __init__(self) -> None:
        self.machine, self.session = opened("a")

    def do(self, *items: object) -> int:
        """Apply one command; drop its effects."""
        outcome = self.machine.apply(self.machine.position + 1, self.session, 0, items)  # type: ignore[arg-type]
        self.machine.take_moves()
        self.machine.take_effects()
        return outcome

    def cost(self, *items: object) -> float:
        """Return the processor time of this command in milliseconds."""
        command: Command = items  # type: ignore[assignment]
        return self.cost_of(lambda: self.machine.apply(10_000_000, self.session, 0, command))

    def cost_of(self, work: Callable[[], object]) -> float:
        gc.collect()
        began = time.process_time()
        work()
        took = time.process_time() - began
        self.machine.take_moves()
        self.machine.take_effects()
        return round(took * 1e3, 1)

    def declare(self, name: str, arguments: Table | None = None) -> None:
        assert self.do(*declare(name, arguments or {})) == c.OK

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> int:
        return self.do(c.QUEUE_BIND, 1, 1, queue, exchange, key, True, arguments or {})

    def exchange(self, name: str, kind: str) -> None:
        self.do(c.EXCHANGE_DECLARE, 1, 1, name, kind, False, True, False, False, True, {})

    def fill(self, queue: str, count: int, body: bytes = BODY) -> None:
        for _ in range(count):
            self.do(c.PUBLISH, 1, 1, 0, "", queue, c.PERSISTENT, PROPERTIES, body)

    def held(self, queue: str, count: int) -> None:
        """Deliver this many messages of `queue` to channel 2, unsettled."""
        self.fill(queue, count)
        self.do(c.CONSUME, 1, 2, queue, "t", False, False, False, True, {}, 65_535)


def publishes() -> dict[str, float]:
    bench, found = Bench(), {}
    for number in range(limits.FANOUT_MAX):
        bench.declare(f"x{number}")
        bench.bind(f"x{number}", "amq.fanout")
    fanout = (c.PUBLISH, 1, 1, 0, "amq.fanout", "", 0, PROPERTIES, BODY)
    found["publish_fanout_first_ms"] = bench.cost(*fanout)
    found["publish_fanout_ms"] = bench.cost(*fanout)
    one = c.TxPublish("", "x1", c.PERSISTENT, PROPERTIES, BODY)
    many = limits.COMMIT_WORK_MAX // 2
    found["tx_commit_ms"] = bench.cost(c.TX_COMMIT, 1, 1, (one,) * (many - 1), ())
    bench.exchange("topic", "topic")
    for number in range(limits.DESTINATION_BINDINGS_MAX - 1):
        bench.bind("x1", "topic", f"#.a.a.a.b{number}")
    words = ".".join(["a"] * (limits.ROUTE_WORK_MAX * limits.WORDS_PER_UNIT // 60_000))
    found["publish_topic_ms"] = bench.cost(c.PUBLISH, 1, 1, 0, "topic", words, 0, PROPERTIES, BODY)
    found["queue_delete_bindings_ms"] = bench.cost(c.QUEUE_DELETE, 1, 1, "x1", False, False, True)
    bench.exchange("direct", "direct")
    for number in range(limits.EXCHANGE_BINDINGS_MAX):
        bench.bind(f"x{2 + number % 9_000}", "direct", f"k{number}")
    found["exchange_delete_ms"] = bench.cost(c.EXCHANGE_DELETE, 1, 1, "direct", False, True)
    return found


def settlements() -> dict[str, float]:
    most = limits.CHANNEL_HELD_MAX
    found: dict[str, float] = {}
    dead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    for name, arguments, command in (
        ("ack_multiple_ms", {}, (c.ACK, 1, 2, 0, True)),
        ("nack_requeue_ms", {}, (c.NACK, 1, 2, 0, True, True)),
        ("recover_ms", {}, (c.RECOVER, 1, 2, True)),
        ("channel_close_ms", {}, (c.CHANNEL_CLOSE, 1, 2)),
        ("nack_dead_letter_ms", dead, (c.NACK, 1, 2, 0, True, False)),
    ):
        bench = Bench()
        bench.declare("h", arguments)
        bench.held("h", most)
        found[name] = bench.cost(*command)
        if name == "nack_dead_letter_ms":
            found["late_letters_ms"] = bench.cost(c.QOS, 1, 1, 1, False)
    bench = Bench()
    bench.fill("q", most)
    found["consume_ms"] = bench.cost(
        c.CONSUME, 1, 2, "q", "t", False, False, False, True, {}, 65_535
    )
    return found


def queues(waiting: int) -> dict[str, float]:
    found: dict[str, float] = {}
    bench = Bench()
    bench.fill("q", waiting)
    found["purge_ms"] = bench.cost(c.QUEUE_PURGE, 1, 1, "q", True)
    bench.machine.discarded.clear()
    bench.fill("q", waiting)
    found["queue_delete_ms"] = bench.cost(c.QUEUE_DELETE, 1, 1, "q", False, False, True)
    bench = Bench()
    bench.declare("t", {"x-message-ttl": 1, "x-dead-letter-exchange": "", **_TO_Q})
    bench.fill("t", 2 * limits.EXPIRED_PER_TICK_MAX)
    members = [record.session for record in bench.machine.sessions.values()]
    longest = 0.0
    for now_us in range(0, 900_000, 100_000):
        for session in members:
            apply, at = bench.machine.apply, bench.machine.position + 1
            tick = c.Tick(c.TICK, now_us, now_us, at - 1)
            took = bench.cost_of(lambda a=apply, p=at, s=session, t=tick: a(p, s, 0, t))  # type: ignore[misc]
            longest = max(longest, took)
    found["tick_ms"] = longest
    bench = Bench()
    bench.declare("b", {"x-max-length-bytes": 65_536})
    bench.fill("b", 65_536, b".")
    found["publish_trims_ms"] = bench.cost(
        c.PUBLISH, 1, 1, 0, "", "b", 0, PROPERTIES, bytes(65_536)
    )
    return found


_TO_Q: Table = {"x-dead-letter-routing-key": "q"}


def sessions() -> dict[str, float]:
    """A member with this many clients is gone, each with its own queue and ten deliveries."""
    bench = Bench()
    for conn in range(2, 2 + CONNECTIONS):
        bench.do(c.CONNECTION_OPEN, conn, "/", "guest", "host:1")
        bench.do(c.CHANNEL_OPEN, conn, 1)
        bench.do(c.QUEUE_DECLARE, conn, 1, f"x{conn}", False, False, True, False, True, {})
        bench.do(c.CONSUME, conn, 1, "q", "t", False, False, False, True, {}, 10)
    bench.fill("q", 10 * CONNECTIONS)
    members = (c.ActiveMember("b", 1, False),)
    activate = c.Activate(c.ACTIVATE, 2, members, False, ("a", "b"), "c")
    took = bench.cost_of(lambda: bench.machine.apply(10_000_000, 0, 0, activate))
    return {f"session_end_{CONNECTIONS}_ms": took}


def main() -> None:
    (waiting,) = numbers(__doc__, waiting=200_000)
    gc.disable()  # a collection may come at any time; tests.bench.machine measures it
    found = publishes() | settlements() | queues(waiting) | sessions()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
