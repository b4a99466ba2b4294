"""The shell of one member: ring, store, log and clients around the core, on one event loop.

Everything happens on the loop's thread except LMDB commits (the store writer's thread) and state
transfers (worker threads).  A turn of work applies items for at most `SLICE_S`, then hands what was
applied to the store, speaks, and lets the ring breathe: the token never waits for applying.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable

from broker.admin.operations import STOP_DATAGRAM, Operations
from broker.admin.status import counters_of
from broker.divergence.digest_vote import DigestVerdict
from broker.durability import transfer
from broker.durability.data_directory import DataDirectory
from broker.durability.persister import Persister
from broker.durability.startup import resume
from broker.durability.transfer_protocol import Tag, decode, is_transfer
from broker.exit_codes import Exit
from broker.frontend.connections import Connections
from broker.machine.effects import Effect
from broker.machine.version import MACHINE_VERSION
from broker.memberlog.writer import LogWriteFailed
from broker.options.broker import BrokerOptions
from broker.process.join_refusal import JoinRefusal
from broker.process.log_archiver import open_books
from broker.process.ring_setup import discovery_for, ring_driver
from broker.process.shutdown import close_books
from broker.replication.chain import History
from broker.replication.controller import Controller
from broker.replication.promise import Promise
from broker.replication.replica import Replica
from broker.replication.timers import Timers
from broker.selfcheck.supervisor import Supervisor
from broker.watchdogs.speaking_lease import SpeakingLease
from broker.watchdogs.watchdogs import BEAT_S, Watchdogs
from store.errors import StoreError
from store.lmdb_store import LmdbStore
from vsync.io.transport import ZmqTransport
from vsync.primary.events import Activated
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Direct, Note, Output, Transitional, View
from vsync.totem.node import Node
from vsync.types import Guarantee, Member

log = logging.getLogger("qpidd")

SLICE_S = 0.0005
FAREWELL_MS = 100
"""How long the ring's last words may take to get out."""
LINGER_S = 0.4
"""After a clean shutdown is complete here, how long the token is still passed for the others."""


