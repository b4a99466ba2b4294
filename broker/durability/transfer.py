"""The shell of state transfer in a process: datagrams, worker threads and directories.

Reading, restoring and verifying run on worker threads; the loop keeps passing the token meanwhile.
A donor paces its sending: a burst, then a pause three times as long, and longer while clients are
served.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from broker.durability.donor import DonorLibrary
from broker.durability.joiner import Joiner
from broker.durability.store_writer import StoreWriter
from broker.durability.transfer_protocol import FROM_JOINER, Sender, decode, is_transfer
from broker.incidents.quarantine import Quarantine
from broker.replication.member import ReplicatedMember
from broker.replication.replica import Recorded, Replica
from store import swap
from store.api import Meta, Store
from store.lmdb_store import LmdbStore
from vsync.totem.events import Direct
from vsync.types import Member

log = logging.getLogger("qpidd.join")

BURST_BYTES = 128_000
PAUSE_S = 0.0005
BUSY_PAUSE_S = 0.004
"""A donor that serves clients sends 32 MB/s at most, an idle one as fast as a quarter of its
loop's time allows."""


class ProcessDevice:
    """The disk, the threads and the datagrams of this process (`joiner.Device`)."""

    def __init__(
        self, data_dir: Path, loop: asyncio.AbstractEventLoop, send: Callable[[Member, bytes], None]
    ) -> None:
        self._dir, self._loop = data_dir, loop
        self.send, self.now = send, loop.time

    def work(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        """Run a job on a worker thread."""

        def finished(future: asyncio.Future[object]) -> None:
            error = future.exception()
            assert error is None or isinstance(error, Exception)
            done(None if error is not None else future.result(), error)

        self._loop.run_in_executor(None, job).add_done_callback(finished)

    def create(self, attempt: str, meta: Meta) -> LmdbStore:
        """Create a store in a directory of the attempt's own."""
        return swap.incoming(self._dir, attempt, meta)

    def discard(self, store: LmdbStore) -> None:
        """Close and remove it."""
        store.close()
        shutil.rmtree(store.path, ignore_errors=True)

    def free_bytes(self) -> int:
        """Return the free space on the disk of the data directory."""
        return shutil.disk_usage(self._dir).free


class StateTransfer:
    """Both sides of state transfer at one member (`ports.Transfer`)."""

    def __init__(
        self,
        data_dir: Path,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Member, bytes], None],
        quarantine: Quarantine,
        *,
        store: Callable[[], Store | None],
        own: Callable[[], Meta],
        replica: Callable[[], Replica],
        request_checkpoint: Callable[[], None],
        keeps_up: Callable[[], bool],
        member: Callable[[], ReplicatedMember[LmdbStore, StoreWriter]],
    ) -> None:
        self._loop, self._replica = loop, replica
        device = ProcessDevice(data_dir, loop, send)

        def request() -> None:
            loop.call_soon_threadsafe(request_checkpoint)

        def work(
            job: Callable[[], object], done: Callable[[object, Exception | None], None]
        ) -> None:
            device.work(job, lambda result, error: self._pump_after(done, result, error))

        self._sender = Sender(send, DonorLibrary(store, request), work, loop.time)
        self._joiner: Joiner[LmdbStore] = Joiner(
            device, quarantine, own=own, replica=replica,
            may_replace=lambda history: member().may_replace(history), keeps_up=keeps_up,
            on_verified=lambda state, received: member().state_received(state, received),
            on_items=lambda: member().tail_is_here(),
            on_failed=lambda reason: member().transfer_failed(reason),
            on_broken=lambda error: member().disk_broken(error),
        )  # fmt: skip
        self.begin, self.abort, self.done = (
            self._joiner.begin, self._joiner.abort, self._joiner.done,
        )  # fmt: skip
        self._pumping: asyncio.Handle | None = None
        self._pumped_at = 0  # the position then

    def next_item(self) -> Recorded | None:
        """Return the next item of the tail, if it is here."""
        return self._joiner.next_item()

    @property
    def progress(self) -> str:
        """Return the progress of the transfer to this member, for people; empty without one."""
        return self._joiner.progress

    @property
    def share(self) -> float:
        """Return the received share of the transfer; 1 when nothing is being fetched."""
        return min(max(self._joiner.share, 0.0), 1.0)

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters of both sides."""
        sent = {f"donor_{name}": value for name, value in self._sender.counters.items()}
        return {**self._joiner.counters, **sent}

    def takes(self, direct: Direct) -> bool:
        """Handle this datagram if it belongs to state transfer; return whether it does."""
        if not is_transfer(direct.payload):
            return False
        message = decode(direct.payload)
        if message is None:
            return True
        if message[0] in FROM_JOINER:
            self._sender.on_message(direct.sender, *message)
            self._pump_soon(0)
        else:
            self._joiner.on_message(*message)
        return True

    def _pump_after(
        self,
        done: Callable[[object, Exception | None], None],
        result: object,
        error: Exception | None,
    ) -> None:
        done(result, error)
        self._pump_soon(0)

    def _pump_soon(self, pause_s: float) -> None:
        if self._pumping is None:
            self._pumping = self._loop.call_later(pause_s, self._pump)

    def _pump(self) -> None:
        self._pumping = None
        begun = time.perf_counter()
        self._sender.pump(BURST_BYTES)
        took = time.perf_counter() - begun
        if self._sender.readers:
            position = self._replica().history.position
            pause = PAUSE_S if position == self._pumped_at else BUSY_PAUSE_S
            self._pumped_at = position
            if self._sender.has_work:
                self._pump_soon(max(pause, 3 * took))

    def wake(self) -> None:
        """Do the work that is due by the clock."""
        self._joiner.wake()
        self._sender.wake()

    def close(self) -> None:
        """Give everything up."""
        if self._pumping is not None:
            self._pumping.cancel()
        self._joiner.close()
        self._sender.close()
