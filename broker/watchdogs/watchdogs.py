"""What a member watches of itself and says to operators: its clock, and its disk.

The shell around `clocks` and `lag`: it logs an alarm when it begins and when it ends, stops the
member where it must, and keeps a newcomer from promising or fetching anything before its clock is
known to be right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from broker.durability.persister import Persister
from broker.exit_codes import Exit
from broker.frontend.management import Json
from broker.memberlog.recorder import Recorder
from broker.options.broker import Bounds
from broker.replication.controller import Controller
from broker.watchdogs.clock_skew import PREFIX, ClockSkew
from broker.watchdogs.disk_lag import DiskLag
from broker.watchdogs.process_pauses import ProcessPauses
from vsync.totem.events import Direct
from vsync.totem.node import Node
from vsync.types import Member

log = logging.getLogger("qpidd")

BEAT_S = 0.1
"""How often `Watchdogs.wake` is called."""


class Watched(Protocol):
    """What is watched: the shell of a member."""

    me: Member
    controller: Controller
    persister: Persister
    recorder: Recorder
    node: Node
    loop: asyncio.AbstractEventLoop

    def now_us(self) -> int:
        """Return the wall clock."""

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Send one datagram."""

    def stop(self, code: Exit, reason: str) -> None:
        """Stop this member."""


class Watchdogs:
    """One member's watches."""

    def __init__(self, member: Watched, bounds: Bounds) -> None:
        self._member = member
        self.clocks = ClockSkew(
            member.me,
            bounds.clock_s,
            member.send_direct,
            member.now_us,
            lambda: member.controller.ran,
        )
        self.disk = DiskLag(bounds.lag_s, bounds.backlog_bytes, member.node.set_throttle)
        self.stalls = ProcessPauses(BEAT_S, member.node.lease.seconds)
        self._waiting: list[Callable[[], None]] = []
        self._said: dict[str, str] = {}

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters by part."""
        return {"clock": self.clocks.counters, "disk": self.disk.counters,
                "loop": self.stalls.counters}  # fmt: skip

    def _now(self) -> float:
        return self._member.loop.time()

    def on_view(self, members: tuple[Member, ...]) -> None:
        """The ring has a new view."""
        self.clocks.on_view(members, self._now())

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram was about clocks; then it is dealt with."""
        if direct.payload[:1] != PREFIX:
            return False
        self.clocks.on_datagram(direct.sender, direct.payload, self._now())
        self._go_on()
        return True

    def when_clock_is_right(self, call: Callable[[], None]) -> None:
        """Call, in order, as soon as it is known that this member's clock lets it take part."""
        self._waiting.append(call)
        self._go_on()

    def _go_on(self) -> None:
        if not self._waiting or not self.clocks.decided(self._now()):
            return
        refusal = self.clocks.refusal()
        waiting, self._waiting = self._waiting, []
        if refusal:
            self._member.stop(Exit.CLOCK, refusal)
            return
        for call in waiting:
            call()

    def wake(self) -> None:
        """Do what is due."""
        writing_s = self._member.recorder.writing_s
        if stall := self.stalls.look(time.monotonic(), time.thread_time(), writing_s):
            log.warning("%s", stall)
        now = self._now()
        self.clocks.wake(now)
        self._go_on()
        reason = self.disk.look(self._member.persister.writer.lag(), now)
        self._say()
        if reason:
            self._member.stop(Exit.DISK, reason)

    @property
    def alarms(self) -> dict[str, str]:
        """Return what an operator should look after, by subject."""
        found = {f"clock of {name}": text for name, text in self.clocks.alarms.items()}
        return found | ({"disk": self.disk.alarm} if self.disk.alarm else {})

    def _say(self) -> None:
        alarms = self.alarms
        for subject, text in alarms.items():
            if subject not in self._said:
                log.warning("%s", text)
        for subject in self._said:
            if subject not in alarms:
                log.warning("the %s is right again", subject)
        self._said = alarms

    def status(self) -> Json:
        """Return this part of the answer to `status`."""
        lag = self._member.persister.writer.lag()
        return {
            "alarms": list(self.alarms.values()),
            "clock_off_ms": {n: round(s * 1000) for n, s in sorted(self.clocks.off_s().items())},
            "disk_lag_bytes": lag.bytes,
            "disk_lag_ms": round(self.disk.age_s * 1000),
        }
