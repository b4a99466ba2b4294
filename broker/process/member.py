"""The shell of one member: a ring, a store, a log and clients, wired on one event loop.

`broker.replication` decides what the parts do, and in which order; this file builds them.
Everything happens on the loop's thread except work that touches a disk: commits (the store writer's
thread), the member log (its own thread), state transfers (worker threads). A turn of work applies
items for at most `SLICE_S`, then hands the applied items to store and log, sends the replies that
the log already has, and lets the ring run: the token never waits for applying.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol

from broker.admin.operations import Operations
from broker.divergence.digest_vote import DigestVerdict
from broker.durability.data_directory import DataDirectory
from broker.durability.startup import resume
from broker.durability.store_writer import (
    CHECKPOINT_S,
    PATIENCE_S,
    CheckpointFailed,
    DataDirectoryDevice,
    LmdbCheckpointBeforeStop,
    close_store,
    exit_of,
    exit_of_store,
)
from broker.durability.transfer import StateTransfer
from broker.exit_codes import Exit
from broker.frontend.connections import ClientPorts, Connections
from broker.machine.commands import Command
from broker.memberlog.writer import LogWriteFailed
from broker.options.broker import BrokerOptions
from broker.process.member_life import MemberLife
from broker.process.member_log import MemberLog
from broker.process.ring_setup import RingEndpoint, member_identity
from broker.replication.chain import History
from broker.replication.controller import Controller
from broker.replication.member import ReplicatedMember
from broker.replication.ports import Ports
from broker.selfcheck.supervisor import Supervisor, is_damage
from broker.statistics.observation import Observation
from broker.timers.timers import Timers
from broker.watchdogs.watchdogs import BEAT_S, Watchdogs
from store.errors import REFUSED, StoreError, StoreStuck, broken
from vsync.admin.protocol import Json
from vsync.io.redundant_transport import RedundantTransport
from vsync.totem.events import Deliver, Direct, Marks, Note, Output, View

log = logging.getLogger("qpidd")

SLICE_S = 0.0005
LEAVE_MS = 100
"""How long sending the ring's leave notice may take."""
FINISH_S = 6.0
"""How long services beside a member may take to end before an orderly stop; their commands are
applied until then."""
LINGER_S = 0.4
"""How long after a clean shutdown here the token is still passed on for the others."""
NOTED = {
    "activated": logging.INFO,
    "fence": logging.INFO,
    "serve": logging.INFO,
    "transfer_failed": logging.WARNING,
}
"""The events of `ports.Host.note` that operators see; the others are for debugging."""


class LoopClock:
    """Wall clock and timers of this process (`ports.Clock`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdogs: Watchdogs) -> None:
        self._loop = loop
        self.when_right = watchdogs.when_clock_is_right

    def now_us(self) -> int:
        """Return the wall clock."""
        return _wall_us()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after some time."""
        self._loop.call_later(delay_s, call)


