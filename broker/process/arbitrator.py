"""The arbitrator: a member that votes, remembers epochs, holds no data and serves no clients.

It takes part in the ring and in the primary layer like any member, answers a state exchange with
its record instead of a state, and drops what is ordered.  What it decides is in `arbiter`; here are
its ring, its record's file and its process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from broker.admin.operations import STOP_DATAGRAM
from broker.durability.kept_lease import KeptLease
from broker.exit_codes import Exit
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.options.broker import BrokerOptions
from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord, RecordFile
from broker.process.ring_setup import FirstStart, code_of, discovery_for, lack_of
from broker.watchdogs.clock_skew import PREFIX, ClockSkew
from broker.watchdogs.full_collections import COLLECTIONS
from broker.watchdogs.reply_lease import ReplyLease
from vsync.io.driver import Driver
from vsync.io.redundant_transport import SEPARATOR, RedundantTransport
from vsync.primary.door import PrimaryDoor, Refusal
from vsync.totem.config import RingConfig
from vsync.totem.events import Direct, Output, View
from vsync.totem.node import Node
from vsync.types import Member

log = logging.getLogger("qpidd")

LEAVE_MS = 100
LOOK_S = 1.0


class Arbitrator:
    """One running arbitrator.  `done` gets the exit code."""

    def __init__(
        self,
        options: BrokerOptions,
        file: RecordFile,
        transport: RedundantTransport,
        address: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self.done: asyncio.Future[Exit] = loop.create_future()
        self.me = Member(file.record.member, file.record.incarnation, address)
        config = RingConfig(
            payload_version=MACHINE_VERSION, payload_version_min=MACHINE_VERSION_MIN
        )
        self._kept_lease = KeptLease(file.data_dir, config, loop)
        door = PrimaryDoor(
            self.me, options.cluster_size, options.requested, transient=False, barred=self._barred
        )
        self.node = Node(
            self.me, options.cluster_name, config, random.Random(), self._kept_lease.tempo, door
        )
        self.driver = Driver(self.node, transport, self._on_output, loop=loop)
        self.discovery = discovery_for(options, self.me, log.warning)
        self._first_start = FirstStart(lambda: lack_of(self.discovery, self.me, transport))
        self._options, self._file = options, file
        self._arbiter = Arbiter(
            self.me, file.record, self.driver, ReplyLease(self.node.lease), self,
            size=options.cluster_size, requested=options.requested,
        )  # fmt: skip
        door.opens(self._arbiter.primary)
        # It only answers: a member that starts waits for the clocks of all members of its view.
        self._clocks = ClockSkew(
            self.me,
            options.bounds.clock_s,
            self.driver.send_direct,
            _wall_us,
            lambda: self._arbiter.ran,
        )
        self._writer = ThreadPoolExecutor(1)
        self._stopping = False

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        COLLECTIONS.begin()
        self.driver.closed.add_done_callback(self._ring_closed)
        self.driver.start()
        self._kept_lease.start()
        self._arbiter.start()
        if self.discovery is not None:
            self.discovery.start(self._found)
        log.info("arbitrator: no data, no clients; record of epoch %d", self._file.record.epoch)
        self._look_who_is_there()

    def _look_who_is_there(self) -> None:
        self._first_start.wake(self.loop.time(), waits=self._arbiter.waits_for_first_start)
        self.later(LOOK_S, self._look_who_is_there)

    def _found(self, address: str) -> None:
        if address not in self.me.address.split(SEPARATOR):
            self.driver.add_peer(address)

    def _barred(self, refusal: Refusal) -> None:
        # The node is in the middle of a frame.
        self.loop.call_soon(self.stop, code_of(refusal), f"cannot join: {refusal.why}")

    def _ring_closed(self, closed: asyncio.Future[None]) -> None:
        if closed.exception() is not None:
            log.error("the ring failed", exc_info=closed.exception())
            self.stop(Exit.INTERNAL, "the ring failed here")

    def terminate(self) -> None:
        """The process was asked to end."""
        self.stop(Exit.OK, "asked to terminate")

    def stop(self, code: Exit, reason: str) -> None:
        """Leave the ring; what was handed to the disk is written first."""
        if self._stopping:
            return
        self._stopping = True
        log.log(logging.INFO if code is Exit.OK else logging.CRITICAL, "stopping: %s", reason)
        if self.discovery is not None:
            self.discovery.stop()
        self._kept_lease.stop()
        self.driver.leave()
        self.driver.stop(LEAVE_MS)
        self._writer.shutdown(wait=True)
        self._file.close()
        if not self.done.done():
            self.done.set_result(code)

    # -- from the ring ---------------------------------------------------------------------------

    def _on_output(self, output: Output) -> None:
        if self._stopping:
            return
        if isinstance(output, Direct):
            if output.payload == STOP_DATAGRAM:
                self.stop(Exit.OK, f"stopped by an operator through {output.sender.name}")
            elif output.payload[:1] == PREFIX:
                self._clocks.on_datagram(output.sender, output.payload, self.loop.time())
            return
        if isinstance(output, View):
            log.info("view %s: %s", output.ring, ", ".join(m.name for m in output.members))
        self._arbiter.on_output(output)

    # -- called by the arbiter (`arbiter.ArbiterShell`) --------------------------------------------

    def write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        """Make a record durable, after those before it; the ring turns meanwhile."""
        writing = self.loop.run_in_executor(self._writer, self._file.write, record)
        writing.add_done_callback(lambda done: self._written(done, then))

    def _written(self, done: asyncio.Future[None], then: Callable[[], None]) -> None:
        error = done.exception()
        if error is not None:
            self.stop(Exit.INTERNAL, f"the record cannot be written: {error}")
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
