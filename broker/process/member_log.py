"""The member log of a running member: its recorder, its writer, and its archiver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.durability.data_directory import DataDirectory
from broker.durability.store_writer import StoreWriter
from broker.machine.machine import Machine
from broker.memberlog.log_thread import LogThread
from broker.memberlog.recorder import Recorder
from broker.options.broker import BrokerOptions
from broker.process.log_archiver import LogArchiver
from broker.replication.chain import History
from broker.replication.member import ReplicatedMember
from store.api import Meta
from store.commit_queue import CommitLag
from store.lmdb_store import LmdbStore

log = logging.getLogger("qpidd")

SETTLE_S = 0.5
"""How long output for clients waits for the log when the member stops."""


class MemberLog:
    """The log of one incarnation. Raises LogWriteFailed.

    The `member` is told of the writes that it waits for; `on_failed` follows the first failed one.
    """

    def __init__(
        self,
        options: BrokerOptions,
        identity: DataDirectory,
        meta: Meta,
        wall_us: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        member: Callable[[], ReplicatedMember[LmdbStore, StoreWriter]],
        on_failed: Callable[[Exception], None],
    ) -> None:
        given = options.memberlog
        # The name that a promise was made to, before anything was held, may be of a start that came
        # to nothing.
        cluster_id = meta.cluster_id if meta.position else ""
        writer = self._writer = LogThread(
            identity.log_dir, options.cluster_name, cluster_id, identity.name,
            identity.incarnation, wall_us, loop, given.segment_bytes, given.segment_us,
            identity.reserve.give_up,
        )  # fmt: skip
        writer.on_written, writer.on_failed = lambda: member().log_written(), on_failed
        writer.awaited = lambda: member().awaits_log
        self.recorder = Recorder(writer)
        self._lease = identity.lease
        self.archiver = LogArchiver(identity.log_dir, lambda: writer.path, given.policy, loop)
        writer.closed = self.archiver.closed
        self.tend = self.archiver.tend

    @property
    def counters(self) -> dict[str, int]:
        """Return counts of records written, packed and dropped."""
        lag = self._writer.lag()
        waiting = {"waiting_bytes": lag.bytes}
        return {**self.archiver.counters, **self._writer.counters, **waiting}

    @property
    def full(self) -> str:
        """Return why a write waits for space; empty: none waits."""
        return self._writer.full

    def lag(self) -> CommitLag:
        """Return how far the disk is behind."""
        return self._writer.lag()

    def start(self, history: History, machine: Machine) -> None:
        """Begin with the state that recovery found, and the lease that covers what follows."""
        self.recorder.start(history, machine)
        self._lease.recorded_by(self.recorder.lease)

    async def settled(self) -> None:
        """Wait a moment until everything flushed is written."""
        await self._writer.settled(SETTLE_S)

    async def close(self, reason: str, history: History, patience_s: float) -> bool:
        """Write the end; False: the disk does not answer, and a thread is still blocked in it.

        Raises LogWriteFailed when not everything could be written; it is closed all the same.
        """
        try:
            self._lease.given_up()
            self.recorder.stop(reason, history)
            ended = await self._writer.closed_within(patience_s)
        finally:
            await self.archiver.stop()
        if not ended:
            log.critical("the member log could not be closed: the disk does not answer")
        return ended