class Beside(Protocol):
    """A service that runs beside a member, and is told about it."""

    @property
    def name(self) -> str:
        """The name under which its counters are shown."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Its counters."""

    def wake(self, now: float) -> None:
        """Called a few times a second."""

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram of another member was for it; if so it has been handled."""

    def finish(self) -> bool:
        """The member is about to stop: start nothing more; return whether everything has ended.
        Called until it has, or for `FINISH_S`."""

    def close(self) -> None:
        """The member stops."""


class BrokerMember:
    """One running member. `done` gets the exit code.

    `disk_stuck`: the disk did not answer at the end, so nothing can be tidied up.
    """

    _beat_handle: asyncio.TimerHandle | None = None
    _look_handle: asyncio.TimerHandle | None = None
    _stopping = ""
    _ending = False  # in order, or about to
    _turn_due = disk_stuck = False
    _untended = True  # the segments of former incarnations
    _beside: Sequence[Beside] = ()

    def __init__(
        self,
        options: BrokerOptions,
        identity: DataDirectory,
        transport: RedundantTransport,
        loop: asyncio.AbstractEventLoop,
        url: str,
        ports: ClientPorts,
    ) -> None:
        self._identity, self._loop, self._ports = identity, loop, ports
        self.done: asyncio.Future[Exit] = loop.create_future()
        self._counters = {"turns": 0, "datagrams_of_strangers": 0}
        self._supervisor = supervisor = Supervisor(identity.data_dir, identity.name)
        replica, filled = resume(identity.store, supervisor.quarantine, identity.pages.pager())
        meta = identity.begin()
        device = DataDirectoryDevice(identity.data_dir, loop, self.failed, identity.reserve)
        who = member_identity(options, identity)
        self._ring = ring = RingEndpoint(options, who, transport, self._on_output, loop)
        self._log = memberlog = MemberLog(
            options, identity, meta, _wall_us, loop, lambda: self._member, self.failed)  # fmt: skip
        memberlog.start(replica.history if filled else History(), replica.machine)
        self.clients = Connections(
            identity.name, options, self.schedule, loop.call_later, ports,
            lambda done: self.operations.defined(done), lambda: self._controller.replica.machine,
        )  # fmt: skip
        self._watchdogs = Watchdogs(
            ring.node, options.bounds, loop, identity.reserve, hang_s=options.watchdog_s,
            send_direct=ring.driver.send_direct, wall_us=_wall_us, stop=self.stop,
            controller=lambda: self._controller, persister=lambda: self._member.persister,
            disk_lag=lambda: device.lag().beside(memberlog.lag()),
            full=lambda: self._member.persister.writer.full or memberlog.full,
        )  # fmt: skip
        self._transfer = StateTransfer(
            identity.data_dir, loop, ring.driver.send_direct, supervisor.quarantine,
            store=lambda: self._member.persister.for_others,
            own=lambda: self._member.persister.meta, replica=lambda: self._controller.replica,
            request_checkpoint=lambda: self._member.persister.request_checkpoint(),
            keeps_up=lambda: self._watchdogs.disk_keeps_up, member=lambda: self._member,
        )  # fmt: skip
        make_controller = partial(
            Controller, ring.me, replica=replica, filled=filled, size=options.cluster_size,
            requested=options.requested, proposal=uuid.uuid4().hex, patient=options.clustered,
            label=url, transient=identity.temporary, shutdown_id=meta.shutdown_id,
            executor=identity.pages.executor(self._wake, self._watchdogs.wanted_free_bytes),
            settings=options.settings,
        )  # fmt: skip
        self._member = ReplicatedMember(
            Ports(ring.driver, ring.reply_lease, LoopClock(loop, self._watchdogs),
                  self._transfer, self.clients, memberlog.recorder, self),
            device, identity.store, meta, make_controller,
        )  # fmt: skip
        self._controller = controller = self._member.controller
        persister, vote = self._member.persister, memberlog.recorder.vote
        supervisor.start(controller, persister, vote, options.scrub_rate, options.backups, loop)
        self.life = MemberLife(
            options, controller, ring.node, transport, self.stop, lack=ring.lack,
            stopping=lambda: self.stopping, progress=lambda: self._transfer.progress,
        )  # fmt: skip
        self._timers = Timers(controller, self.life, self.stop, loop.time())
        self.operations = Operations(
            controller, options, ring.driver.tracer, self._timers.voter_changes, stop=self.stop,
            clients=self.clients, later=loop.call_later, may_reply=lambda: self._member.may_reply,
            send_direct=ring.driver.send_direct, counters=self._all_counters,
            progress=lambda: self.life.reason, received=lambda of: self.observation.received(of),
            watchdogs=self._status, hears=lambda name: ring.node.hears(name, time.monotonic()),
        )  # fmt: skip

    def _status(self) -> Json:
        """Return the parts' contributions to the reply to `status`."""
        return {**self._watchdogs.status(), **self.life.status(), **self._ring.status(),
                **self._identity.lease.status()}  # fmt: skip

    @cached_property
    def observation(self) -> Observation:
        """The statistics of this member."""
        return Observation(
            self._member, self.clients, self._ring.node, self._ring.transport,
            self._transfer, self._watchdogs, self._loop, self._ring.driver.send_direct,
            self._identity.pages,
        )  # fmt: skip

    @cached_property
    def _before_stop(self) -> LmdbCheckpointBeforeStop:
        return LmdbCheckpointBeforeStop(self._member.persister, CHECKPOINT_S)

    # -- start and stop --------------------------------------------------------------------------

    def start(self, beside: Sequence[Beside] = ()) -> None:
        """Begin to take part; `beside`: services that run beside it."""
        self._beside = beside
        self._watchdogs.start()
        self._ring.start(self._controller.primary, self.stop)
        clocks = self._watchdogs.clocks
        self._log.archiver.clock_is_right = lambda: clocks.is_right
        self._supervisor.backups.clock_is_right = lambda: clocks.is_right
        gateway = self.clients.gateway
        gateway.admission.begin(self._loop.time())
        self._controller.before_commands = self._tick_first
        self._timers.limit_consumers(gateway.refuse_channel, gateway.consumer_timeout_s)
        self._beat()
        self.operations.begin(self._identity.data_dir, kept=not self._identity.temporary)

    def set_limits(self, options: BrokerOptions) -> None:
        """From here on use other limits of disk, memory, and the time to log in."""
        self._watchdogs.set_limits(options.bounds.disk_free, options.bounds.memory)
        self.clients.gateway.set_negotiate_time(options.clients.negotiate_s)

    @property
    def controller(self) -> Controller:
        """Decides whom this member serves, and holds the replicated state."""
        return self._controller

    @property
    def ring(self) -> RingEndpoint:
        """The ring, and the way to other members beside the order."""
        return self._ring

    @property
    def stopping(self) -> bool:
        """Whether this member is stopping."""
        return bool(self._stopping)

    def terminate(self) -> None:
        """The process was asked to end: the last member shuts the cluster down, others leave.

        Asked once more, it does not wait for a checkpoint.
        """
        if self._ending:
            self._before_stop.skip("it was asked to end once more")
            return
        alone = len(self._ring.node.members) == 1 and self._controller.serving
        if alone and not self._controller.shutdown_position:
            self.operations.shutdown()
        else:
            self.stop(Exit.OK, "asked to terminate")

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member: disconnect clients, leave the ring, close the store."""
        if code is not Exit.OK:
            self._end(code, reason, inconsistent=inconsistent)
        elif not self._ending:
            self._ending = True
            self._write_checkpoint(reason)

    def _write_checkpoint(self, reason: str) -> None:
        """Wait for one while this member goes on; a shutdown of all waits for it at the end."""
        shutdown, now = self._controller.shutdown_position, self._loop.time()
        if shutdown or not self._before_stop.awaited(self._controller.replica, now):
            self._finish_beside(now + FINISH_S, reason)
        elif not self._stopping:
            self.schedule()
            self._loop.call_later(BEAT_S, self._write_checkpoint, reason)

    def _finish_beside(self, until: float, reason: str) -> None:
        serving = self._controller.serving and not self._controller.shutdown_position
        if serving and not self._stopping and self._loop.time() < until:
            running = [one for one in self._beside if not one.finish()]
            if running or not self.operations.stepped_aside():
                self._loop.call_later(BEAT_S, self._finish_beside, until, reason)
                return
        self._end(Exit.OK, reason, inconsistent=False)

    def _end(self, code: Exit, reason: str, *, inconsistent: bool) -> None:
        if self._stopping:
            return
        self._stopping = reason
        level = logging.INFO if code is Exit.OK else logging.CRITICAL
        log.log(level, "stopping: %s", reason)
        ending = self._loop.create_task(self._stop(code, reason, inconsistent=inconsistent))
        ending.add_done_callback(self._stopped)

    def _stopped(self, ending: asyncio.Task[Exit]) -> None:
        if ending.exception() is not None:
            log.critical("the broker could not stop in order", exc_info=ending.exception())
        if not self.done.done():
            self.done.set_result(Exit.INTERNAL if ending.exception() else ending.result())

    async def _stop(self, code: Exit, reason: str, *, inconsistent: bool) -> Exit:
        present = self._controller.primary.members
        self._member.reply()
        await self._log.settled()
        self._member.reply()
        for one in self._beside:
            one.close()
        self.clients.drop_all("the broker is stopping")
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        self._watchdogs.hang.end()
        if code is Exit.OK and self._controller.shutdown_position:
            await asyncio.sleep(LINGER_S)
            self.operations.stop_members_without_state(present)
        self._watchdogs.gauge.close()
        self._ring.leave()
        self._transfer.close()
        code = await self._close_store(code, reason, inconsistent=inconsistent)
        history = self._controller.replica.history
        patience_s = 0.0 if self.disk_stuck else PATIENCE_S  # it was already waited for
        try:
            if not await self._log.close(reason, history, patience_s):
                self.disk_stuck = True
        except LogWriteFailed as error:
            log.error("the member log could not be closed in order: %s", error)
            code = exit_of(error.number) if code is Exit.OK else code
        if not self.disk_stuck and not await self._supervisor.settled(PATIENCE_S):
            self.disk_stuck = True
        self._ring.driver.stop(LEAVE_MS)
        self._identity.store = self._member.persister.store
        if not self.disk_stuck:
            self._identity.close()
        return code

    async def _close_store(self, code: Exit, reason: str, *, inconsistent: bool) -> Exit:
        """Write the last entries to the store; return the resulting exit code."""
        member, replica = self._member, self._controller.replica
        marker = member.last_marker(clean=code is Exit.OK, inconsistent=inconsistent)
        try:
            controller = self._controller
            await member.persister.settled(PATIENCE_S)
            member.persister.keep(replica, controller.promise, counts=controller.filled)
            if code is Exit.OK and controller.shutdown_position:
                sparing = self._identity.reserve.given_up
                await self._before_stop.at_the_end(replica, controller.promise, sparing=sparing)
            await close_store(member.persister, replica, marker, reason)
        except StoreError as error:
            self.disk_stuck = isinstance(error, StoreStuck)
            log.critical("the store could not be closed in order: %s", error)
            return exit_of_store(error) if code is Exit.OK else code
        return code

    # -- turns of work ---------------------------------------------------------------------------

    def schedule(self) -> None:
        """Schedule a turn of work."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _wake(self) -> None:
        """Schedule a turn; any thread may call this."""
        self._loop.call_soon_threadsafe(self.schedule)

    def _tick_first(self) -> None:
        self._timers.ticker.turn(self._loop.time(), busy=True)

    def _turn(self) -> None:
        self._turn_due = False
        if self._stopping:
            return
        ticker, gateway = self._timers.ticker, self.clients.gateway
        if gateway.commands:  # a tick may have to come before them
            ticker.turn(self._loop.time(), busy=True)
        clock = time.perf_counter
        deadline = clock() + SLICE_S
        self._member.turn(lambda: clock() < deadline)
        again_s = self.operations.roles.follow(self._loop.time())
        if again_s is not None:
            self._loop.call_later(again_s, self.schedule)
        self._look_again(ticker.turn(self._loop.time(), busy=False))
        self._counters["turns"] += 1
        more = self._watchdogs.memory.slice(self._controller.replica.machine)
        if more or (gateway.has_work and not self._controller.halted):
            self.schedule()

    def _look_again(self, delay_s: float | None) -> None:
        """Something is due before the next beat."""
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None
        if delay_s is not None and delay_s < BEAT_S:
            self._look_handle = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._look_handle = None
        if not self._stopping:
            self._look_again(self._timers.ticker.turn(self._loop.time(), busy=False))

    def _beat(self) -> None:
        """Do what is due by the clock, and schedule the next beat whatever happens in this one."""
        self._beat_handle = self._loop.call_later(BEAT_S, self._beat)
        self._transfer.wake()
        self.clients.wake(time.monotonic())
        self._timers.wake(self._loop.time())
        self._supervisor.wake()
        self.operations.wake(self._loop.time())
        for one in self._beside:
            one.wake(self._loop.time())
        self._watchdogs.wake()
        self.observation.wake()
        self.schedule()

    def _on_output(self, output: Output) -> None:
        if not isinstance(output, (Deliver, Marks)):  # which nearly all are
            if isinstance(output, Direct):
                self._on_direct(output)
                return
            if isinstance(output, Note):
                self._on_note(output)
                return
            if isinstance(output, View):
                log.info("view %s: %s", output.ring, ", ".join(m.name for m in output.members))
                self._watchdogs.on_view(output.members)
        if not self._stopping or self._controller.shutdown_position:
            self._member.on_output(output)

    def _on_note(self, note: Note) -> None:
        if note.code == "gone":
            name, why = str(note.fields["member"]), str(note.fields["why"])
            log.warning("%s is out of the view: %s", name, why)
            self.operations.goes(name, why)
        elif note.code == "falsely":
            log.warning(
                "%s ran all the time while the ring was given up; the ring now waits %d ms for its "
                "token", note.fields["members"], self._ring.node.tempo.timeout_ms,
            )  # fmt: skip
        elif note.code == "outdated":
            self._ring.driver.send_direct(*self.life.outdated(note))
        else:
            log.debug("ring: %s %s", note.code, note.fields)

    def _on_direct(self, direct: Direct) -> None:
        if self.life.takes(direct):
            return  # of a member in whose view this one cannot be
        if direct.sender not in self._ring.node.members:
            self._counters["datagrams_of_strangers"] += 1
        elif not (
            self.operations.takes(direct)
            or self._watchdogs.takes(direct)
            or self.observation.members.takes(direct)
            or any(one.takes(direct) for one in self._beside)
        ):
            self._transfer.takes(direct)

    # -- called back by the replicated member (`ports.Host`) -------------------------------------

    def failed(self, error: Exception) -> None:
        """Our own code raised: stop with the reason."""
        if self._stopping and isinstance(error, StoreError):
            self._before_stop.skip(str(error))  # else its end would wait for what never comes
        if self._ending and isinstance(error, CheckpointFailed) and not is_damage(error):
            self._before_stop.skip(str(error))
        elif isinstance(error, LogWriteFailed):
            number = error.number
            text = broken(str(error), number) if number in REFUSED else error
            self.stop(exit_of(number), f"the member log cannot be written: {text}")
        else:
            code, reason = self._supervisor.failed(error)
            self.stop(code, reason, inconsistent=is_damage(error))

    def voted(self, verdict: DigestVerdict) -> None:
        """Handle a verdict."""
        self._supervisor.voted(verdict)

    def session_commands(self) -> list[Command]:
        """Report the quarantined commands with each new session."""
        return [*self._supervisor.quarantine.reports()]

    def note(self, event: str, text: str) -> None:
        """Log it; debugging events begin with their name, because their text may be a number."""
        if event in NOTED:
            log.log(NOTED[event], "%s", text)
        else:
            log.debug("%s: %s", event, text)
        if event == "serve" and self._untended:
            self._untended = False
            self._log.tend()
        if event == "installed":  # the old state, and memory of a transfer, are free
            self._watchdogs.memory.soon()

    def _all_counters(self) -> dict[str, Mapping[str, int]]:
        """Return the counters of all parts; the parts' names are a format seen by operators."""
        controller = self._controller
        return dict(
            member=self._counters, ring=self._ring.node.counters,
            transport=self._ring.transport.counters,
            core=controller.counters, primary=controller.primary.counters,
            replica=controller.replica.counters,
            store=self._member.persister.writer.all_counters(),
            votes=controller.judgement.counters,
            clients=self.clients.counters, auth=self.clients.auth_counters,
            listener=self._ports.counters,
            memberlog=self._log.counters, pages=self._identity.pages.counters,
            transfer=self._transfer.counters,
            care=self._supervisor.all_counters(),
            statistics=self.observation.members.counters, **self._watchdogs.counters,
            **{one.name: one.counters for one in self._beside},
        )  # fmt: skip


def _wall_us() -> int:
    return time.time_ns() // 1000
