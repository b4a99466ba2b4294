"""The watchdogs of one member: clocks, disk lag, pauses, a hanging loop, space and memory.

They log an alarm when it begins and when it ends, stop the member where they must, and keep a
starting member from promising or fetching anything before its clock is known to be right.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import time
from collections.abc import Callable, Mapping

from broker.durability.store_writer import LmdbPersister
from broker.exit_codes import Exit
from broker.options.bounds import Bounds
from broker.rationed_log import RationedLog
from broker.replication.controller import Controller
from broker.watchdogs.clock_skew import PREFIX, ClockSkew
from broker.watchdogs.disk_lag import NO_LAG, DiskLag, DurableProgress, PageLag
from broker.watchdogs.freed_memory import FreedMemory
from broker.watchdogs.full_collections import COLLECTIONS
from broker.watchdogs.process_pauses import ProcessPauses, page_faults
from broker.watchdogs.resource_alarms import Limit, Reading, ResourceAlarms, of_all
from broker.watchdogs.resource_gauge import ResourceGauge
from store.commit_queue import CommitLag
from store.files.space import Reserve
from vsync.admin.protocol import Json
from vsync.totem.events import Direct
from vsync.totem.node import Node
from vsync.types import Member

log = logging.getLogger("qpidd")

BEAT_S = 0.2
"""How often `Watchdogs.wake`, and everything else that runs a few times a second, is called."""
ALARM_LINES, ALARM_WINDOW_S = 6, 60.0
"""Lines about one subject in this time: a reader of the log knows by then that it flaps."""


class HangWatchdog:
    """Ends this process when the event loop hangs, with a trace of all threads on stderr.

    The timer is a thread of the interpreter that needs no Python to run, so it also ends a process
    whose every thread waits. It proves that the loop turns, not that work is done.
    """

    def __init__(self, seconds: int) -> None:
        """`seconds` is how long the loop may hang; 0: for ever."""
        self._seconds = seconds
        self._armed_at = -float("inf")

    def rearm(self, now: float) -> None:
        """The loop turns: restart the count, at most once in each eighth of the time.

        For that the interpreter ends its thread, waits for it and creates another: 0.1 ms on an
        idle machine, 7 to 16 ms on one whose processors are all busy.
        """
        if not self._seconds or now - self._armed_at < self._seconds / 8:
            return
        try:
            faulthandler.dump_traceback_later(self._seconds, exit=True)
        except RuntimeError as error:  # no thread was available, and the previous one is gone
            log.warning("the watchdog could not be set, trying again: %s", error)
        else:
            self._armed_at = now

    def end(self) -> None:
        """Stop counting: the member stops, which may take its time."""
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()


class AlarmLog:
    """Log lines about alarms: that one began and is over, rationed if it flaps. The last line about
    each alarm always gives its present state."""

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = RationedLog(lambda _, text: warn(text), clock, ALARM_LINES, ALARM_WINDOW_S)
        self._reported: Mapping[str, str] = {}
        self._behind: set[str] = set()
        """Alarms whose state may differ from the last line."""

    def report(self, alarms: Mapping[str, str]) -> None:
        """Report all alarms in force, by subject."""
        for subject in dict.fromkeys((*alarms, *self._reported)):
            if (subject in alarms) != (subject in self._reported):
                self._tell(subject, alarms)
        self._reported = alarms
        self._write.wake()
        for subject in sorted(self._behind):
            if not self._write.leaves_out(subject):
                self._tell(subject, alarms)

    def _tell(self, subject: str, alarms: Mapping[str, str]) -> None:
        self._write(subject, alarms.get(subject, f"the alarm about the {subject} is over"))
        if self._write.leaves_out(subject):
            self._behind.add(subject)
        else:
            self._behind.discard(subject)


class Watchdogs:
    """All watchdogs of one member."""

    def __init__(
        self,
        node: Node,
        bounds: Bounds,
        loop: asyncio.AbstractEventLoop,
        reserve: Reserve,
        *,
        send_direct: Callable[[Member, bytes], None],
        wall_us: Callable[[], int],
        controller: Callable[[], Controller],
        persister: Callable[[], LmdbPersister],
        disk_lag: Callable[[], CommitLag],
        full: Callable[[], str],
        stop: Callable[[Exit, str], None],
        hang_s: int,
    ) -> None:
        self._now, self._stop = loop.time, stop
        self._controller, self._disk_lag, self._full = controller, disk_lag, full
        self._persister = persister
        self.gauge = gauge = ResourceGauge(lambda: persister().store, reserve)
        self.resources = ResourceAlarms(
            bounds.disk_free, bounds.memory, lambda: gauge.bytes_to_start
        )
        self._looked: tuple[Reading | None, str] = None, ""  # last judgement
        self.clocks = ClockSkew(
            node.me, bounds.clock_s, send_direct, wall_us, lambda: controller().ran
        )
        self.disk = DiskLag(bounds.lag_s, bounds.backlog_bytes, node.set_throttle)
        self._page_lag = PageLag(lambda: controller().unapplied, self._now)
        self._progress = DurableProgress()
        self._full_at = 0.0  # when a write was last seen to wait for space
        self.pauses = ProcessPauses(BEAT_S, node.config.lease_ms / 1000)
        self.hang = HangWatchdog(hang_s)
        self.memory = FreedMemory()
        self._waiting: list[Callable[[], None]] = []
        self._log = AlarmLog(lambda text: log.warning("%s", text), self._now)

    def start(self) -> None:
        """Begin to watch space, memory and the interpreter's collections."""
        self.gauge.start()
        COLLECTIONS.begin()

    def set_limits(self, disk_free: Limit, memory: Limit) -> None:
        """Use other limits from now on."""
        self._looked = None, ""
        self.resources.set_limits(disk_free, memory)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters by part."""
        return {"clock": self.clocks.counters, "disk": self.disk.counters,
                "loop": self.pauses.counters, "memory": self.memory.counters,
                "collector": COLLECTIONS.counters, "alarms": self.resources.counters}  # fmt: skip

    def wanted_free_bytes(self) -> int:
        """Return the free space below which there is an alarm. Any thread may call this."""
        reading = self.gauge.reading
        return 0 if reading is None else self.resources.bounds(reading)[0]

    def on_view(self, members: tuple[Member, ...]) -> None:
        """The ring has a new view."""
        self.clocks.on_view(members, self._now())

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram was about clocks; if so it has been handled."""
        if direct.payload[:1] != PREFIX:
            return False
        self.clocks.on_datagram(direct.sender, direct.payload, self._now())
        self._go_on()
        return True

    def when_clock_is_right(self, call: Callable[[], None]) -> None:
        """Call these, in order, once this member's clock is known to be good enough to take
        part.
        """
        self._waiting.append(call)
        self._go_on()

    def _go_on(self) -> None:
        if not self._waiting or not self.clocks.decided(self._now()):
            return
        refusal = self.clocks.refusal()
        waiting, self._waiting = self._waiting, []
        if refusal:
            self._stop(Exit.CLOCK, refusal)
            return
        for call in waiting:
            call()

    def wake(self) -> None:
        """Do what is due."""
        worked_s = time.thread_time()
        if pause := self.pauses.look(time.monotonic(), worked_s, page_faults()):
            log.warning("%s", pause)
        now = self._now()
        self.hang.rearm(now)
        self.memory.wake(now, worked_s)
        self.clocks.wake(now)
        self._go_on()
        full, reading = self._full(), self.gauge.reading
        if (reading, full) != self._looked:
            self._looked = reading, full
            self.resources.look(reading, full)
        self.resources.order(self._controller())
        if not full and self.resources.wants_checkpoint(self._controller(), now):
            self._persister().request_checkpoint()
        leave = self.resources.must_leave(self._controller(), now)
        stuck_s = self._progress.look(self._controller().primary, now)
        if self._controller().unapplied.held_back:
            stuck_s = 0.0  # the others wait for this member: it is the late one
        late = self.disk.look(self._commit_lag(full, now), now, stuck_s, self._page_lag.look())
        self._log.report(self.alarms)
        if leave:
            self._stop(Exit.FULL, leave)
        elif late:
            self._stop(Exit.LATE_DISK, late)

    def _commit_lag(self, full: str, now: float) -> CommitLag:
        """Return how far the disk is behind. A write that waits for space is not late: no member
        leaves for it if none could continue. What waited behind it counts from then on."""
        if full:
            self._full_at = now
            return NO_LAG
        lag = self._disk_lag()
        return lag._replace(since=max(lag.since, self._full_at))

    @property
    def alarms(self) -> dict[str, str]:
        """Return what needs an operator's attention, by subject."""
        found = {f"clock of {name}": text for name, text in self.clocks.alarms.items()}
        found |= {"disk": self.disk.alarm} if self.disk.alarm else {}
        if unread := self.gauge.failure:
            found["look at disk and memory"] = f"free space and memory cannot be read: {unread}"
        return found | of_all(self._controller())

    @property
    def disk_keeps_up(self) -> bool:
        """Whether more may be applied than what is ordered, as a member does that comes back."""
        return self.disk.keeps_up(self._disk_lag())

    def status(self) -> Json:
        """Return this part of the answer to `status`."""
        return {
            "alarms": list(self.alarms.values()),
            "clock_off_ms": {n: round(s * 1000) for n, s in sorted(self.clocks.off_s().items())},
            "disk_lag_bytes": self._disk_lag().bytes,
            "disk_lag_ms": round(self.disk.age_s * 1000),
        }
