"""One incarnation of the real replicated member in virtual time: a clock, a disk and a network.

The rules of order and the turn of work are those of `broker.replication.member`; here are its
ports, in slices, late, and on a disk that may lose its last commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgpack

from broker.divergence.digest_vote import DigestVerdict
from broker.durability.data_directory import filled
from broker.durability.recovery import recover
from broker.durability.store_writer import CheckpointBeforeStop, close_store
from broker.exit_codes import Exit
from broker.machine.commands import SHUTDOWN, Command, Shutdown
from broker.machine.queueing.streams import max_lag
from broker.machine.state import all_queues
from broker.replication.chain import Promise
from broker.replication.controller import Controller
from broker.replication.member import ReplicatedMember
from broker.replication.ports import Ports, Shell
from broker.replication.replica import Applied, Replica
from broker.replication.submissions import LargePace
from broker.waiting.pager import PageLost
from store.api import Marker, Meta
from store.errors import StoreError, StoreStuck
from tests.sim.broker.describe import why_not
from tests.sim.broker.disk import SimWriter, run_to_end
from tests.sim.broker.evidence import SimLog, SimLogFile
from tests.sim.broker.lease import lease_of
from tests.sim.broker.operator import MemberRole, SimRole
from tests.sim.broker.outbox import SimOutbox
from tests.sim.broker.pages import SimPages
from tests.sim.broker.transfer import SimTransfer
from tests.sim.broker.watchdogs import SimWatchdogs
from tests.sim.clients.dealers import SimDealer
from tests.sim.clients.histories import SimHistory
from tests.sim.clients.links import SimLinks
from tests.sim.clients.programs import SimClients
from tests.sim.clients.replicas import SimReplica
from tests.sim.world.member import SimMember
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import Tap
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.primary.component import Primary
from vsync.primary.events import PROMISED, Activated
from vsync.primary.state_exchange import Plan
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Direct, Note, Output
from vsync.types import Guarantee

if TYPE_CHECKING:
    from tests.sim.broker.stack import BrokerStack

DIGEST_INTERVAL = 64
HELD_BYTES_MAX = 2000  # small: a member that waits for a state often has to give up held items
TICK_US = 1_000_000_000_000  # far enough from zero for clocks that are set back by hours
POLL_S = 0.01
OLD_OPTIONS = "this member was started with"
LOG_WRITE_WORST_S = 1.0


class SimRing:
    """The ring of one member (`ports.Ring`)."""

    def __init__(self, upper: BrokerUpper) -> None:
        self._upper, self._tap, self._world = upper, upper.tap, upper.world

    def submit(self, payload: bytes, guarantee: Guarantee, *, urgent: bool = True) -> bool:
        if payload[:1] == PROMISED:
            self._promises(*msgpack.unpackb(payload[1:], use_list=False)[1:2])
        return self._tap.submit(payload, self._world.now, guarantee, urgent=urgent)

    def set_mark(self, mark: int) -> None:
        meta = self._upper.stack.disks[self._upper.name].meta
        if meta is None or meta.position < mark:
            text = f"{self._upper.name} reports {mark} durable, its disk holds {_extent(meta)}"
            self._upper.judge.broken("G9", text)
        self._tap.core.set_mark(mark, self._world.now)

    def expect_mark(self, mark: int) -> None:
        self._tap.core.expect_mark(mark)

    def _promises(self, epoch: int) -> None:
        """A promise is on the disk, and everything it is based on."""
        upper, controller = self._upper, self._upper.controller
        upper.stack.promises(upper.name, epoch, controller.primary.members)
        meta = upper.stack.disks[upper.name].meta
        if (
            meta is None
            or meta.promised_epoch < epoch
            or meta.cluster_id != controller.promise.cluster_id
            or meta.position < controller.replica.history.position
        ):
            text = f"{upper.name} promises {epoch} of {controller.promise.cluster_id} at"
            text += f" {controller.replica.history.position}, its disk holds {_extent(meta)}"
            upper.judge.broken("G8", text)


def _extent(meta: Meta | None) -> str:
    if meta is None:
        return "nothing"
    return f"{meta.position} and a promise of {meta.promised_epoch} of {meta.cluster_id}"


class BrokerUpper:
    """An `Upper` of the simulator; clock, device and host (`ports`) of a replicated member."""

    def __init__(self, stack: BrokerStack, member: SimMember, tap: Tap, disk: MemoryDisk) -> None:
        self.stack, self.member, self.tap, self.judge = stack, member, tap, stack.judge
        self.world, self.name = member.world, member.name
        self.tape = tape = self.world.tape.fork(f"broker {member.name} {member.incarnation}")
        pace = self.world.tape.fork("pace")  # one for all members, or one for each incarnation
        pace = tape if pace.chance(0.5) else pace
        self.slice_items = pace.pick((1, 3, 8, 1000))  # how much one turn applies at most
        self.slice_s = pace.pick((0.0, 0.0001, 0.001, 0.01, 0.05))  # the time until the next
        self.checkpoints = tape.pick((0.0, 0.01, 0.1))
        self.log_tape = tape.fork("memberlog")
        self.log_write_s = self.log_tape.pick((0.0, 0.0001, 0.002, 0.05))
        self.dead = self.stopping = self._turn_due = False
        self._switch: Callable[[], None] | None = None
        self._before_stop: CheckpointBeforeStop[MemoryStore, SimWriter] | None = None
        self._plan: Plan | None = None  # the last one that the judge has seen
        # Some stores keep only the log that they must, so that only a checkpoint leads to them.
        self.log_bytes_kept = tape.fork("log kept").pick((0, 500, 5000, 1 << 20))
        fresh = Meta("simulated", self.name, f"store-{self.name}")
        store = MemoryStore(disk, fresh, log_bytes_kept=self.log_bytes_kept)
        self.pages = SimPages(self, tape.fork("pages"))
        replica = recover(self.name, store, pager=self.pages.pager, own=True)
        self.judge.recovered(self.name, replica, "recovered")
        meta = replace(store.meta, incarnation=member.incarnation)
        store.put_meta(meta)
        self.links = SimLinks(self, tape.fork("links"), has_links=stack.has_links)
        self.clients = self._clients_of(tape.fork("clients"))
        self.outbox = SimOutbox(
            self.clients, self.judge, lambda: self.controller, self._released, stack.disks_of
        )
        self.log = SimLog(
            self.name, self.judge, replica.history.chain, self._activated,
            self._log_file(meta), self._applied, self._write_log,
        )  # fmt: skip
        self.log.start(replica.history, replica.machine)
        self.transfer = SimTransfer(self)
        retry_s = tape.fork("retry").gap(0.5 * self.world.plan.transfer_s)
        lease = lease_of(tap.core, self.world)
        self.replicated: ReplicatedMember[MemoryStore, SimWriter] = ReplicatedMember(
            Ports(SimRing(self), lease, self, self.transfer, self.outbox, self.log, self),
            self, store, meta, self._controller_of(replica, meta), transfer_retry_s=retry_s,
        )  # fmt: skip
        token_s = self.world.plan.token_timeout_ms / 1000.0
        self.shutdown_wait_s: float = token_s * tape.fork("shutdown").between(1.0, 10.0)
        self.watchdogs: SimWatchdogs = SimWatchdogs(self)
        self.role = self._role_of()

    def _clients_of(self, tape: Tape) -> SimClients:
        return SimClients(
            self.name, tape, self.stack.numbers, self.later, self.judge.broken,
            lambda: self.world.healed, self.stack.orphans, self.world.tape,
            self.history_of_clients(tape),
            SimReplica(self, tape.fork("replica")), self.links, self._dealer_of(tape),
        )  # fmt: skip

    def _dealer_of(self, tape: Tape) -> SimDealer | None:
        if not self.world.plan.has("dealers"):
            return None
        priorities = self.world.tape.fork("tills").pick((0, 0, 3))
        return SimDealer(
            tape.fork("dealer"), priorities, self.stack.numbers, self.later,
            lambda: self.world.healed,
        )  # fmt: skip

    def history_of_clients(self, tape: Tape) -> SimHistory:
        """Their histories."""
        return SimHistory(
            self.stack.memberlog, self.name, self.member.incarnation, tape.fork("history"),
            self.now_us, lambda: self.controller.replica.machine.cluster_id,
        )  # fmt: skip

    def _role_of(self) -> MemberRole:
        return SimRole(self)

    def _controller_of(
        self, replica: Replica, meta: Meta
    ) -> Callable[[Shell, Promise], Controller]:
        seed = f"{self.world.plan.seed} {self.name} {self.member.incarnation}"
        proposal = hashlib.blake2b(seed.encode(), digest_size=16).hexdigest()

        def make(shell: Shell, promise: Promise) -> Controller:
            controller = Controller(
                self.tap.me, shell, promise, replica=replica, filled=filled(meta),
                size=self.stack.data_members(self.world.plan), proposal=proposal, patient=False,
                label=self.name, requested=self.stack.requested(self.world.plan, self.name),
                digest_interval=DIGEST_INTERVAL, held_bytes_max=HELD_BYTES_MAX,
                executor=self.pages.executor,
            )  # fmt: skip
            controller.submissions.pace = LargePace(320)  # bodies are small here
            return controller

        return make

    def _log_file(self, meta: Meta) -> SimLogFile | None:
        if self.stack.memberlog is None:
            return None
        return SimLogFile(
            self.stack.memberlog, "simulated", meta.cluster_id * bool(meta.position),
            self.name, self.member.incarnation, self.now_us,
        )  # fmt: skip

    @property
    def controller(self) -> Controller:
        return self.replicated.controller

    @property
    def primary(self) -> Primary:
        return self.controller.primary

    @property
    def store(self) -> MemoryStore:
        return self.replicated.persister.store

    # -- for the simulator -----------------------------------------------------------------------

    def started(self, now: float) -> None:
        """Report no durable position: the real member reports none before its first commit
        either."""

    @property
    def ready(self) -> bool:
        controller = self.controller
        return (
            controller.serving
            and controller.primary.has_caught_up
            and not controller.unapplied.busy
            and not controller.unapplied.waits_for_disk
            and not controller.transfer_donor
            and controller.submissions.outstanding == 0
            and self.clients.idle
            and self.log.idle
            and not controller.replica.machine.wants_tick
            and self.role.settled
            and self.store.meta.position == controller.replica.history.position
        )

    def to_be_read(self) -> int:
        """The messages that the slowest reader of each queue has yet to look at, summed."""
        vhosts = self.controller.replica.machine.vhosts.values()
        return sum(max_lag(queue) for vhost in vhosts for queue in all_queues(vhost))

    def why_not(self) -> str:
        return why_not(self)

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        """The load asks a client to publish."""
        if self.controller.submissions.full or not self.clients.publish(payload):
            return False
        if not self.world.healed:
            self.role.whim()
        self.schedule()
        return True

    def pump(self, now: float) -> None:
        """Called after every step."""
        if self.world.healed and self.clients.end_of_chaos():
            self.schedule()
        self.controller.flush()

    def ends(self, down_s: float) -> None:
        """An operator stops it: it leaves when a checkpoint is written, or without one if that is
        late, as a process does; here any log is worth a checkpoint, and patience is short."""
        if self._before_stop is None and not self.stopping:
            patience_s = self.world.plan.token_timeout_ms / 1000.0 * self.tape.between(0.1, 20.0)
            persister = self.replicated.persister
            if persister.bytes_to_start[1] > 0:
                persister.request_checkpoint()
            self._before_stop = CheckpointBeforeStop(persister, patience_s)
            self._ends(down_s)

    def _ends(self, down_s: float) -> None:
        assert self._before_stop is not None
        if self.world.healed or self.stopping:
            return  # in the calm at the end of a run all members stay
        if self._before_stop.awaited(self.controller.replica, self.world.now):
            self.schedule()
            self.later(POLL_S, lambda: self._ends(down_s))
        else:
            self._leave(down_s, "stops", "asked to")

    def order_shutdown(self) -> bool:
        """An operator shuts the cluster down here, if this member serves."""
        controller = self.controller
        if not controller.serving or self.stopping:
            return False
        shutdown_id = f"{self.name} {self.member.incarnation} {controller.replica.history.position}"
        controller.submit([Shutdown(SHUTDOWN, shutdown_id)])
        return True

    def shut_down(self, reason: str) -> None:
        """It ends because all were shut down."""
        shutdown = self.world.shutdown
        if shutdown is None or not shutdown.under_way:
            self.judge.broken("L4", f"{self.name} stops, and no shutdown is under way: {reason}")
        else:
            self._leave(shutdown.down_s(), "shut_down", reason)

    @property
    def goes_on(self) -> bool:
        """Whether nothing of a shutdown is left here."""
        controller = self.controller
        return controller.primary.has_caught_up and not controller.shutdown_position

    def leaving(self) -> None:
        """The process ends cleanly, as `broker.process.member` does after it has left the ring."""
        if self.dead:
            return
        self.stopping = True
        self.links.close()
        member = self.replicated
        marker = member.last_marker(clean=True, inconsistent=False)
        try:
            controller = self.controller
            run_to_end(member.persister.settled(0.0))
            member.persister.keep(controller.replica, controller.promise, counts=controller.filled)
            run_to_end(close_store(member.persister, self.controller.replica, marker, "leaves"))
        except StoreError as error:
            self.note("store_not_closed", str(error))
        else:
            if marker is Marker.CLEAN:
                ended = controller.replica
                self.judge.ended_clean(self.name, ended.shutdown_id, ended.history)
        self.log.stop("leaves", self.controller.replica.history)
        self.clients.history.member_ended(crashed=False)

    def crashed(self) -> None:
        self.dead = True
        self.pages.executor.drop()
        self.clients.crashed()
        self.links.crashed()
        self.replicated.persister.writer.crash(self.tape.chance(0.5))
        self.stack.disks[self.name].crash()
        self.log.crash(self.log_tape)

    def on_output(self, output: Output, now: float) -> None:
        if self.dead or self.stopping or isinstance(output, Note):
            return
        if isinstance(output, Direct):
            if not self.links.takes(output):
                self.transfer.takes(output)
        else:
            self.replicated.on_output(output)
            self._look_at_plan()

    def _look_at_plan(self) -> None:
        plan = self.primary.plan
        if plan is not None and plan is not self._plan:
            self.judge.planned(self.name, plan)
        self._plan = plan

    def _turn(self) -> None:
        if self.dead or self.stopping:
            return
        if self.member.paused:
            self.world.after(POLL_S, self._turn)
            return
        self._turn_due = False
        left = 1000 if self.world.healed else self.tape.number(1, self.slice_items)

        def in_slice() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        if self.tape.chance(self.checkpoints):
            self.replicated.persister.request_checkpoint()
        self.watchdogs.turn()
        self.replicated.turn(in_slice)
        self.role.follow()
        self.watchdogs.turn()
        self._look_at_plan()
        self.stack.look_at_roles()
        meta = self.stack.disks[self.name].meta
        if meta is not None and self.controller.promise.promised_epoch < meta.promised_epoch:
            text = f"{self.name} forgets its promise of {meta.promised_epoch}"
            self.judge.broken("G7", f"{text}: {self.controller.promise}")
        if self.tape.chance(0.002) and not self.controller.replica.half_way:
            self.controller.replica.machine.invariants()
        self.member.finish_step()

    # -- the judge reads along -------------------------------------------------------------------

    def _applied(self, applied: Applied) -> None:
        self.watchdogs.applied(applied)

    def _activated(self, event: Activated) -> frozenset[str]:
        """A member that has the state of the new view; members of older views may no longer
        reply."""
        primary = self.controller.primary
        if primary.ring != event.ring:
            return frozenset()
        epoch = event.activation.epoch
        for other in self.stack.uppers.values():
            older = not other.dead and other.controller.primary.epoch < epoch
            outside = other.tap.me not in primary.members and self.stack.of_one_side(self, other)
            if older and outside and other.replicated.may_reply:
                text = f"{self.name} activates {epoch}, and {other.name} may still reply in epoch"
                self.judge.broken("G7", f"{text} {other.controller.primary.epoch}")
        return primary.caught_up_names

    def _released(self, position: int, chain: bytes, voters: Terms) -> None:
        node = self.judge.nodes[chain]
        self.judge.released(self.name, node, voters, self.stack.disks_of)

    # -- its clock (`ports.Clock`) ---------------------------------------------------------------

    def now_us(self) -> int:
        return TICK_US + int(self.world.now * 1e6) + self.member.wall_offset_us

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run a call of this incarnation after a while, when the process runs."""
        self.world.after(delay_s, self._later, call)

    def _later(self, call: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.member.paused:
            self.world.after(POLL_S, self._later, call)
            return
        call()
        self.schedule()
        self.member.finish_step()

    def when_right(self, call: Callable[[], None]) -> None:
        """Clock skew has its own tests."""
        call()

    # -- its member log --------------------------------------------------------------------------

    def _write_log(self, done: Callable[[], None]) -> None:
        """Start a write to the member log; the loop hears of its end when it runs."""

        took_s = self.log_write_s * self.log_tape.between(0.1, 1.9) * self.member.disk_slowness
        self.world.after(min(took_s, LOG_WRITE_WORST_S), self._log_written, done)

    def _log_written(self, done: Callable[[], None]) -> None:
        if self.dead or self.member.disk_waits(partial(self._log_written, done)):
            return
        if self.member.paused:
            self.world.after(POLL_S, self._log_written, done)
            return
        done()
        self.replicated.log_written()
        self.member.finish_step()

    # -- its disk (`persister.StoreDevice`) ------------------------------------------------------

    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> SimWriter:
        tape = self.tape.fork(f"disk {store.meta.position}")
        return SimWriter(self, tape, store, on_durable)

    def store_failed(self, error: StoreError | PageLost) -> None:
        """It leaves cleanly, and returns when its disk works."""
        self._leave(self.world.plan.token_timeout_ms / 1000.0, "store_failed", str(error))

    def switch(
        self, writer: SimWriter, received: MemoryStore, current: MemoryStore, meta: Meta,
        done: Callable[[MemoryStore, tuple[int, int]], None],
    ) -> None:  # fmt: skip
        """On a worker thread: submitted entries are committed first, whatever follows."""
        took_s = self.member.fsync_s(self.tape) * self.tape.between(1.0, 10.0)

        def work() -> None:
            if self._switch is None or self.member.disk_waits(lambda: self._later(work)):
                return
            self._switch = None
            writer.close()
            received.put_meta(meta)
            current.close()
            self.stack.disks[self.name] = received.disk
            done(received, received.bytes_to_start())

        self._switch = work
        self.later(took_s, work)

    async def settled(self, _patience_s: float) -> None:
        """A member that ends waits for its disk, though not for ever."""
        if self._switch is not None and self.member.disk_frozen:
            raise StoreStuck("the simulated disk does not answer")
        if self._switch is not None:
            self._switch()

    # -- its process (`ports.Host`) --------------------------------------------------------------

    def schedule(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.world.after(self.slice_s * self.tape.between(0.1, 1.9), self._turn)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        if self.world.plan.has("voter_changes") and OLD_OPTIONS in reason:
            self.stack.tell(self.world.plan, self.name, reason)
            self._leave(self.world.plan.token_timeout_ms / 1000.0, "old_options", reason)
            return
        self.judge.broken("G10" if inconsistent else "G0", f"{self.name} stops: {reason}")

    def failed(self, error: Exception) -> None:
        if not isinstance(error, (StoreError, PageLost)):
            raise error
        self.store_failed(error)

    def _leave(self, down_s: float, why: str, text: str) -> None:
        if not self.stopping:
            self.stopping = True
            self.note(why, text)
            self.world.after(0.0, self._left, down_s)

    def _left(self, down_s: float) -> None:
        if not self.dead:
            self.replicated.reply()
            self.member.leave(down_s)

    def session_commands(self) -> list[Command]:
        return []

    def note(self, event: str, text: str) -> None:
        self.world.trace.add(self.world.now, self.name, event, text)
        if self.stack.event_faults is not None:
            self.stack.event_faults.on_event(self.member, event)
        if event == "serve" and self.world.shutdown is not None:
            self.world.shutdown.serves()

    def voted(self, verdict: DigestVerdict) -> None:
        self.judge.counters["votes"] += 1
        if verdict.divergent or verdict.split:
            self.judge.broken("G10", f"{self.name}: {verdict}")
        word = "undecided" if verdict.split else "divergent" if verdict.divergent else "agreed"
        _, chain, root = verdict.value or (0, bytes(16), 0)
        self.log.voted(verdict.position, chain, root, word)
