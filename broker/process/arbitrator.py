"""The arbitrator: a member that votes, remembers epochs, holds no data and serves no clients.

It takes part in the ring and in the primary layer like any member, answers a state exchange with
its record instead of a state, and drops what is ordered.  Every epoch in which it sees a view
activated it records who holds all that this view confirms, and only then reports it to the others
(its mark is the epoch of its record); see `vsync.quorum.voter_set` for what its vote is worth.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from broker.admin.operations import STOP_DATAGRAM
from broker.durability.kept_lease import KeptLease
from broker.exit_codes import Exit
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.options.broker import BrokerOptions
from broker.process.arbitrator_record import ArbiterRecord, RecordFile
from broker.process.ring_setup import discovery_for
from broker.watchdogs.clock_skew import PREFIX, ClockSkew
from broker.watchdogs.reply_lease import ReplyLease
from vsync.io.driver import Driver
from vsync.io.redundant_transport import SEPARATOR
from vsync.io.transport import Transport
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    Holders,
    Inquorate,
    NeverJoins,
    PersistEpoch,
    PrimaryEvent,
    StateReport,
)
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.totem.config import RingConfig
from vsync.totem.events import Direct, Output, View
from vsync.totem.node import Node
from vsync.types import Guarantee, Member

log = logging.getLogger("qpidd")

LEAVE_MS = 100


class Arbitrator:
    """One running arbitrator.  `done` gets the exit code."""

    def __init__(
        self,
        options: BrokerOptions,
        file: RecordFile,
        transport: Transport,
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
        self.node = Node(
            self.me, options.cluster_name, config, random.Random(), self._kept_lease.tempo
        )
        self.driver = Driver(self.node, transport, self._on_output, loop=loop)
        self.discovery = discovery_for(options, self.me, log.warning)
        self.primary = Primary(self.me, self)
        self._options, self._file = options, file
        self._record = file.record  # as it will be when all that was handed over is written
        self._lease = ReplyLease(self.node.lease)
        # It only answers: a member that starts waits for the clocks of all members of its view.
        self._clocks = ClockSkew(
            self.me, options.bounds.clock_s, self.driver.send_direct, _wall_us, lambda: self._ran
        )
        self._writer = ThreadPoolExecutor(1)
        self._ran = False
        self._stopping = False

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        self.driver.closed.add_done_callback(self._ring_closed)
        self.driver.start()
        self._kept_lease.start()
        self.driver.set_mark(self._record.epoch)
        if self.discovery is not None:
            self.discovery.start(self._found)
        log.info("arbitrator: no data, no clients; record of epoch %d", self._record.epoch)

    def _found(self, address: str) -> None:
        if address not in self.me.address.split(SEPARATOR):
            self.driver.add_peer(address)

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

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        """Return what its record is worth."""
        record = self._record
        return StateReport(
            filled=record.epoch > 0, live=False, ran=self._ran, patient=False,
            cluster_id=record.cluster_id, proposal="", voters=record.voters,
            size=self._options.cluster_size, promised_epoch=record.promised_epoch,
            state_epoch=record.epoch, position=0, chain=ZERO_CHAIN, order=ZERO_CHAIN, label="",
            requested=self._options.requested, arbitrator=True, holders=record.holders,
        )  # fmt: skip

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return that no payloads lead anywhere: there is no state."""
        return -1

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
        self.primary.on_output(output)
        self._work()

    def _work(self) -> None:
        for event in self.primary.take():
            self._follow(event)
        waiting = self.primary.take_outgoing()
        while waiting and self.driver.submit(waiting[0], Guarantee.SAFE):
            waiting.pop(0)
        self.primary.put_back(waiting)

    def _follow(self, event: PrimaryEvent) -> None:
        match event:
            case PersistEpoch(epoch, cluster_id, voters, request):
                record = replace(
                    self._record, promised_epoch=epoch, cluster_id=cluster_id, voters=voters
                )
                self._write(record, lambda: self._promised(request))
            case Activated():
                self._ran = True
            case Holders(epoch, names):
                log.info("epoch %d is held by %s", epoch, ", ".join(sorted(names)))
                record = replace(
                    self._record, epoch=epoch, holders=tuple(sorted(names)),
                    promised_epoch=max(epoch, self._record.promised_epoch),
                )  # fmt: skip
                self._write(record, lambda: self.driver.set_mark(epoch))
            case Inquorate(reason):
                log.info("not in the primary view: %s", reason)
            case NeverJoins(reason, settings):
                self.stop(Exit.PROTOCOL if settings else Exit.DATA, reason)
            case _:
                pass  # commands, and what becomes of them, are for members with data

    # -- the record ------------------------------------------------------------------------------

    def _write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        """Make a record durable, after those before it; the ring turns meanwhile."""
        self._record = record
        writing = self.loop.run_in_executor(self._writer, self._file.write, record)
        writing.add_done_callback(lambda done: self._written(done, then))

    def _written(self, done: asyncio.Future[None], then: Callable[[], None]) -> None:
        error = done.exception()
        if error is not None:
            self.stop(Exit.INTERNAL, f"the record cannot be written: {error}")
        elif not self._stopping:
            then()

    def _promised(self, request: int) -> None:
        # A promise is given when whoever did not come along has stopped replying.
        wait_s = self._lease.silent_in(self.primary.members)
        self.loop.call_later(wait_s, self._acknowledge, request)

    def _acknowledge(self, request: int) -> None:
        if not self._stopping:
            self.primary.persisted(request)
            self._work()


def _wall_us() -> int:
    return time.time_ns() // 1000
