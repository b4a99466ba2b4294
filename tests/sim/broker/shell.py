"""One life of the real broker core above a simulated ring, with a disk and clients of its own.

What `broker.process.member` is in the real world: it does what the core orders, in slices, late,
and on a disk that may lose its last commit.  It follows that file line by line where it can.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.divergence.digest_vote import DigestVerdict
from broker.durability.data_directory import filled
from broker.durability.recovery import checkpoint_head, recover
from broker.exit_codes import Exit
from broker.machine.effects import Confirm, DeliverEffect, Effect, Reply
from broker.memberlog.recorder import Recorder
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History, Promise
from broker.replication.controller import Controller
from broker.replication.replica import Applied, Replica
from store.api import Marker, Meta
from store.memory import MemoryDisk, MemoryStore
from tests.sim.broker.clients import SimClients, message_id
from tests.sim.broker.describe import why_not
from tests.sim.broker.disk import SimWriter
from tests.sim.broker.judge import Heard, Told
from tests.sim.broker.transfer import SimJoining
from tests.sim.broker.watchdogs import SimHealth
from tests.sim.world.member import SimMember
from tests.sim.world.tap import Tap
from vsync.primary.events import Activated
from vsync.totem.events import Deliver, Direct, Note, Output, Transitional, View
from vsync.types import Guarantee, Member

if TYPE_CHECKING:
    from tests.sim.broker.stack import BrokerStack

DIGEST_INTERVAL = 64
HELD_BYTES_MAX = 2000  # small: who waits for a state often has to give up what it held
TICK_US = 1_000_000_000_000  # far enough from zero for clocks that are set back by hours
POLL_S = 0.01


class BrokerUpper:
    """A `broker.replication.ports.Shell`, and an `Upper` of the simulator."""

    def __init__(self, stack: BrokerStack, member: SimMember, tap: Tap, disk: MemoryDisk) -> None:
        self.stack, self.member, self.tap, self.judge = stack, member, tap, stack.judge
        self.world, self.name = member.world, member.name
        self.tape = tape = self.world.tape.fork(f"broker {member.name} {member.incarnation}")
        pace = self.world.tape.fork("pace")  # one for all members, or one for each life
        pace = tape if pace.chance(0.5) else pace
        self.slice_items = pace.pick((1, 3, 8, 1000))  # how much one turn applies at most
        self.slice_s = pace.pick((0.0, 0.0001, 0.001, 0.01, 0.05))  # how long until the next
        self.checkpoints = tape.pick((0.0, 0.01, 0.1))
        self.dead = False
        self.store = store = MemoryStore(disk, Meta("simulated", self.name, f"store-{self.name}"))
        replica = recover(self.name, store)
        self.judge.recovered(self.name, replica, "recovered")
        self.meta = replace(store.meta, incarnation=member.incarnation)
        store.put_meta(self.meta)
        self.tip = replica.history.chain
        self.book = self._open_book(replica)
        replica.log = self
        self.clients = SimClients(
            self.name, tape.fork("clients"), stack.numbers, self.later, self.judge.broken,
            lambda: self.world.healed,
        )  # fmt: skip
        seed = f"{self.world.plan.seed} {self.name} {member.incarnation}"
        proposal = hashlib.blake2b(seed.encode(), digest_size=16).hexdigest()
        promise = Promise(self.meta.cluster_id, self.meta.voters, self.meta.promised_epoch)
        self.core = Controller(
            tap.me, self, replica, promise, filled=filled(self.meta),
            size=len(self.world.plan.names), proposal=proposal, patient=False, label=self.name,
            digest_interval=DIGEST_INTERVAL, held_bytes_max=HELD_BYTES_MAX,
        )  # fmt: skip
        self.writer = self._new_writer()
        self.joining = SimJoining(self)
        self.watchdogs = SimHealth(self)
        self.mark = 0  # up to here clients may be told
        self.released_to = 0
        self._outbox: deque[tuple[int, bytes, Effect]] = deque()
        self._held: deque[tuple[int, bytes, Effect]] = deque()
        self._turn_due = self._checkpointing = False

    def _open_book(self, replica: Replica) -> Recorder | None:
        if self.stack.memberlog is None:
            return None
        writer = MemberLogWriter(
            self.stack.memberlog, "simulated", self.meta.cluster_id * bool(self.meta.position),
            self.name, self.member.incarnation, self.now_us,
        )  # fmt: skip
        book = Recorder(writer)
        book.start(replica.history, replica.machine)
        book.flush()
        return book

    def _new_writer(self) -> SimWriter:
        def on_durable(position: int) -> None:
            if self.writer is writer:
                self.durable(position)

        tape = self.tape.fork(f"disk {self.store.meta.position}")
        writer = SimWriter(self.member, tape, self.store, on_durable)
        return writer

    # -- for the simulator -----------------------------------------------------------------------

    def started(self, now: float) -> None:
        """The real member says nothing of its disk before its first commit either."""

    @property
    def ready(self) -> bool:
        core = self.core
        return (
            core.serving
            and core.primary.has_caught_up
            and not core.busy
            and not core.transfer_donor
            and core.submissions.outstanding == 0
            and self.clients.idle
            and not core.replica.machine.wants_tick
            and self.store.meta.position == core.replica.history.position
        )

    def why_not(self) -> str:
        return why_not(self)

    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool:
        """The load asks a client to publish."""
        if self.core.submissions.full or not self.clients.publish(payload):
            return False
        self._schedule()
        return True

    def pump(self, now: float) -> None:
        """Called after every step."""
        self.core.flush()

    def crashed(self) -> None:
        self.dead = True
        self.writer.crash(self.tape.chance(0.5))
        self.stack.disks[self.name].crash()
        if self.book is not None:
            self.book.close()

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Run a call of this life's own after a while, when the process runs."""
        self.world.after(delay, self._later, call)

    def _later(self, call: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.member.paused:
            self.world.after(POLL_S, self._later, call)
            return
        call()
        self._schedule()
        self.member.finish_step()

    def note(self, code: str, text: str) -> None:
        self.world.trace.add(self.world.now, self.name, code, text)
        if self.stack.spite is not None:
            self.stack.spite.occasion(self.member, code)

    # -- turns of work ---------------------------------------------------------------------------

    def on_output(self, output: Output, now: float) -> None:
        if isinstance(output, (Direct, Note)) or self.dead:
            return
        if self.book is not None and isinstance(output, View):
            self.book.view(output.ring, output.members, regular=True)
        elif self.book is not None and isinstance(output, Transitional):
            self.book.view(output.ring, output.members, regular=False)
        self.core.on_output(output)
        if not isinstance(output, Deliver) or not self.core.busy:
            self.core.flush()
        self._schedule()

    def _schedule(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.world.after(self.slice_s * self.tape.between(0.1, 1.9), self._turn)

    def _turn(self) -> None:
        if self.dead:
            return
        if self.member.paused:
            self.world.after(POLL_S, self._turn)
            return
        self._turn_due = False
        core = self.core
        calm = self.world.healed
        for _ in range(1000 if calm else self.tape.number(1, self.slice_items)):
            if not core.busy:
                break
            core.step()
        commands = self.clients.take_commands()
        if commands:
            core.admit(commands)
        self._hand_to_store()
        self._speak()
        if self.tape.chance(0.002):
            core.replica.machine.invariants()
        if core.busy:
            self._schedule()
        self.member.finish_step()

    def _hand_to_store(self) -> None:
        commit = self.core.replica.cut()
        if commit is None:
            return
        history, promise = commit.history, self.core.promise
        self.meta = replace(
            self.meta, state_epoch=history.epoch, position=history.position,
            chain=history.chain, order=history.order, marker=Marker.DIRTY, shutdown_id="",
            cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=max(promise.promised_epoch, self.meta.promised_epoch),
        )  # fmt: skip
        self.writer.submit(commit.entry, commit.first, commit.last, self.meta)
        if not self._checkpointing and self.tape.chance(self.checkpoints):
            self._checkpointing = True
            self.note("checkpoint", str(history))
            chunks = [checkpoint_head(history), *self.core.replica.machine.snapshot()]
            self.writer.submit_checkpoint(history.position, chunks, self._checkpoint_done)

    def _checkpoint_done(self) -> None:
        self._checkpointing = False
        self.judge.counters["checkpoints"] += 1

    def durable(self, position: int) -> None:
        """The own disk holds everything up to here."""
        if self.book is not None:
            self.book.durable(position)
        self.tap.core.set_mark(position, self.world.now)

    # -- what clients hear -----------------------------------------------------------------------

    def _speak(self) -> None:
        """As the outbox does: at once, but for what must be durable first."""
        confirmed: list[int] = []
        if self.core.serving:
            while self._outbox:
                entry = self._outbox.popleft()
                effect = entry[2]
                waits = isinstance(effect, Confirm) or (
                    isinstance(effect, Reply) and effect.durable
                )
                if waits and entry[0] > self.mark:
                    self._held.append(entry)
                else:
                    self._say(entry, confirmed)
            while self._held and self._held[0][0] <= self.mark:
                self._say(self._held.popleft(), confirmed)
        if self.book is not None:
            if confirmed:
                self.book.confirmed(self.core.primary.epoch, self.mark, confirmed)
            self.book.flush()

    def _say(self, entry: tuple[int, bytes, Effect], confirmed: list[int]) -> None:
        position, chain, effect = entry
        if isinstance(effect, Confirm) and effect.conn == self.clients.publisher:
            if effect.durable:
                confirmed.append(position)
                self._released(position, chain)
            message = (effect.conn, effect.publish_no)
            if effect.ack:
                self.judge.told.append(Told(self.name, message, position, chain, effect.durable))
        elif isinstance(effect, DeliverEffect):
            message_id(effect.body)
            self.judge.heard.append(Heard(self.name, self.clients.session, position, chain, effect))
        self.clients.hear(effect)

    def _released(self, position: int, chain: bytes) -> None:
        if position > self.released_to:
            self.released_to = position
            node = self.judge.nodes[chain]
            voters = self.core.promise.voters
            self.judge.released(self.name, node, voters, self.stack.disks_of)

    # -- ordered by the core ---------------------------------------------------------------------

    def multicast(self, payload: bytes) -> bool:
        return self.tap.submit(payload, self.world.now, Guarantee.SAFE)

    def persist_promise(self, promise: Promise) -> None:
        self._hand_to_store()
        self.meta = replace(
            self.meta, cluster_id=promise.cluster_id, voters=promise.voters,
            promised_epoch=promise.promised_epoch, marker=Marker.DIRTY,
        )  # fmt: skip
        epoch = promise.promised_epoch
        self.note("promise", f"epoch {epoch}")
        self.writer.submit_meta(self.meta, lambda: self._epoch_persisted(epoch))

    def _epoch_persisted(self, epoch: int) -> None:
        self.note("promised", f"epoch {epoch}")
        self.core.epoch_persisted(epoch)

    def begin_transfer(self, donor: Member, base: int) -> None:
        self.note("transfer", f"from {donor.name} at or beyond {base}")
        self.joining.begin(donor, base)

    def abort_transfer(self) -> None:
        self.joining.abort()

    def state_ready(self, replica: Replica, disk: MemoryDisk) -> None:
        """A transferred copy is re-executed: `member._state_ready`, with the switch of stores."""
        if not self.core.fits(replica):
            self.note("transfer_unfit", str(replica.history))
            self.joining.failed()
            return
        self.writer.close()
        self.store.close()
        self.stack.disks[self.name] = disk
        self.store = MemoryStore(disk)
        promised = max(self.meta.promised_epoch, self.store.meta.promised_epoch)
        self.meta = replace(self.store.meta, marker=Marker.DIRTY, promised_epoch=promised)
        self.store.put_meta(self.meta)
        self.writer = self._new_writer()
        self._checkpointing = False
        donor = self.core.transfer_donor
        self.note("installed", f"{replica.history} of {donor}")
        if self.book is not None:
            self.book.snapshot(replica.history, replica.machine, donor)
        self.tip = replica.history.chain
        replica.log = self
        durable = replica.history.position
        self.core.state_installed(replica)
        self.durable(durable)
        self._schedule()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        chain = self.core.replica.history.chain
        self._outbox.extend((position, chain, effect) for position, effect in effects)

    def release(self, position: int) -> None:
        self.mark = max(self.mark, position)

    def fence(self, reason: str) -> None:
        self.note("hold", reason)
        if self.book is not None:
            self.book.inactive(reason)

    def serve(self) -> None:
        self.note("speak", str(self.core.replica.history))

    def session_started(self, session: int) -> None:
        self.note("session", str(session))
        self._outbox.clear()
        self._held.clear()
        self.clients.session_started(session)

    def decided(self, epoch: int) -> None:
        self.note("decided", f"by epoch {epoch}")
        self.judge.counters["decided"] += 1
        if self.book is not None:
            self.book.decided(epoch)

    def activated(self, event: Activated, base: History | None) -> None:
        activation = event.activation
        fresh = ",".join(name for name, _, fresh in activation.members if fresh)
        text = f"epoch {activation.epoch} base {base or 'unknown'} fresh {fresh or 'none'}"
        self.note("activated", text + (" cold" if activation.cold else ""))
        primary = self.core.primary
        level = primary.caught_up_names if primary.ring == event.ring else frozenset()
        if base is not None:
            self.judge.activated(self.name, event, base, level)
        if self.book is not None:
            self.book.activated(event, base)

    def voted(self, verdict: DigestVerdict) -> None:
        self.judge.counters["votes"] += 1
        if verdict.divergent or verdict.split:
            self.judge.broken("G10", f"{self.name}: {verdict}")
        if self.book is not None:
            word = "undecided" if verdict.split else "divergent" if verdict.divergent else "agreed"
            _, chain, root = verdict.value or (0, bytes(16), 0)
            self.book.vote(verdict.position, chain, root, word)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        self.judge.broken("G10" if inconsistent else "G0", f"{self.name} stops: {reason}")

    def now_us(self) -> int:
        return TICK_US + int(self.world.now * 1e6) + self.member.wall_offset_us

    # -- told by the replica ---------------------------------------------------------------------

    def batch(self, applied: Applied, history: History, root: int) -> None:
        """One item was applied (the replica's log)."""
        self.judge.applied(self.name, self.tip, applied, history, root)
        self.watchdogs.applied(applied)
        self.tip = history.chain
        if self.book is not None:
            self.book.batch(applied, history, root)
