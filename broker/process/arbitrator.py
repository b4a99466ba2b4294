"""The arbitrator: a member that votes, remembers epochs, holds no data and serves no clients.

It takes part in the ring and in the primary layer like any member, answers a state exchange with
its record instead of a state, and drops ordered messages. `arbiter` decides; this module has its
ring, the file of its record and its process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from broker.admin.operations import STOP_DATAGRAM
from broker.durability.store_writer import exit_of_store
from broker.exit_codes import Exit
from broker.options.broker import BrokerOptions
from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord, RecordFile
from broker.process.ring_setup import FirstStart, RingEndpoint, RingIdentity
from broker.watchdogs.clock_skew import PREFIX, ClockSkew
from broker.watchdogs.full_collections import COLLECTIONS
from vsync.io.redundant_transport import RedundantTransport
from vsync.totem.events import Direct, Output, View
from vsync.types import Member

log = logging.getLogger("qpidd")

LEAVE_MS = 100
LOOK_S = 1.0


class Arbitrator:
    """One running arbitrator. `done` gets the exit code."""

    def __init__(
        self,
        options: BrokerOptions,
        file: RecordFile,
        transport: RedundantTransport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self.done: asyncio.Future[Exit] = loop.create_future()
        record = file.record
        identity = RingIdentity(
            record.member, record.incarnation, options.cluster_name, file.data_dir
        )
        self._ring = ring = RingEndpoint(options, identity, transport, self._on_output, loop)
        self._first_start = FirstStart(ring.lack)
        self._file = file
        self._arbiter = Arbiter(
            ring.me, record, ring.driver, ring.reply_lease, self,
            size=options.cluster_size, requested=options.requested,
        )  # fmt: skip
        # It only answers: a starting member waits for the clocks of all members of its view.
        self._clocks = ClockSkew(
            ring.me,
            options.bounds.clock_s,
            ring.driver.send_direct,
            _wall_us,
            lambda: self._arbiter.ran,
        )
        self._writer = ThreadPoolExecutor(1)
        self._stopping = False
        self._members: tuple[Member, ...] = ()
        """Those of the view, as of what the ring has handed over: it may know of a later one."""

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        COLLECTIONS.begin()
        self._ring.start(self._arbiter.primary, self.stop)
        self._arbiter.start()
        log.info("arbitrator: no data, no clients; record of epoch %d", self._file.record.epoch)
        self._look_who_is_there()

    def _look_who_is_there(self) -> None:
        self._first_start.wake(self.loop.time(), waits=self._arbiter.waits_for_first_start)
        self.later(LOOK_S, self._look_who_is_there)

    def terminate(self) -> None:
        """The process was asked to end."""
        self.stop(Exit.OK, "asked to terminate")

    def stop(self, code: Exit, reason: str) -> None:
        """Leave the ring, after pending writes to the disk."""
        if self._stopping:
            return
        self._stopping = True
        log.log(logging.INFO if code is Exit.OK else logging.CRITICAL, "stopping: %s", reason)
        self._ring.leave()
        self._ring.driver.stop(LEAVE_MS)
        self._writer.shutdown(wait=True)
        self._file.close()
        if not self.done.done():
            self.done.set_result(code)

    # -- from the ring ---------------------------------------------------------------------------

    def _on_output(self, output: Output) -> None:
        if self._stopping:
            return
        if isinstance(output, Direct):
            # One that hung in a shutdown of all, and wakes when all have begun again, sends this to
            # whom it saw last.
            if output.payload == STOP_DATAGRAM and output.sender in self._members:
                self.stop(Exit.OK, f"stopped by an operator through {output.sender.name}")
            elif output.payload[:1] == PREFIX:
                self._clocks.on_datagram(output.sender, output.payload, self.loop.time())
            return
        if isinstance(output, View):
            self._members = output.members
            log.info("view %s: %s", output.ring, ", ".join(m.name for m in output.members))
        self._arbiter.on_output(output)

    # -- called by the arbiter (`arbiter.ArbiterShell`) --------------------------------------------

    def write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        """Make a record durable, after the previous ones; the ring turns meanwhile."""
        writing = self.loop.run_in_executor(self._writer, self._file.write, record)
        writing.add_done_callback(lambda done: self._written(done, then))

    def _written(self, done: asyncio.Future[None], then: Callable[[], None]) -> None:
        error = done.exception()
        if error is not None:
            self.stop(exit_of_store(error), f"the record cannot be written: {error}")
        elif not self._stopping:
            then()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after some time, unless it stops before."""
        self.loop.call_later(delay_s, lambda: None if self._stopping else call())

    def note(self, text: str) -> None:
        """Log it."""
        log.info("%s", text)


def _wall_us() -> int:
    return time.time_ns() // 1000
