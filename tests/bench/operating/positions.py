"""The longest position of work that is divided over several, or is large: ms of processor time.

    python -m tests.bench.operating.positions [queues [messages [only]]]

Prints JSON: for each kind of large work its number of positions and the longest of them, with
`queues` queues (default 100000) and `messages` messages (default 1000000); of all, or of `only`.
tests.bench.costs measures single commands at their bounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable

from broker.machine import commands as c
from broker.machine import limits
from broker.machine.commands import Table
from tests.bench.costs import Bench
from tests.bench.machine import declare as declare_queue

VHOST: Table = {"description": "", "tags": ()}
Found = dict[str, float]


class Timed(Bench):
    """A machine whose positions are timed."""

    def position(self, session: int, *items: object) -> float:
        """Apply one command; return its milliseconds of processor time."""
        began = time.process_time()
        self.machine.apply(self.machine.position + 1, session, 0, items)  # type: ignore[arg-type]
        took = time.process_time() - began
        self.machine.take_moves()
        self.machine.take_effects()
        return took * 1e3

    def tick(self, session: int, reached_us: int) -> float:
        return self.position(session, c.TICK, reached_us, 0, self.machine.position)

    def rest(self, first: float) -> Found:
        """Tick until no work is left; return the times, including that of the `first` position."""
        took = [first]
        while self.machine.due_in_us <= 0 and self.machine.wants_tick:
            took.append(self.tick(self.session, self.machine.now_us))
        took.sort()
        middle = took[len(took) // 2]
        return {"positions": len(took), "median_ms": round(middle, 1), "max_ms": round(took[-1], 1)}

    def define(self, what: str, vhost: str, name: str, body: Table | None) -> float:
        return self.position(self.session, c.DEFINE, 1, "guest", what, vhost, name, body)

    def many(self, count: int, arguments: Table | None = None, *, bound: bool = False) -> None:
        for number in range(count):
            self.declare(f"x{number}", arguments)
            if bound:
                if number % (limits.EXCHANGE_BINDINGS_MAX // 2) == 0:
                    self.exchange(f"e{number // (limits.EXCHANGE_BINDINGS_MAX // 2)}", "direct")
                self.bind(f"x{number}", f"e{number // (limits.EXCHANGE_BINDINGS_MAX // 2)}", "k")

    def go_to(self, now_us: int) -> list[float]:
        """Advance the clocks of all members to this time."""
        took = []
        while self.machine.now_us < now_us:
            at_us = min(now_us, self.machine.now_us + 200_000)
            sessions = [record.session for record in self.machine.sessions.values()]
            took += [self.tick(session, at_us) for session in sessions]
        return took


def vhost_delete(queues: int, _messages: int) -> Found:
    """Delete a virtual host of this many queues with a binding each."""
    bench = Timed()
    bench.define("vhost", "", "v", VHOST)
    bench.do(c.CONNECTION_OPEN, 1 << 20, "v", "guest", "host:1")
    bench.do(c.CHANNEL_OPEN, 1 << 20, 1)
    for number in range(queues):
        exchange = f"e{number // 10_000}"
        if number % 10_000 == 0:
            of_kind: tuple[object, ...] = (exchange, "direct", False, True, False, False, True, {})
            bench.do(c.EXCHANGE_DECLARE, 1 << 20, 1, *of_kind)
        bench.do(c.QUEUE_DECLARE, 1 << 20, 1, f"x{number}", False, True, False, False, True, {})
        bench.do(c.QUEUE_BIND, 1 << 20, 1, f"x{number}", exchange, "k", True, {})
    bench.do(c.CONNECTION_CLOSE, 1 << 20)
    return bench.rest(bench.define("vhost", "", "v", None))


def policy(queues: int, _messages: int) -> Found:
    """Set a policy that applies to this many queues."""
    bench = Timed()
    bench.many(queues)
    body: Table = {"pattern": "^x", "definition": {"max-length": 10}, "apply-to": "queues"}
    return bench.rest(bench.define("policy", "/", "p", body))


def tick(queues: int, _messages: int) -> Found:
    """Tick while this many queues hold a message that expires at some time."""
    bench = Timed()
    bench.many(queues, {"x-message-ttl": 3_600_000})
    for number in range(queues):
        bench.do(c.PUBLISH, 1, 1, 0, "", f"x{number}", 0, b"\0\0", b"m")
    took = bench.go_to(3_000_000)
    found = {"idle_ticks_max_ms": round(max(took), 2)}
    due_us = min(bench.machine.expiry.times.values())
    bench.machine.now_us = due_us - 400_000  # nobody waits an hour
    bench.go_to(due_us)
    return found | bench.rest(0.0)


def leases(queues: int, _messages: int) -> Found:
    """Let this many unused queues expire at once."""
    bench = Timed()
    bench.many(queues, {"x-expires": 1_000})
    first = max(bench.go_to(1_300_000))
    return bench.rest(first)


def purge(_queues: int, messages: int) -> Found:
    bench = Timed()
    bench.fill("q", messages)
    return bench.rest(bench.position(bench.session, c.QUEUE_PURGE, 1, 1, "q", True))


def queue_delete(_queues: int, messages: int) -> Found:
    bench = Timed()
    bench.fill("q", messages)
    return bench.rest(bench.position(bench.session, c.QUEUE_DELETE, 1, 1, "q", False, False, True))


def priority_delete(_queues: int, messages: int) -> Found:
    bench = Timed()
    bench.declare("p", {"x-max-priority": 3})
    bench.fill("p", messages)
    return bench.rest(bench.position(bench.session, c.QUEUE_DELETE, 1, 1, "p", False, False, True))


def exchange_chain(queues: int, _messages: int) -> Found:
    """Delete an exchange with which half as many auto-delete exchanges end, one after the other."""
    bench = Timed()
    for number in range(queues // 2):
        of_kind: tuple[object, ...] = (f"e{number}", "fanout", False, False, True, False, True, {})
        bench.do(c.EXCHANGE_DECLARE, 1, 1, *of_kind)
        if number:
            bench.do(c.EXCHANGE_BIND, 1, 1, f"e{number - 1}", f"e{number}", "", True, {})
    return bench.rest(bench.position(bench.session, c.EXCHANGE_DELETE, 1, 1, "e0", False, True))


def exchange_delete(_queues: int, _messages: int) -> Found:
    """Delete an exchange with as many bindings as it may have."""
    bench = Timed()
    bench.many(2_000)
    bench.exchange("e", "direct")
    for number in range(limits.EXCHANGE_BINDINGS_MAX):
        bench.bind(f"x{number % 2_000}", "e", f"k{number}")
    return bench.rest(bench.position(bench.session, c.EXCHANGE_DELETE, 1, 1, "e", False, True))


def bound_queue_delete(_queues: int, _messages: int) -> Found:
    """Delete a queue with as many bindings as it may have."""
    bench = Timed()
    bench.exchange("e", "direct")
    for number in range(limits.DESTINATION_BINDINGS_MAX):
        bench.bind("q", "e", f"k{number}")
    return bench.rest(bench.position(bench.session, c.QUEUE_DELETE, 1, 1, "q", False, False, True))


def connection_close(queues: int, _messages: int) -> Found:
    """Close a connection that holds as many messages as `queues` says, in full channels."""
    bench = Timed()
    bench.do(c.CONNECTION_OPEN, 1 << 20, "/", "guest", "host:1")
    bench.fill("q", queues)
    for chan in range(1, 2 + queues // limits.CHANNEL_HELD_MAX):
        bench.do(c.CHANNEL_OPEN, 1 << 20, chan)
        for tag in range(3):
            bench.do(c.CONSUME, 1 << 20, chan, "q", f"t{tag}", False, False, False, True, {}, 0)
    return bench.rest(bench.position(bench.session, c.CONNECTION_CLOSE, 1 << 20))


def consumers_close(_queues: int, _messages: int) -> Found:
    """Close a channel with as many consumers as it may have, of a queue with as many as allowed."""
    bench = Timed()
    bench.do(c.CONNECTION_OPEN, 1 << 20, "/", "guest", "host:1")
    for chan in range(1, 11):
        bench.do(c.CHANNEL_OPEN, 1 << 20, chan)
        for tag in range(limits.CHANNEL_CONSUMERS_MAX):
            bench.do(c.CONSUME, 1 << 20, chan, "q", f"t{tag}", False, False, False, True, {}, 0)
    return bench.rest(bench.position(bench.session, c.CHANNEL_CLOSE, 1 << 20, 10))


def user_delete(_queues: int, _messages: int) -> Found:
    """Delete a user with permissions in as many virtual hosts as definitions allow."""
    bench = Timed()
    body: Table = {"password_hash": "", "hashing_algorithm": "", "tags": ()}
    bench.define("user", "", "u", body)
    every: Table = {"configure": "", "write": "", "read": ""}
    for number in range(1_000):
        bench.define("vhost", "", f"v{number}", VHOST)
        bench.define("permission", f"v{number}", "u", every)
    return bench.rest(bench.define("user", "", "u", None))


def declare(_queues: int, _messages: int) -> Found:
    """Declare a queue in a virtual host with the most policies, none of which applies."""
    bench = Timed()
    body: Table = {"definition": {"max-length": 10}, "apply-to": "queues"}
    for number in range(limits.POLICIES_MAX):
        for what in ("policy", "operator_policy"):
            bench.define(what, "/", f"p{number}", {**body, "pattern": f"^tenant{number}\\..*done$"})
    took = []
    for number in range(200):
        name = f"tenant.of.somebody.else.with.a.long.name.{number}"
        took.append(bench.position(bench.session, *declare_queue(name, {})))
    took.sort()
    return {"median_ms": round(took[100], 2), "max_ms": round(took[-1], 2)}


ALL: tuple[Callable[[int, int], Found], ...] = (
    vhost_delete, policy, tick, leases, purge, queue_delete, priority_delete, exchange_delete,
    exchange_chain,
    bound_queue_delete, connection_close, consumers_close, user_delete, declare,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queues", nargs="?", type=int, default=100_000)
    parser.add_argument("messages", nargs="?", type=int, default=1_000_000)
    parser.add_argument("only", nargs="*", help=", ".join(work.__name__ for work in ALL))
    given = parser.parse_args()
    if unknown := {*given.only} - {work.__name__ for work in ALL}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    gc.disable()  # a collection may come at any time; tests.bench.machine measures it
    found = {}
    for work in ALL:
        if not given.only or work.__name__ in given.only:
            found[work.__name__] = work(given.queues, given.messages)
            gc.collect()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
