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
from dataclasses import replace

from broker import joining
from broker.clients import Clients
from broker.consensus import Verdict
from broker.core import Core, Promise
from broker.exits import Exit
from broker.history import History
from broker.identity import Identity, filled
from broker.logbook import Logbook
from broker.machine.commands import SHUTDOWN, TICK, Shutdown, Tick
from broker.machine.effects import Effect
from broker.management import Json, Refusal
from broker.memberlog.writer import LogWriteFailed, MemberLogWriter
from broker.options import BrokerOptions
from broker.recovery import checkpoint_head, recover
from broker.replica import Replica
from broker.status import status_of
from broker.transfer import Tag, decode, is_transfer
from store.api import Marker
from store.errors import StoreError
from store.lmdb_store import LmdbStore
from store.writer import StoreWriter
from vsync.codec import WIRE_VERSION
from vsync.config import RingConfig
from vsync.discovery import Beacon, Discovery, StaticPeers
from vsync.driver import Driver
from vsync.events import Deliver, Direct, Note, Output, Transitional, View
from vsync.node import Node
from vsync.primary import Activated
from vsync.transport import ZmqTransport
from vsync.types import Guarantee, Member

log = logging.getLogger("qpidd")

SLICE_S = 0.0005
BEAT_S = 0.05
TICK_S = 0.5
FOREIGN_FRAMES_MAX = 20
"""So many frames of another wire version are no line noise."""
CHECKPOINT_BYTES_MIN = 64 << 20
PATIENCE_S = 2.0
"""How long a member of an open cluster looks for a running one before it forms its own."""
SHUTDOWN_WAIT_S = 5.0
LINGER_S = 0.4
"""After a clean shutdown is complete here, how long the token is still passed for the others."""
STOP_DATAGRAM = b"S"


