"""State transfer in virtual time: the real joiner and donor over the simulated network and disk.

Datagrams go through the ring's links and are lost, late or doubled there; work of a process's
worker threads takes a while here, and is lost when the member dies meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.durability.donor import DonorLibrary
from broker.durability.joiner import Joiner
from broker.durability.transfer_protocol import FROM_JOINER, Sender, decode, is_transfer
from broker.incidents.quarantine import Quarantine
from broker.replication.replica import Recorded, Replica
from store.api import Meta
from tests.sim.world.tap import FOREIGN, HEADER, unpack
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.totem.events import Direct
from vsync.types import Member

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

BEAT_S = 0.05
ROOM = 1 << 40


class NoQuarantine(Quarantine):
    """Nothing was ever quarantined."""

    def __init__(self) -> None:
        self.records = []


class SimTransfer:
    """A member's transfer (`ports.Transfer`), in the place of `broker.durability.transfer`."""

    def __init__(self, upper: BrokerUpper) -> None:
        self.upper, self.world = upper, upper.world
        tape = self.tape = upper.tape.fork("joining")
        self._pause_s = tape.pick((0.0, 0.0005, 0.01))
        self._burst = tape.pick((500, 2000, 100_000))
        self._pumping = False
        library = DonorLibrary(
            lambda: upper.replicated.persister.for_others,
            lambda: upper.replicated.persister.request_checkpoint(),
            tape.pick((300, 3000, 100_000)),
        )
        self._sender = Sender(
            self.send, library, self._work_of_donor, self.now, self.world.plan.frame_bytes_max
        )
        self._joiner: Joiner[MemoryStore] = Joiner(
            self, NoQuarantine(),
            own=lambda: upper.replicated.persister.meta,
            replica=lambda: upper.controller.replica,
            may_replace=lambda history: upper.replicated.may_replace(history),
            keeps_up=lambda: upper.watchdogs.disk_keeps_up,
            on_verified=self._verified,
            on_items=lambda: upper.replicated.tail_is_here(),
            on_failed=lambda reason: upper.replicated.transfer_failed(reason),
            on_broken=lambda error: upper.replicated.disk_broken(error),
        )  # fmt: skip
        self.begin, self.abort = self._joiner.begin, self._joiner.abort
        self._beat()

    def next_item(self) -> Recorded | None:
        return self._joiner.next_item()

    def done(self) -> None:
        """The tail has met the order."""
        for name, value in self._joiner.counters.items():
            if name in ("tails", "checkpoints", "resumed"):
                self.upper.judge.counters[f"joined_by_{name}"] += value
                self._joiner.counters[name] = 0
        self._joiner.done()

    def _verified(self, replica: Replica, store: MemoryStore) -> bool:
        self.upper.judge.recovered(self.upper.name, replica, "joined")
        return self.upper.replicated.state_received(replica, store)

    # -- datagrams -------------------------------------------------------------------------------

    def takes(self, direct: Direct) -> None:
        payload = direct.payload[HEADER.size :]
        if unpack(direct.payload) == FOREIGN or not is_transfer(payload):
            return
        if (message := decode(payload)) is None:
            return
        if message[0] in FROM_JOINER:
            self._sender.on_message(direct.sender, *message)
            self._pump_soon()
        else:
            self._joiner.on_message(*message)

    def _pump_soon(self) -> None:
        if not self._pumping and self._sender.has_work:
            self._pumping = True
            self.upper.later(self._pause_s, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        self._sender.pump(self._burst)
        self._pump_soon()

    def _beat(self) -> None:
        self.upper.later(BEAT_S * self.tape.between(0.5, 1.5), self._beat)
        if not self.upper.stopping and self.world.now:
            self._joiner.wake()
            self._sender.wake()

    # -- its disk, threads and clock (`joiner.Device`) -------------------------------------------

    def now(self) -> float:
        return self.world.now

    def send(self, to: Member, payload: bytes) -> None:
        if not self.upper.dead and not self.upper.stopping:
            self.upper.tap.send_direct(to, payload)

    def work(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        self.upper.later(
            self.tape.gap(0.3 * self.world.plan.transfer_s), lambda: self._run(job, done)
        )

    def _work_of_donor(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        def then(result: object, error: Exception | None) -> None:
            done(result, error)
            self._pump_soon()

        self.upper.later(
            self.tape.gap(0.02 * self.world.plan.transfer_s), lambda: self._run(job, then)
        )

    def _run(
        self, job: Callable[[], object], done: Callable[[object, Exception | None], None]
    ) -> None:
        if self.upper.stopping:
            return
        try:
            result = job()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def create(self, attempt: str, meta: Meta) -> MemoryStore:
        return MemoryStore(MemoryDisk(), meta, log_bytes_kept=self.upper.log_bytes_kept)

    def discard(self, store: MemoryStore) -> None:
        store.close()

    def free_bytes(self) -> int:
        return ROOM
