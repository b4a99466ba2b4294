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

from broker.admin.operations import STOP_DATAGRAM, Attendant
from broker.admin.status import counters_of
from broker.divergence.digest_vote import Verdict
from broker.durability import transfer
from broker.durability.data_directory import Identity
from broker.durability.persister import Keeper
from broker.durability.startup import resume
from broker.durability.transfer_protocol import Tag, decode, is_transfer
from broker.exit_codes import Exit
from broker.frontend.connections import Clients
from broker.machine.effects import Effect
from broker.machine.version import MACHINE_VERSION
from broker.memberlog.writer import LogWriteFailed
from broker.options.broker import BrokerOptions
from broker.process.join_refusal import Newcomer
from broker.process.log_archiver import open_books
from broker.process.ring_setup import discovery_for, ring_driver
from broker.process.shutdown import close_books
from broker.replication.chain import History
from broker.replication.controller import Core
from broker.replication.promise import Promise
from broker.replication.replica import Replica
from broker.replication.timers import Duties
from broker.selfcheck.supervisor import Care
from broker.watchdogs.speaking_lease import Licence
from broker.watchdogs.watchdogs import BEAT_S, Health
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
        identity: Identity,
        transport: ZmqTransport,
        loop: asyncio.AbstractEventLoop,
        url: str,
    ) -> None:
        self.options, self.identity, self.loop, self.url = options, identity, loop, url
        self.done: asyncio.Future[Exit] = loop.create_future()
        self.stopping = ""
        self.care = Care(identity.data_dir, identity.name)
        replica, filled = resume(identity.store, self.care.quarantine)
        meta = identity.begin()
        config = RingConfig(payload_version=MACHINE_VERSION)
        self.transport = transport
        self.me = Member(identity.name, identity.incarnation, self.transport.address)
        self.node = Node(self.me, identity.ring_name, config, random.Random())
        self.licence = Licence(self.node.lease)
        self.driver = ring_driver(options, identity, self.node, transport, self._on_output, loop)
        self.discovery = discovery_for(options, self.me, log.warning)
        self.keeper = Keeper(
            identity.data_dir, identity.store, meta, loop, self._on_durable, self._on_store_failed
        )
        self.logbook, self.archivist = open_books(options, identity, meta, _wall_us, loop)
        self.logbook.start(replica.history if filled else History(), replica.machine)
        replica.log = self.logbook
        self.clients = Clients(
            identity.name, options.cluster_name, self._schedule, loop.call_later,
            logging.getLogger("qpidd.client").info,
        )  # fmt: skip
        self.core = Core(
            self.me, self, replica,
            Promise(meta.cluster_id, meta.voters, meta.promised_epoch),
            filled=filled, size=options.cluster_size,
            proposal=uuid.uuid4().hex,
            patient=options.clustered, label=url, wish=options.wish,
        )  # fmt: skip
        self.care.attend(self.core, self.keeper, self.logbook, options.scrub_rate, loop)
        self.donations = transfer.Donations(
            identity.data_dir, lambda: self.keeper.store, loop, self.send_direct,
            self.keeper.wish_checkpoint,
        )  # fmt: skip
        self.joining = transfer.Joining(
            identity.data_dir, lambda: self.keeper.meta, loop, self.send_direct,
            self._state_ready, self._transfer_failed, self.care.quarantine,
        )  # fmt: skip
        self.counters: dict[str, int] = {"turns": 0, "datagrams_of_strangers": 0}
        self._pumping = False
        self.health = Health(self, options.bounds)
        newcomer = Newcomer(self.core, self.node, transport, self.stop, log.error)
        self.duties = Duties(self.core, newcomer, self.stop, loop.time())
        self.attendant = Attendant(self, self.core, self.clients, options.cluster_name)
        self._beat_handle: asyncio.TimerHandle | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        self.driver.closed.add_done_callback(self._ring_closed)
        self.driver.start()
        if self.discovery is not None:
            self.discovery.start(self._found)
        self.archivist.tend()
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
        if code is Exit.OK and self.core.shutdown_position:
            await asyncio.sleep(LINGER_S)
            self.attendant.farewell()
        if self.discovery is not None:
            self.discovery.stop()
        self.driver.leave()
        self.joining.abort()
        self.donations.close()
        code = await close_books(
            self.core, self.keeper, self.logbook, code, reason, inconsistent=inconsistent
        )
        await self.archivist.stop()
        self.driver.stop(FAREWELL_MS)
        self.identity.store = self.keeper.store
        if not self.keeper.stuck:
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
            self.logbook.view(output.ring, output.members, regular=True)
            self.health.on_view(output.members)
        elif isinstance(output, Transitional):
            self.logbook.view(output.ring, output.members, regular=False)
        if self.stopping and not self.core.shutdown_position:
            return
        try:
            self.core.on_output(output)
        except Exception as error:  # ours: see _pump
            self._broken(error)
            return
        # Control messages of the primary layer go out at once; applying waits for its slice.
        if not isinstance(output, Deliver) or not self.core.busy:
            self.core.flush()
        self._schedule()

    def _on_direct(self, direct: Direct) -> None:
        if direct.sender not in self.node.members:
            self.counters["datagrams_of_strangers"] += 1
        elif direct.payload == STOP_DATAGRAM:
            self.stop(Exit.OK, f"stopped by an operator through {direct.sender.name}")
        elif not self.health.takes(direct) and is_transfer(direct.payload):
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
        core, clock = self.core, time.perf_counter
        deadline = clock() + SLICE_S
        try:
            while core.busy and clock() < deadline:
                core.step()
        except Exception as error:  # ours, whatever it is: this member must not go on (decision 4)
            self._broken(error)
            return
        if not core.halted and (commands := self.clients.take_commands()):
            core.admit(commands)
        self.keeper.keep(self.core.replica, self.core.promise)
        self._speak()
        self.clients.throttle(full=core.submissions.full or bool(core.halted))
        self.counters["turns"] += 1
        if core.busy or (self.clients.gateway.has_work and not core.halted):
            self._schedule()

    def _broken(self, error: Exception) -> None:
        self.stop(Exit.INTERNAL, self.care.failed(error))

    def _speak(self) -> None:
        try:
            self.logbook.flush()  # first: what a client was told must be there to be looked up
        except LogWriteFailed as error:
            return self.stop(Exit.INTERNAL, f"the member log cannot be written: {error}")
        soon = self.core.undecided
        confirmed = self.clients.flush(speaking=self.licence.covers(self.core), soon=soon)
        if confirmed:
            self.logbook.confirmed(self.core.primary.epoch, self.clients.durable_mark, confirmed)

    def _on_durable(self, position: int) -> None:
        self.logbook.durable(position)
        self.driver.set_mark(position)

    def _on_store_failed(self, error: StoreError) -> None:
        self.stop(Exit.INTERNAL, f"the store failed: {error}")

    def _beat(self) -> None:
        """What is due by the clock."""
        now = self.loop.time()
        self.joining.wake()
        self.donations.sender.wake(now)
        self.clients.wake(time.monotonic())
        self.duties.wake(now)
        self.care.wake()
        self.health.wake()
        self._schedule()
        self._beat_handle = self.loop.call_later(BEAT_S, self._beat)

    # -- ordered by the core ---------------------------------------------------------------------

    def multicast(self, payload: bytes) -> bool:
        """Submit to the ring."""
        return self.driver.submit(payload, Guarantee.SAFE)

    def persist_promise(self, promise: Promise) -> None:
        """Make the promise durable behind everything that was applied."""
        self.health.when_clock_is_right(lambda: self._persist(promise))

    def _persist(self, promise: Promise) -> None:
        self.keeper.keep(self.core.replica, promise)
        self.keeper.promise(promise, lambda: self._promised(promise.promised_epoch))

    def _promised(self, epoch: int) -> None:
        wait_s = self.licence.silent_in(self.core.primary.members)
        self.loop.call_later(wait_s, self.core.epoch_persisted, epoch)

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Fetch the donor's state."""
        self.health.when_clock_is_right(lambda: self.joining.begin(donor, base))

    def abort_transfer(self) -> None:
        """Drop a transfer under way."""
        self.health.when_clock_is_right(self.joining.abort)

    def _transfer_failed(self, reason: str) -> None:
        log.warning("state transfer failed, trying again: %s", reason)
        self.loop.call_later(0.5, self.core.transfer_failed)

    def _state_ready(self, replica: Replica, joined: LmdbStore) -> None:
        if self.stopping or not self.core.fits(replica):
            joined.close()
            self._transfer_failed("it does not meet what was ordered meanwhile")
            return
        donor = self.core.transfer_donor
        durable = replica.history.position  # what was ordered meanwhile is applied, but not on disk
        try:
            self.keeper.adopt(joined)
            self.logbook.snapshot(replica.history, replica.machine, donor)
            replica.log = self.logbook
            self.core.state_installed(replica)
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
        self.logbook.inactive(reason)

    def speak(self) -> None:
        """This member serves."""
        log.info("serving in %s", self.core.replica.history)

    def session_started(self, session: int) -> None:
        """Connections of an older session are void."""
        self.clients.session_started(session)
        self.core.admit([*self.care.quarantine.reports()])

    def decided(self, epoch: int) -> None:
        """Note that what follows is older than the primary view."""
        self.logbook.decided(epoch)

    def activated(self, event: Activated, base: History | None) -> None:
        """Note the primary view."""
        after = f"after position {base.position}" if base is not None else "as received"
        log.info("primary view of epoch %d, %s", event.activation.epoch, after)
        self.logbook.activated(event, base)

    def voted(self, verdict: Verdict) -> None:
        """Note a verdict."""
        self.care.voted(verdict)

    def now_us(self) -> int:
        """Return the wall clock."""
        return _wall_us()

    # -- asked by operators and signals ----------------------------------------------------------

    def terminate(self) -> None:
        """The process was asked to end: the last member shuts the cluster down, others leave."""
        alone = len(self.node.members) == 1 and self.core.speaking
        if alone and not self.core.shutdown_position:
            self.attendant.shutdown()
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
            core=self.core.counters, primary=self.core.primary.counters,
            replica=self.core.replica.counters,
            store=self.keeper.counters(), votes=self.core.tribunal.counters,
            clients=self.clients.counters, memberlog=self.archivist.counters,
            care=self.care.all_counters(), **self.health.counters,
        )  # fmt: skip


def _wall_us() -> int:
    return time.time_ns() // 1000