class BrokerMember:
    """One running member.  `done` gets the exit code."""

    def __init__(
        self, options: BrokerOptions, identity: Identity, loop: asyncio.AbstractEventLoop, url: str
    ) -> None:
        self.options, self.identity, self.loop, self.url = options, identity, loop, url
        self.done: asyncio.Future[Exit] = loop.create_future()
        self.stopping = ""
        self.store: LmdbStore = identity.store
        replica = recover(identity.name, self.store, _report_progress)
        self._meta = identity.begin()
        config = RingConfig()
        bind = str(options.cluster_bind) if options.clustered else "127.0.0.1:0"
        self.transport = ZmqTransport(bind, config.frame_bytes_max * 3)
        self.me = Member(identity.name, identity.incarnation, self.transport.address)
        self.node = Node(self.me, _ring_name(options, identity), config, random.Random())
        self.driver = Driver(self.node, self.transport, self._on_output, loop=loop)
        self.discovery = self._new_discovery()
        self.writer = self._new_writer()
        self.logbook = Logbook(
            MemberLogWriter(
                identity.log_dir, options.cluster_name, self._meta.cluster_id,
                identity.name, identity.incarnation, _wall_us,
            )
        )  # fmt: skip
        self.logbook.start(replica.history, replica.machine.root())
        replica.log = self.logbook
        self.clients = Clients(
            identity.name,
            options.cluster_name,
            self._schedule,
            logging.getLogger("qpidd.client").info,
        )
        self.core = Core(
            self.me, self, replica,
            Promise(self._meta.cluster_id, self._meta.voters, self._meta.promised_epoch),
            filled=filled(self._meta), size=options.cluster_size,
            proposal=uuid.uuid4().hex,
            patient=options.clustered and options.cluster_size == 1, label=url,
        )  # fmt: skip
        self.donations = joining.Donations(
            identity.data_dir, lambda: self.store, loop, self._send_direct
        )
        self.joining = joining.Joining(
            identity.data_dir, lambda: self._meta, loop, self._send_direct,
            self._state_ready, self._transfer_failed,
        )  # fmt: skip
        self.counters: dict[str, int] = {"checkpoints": 0, "turns": 0}
        self._pumping = False
        self._checkpointing = False
        self._log_bytes = 0
        self._checkpoint_bytes = 0
        self._started_at = loop.time()
        self._ticked_at = 0.0
        self._shutdown_deadline = 0.0
        self._beat_handle: asyncio.TimerHandle | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        self.driver.start()
        if self.discovery is not None:
            self.discovery.start(self._found)
        self._beat()

    def _found(self, address: str) -> None:
        if address != self.me.address:
            self.driver.add_peer(address)

    def _new_discovery(self) -> Discovery | None:
        """A stand-alone broker looks for nobody; without a list, members call each other."""
        options = self.options
        if not options.clustered:
            return None
        if options.cluster_nodes:
            return StaticPeers(str(address) for address in options.cluster_nodes)
        return Beacon(
            options.cluster_name, self.me.name, self.me.address, log.warning,
            interface=self.me.address.rsplit(":", 1)[0],
        )  # fmt: skip

    def _new_writer(self) -> StoreWriter:
        def on_durable(position: int) -> None:
            # A commit of a store that was replaced meanwhile says nothing about the new one.
            if self.writer is writer:
                self._on_durable(position)

        writer = StoreWriter(self.store, self.loop, on_durable, self._on_store_failed)
        return writer

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member: clients are told, the ring is left, the store is closed."""
        if self.stopping:
            return
        self.stopping = reason
        level = logging.INFO if code is Exit.OK else logging.CRITICAL
        log.log(level, "stopping: %s", reason)
        self.loop.create_task(self._stop(code, reason, inconsistent=inconsistent))

    async def _stop(self, code: Exit, reason: str, *, inconsistent: bool) -> None:
        self.clients.drop_all("the broker is stopping")
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        clean = code is Exit.OK and bool(self.core.shutdown_position)
        if clean:
            await asyncio.sleep(LINGER_S)
        if self.discovery is not None:
            self.discovery.stop()
        self.driver.leave()
        self.joining.abort()
        self.donations.close()
        try:
            self._hand_to_store()
            await self.writer.drain()
            meta = replace(self._meta, position=self.store.meta.position)
            if inconsistent:
                self.store.put_meta(replace(meta, marker=Marker.INCONSISTENT, note=reason))
            elif clean and meta.marker is Marker.DIRTY:
                shutdown_id = self.core.replica.shutdown_id
                self.store.put_meta(replace(meta, marker=Marker.CLEAN, shutdown_id=shutdown_id))
        except StoreError as error:
            log.critical("the store could not be closed in order: %s", error)
            code = Exit.INTERNAL if code is Exit.OK else code
        try:
            self.logbook.stop(reason, self.core.replica.history)
            self.logbook.close()
        except LogWriteFailed as error:
            log.error("the member log could not be closed in order: %s", error)
        self.driver.stop()
        self.identity.store = self.store
        self.identity.close()
        if not self.done.done():
            self.done.set_result(code)

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
        elif isinstance(output, Transitional):
            self.logbook.view(output.ring, output.members, regular=False)
        if self.stopping and not self.core.shutdown_position:
            return
        try:
            self.core.on_output(output)
        except Exception:  # ours: see _pump
            self._broken()
            return
        # Control messages of the primary layer go out at once; applying waits for its slice.
        if not isinstance(output, Deliver) or not self.core.busy:
            self.core.flush()
        self._schedule()

    def _on_direct(self, direct: Direct) -> None:
        if direct.payload == STOP_DATAGRAM:
            self.stop(Exit.OK, f"stopped by an operator through {direct.sender.name}")
        elif is_transfer(direct.payload):
            message = decode(direct.payload)
            if message is not None and message[0] in (Tag.ASK, Tag.GET, Tag.DONE):
                self.donations.sender.on_message(direct.sender, *message, self.loop.time())
            else:
                self.joining.on_datagram(direct.payload)

    def _send_direct(self, to: Member, payload: bytes) -> None:
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
        except Exception:  # ours, whatever it is: this member must not go on (decision 4)
            self._broken()
            return
        commands = self.clients.take_commands()
        if commands:
            core.admit(commands)
        self._hand_to_store()
        self._speak()
        self.clients.throttle(full=core.submissions.full)
        self.counters["turns"] += 1
        if core.busy or self.clients.gateway.has_work:
            self._schedule()

    def _broken(self) -> None:
        log.exception("applying failed at %s", self.core.replica.history)
        self.stop(Exit.INTERNAL, "applying an ordered command failed here")

    def _hand_to_store(self) -> None:
        commit = self.core.replica.cut()
        if commit is None:
            return
        history = commit.history
        self._meta = replace(
            self._meta, state_epoch=history.epoch, position=history.position,
            chain=history.chain, order=history.order, marker=Marker.DIRTY, shutdown_id="",
            cluster_id=self.core.promise.cluster_id, voters=self.core.promise.voters,
            promised_epoch=max(self.core.promise.promised_epoch, self._meta.promised_epoch),
        )  # fmt: skip
        self.writer.submit(commit.entry, commit.first, commit.last, self._meta)
        self._log_bytes += len(commit.entry)
        limit = max(CHECKPOINT_BYTES_MIN, 2 * self._checkpoint_bytes)
        if self._log_bytes > limit and not self._checkpointing:
            self._checkpoint(history)

    def _checkpoint(self, history: History) -> None:
        self._checkpointing = True
        chunks = [checkpoint_head(history), *self.core.replica.machine.snapshot()]
        self._checkpoint_bytes = sum(map(len, chunks))
        self._log_bytes = 0
        self.writer.submit_checkpoint(history.position, chunks, self._checkpoint_done)

    def _checkpoint_done(self) -> None:
        self._checkpointing = False
        self.counters["checkpoints"] += 1

    def _speak(self) -> None:
        core = self.core
        # Whoever has not seen the token for a token timeout may have been excluded meanwhile.
        quiet_s = time.monotonic() - self.node.last_token_at
        leased = len(self.node.members) == 1 or quiet_s < self.node.config.token_timeout_ms / 1000
        confirmed = self.clients.flush(speaking=core.speaking and leased)
        try:
            if confirmed:
                self.logbook.confirmed(core.primary.epoch, self.clients.durable_mark, confirmed)
            self.logbook.flush()
        except LogWriteFailed as error:
            self.stop(Exit.INTERNAL, f"the member log cannot be written: {error}")

    def _on_durable(self, position: int) -> None:
        self.logbook.durable(position)
        self.driver.set_mark(position)

    def _on_store_failed(self, error: StoreError) -> None:
        self.stop(Exit.INTERNAL, f"the store failed: {error}")

    def _beat(self) -> None:
        """What is due by the clock: heartbeats, transfers, ticks, patience, a shutdown."""
        now = self.loop.time()
        self.joining.wake()
        self.donations.sender.wake(now)
        self.clients.wake(time.monotonic())
        core = self.core
        if core.patient and now - self._started_at > PATIENCE_S:
            core.patience_ended()
        if self._tick_is_mine() and now - self._ticked_at > TICK_S:
            self._ticked_at = now
            core.admit([Tick(TICK, _wall_us())])
        if core.shutdown_position:
            self._finish_shutdown(now)
        self._check_versions()
        core.flush()
        self._schedule()
        self._beat_handle = self.loop.call_later(BEAT_S, self._beat)

    def _check_versions(self) -> None:
        """A newcomer among members of another wire version gives up; members that run go on."""
        foreign = self.node.counters["frame_version"]
        if not self.core.ran and len(self.node.members) < 2 and foreign >= FOREIGN_FRAMES_MAX:
            self.stop(
                Exit.PROTOCOL,
                f"the members of cluster '{self.options.cluster_name}' speak another version of "
                f"the ring protocol than this broker (version {WIRE_VERSION}); "
                "run the same release on all members",
            )

    def _tick_is_mine(self) -> bool:
        """One member moves the time, and only when something waits for it."""
        core = self.core
        if not (core.speaking and core.primary.level and core.replica.machine.wants_tick):
            return False
        return self.me.name == min(core.primary.level_names)

    def _finish_shutdown(self, now: float) -> None:
        core = self.core
        if not self._shutdown_deadline:
            self._shutdown_deadline = now + SHUTDOWN_WAIT_S
        if core.primary.durable_everywhere() >= core.shutdown_position:
            self.stop(Exit.OK, "the whole cluster was shut down")
        elif now > self._shutdown_deadline:
            core.shutdown_position = 0  # not every member said that it is complete: stay dirty
            self.stop(Exit.OK, "the whole cluster was shut down, not all members in time")

    # -- ordered by the core ---------------------------------------------------------------------

    def multicast(self, payload: bytes) -> bool:
        """Submit to the ring."""
        return self.driver.submit(payload, Guarantee.SAFE)

    def persist_promise(self, promise: Promise) -> None:
        """Make the promise durable behind everything that was applied."""
        self._hand_to_store()
        marker = Marker.DIRTY if self._meta.marker is not Marker.CLEAN else Marker.CLEAN
        self._meta = replace(
            self._meta, cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=promise.promised_epoch, marker=marker,
        )  # fmt: skip
        epoch = promise.promised_epoch
        self.writer.submit_meta(self._meta, lambda: self.core.epoch_persisted(epoch))

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Fetch the donor's state."""
        self.joining.begin(donor, base)

    def abort_transfer(self) -> None:
        """Drop a transfer under way."""
        self.joining.abort()

    def _transfer_failed(self, reason: str) -> None:
        log.warning("state transfer failed, trying again: %s", reason)
        self.loop.call_later(0.5, self.core.transfer_failed)

    def _state_ready(self, replica: Replica, joined: LmdbStore) -> None:
        if self.stopping or not self.core.fits(replica):
            joined.close()
            self._transfer_failed("it does not meet what was ordered meanwhile")
            return
        self.writer.close()
        self.store = joining.adopt(self.identity.data_dir, joined, self._meta, self.store)
        self._meta = self.store.meta
        self.writer = self._new_writer()
        donor = self.core.transfer_donor
        self.logbook.snapshot(replica.history, replica.machine.root(), donor)
        replica.log = self.logbook
        self.core.state_installed(replica)
        self._on_durable(replica.history.position)
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

    def activated(self, event: Activated, base: History) -> None:
        """Note the primary view."""
        log.info("primary view of epoch %d from position %d", event.activation.epoch, base.position)
        self.logbook.activated(event, base)

    def voted(self, verdict: Verdict) -> None:
        """Note a verdict."""
        if verdict.divergent or verdict.split:
            log.critical("digest vote at position %d: %s", verdict.position, verdict)
        word = "undecided" if verdict.split else "divergent" if verdict.divergent else "agreed"
        _, chain, root = verdict.value or (0, bytes(16), 0)
        self.logbook.vote(verdict.position, chain, root, word)

    def now_us(self) -> int:
        """Return the wall clock."""
        return _wall_us()

    # -- asked by operators ----------------------------------------------------------------------

    def login(self, user: str, password: str, peer: str) -> bool:
        """Whether these credentials are good."""
        return self.clients.login(user, password, peer)

    def status(self) -> Json:
        """Return the answer to `status`."""
        return status_of(self.core, self.options.cluster_name, self.joining.progress)

    def stop_member(self, name: str) -> None:
        """Make a member leave."""
        if name == self.me.name:
            self.loop.call_later(0.1, self.stop, Exit.OK, "stopped by an operator")
            return
        for member in self.node.members:
            if member.name == name:
                for again in range(3):
                    self.loop.call_later(0.1 * again, self._send_direct, member, STOP_DATAGRAM)
                return
        raise Refusal("no-such-member", f"no member of this view has the id {name}")

    def shutdown(self) -> str:
        """Order the clean stop of all."""
        if not self.core.speaking:
            raise Refusal("not-active", f"this member is not active: {self.core.primary.reason}")
        shutdown_id = uuid.uuid4().hex
        self.core.admit([Shutdown(SHUTDOWN, shutdown_id)])
        return shutdown_id

    def terminate(self) -> None:
        """The process was asked to end: the last member shuts the cluster down, others leave."""
        alone = len(self.node.members) == 1 and self.core.speaking
        if alone and not self.core.shutdown_position:
            self.shutdown()
        else:
            self.stop(Exit.OK, "asked to terminate")

    def all_counters(self) -> dict[str, int]:
        """Return the counters of all parts, prefixed by the part."""
        parts: dict[str, dict[str, int]] = {
            "member": self.counters,
            "ring": self.node.counters,
            "transport": self.transport.counters,
            "primary": self.core.primary.counters,
            "replica": self.core.replica.counters,
            "store": self.writer.counters,
            "votes": self.core.vote.counters,
            "clients": self.clients.counters,
        }
        return {f"{part}.{k}": v for part, found in parts.items() for k, v in found.items()}


def _ring_name(options: BrokerOptions, identity: Identity) -> str:
    # A stand-alone broker must never meet another one, so its ring has a name of its own.
    return options.cluster_name or f"alone-{identity.store.meta.store_id}"


def _wall_us() -> int:
    return time.time_ns() // 1000


def _report_progress(position: int, end: int) -> None:
    if end - position > 100_000:
        log.info("recovering: at position %d of %d", position, end)