class BrokerMember:
    """One running member.  `done` gets the exit code."""

    def __init__(
        self,
        options: BrokerOptions,
        identity: DataDirectory,
        transport: ZmqTransport,
        loop: asyncio.AbstractEventLoop,
        url: str,
    ) -> None:
        self.options, self.identity, self.loop, self.url = options, identity, loop, url
        self.done: asyncio.Future[Exit] = loop.create_future()
        self.stopping = ""
        self.supervisor = Supervisor(identity.data_dir, identity.name)
        replica, filled = resume(identity.store, self.supervisor.quarantine)
        meta = identity.begin()
        config = RingConfig(payload_version=MACHINE_VERSION)
        self.transport = transport
        self.me = Member(identity.name, identity.incarnation, self.transport.address)
        self.node = Node(self.me, identity.ring_name, config, random.Random())
        self.speaking_lease = SpeakingLease(self.node.lease)
        self.driver = ring_driver(options, identity, self.node, transport, self._on_output, loop)
        self.discovery = discovery_for(options, self.me, log.warning)
        self.persister = Persister(
            identity.data_dir, identity.store, meta, loop, self._on_durable, self._on_store_failed
        )
        self.recorder, self.archiver = open_books(options, identity, meta, _wall_us, loop)
        self.recorder.start(replica.history if filled else History(), replica.machine)
        replica.log = self.recorder
        self.clients = Connections(
            identity.name, options.cluster_name, self._schedule, loop.call_later,
            logging.getLogger("qpidd.client").info,
        )  # fmt: skip
        self.controller = Controller(
            self.me, self, replica,
            Promise(meta.cluster_id, meta.voters, meta.promised_epoch),
            filled=filled, size=options.cluster_size,
            proposal=uuid.uuid4().hex,
            patient=options.clustered, label=url, wish=options.wish,
        )  # fmt: skip
        self.supervisor.attend(
            self.controller, self.persister, self.recorder, options.scrub_rate, loop
        )
        self.donations = transfer.TransferDonor(
            identity.data_dir, lambda: self.persister.store, loop, self.send_direct,
            self.persister.wish_checkpoint,
        )  # fmt: skip
        self.joining = transfer.TransferJoiner(
            identity.data_dir, lambda: self.persister.meta, loop, self.send_direct,
            self._state_ready, self._transfer_failed, self.supervisor.quarantine,
        )  # fmt: skip
        self.counters: dict[str, int] = {"turns": 0, "datagrams_of_strangers": 0}
        self._pumping = False
        self.watchdogs = Watchdogs(self, options.bounds)
        newcomer = JoinRefusal(self.controller, self.node, transport, self.stop, log.error)
        self.timers = Timers(self.controller, newcomer, self.stop, loop.time())
        self.operations = Operations(self, self.controller, self.clients, options.cluster_name)
        self._beat_handle: asyncio.TimerHandle | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        self.driver.closed.add_done_callback(self._ring_closed)
        self.driver.start()
        if self.discovery is not None:
            self.discovery.start(self._found)
        self.archiver.tend()
        self._beat()

    def _ring_closed(self, closed: asyncio.Future[None]) -> None:
        if closed.exception() is not None:
            log.error("the ring failed", exc_info=closed.exception())
            self.stop(Exit.INTERNAL, "the ring failed here")

    def _found(self, address: str) -> None:
        if address != self.me.address:
            self.driver.add_peer(address)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member: clients are told, the ring is left, the store is closed."""
        if self.stopping:
            return
        self.stopping = reason
        level = logging.INFO if code is Exit.OK else logging.CRITICAL
        log.log(level, "stopping: %s", reason)
        ending = self.loop.create_task(self._stop(code, reason, inconsistent=inconsistent))
        ending.add_done_callback(self._stopped)

    def _stopped(self, ending: asyncio.Task[Exit]) -> None:
        if ending.exception() is not None:
            log.critical("the broker could not stop in order", exc_info=ending.exception())
        if not self.done.done():
            self.done.set_result(Exit.INTERNAL if ending.exception() else ending.result())

    async def _stop(self, code: Exit, reason: str, *, inconsistent: bool) -> Exit:
        self._speak()
        self.clients.drop_all("the broker is stopping")
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if code is Exit.OK and self.controller.shutdown_position:
            await asyncio.sleep(LINGER_S)
            self.operations.farewell()
        if self.discovery is not None:
            self.discovery.stop()
        self.driver.leave()
        self.joining.abort()
        self.donations.close()
        code = await close_books(
            self.controller, self.persister, self.recorder, code, reason, inconsistent=inconsistent
        )
        await self.archiver.stop()
        self.driver.stop(FAREWELL_MS)
        self.identity.store = self.persister.store
        if not self.persister.stuck:
            self.identity.close()
        return code

    # -- from the ring ---------------------------------------------------------------------------

    def _on_output(self, output: Output) -> None:
        if isinstance(output, Direct):
            self._on_direct(output)
            return
        if isinstance(output, Note):
            log.debug("ring: %s %s", output.code, output.fields)
            return
        if isinstance(output, View):
            log.info("view %s: %s", output.ring, ", ".join(m.name for m in output.members))
            self.recorder.view(output.ring, output.members, regular=True)
            self.watchdogs.on_view(output.members)
        elif isinstance(output, Transitional):
            self.recorder.view(output.ring, output.members, regular=False)
        if self.stopping and not self.controller.shutdown_position:
            return
        try:
            self.controller.on_output(output)
        except Exception as error:  # ours: see _pump
            self._broken(error)
            return
        # Control messages of the primary layer go out at once; applying waits for its slice.
        if not isinstance(output, Deliver) or not self.controller.busy:
            self.controller.flush()
        self._schedule()

    def _on_direct(self, direct: Direct) -> None:
        if direct.sender not in self.node.members:
            self.counters["datagrams_of_strangers"] += 1
        elif direct.payload == STOP_DATAGRAM:
            self.stop(Exit.OK, f"stopped by an operator through {direct.sender.name}")
        elif not self.watchdogs.takes(direct) and is_transfer(direct.payload):
            if (message := decode(direct.payload)) and message[0] in (Tag.ASK, Tag.GET, Tag.DONE):
                self.donations.sender.on_message(direct.sender, *message, self.loop.time())
            else:
                self.joining.on_datagram(direct.payload)

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Send one datagram to one member."""
        self.driver.send_direct(to, payload)

    # -- turns of work ---------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.stopping:
            return
        controller, clock = self.controller, time.perf_counter
        deadline = clock() + SLICE_S
        try:
            while controller.busy and clock() < deadline:
                controller.step()
        except Exception as error:  # ours, whatever it is: this member must not go on
            # docs/decisions/0013-validate-then-mutate.md
            self._broken(error)
            return
        if not controller.halted and (commands := self.clients.take_commands()):
            controller.admit(commands)
        self.persister.keep(self.controller.replica, self.controller.promise)
        self._speak()
        self.clients.throttle(full=controller.submissions.full or bool(controller.halted))
        self.counters["turns"] += 1
        if controller.busy or (self.clients.gateway.has_work and not controller.halted):
            self._schedule()

    def _broken(self, error: Exception) -> None:
        self.stop(Exit.INTERNAL, self.supervisor.failed(error))

    def _speak(self) -> None:
        try:
            self.recorder.flush()  # first: what a client was told must be there to be looked up
        except LogWriteFailed as error:
            return self.stop(Exit.INTERNAL, f"the member log cannot be written: {error}")
        soon = self.controller.unstable
        confirmed = self.clients.flush(
            speaking=self.speaking_lease.covers(self.controller), soon=soon
        )
        if confirmed:
            self.recorder.confirmed(
                self.controller.primary.epoch, self.clients.durable_mark, confirmed
            )

    def _on_durable(self, position: int) -> None:
        self.recorder.durable(position)
        self.driver.set_mark(position)

    def _on_store_failed(self, error: StoreError) -> None:
        self.stop(Exit.INTERNAL, f"the store failed: {error}")

    def _beat(self) -> None:
        """What is due by the clock."""
        now = self.loop.time()
        self.joining.wake()
        self.donations.sender.wake(now)
        self.clients.wake(time.monotonic())
        self.timers.wake(now)
        self.supervisor.wake()
        self.watchdogs.wake()
        self._schedule()
        self._beat_handle = self.loop.call_later(BEAT_S, self._beat)

    # -- ordered by the core ---------------------------------------------------------------------

    def multicast(self, payload: bytes) -> bool:
        """Submit to the ring."""
        return self.driver.submit(payload, Guarantee.SAFE)

    def persist_promise(self, promise: Promise) -> None:
        """Make the promise durable behind everything that was applied."""
        self.watchdogs.when_clock_is_right(lambda: self._persist(promise))

    def _persist(self, promise: Promise) -> None:
        self.persister.keep(self.controller.replica, promise)
        self.persister.promise(promise, lambda: self._promised(promise.promised_epoch))

    def _promised(self, epoch: int) -> None:
        wait_s = self.speaking_lease.silent_in(self.controller.primary.members)
        self.loop.call_later(wait_s, self.controller.epoch_persisted, epoch)

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Fetch the donor's state."""
        self.watchdogs.when_clock_is_right(lambda: self.joining.begin(donor, base))

    def abort_transfer(self) -> None:
        """Drop a transfer under way."""
        self.watchdogs.when_clock_is_right(self.joining.abort)

    def _transfer_failed(self, reason: str) -> None:
        log.warning("state transfer failed, trying again: %s", reason)
        self.loop.call_later(0.5, self.controller.transfer_failed)

    def _state_ready(self, replica: Replica, joined: LmdbStore) -> None:
        if self.stopping or not self.controller.fits(replica):
            joined.close()
            self._transfer_failed("it does not meet what was ordered meanwhile")
            return
        donor = self.controller.transfer_donor
        durable = replica.history.position  # what was ordered meanwhile is applied, but not on disk
        try:
            self.persister.adopt(joined)
            self.recorder.snapshot(replica.history, replica.machine, donor)
            replica.log = self.recorder
            self.controller.state_installed(replica)
        except Exception as error:  # the switch of stores failed, or applying did: see _pump
            self._broken(error)
            return
        self._on_durable(durable)
        self._schedule()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Hand effects to the clients."""
        self.clients.effects(effects)

    def release(self, position: int) -> None:
        """What waited for `position` may be spoken."""
        self.clients.release(position)

    def hold(self, reason: str) -> None:
        """Say nothing to clients."""
        log.info("not in the primary view: %s", reason)
        self.recorder.inactive(reason)

    def speak(self) -> None:
        """This member serves."""
        log.info("serving in %s", self.controller.replica.history)

    def session_started(self, session: int) -> None:
        """Connections of an older session are void."""
        self.clients.session_started(session)
        self.controller.admit([*self.supervisor.quarantine.reports()])

    def decided(self, epoch: int) -> None:
        """Note that what follows is older than the primary view."""
        self.recorder.decided(epoch)

    def activated(self, event: Activated, base: History | None) -> None:
        """Note the primary view."""
        after = f"after position {base.position}" if base is not None else "as received"
        log.info("primary view of epoch %d, %s", event.activation.epoch, after)
        self.recorder.activated(event, base)

    def voted(self, verdict: DigestVerdict) -> None:
        """Note a verdict."""
        self.supervisor.voted(verdict)

    def now_us(self) -> int:
        """Return the wall clock."""
        return _wall_us()

    # -- asked by operators and signals ----------------------------------------------------------

    def terminate(self) -> None:
        """The process was asked to end: the last member shuts the cluster down, others leave."""
        alone = len(self.node.members) == 1 and self.controller.speaking
        if alone and not self.controller.shutdown_position:
            self.operations.shutdown()
        else:
            self.stop(Exit.OK, "asked to terminate")

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after some time."""
        self.loop.call_later(delay_s, call)

    def progress(self) -> str:
        """Return how far a state transfer to this member is."""
        return self.joining.progress

    def all_counters(self) -> dict[str, int]:
        """Return the counters of all parts, prefixed by the part."""
        return counters_of(
            member=self.counters, ring=self.node.counters, transport=self.transport.counters,
            core=self.controller.counters, primary=self.controller.primary.counters,
            replica=self.controller.replica.counters,
            store=self.persister.counters(), votes=self.controller.judgement.counters,
            clients=self.clients.counters, memberlog=self.archiver.counters,
            care=self.supervisor.all_counters(), **self.watchdogs.counters,
        )  # fmt: skip


def _wall_us() -> int:
    return time.time_ns() // 1000
