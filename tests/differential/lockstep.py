"""Runs a program at both brokers, step by step, until they differ; and makes it smaller."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from broker.amqp import codec
from broker.amqp.fields import Table
from broker.amqp.spec import METHODS
from broker.options.addresses import Address
from tests.differential import wire
from tests.differential.peers import Side, wait_for_silence
from tests.differential.program import EXCHANGES, OBSERVER, QUEUES, STREAM, Args, Program, Step
from tests.differential.rules import Difference, rule_of
from tests.support.amqp_peer import method

NO_REPLY = ("basic.ack", "basic.nack", "basic.reject", "basic.recover-async", "publish")
IDLE_S = 0.01
"""A broker silent for this long has nothing more to say; a difference must hold with more of it."""
SURE_S = 0.03, 0.2
TIMED_S = 0.25
"""The same where something expires."""
runs = itertools.count()


class Result(NamedTuple):
    difference: Difference | None
    steps: int
    rules: Counter[str]


class Lockstep:
    """Two brokers, and programs that run at both."""

    def __init__(
        self, ours: Address, theirs: Address, apis: Sequence[Address | None] = (None, None)
    ) -> None:
        self.addresses = ours, theirs
        self._apis = apis

    def run(self, program: Program, idle_s: float = IDLE_S) -> Result:
        prefix = f"d{os.getpid():x}.{next(runs):x}.".rjust(16, "d")
        sides = [
            Side(address, prefix, api)
            for address, api in zip(self.addresses, self._apis, strict=True)
        ]
        idle_s = max(idle_s, TIMED_S) if program.timed else idle_s
        rules: Counter[str] = Counter()
        done = 0
        try:
            for done, step in enumerate(program.steps, 1):
                difference = self._step(sides, step, idle_s)
                if difference is None:
                    continue
                difference = difference._replace(before=program.steps[: done - 1])
                rule = rule_of(difference)
                if rule is None:
                    return Result(difference, done, rules)
                rules[rule.name] += 1
                if not rule.goes_on:
                    break
            return Result(None, done, rules)
        finally:
            for side in sides:
                self._clean(side)

    def wire(self) -> list[Difference]:
        """The difference below the methods, where there should be none."""
        return wire.differences(*self.addresses)

    def holds(self, program: Program) -> Difference | None:
        """The difference, if it is there however long one waits."""
        found = self.run(program, SURE_S[0]).difference
        return found and self.run(program, SURE_S[1]).difference

    def smallest(self, program: Program, difference: Difference) -> Program:
        """The smallest program with a difference at a step of the same kind."""

        def differs(fewer: Program) -> bool:
            found = self.run(fewer, SURE_S[0]).difference
            return found is not None and found.step.what == difference.step.what

        return shrink(program, differs)

    def _step(self, sides: list[Side], step: Step, idle_s: float) -> Difference | None:
        if step.what == "drain":
            return self._drain(sides, step, idle_s)
        open_one = sides[0].channels.get((step.conn, step.channel))
        in_tx = open_one is not None and open_one.in_tx is not None
        tags = _tags(sides, step) if step.what == "settle" else None
        for index, side in enumerate(sides):
            if step.what == "drop":
                if step.conn in side.peers:
                    side.forget(step.conn)
                continue
            if step.what == "policy":
                side.set_policy(*step.args)
                continue
            side.ready(step.conn, 0 if step.what.startswith("connection.") else step.channel)
            if step.what != "settle":
                self.send(side, step)
            elif tags is not None:
                self._settle(side, step, *tags[index])
            if step.what in (*NO_REPLY, "settle"):
                side.ask_channel(step.conn, step.channel)
        for side in sides:
            names = _replies(step)
            if names and step.conn in side.peers:
                at = 0 if step.what.startswith("connection.") else step.channel
                side.wait_for(step.conn, at, *names)
            elif step.what in (*NO_REPLY, "settle"):
                side.wait_for_channel(step.conn, step.channel)
        wait_for_silence([peer for side in sides for peer in side.peers.values()], idle_s)
        ours, theirs = (side.trace() for side in sides)
        places = [
            where for where in sorted({*ours, *theirs}) if ours.get(where) != theirs.get(where)
        ]
        if not places:
            return None
        shown = [
            [f"{where}: {line}" for where in places for line in one.get(where, [])]
            for one in (ours, theirs)
        ]
        return Difference(step, shown[0], shown[1], in_tx)

    def _drain(self, sides: list[Side], step: Step, idle_s: float) -> Difference | None:
        """Empty a queue."""
        get = Step(OBSERVER, step.channel, "basic.get", (step.args[0], True))
        while True:
            found = self._step(sides, get, idle_s)
            left = [side.channels.get((OBSERVER, step.channel)) for side in sides]
            if found or any(one is None or one.empty for one in left):
                return found

    def send(self, side: Side, step: Step) -> None:
        channel = side.channels.get((step.conn, step.channel))
        args = cast("Args", side.named(step.args))
        peer = side.peers[step.conn]
        if step.what.startswith("connection."):
            peer.send(method(0, step.what, *args))
            return
        assert channel is not None
        if step.what != "publish":
            if step.what in ("basic.consume", "basic.get"):
                channel.asked_no_ack = bool(args[{"basic.consume": 3, "basic.get": 1}[step.what]])
            if step.what == "basic.recover-async":
                channel.held.clear()
            if step.what == "confirm.select" and args[0] and channel.publishes is None:
                channel.publishes = 0
            peer.send(method(step.channel, step.what, *args))
            return
        exchange, key, mandatory, immediate, properties, body = args
        out = bytearray(method(step.channel, "basic.publish", exchange, key, mandatory, immediate))
        shaped = codec.encode_properties(cast("Table", properties))
        codec.append_content(out, step.channel, shaped, str(body).encode(), 131_072)
        if channel.publishes is not None:
            channel.publishes += 1
            channel.unconfirmed.add(channel.publishes)
        peer.send(bytes(out))

    def _settle(self, side: Side, step: Step, tag: int, multiple: bool) -> None:
        name, _, _, requeue = step.args
        channel = side.channels[step.conn, step.channel]
        args = {
            "basic.ack": (tag, multiple), "basic.nack": (tag, multiple, requeue),
            "basic.reject": (tag, requeue),
        }[str(name)]  # fmt: skip
        these = [one for one in channel.held if one == tag or (multiple and one < tag)]
        for one in these:
            what = channel.held.pop(one)
            if channel.in_tx is not None:
                channel.in_tx[one] = what
        side.peers[step.conn].send(method(step.channel, str(name), *args))

    def _clean(self, side: Side) -> None:
        """Delete everything that the program may have left."""
        for name in list(side.policies):
            side.set_policy(name, None)
        side.close()
        side.peers.clear()
        side.channels.clear()
        side.ready(OBSERVER, 1)
        peer = side.peers[OBSERVER]
        for name in sorted({*(str(side.named(one)) for one in (*QUEUES, STREAM)), *side.made}):
            peer.send(method(1, "queue.delete", name, False, False, True))
        for name in EXCHANGES:
            peer.send(method(1, "exchange.delete", side.named(name), False, True))
        peer.send(method(0, "connection.close", 200, "", 0, 0))
        side.wait_for(OBSERVER, 0, "connection.close-ok")
        side.close()


def _tags(sides: list[Side], step: Step) -> list[tuple[int, bool]] | None:
    """The tags to settle at each side: the same delivery, and with `multiple` the same ones before
    it; if these came in another order, which is not promised, only that one."""
    _, which, multiple, _ = step.args
    held = []
    for side in sides:
        channel = side.channels.get((step.conn, step.channel))
        held.append({what: tag for tag, what in channel.held.items()} if channel else {})
    names = sorted(held[0])
    if which == -1 or not names or sorted(held[1]) != names:
        return [(999, bool(multiple))] * 2 if which == -1 else None
    chosen = names[cast("int", which) % len(names)]
    before = [{what for what, tag in one.items() if tag <= one[chosen]} for one in held]
    all_before = bool(multiple) and before[0] == before[1] and step.args[0] != "basic.reject"
    return [(one[chosen], all_before) for one in held]


def _replies(step: Step) -> list[str]:
    """The methods of which one must come; empty if none comes."""
    if step.what in (*NO_REPLY, "settle", "drop", "policy") or step.what.endswith("-ok"):
        return []
    known = METHODS[step.what]
    nowait = [field.name for field in known.fields if not field.reserved]
    if "nowait" in nowait and step.args[nowait.index("nowait")]:
        return []
    return [f"{step.what}-ok", "basic.get-empty"]


def shrink(program: Program, differs: Callable[[Program], bool], budget_s: float = 120) -> Program:
    """Leave out all that the difference does not need: runs of steps, then arguments of tables."""
    until = time.monotonic() + budget_s
    size = max(1, len(program.steps) // 2)
    while size and time.monotonic() < until:
        at, before = 0, len(program.steps)
        while at < len(program.steps) and time.monotonic() < until:
            fewer = program._replace(steps=program.steps[:at] + program.steps[at + size :])
            if fewer.steps and differs(fewer):
                program = fewer
            else:
                at += size
        if size > 1 or len(program.steps) == before:
            size //= 2
    for at, step in enumerate(program.steps):
        for place, value in enumerate(step.args):
            if not isinstance(value, dict):
                continue
            for name in list(value):
                table = cast("Table", program.steps[at].args[place])
                less = {key: one for key, one in table.items() if key != name}
                args = program.steps[at].args
                changed = step._replace(args=(*args[:place], less, *args[place + 1 :]))
                fewer = program._replace(
                    steps=(*program.steps[:at], changed, *program.steps[at + 1 :])
                )
                if time.monotonic() < until and differs(fewer):
                    program = fewer
    return program
