"""One replicated member between its ring, store, log and clients. Pure: all of these are ports.

The ordering rules that the guarantees depend on are here, once, for the process and the simulator:

- *log before reply*: a turn's effects go to clients once the member log is written as far as that
  turn, so that everything sent to a client can be looked up afterwards. Another thread writes the
  log: a turn never waits for it;
- *reply only under lease*: clients are written to only in a primary view that is activated here,
  and while the lease says that no other view can have taken over (G7);
- *confirm when durable*: an acknowledgement of a change waits for the released position (G9; all
  code that writes to clients asks `durable_gate`);
- *promise after lease*: a promise is acknowledged when it is durable behind everything applied, and
  every member that might still reply in an older view has stopped (G7). The acknowledgement carries
  the number of the request: a later view may ask for the same epoch of another cluster, or of more
  state (`Primary.persisted`);
- *durable when in force*: the member goes on from a received state at once, while the received
  store replaces the old one in the background. Until it has, a crash leaves the old store: nothing
  of the new state is handed to a store or reported durable, no promise is acknowledged, and neither
  store is read (G8, G9). The view may change meanwhile: reports then state what is applied, not
  what is durable, as always;
- *no vote before level*: a store that never had a vote, or holds less than the store it replaced,
  is marked as joining until it holds everything ordered; nothing in it is reported durable before a
  commit without that mark (G8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from broker.divergence.digest_vote import DigestVerdict
from broker.exit_codes import Exit
from broker.machine.clock.voters import voter_names
from broker.machine.effects import Effect
from broker.replication.chain import History, Promise
from broker.replication.controller import Controller
from broker.replication.durable_gate import Backups
from broker.replication.persister import Persister, StoreDevice, StoreT, WriterT
from broker.replication.ports import Ports, Shell
from broker.replication.replica import Recorded, Replica
from store.api import Marker, Meta
from vsync.primary.events import Activated
from vsync.totem.events import Deliver, Marks, Output, Transitional, View
from vsync.types import Guarantee, Member

MERGED_TURNS_MAX = 4
"""The most turns that hand over to store, log and clients together while there is more to apply."""
UNAWAITED_S = 0.05
"""How long work that nobody waits for, such as an ack, is held back to share a write to store and
log.
Decisions: docs/decisions/0063-acks-share-a-commit.md, 0070-records-share-a-write.md."""
TRANSFER_RETRY_S = 0.5
RETRY_DOUBLINGS = 5
"""How often the delay before retrying a failing transfer doubles: up to 16 s."""

_P = ParamSpec("_P")
_Self = TypeVar("_Self", bound="ReplicatedMember[Any, Any]")


def _or_end(
    entry: Callable[Concatenate[_Self, _P], None],
) -> Callable[Concatenate[_Self, _P], None]:
    """Wrap `entry` so that an exception ends this member if the call came from outside.

    An exception anywhere in it is the broker's fault, or the store's. The member must not go on,
    because commands it took from clients, or replies to them, are lost. Called within another
    entry it raises, so that the rest of the outer entry does not run. Later entries do nothing: a
    client would take the next reply for the lost one.
    Decision: docs/decisions/0013-validate-then-mutate.md.
    """

    @wraps(entry)
    def guarded(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self._failed:
            return
        if self._entered:
            entry(self, *args, **kwargs)
            return
        self._entered = True
        try:
            entry(self, *args, **kwargs)
        except Exception as error:
            self._failed = True
            self._host.failed(error)
        finally:
            self._entered = False

    return guarded


class ReplicatedMember(Generic[StoreT, WriterT]):
    """Carries out its controller's orders (`ports.Shell`) in the order that the rules above demand.

    `replica` is the state recovered from `store`; `make_controller` gets this object as its shell.
    """

    def __init__(
        self,
        ports: Ports,
        device: StoreDevice[StoreT, WriterT],
        store: StoreT,
        meta: Meta,
        make_controller: Callable[[Shell, Promise], Controller],
        transfer_retry_s: float = TRANSFER_RETRY_S,
    ) -> None:
        self._ring, self._lease, self._clock, self._transfer = ports[:4]
        self._clients, self._log, self._host = ports[4:]
        self._transfer_retry_s, self._transfers_failed = transfer_retry_s, 0
        self._transfers = self._transfer_begun = 0  # number of the last ordered, and of the begun
        self._entered = False  # something from outside is being dealt with
        self._failed = False  # something of that raised: nothing more is done here
        self._merged = 0  # turns whose work is not handed over yet
        self._waits_for_backups = self._looks_again = False
        self._handed_later = False  # a timer runs for what nobody waits for
        self._made: list[tuple[int, Effect]] = []  # for clients, and not handed to the log yet
        self._unlogged: deque[tuple[int, list[tuple[int, Effect]]]] = deque()
        """The same for earlier turns, each with the point that the log must be written up to."""
        self.persister = Persister(device, store, meta, self._on_durable)
        promise = Promise(meta.cluster_id, meta.voters, meta.promised_epoch)
        self.controller = make_controller(self, promise)
        self.controller.replica.log = self._log

    # -- turns of work ---------------------------------------------------------------------------

    @_or_end
    def on_output(self, output: Output) -> None:
        """Take one output of the ring, except datagrams and notes, which are handled elsewhere."""
        if isinstance(output, (View, Transitional)):
            self._log.view(output.ring, output.members, regular=isinstance(output, View))
        self.controller.on_output(output)
        # Control messages of the primary layer go out at once; applying waits for its slice.
        busy = self.controller.unapplied.busy
        if not busy or not isinstance(output, Deliver):
            self.controller.flush()
        if busy or self._waits_for_backups or not isinstance(output, Marks):
            self._host.schedule()  # else: most marks change nothing here

    @_or_end
    def turn(self, in_slice: Callable[[], bool]) -> None:
        """Apply while `in_slice`, submit commands, hand over to the store, reply.

        Handing over wakes a thread for the store and one for the log, and costs a system call for
        each client's socket, however little there is: a member that is behind hands over once for
        several turns.
        """
        controller = self.controller
        unapplied, pager = controller.unapplied, controller.replica.machine.pager
        busy = unapplied.busy
        if pager is not None and (pager.written or pager.gone) and not busy:
            pager.settle()
            busy = unapplied.busy
        while busy and in_slice():
            unapplied.step()
            busy = unapplied.busy
        if not controller.halted and (commands := self._clients.take_commands()):
            controller.submit(commands)
        self._merged += 1
        if busy and self._merged < MERGED_TURNS_MAX:
            self._host.schedule()
            return
        self._merged = 0
        if controller.replica.awaited or not controller.replica.uncut:
            self._keep()
        else:
            self._hand_over_later()
        if controller.backups is not None:
            self._look_at(controller.backups)
        self._reply()
        self._clients.throttle(
            full=controller.submissions.full or bool(controller.halted),
            large_full=controller.submissions.large_full,
            alarm=controller.replica.machine.alarm,
        )
        if unapplied.busy:  # also by what was submitted, handed over or written above
            self._host.schedule()

    def _keep(self) -> None:
        controller = self.controller
        persister = self.persister
        persister.keep(controller.replica, controller.promise, counts=controller.filled)
        if controller.filled and not persister.switching:
            self._ring.expect_mark(persister.meta.position)

    def _look_at(self, backups: Backups) -> None:
        """Release what waited for backups, and check again later while anything still waits."""
        self._waits_for_backups = self.controller.release_late()
        if self._waits_for_backups and not self._looks_again:
            self._looks_again = True
            self._clock.later(backups.timeout_s / backups.STEPS, self._look_again_at_backups)

    @_or_end
    def _look_again_at_backups(self) -> None:
        self._looks_again = False
        if not self._host.stopping:
            self._host.schedule()

    def _hand_over_later(self) -> None:
        if not self._handed_later:
            self._handed_later = True
            self._clock.later(UNAWAITED_S, self._hand_over_unawaited)

    @_or_end
    def _hand_over_unawaited(self) -> None:
        self._handed_later = False
        if not self._host.stopping:  # else the last commit has it, and the end of the log
            self._keep()
            self._log.flush()

    @property
    def may_reply(self) -> bool:
        """Whether clients may be written to.

        The end of a view is known here before the controller has worked through the earlier
        outputs.
        """
        controller = self.controller
        return (
            controller.serving
            and controller.primary.active
            and self._lease.holds(controller.primary.ring)
        )

    @_or_end
    def reply(self) -> None:
        """Write to clients what is due; nothing if the log cannot be written."""
        self._reply()

    def _reply(self) -> None:
        log = self._log
        if self._made:
            self._unlogged.append((log.flush(), self._made))
            self._made = []
        elif log.unflushed:
            self._hand_over_later()
        else:
            log.flush()  # its file may be due to end
        while self._unlogged and self._unlogged[0][0] <= self._log.written:
            self._clients.effects(self._unlogged.popleft()[1])
        controller, may_reply = self.controller, self.may_reply
        soon = not may_reply and controller.may_serve_soon
        confirmed = self._clients.flush(may_reply=may_reply, soon=soon)
        if confirmed:
            epoch = controller.primary.epoch
            self._log.confirmed(epoch, self._clients.durable_mark, confirmed)

    @property
    def awaits_log(self) -> bool:
        """Whether anything waits for `log_written`."""
        return bool(self._unlogged)

    def log_written(self) -> None:
        """The member log was written further: send the replies that waited for that."""
        if self._unlogged and self._unlogged[0][0] <= self._log.written:
            self.reply()

    @_or_end
    def _on_durable(self, position: int) -> None:
        self._log.durable(position)
        self._ring.set_mark(position)

    def last_marker(self, *, clean: bool, inconsistent: bool) -> Marker:
        """Return what this member may claim about its store as it ends.

        An ordered shutdown that all have on disk in time marks it clean.  An inconsistent one is
        marked so only where another member can give this one its state: a sole voter re-executes
        its store when it starts again.
        """
        controller = self.controller
        alone = voter_names(controller.promise.voters) in ((), (controller.me.name,))
        if inconsistent and not alone:
            return Marker.INCONSISTENT
        whole = controller.shutdown_position and not controller.shutdown_overdue
        return Marker.CLEAN if clean and whole else Marker.DIRTY

    # -- ordered by the controller ---------------------------------------------------------------

    def multicast(self, payload: bytes, *, urgent: bool = True) -> bool:
        """Submit to the ring."""
        return self._ring.submit(payload, Guarantee.SAFE, urgent=urgent)

    def persist_promise(self, promise: Promise, done: Callable[[], None]) -> None:
        """Make the promise durable behind everything that was applied."""
        self._clock.when_right(
            lambda: self.persister.when_in_force(lambda: self._persist(promise, done))
        )

    @_or_end
    def _persist(self, promise: Promise, done: Callable[[], None]) -> None:
        epoch = promise.promised_epoch
        self._host.note("promise", f"epoch {epoch}")
        self.persister.keep(self.controller.replica, promise, counts=True)
        self.persister.promise(promise, lambda: self._promise_durable(epoch, done))

    @_or_end
    def _promise_durable(self, epoch: int, done: Callable[[], None]) -> None:
        """Acknowledge a promise once no member replies in an older view any more."""
        self._host.note("promised", f"epoch {epoch}")
        self._clock.later(
            self._lease.silent_in(self.controller.primary.members),
            lambda: self.persister.when_in_force(lambda: self._acknowledge(done)),
        )

    @_or_end
    def _acknowledge(self, done: Callable[[], None]) -> None:
        done()

    def set_aside(self, done: Callable[[], None]) -> None:
        """Mark the store, behind everything that was applied, as having no vote.

        Effects for clients, and released positions, belong to an abandoned history: the other
        history has something else at the same positions.
        """
        self._host.note("aside", f"{self.controller.replica.history} is not kept")
        self._made.clear()
        self._unlogged.clear()
        self._clients.set_aside()
        self.persister.when_in_force(lambda: self._set_aside(done))

    @_or_end
    def _set_aside(self, done: Callable[[], None]) -> None:
        self._keep()
        self.persister.takes_back_vote(lambda: self._acknowledge(done))

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Start to fetch the donor's state."""
        self._host.note("transfer", f"from {donor.name} at or beyond {base}")
        self._transfers += 1
        self._clock.when_right(partial(self._begin_transfer, self._transfers, donor, base))

    @_or_end
    def _begin_transfer(self, transfer: int, donor: Member, base: int) -> None:
        self._transfer_begun = transfer
        self._transfer.begin(donor, base)

    def abort_transfer(self) -> None:
        """Drop a transfer under way."""
        self._clock.when_right(self._transfer.abort)

    def transfer_failed(self, reason: str) -> None:
        """No state came: try again after a while, unless another transfer is ordered by then."""
        self._host.note("transfer_failed", f"state transfer failed, trying again: {reason}")
        delay_s = self._transfer_retry_s * 2 ** min(self._transfers_failed, RETRY_DOUBLINGS)
        self._transfers_failed += 1
        self._clock.later(delay_s, partial(self._try_again, self._transfer_begun))

    @_or_end
    def disk_broken(self, error: Exception) -> None:
        """The disk takes no received state, nor will it take the next one: end this member."""
        raise error

    @_or_end
    def _try_again(self, transfer: int) -> None:
        if transfer == self._transfers:
            self.controller.transfer_failed()

    def tail_failed(self, reason: str) -> None:
        """The received items do not continue this state: drop the rest, and try again."""
        self.abort_transfer()
        self.transfer_failed(reason)

    def next_of_tail(self) -> Recorded | None:
        """Return the next item of the tail."""
        return self._transfer.next_item()

    @_or_end
    def tail_is_here(self) -> None:
        """Items of the donor's log have come, or it has said that there are none."""
        self.controller.tail_is_here()
        self._host.schedule()

    def may_replace(self, history: History) -> bool:
        """Whether a state at this point of the primary's history may replace this member's own.

        A store with a vote stands for everything confirmed while it was among the majority: that
        lies at or before its position, on the history of every later primary. Its replacement must
        hold all of that, or a later primary could be formed without it. The replacement need not
        reach the store's own end, which may be of a history that was never confirmed.
        """
        persister = self.persister
        return (
            not persister.votes
            or history.position >= persister.meta.position
            or self.controller.holds_all_confirmed(history)
        )

    def state_received(self, replica: Replica, received: StoreT) -> bool:
        """Go on from a received and verified state; False: neither it nor its store is wanted."""
        if self._host.stopping or self.persister.switching or not self.controller.takes_state:
            return False
        self._go_on_from(replica, received)
        return True

    @_or_end
    def _go_on_from(self, replica: Replica, received: StoreT) -> None:
        controller = self.controller
        donor, position = controller.transfer_donor, replica.history.position
        counts = self.persister.votes and self.may_replace(replica.history)
        # What was reported of the old store may lie on another history, and this member may be
        # level, and count, before the new one is in force.
        self._on_durable(0)
        self._host.note("installed", f"{replica.history} of {donor}")
        self._log.snapshot(replica.history, replica.machine, donor)
        replica.log = self._log
        self.persister.adopt(received, replica, counts=counts)
        self.persister.when_in_force(lambda: self._in_force(position if counts else 0))
        controller.state_received(replica, counts=counts)
        self._host.schedule()

    @_or_end
    def _in_force(self, durable: int) -> None:
        self._host.note("in_force", f"the received store, {durable} of it durable")
        self._on_durable(durable)
        self._host.schedule()

    def transfer_done(self) -> None:
        """The donor may forget this member."""
        self._transfers_failed = 0
        self._transfer.done()

    def state_is_level(self) -> None:
        """Let the store count."""
        controller = self.controller
        self._host.note("level", f"level with the others in {controller.replica.history}")
        self.persister.when_in_force(self._let_count)

    @_or_end
    def _let_count(self) -> None:
        controller = self.controller
        if controller.filled:  # it may have been found wrong since
            self.persister.keep(controller.replica, controller.promise, counts=True)
            self.persister.counts()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Keep effects for the clients until the log has the items that caused them."""
        self._made += effects

    def release(self, position: int) -> None:
        """Allow acknowledgements of everything up to `position`."""
        self._clients.release(position)

    def fence(self, reason: str) -> None:
        """Note that clients get nothing; `may_reply` enforces it."""
        self._host.note("fence", f"not in the primary view: {reason}")
        self._log.inactive(reason)

    def serve(self) -> None:
        """Note that clients are served; `may_reply` allows it."""
        self._host.note("serve", f"serving in {self.controller.replica.history}")

    def session_started(self, session: int) -> None:
        """Drop the connections of an older session."""
        self._host.note("session", str(session))
        self._made.clear()
        self._unlogged.clear()
        self._clients.session_started(session)
        self.controller.submit(self._host.session_commands())

    def decided(self, epoch: int) -> None:
        """Record that what follows is older than the primary view."""
        self._host.note("decided", f"by epoch {epoch}")
        self._log.decided(epoch)

    def activated(self, event: Activated, base: History | None) -> None:
        """Record the primary view."""
        after = f"after position {base.position}" if base is not None else "as received"
        self._host.note("activated", f"primary view of epoch {event.activation.epoch}, {after}")
        self._transfer.done()  # also where the state came another way: a part may be here
        self._log.activated(event, base)

    def voted(self, verdict: DigestVerdict) -> None:
        """Report a verdict."""
        self._host.voted(verdict)

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member."""
        self._host.stop(code, reason, inconsistent=inconsistent)

    def now_us(self) -> int:
        """Return the wall clock."""
        return self._clock.now_us()
