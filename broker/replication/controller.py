"""One member's decisions, without sockets or disks: takes ring outputs, gives the shell orders.

The controller connects the primary layer to the replica. It decides when this member admits
commands (`submissions.open`), when it serves clients (`serving`), when it must fetch a state, and
when it must stop; `ports.Shell` carries these decisions out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.divergence.judgement import Judgement
from broker.exit_codes import Exit
from broker.machine.command_codec import pack_blob
from broker.machine.commands import DIGEST, TICK, Command, DigestClaim
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.replication.chain import History, Promise
from broker.replication.durable_gate import Backups
from broker.replication.ports import Shell
from broker.replication.replica import Applied, Divergence, Item, Recorded, Replica
from broker.replication.side import Side
from broker.replication.submissions import Submissions
from broker.replication.unapplied import (
    HELD_BYTES_MAX,
    AtOnce,
    CatchUp,
    Executor,
    Unapplied,
    body_of,
)
from broker.replication.weight import is_urgent, weight
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    DurableMark,
    Holders,
    Inquorate,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    StateReport,
    Suspended,
    Transfer,
)
from vsync.quorum.voter_set import Terms, voter_set
from vsync.totem.events import Output
from vsync.types import Member

DIGEST_INTERVAL = 4096
"""Positions between two digest votes."""


class Controller:
    """Follows the primary layer for one member; `step` does the work of each output."""

    def __init__(
        self, me: Member, shell: Shell, promise: Promise, *, replica: Replica, filled: bool,
        size: int, proposal: str, patient: bool, label: str,
        digest_interval: int = DIGEST_INTERVAL,  # the same at all members
        requested: Terms = (), settings: tuple[tuple[str, str, bool], ...] = (),
        held_bytes_max: int = HELD_BYTES_MAX,
        transient: bool = False, shutdown_id: str = "", executor: Executor | None = None,
    ) -> None:  # fmt: skip
        self.me, self.shell, self.replica, self.promise = me, shell, replica, promise
        self.filled, self.size, self.proposal, self.patient = filled, size, proposal, patient
        self.label, self.requested = label, requested
        self.transient, self._shutdown_id = transient, shutdown_id  # of the store at the start
        self._held_bytes_max = held_bytes_max
        self._settings, self._digest_interval = settings, digest_interval
        self.primary = Primary(me, self)
        self.submissions = Submissions(
            lambda payload, urgent: shell.multicast(Primary.wrap(payload), urgent=urgent),
            pack_blob, shell.now_us,
            lambda command: weight(self.replica.machine, self.submissions.session, command),
            lambda some: is_urgent(self.replica.machine, self.submissions.session, some),
        )  # fmt: skip
        self.judgement = Judgement(me.name, promise.voters, digest_interval)
        self.voters_since = 0  # the position at which the present voters began to vote
        self._released = 0
        self.ran = False
        self._sets_aside = (
            False  # the mark that its own state has no vote is on its way to the disk
        )
        self._was_set_aside = False  # since the last activation: the voters of a state are none yet
        self._side = Side()
        self.serving = False
        self._in_session = False  # serves in this view, as soon as the activation is durable
        self.halted = ""
        self.shutdown_position = 0
        self.shutdown_overdue = False  # not all members have it on disk in time
        self.unapplied = moved = Unapplied(executor or AtOnce(), self)
        self.on_output, self.step = moved.on_output, moved.step
        self._work, self._execution = moved.work, moved.execution
        self.counters = {
            "catch_ups": 0, "tail_items": 0, "tails_diverged": 0, "held_given_up": 0,
        }  # fmt: skip
        self._decided_by = 0  # the last epoch that decided something older
        self.before_commands: Callable[[], object] = lambda: None
        """Called before commands are submitted, because a tick may have to precede them."""
        self.backups: Backups | None = None
        """The members that this member's confirms wait for beyond the quorum."""

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        """Return this member's report for the state exchange."""
        history, promise = self.replica.history, self.promise
        return StateReport(
            self.filled and not self.replica.broken, self.ran, self.ran, self.patient,
            promise.cluster_id, self.proposal, promise.voters, self.size, promise.promised_epoch,
            history.epoch, history.position, history.chain, history.order, self.label,
            requested=self.requested, version=self.replica.machine.version,
            version_min=MACHINE_VERSION_MIN, version_max=MACHINE_VERSION,
            settings=(*self._settings, ("digest-interval", str(self._digest_interval), True)),
            transient=self.transient, shutdown_id=self._shutdown_id,
            took_nothing=self._side.took_nothing,
        )  # fmt: skip

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return how many of `payloads` lead to the order chain `order`; -1: none."""
        return self.replica.reaches(payloads, order)

    # -- handed over by what moves it (`unapplied.Follower`) --------------------------------------

    def decide(self, output: Output) -> list[PrimaryEvent]:
        """Return the primary layer's events for an output of the ring."""
        self.primary.on_output(output)
        return self.primary.take()

    @property
    def _catch_up(self) -> CatchUp | None:
        return self.unapplied.catch_up

    def _soon(self, body: bytes | Activation, apply: Callable[[], None]) -> None:
        """Apply the next item: at once, or after the work that may be done ahead of it."""
        if isinstance(body, Activation) and body.cold:
            machine = self.replica.machine
            self._execution.do_in_steps(machine.pager, self.replica.look_ahead(), apply)
        else:
            apply()

    def follow(self, event: PrimaryEvent) -> None:
        """Act on an event; an item is applied, or held until this member has the state."""
        match event:
            case Ordered() | Activated():
                if (catch_up := self.unapplied.catch_up) is None:
                    self._soon(body_of(event), partial(self._on_item, event))
                else:
                    catch_up.hold(event)
                    self._maybe_meet()
            case DurableMark():
                self._release()
            case PersistEpoch(epoch, cluster_id, voters, request):
                if self.replica.history.position and not self._was_set_aside:
                    voters = self.promise.voters  # those of the state, which may be newer
                self.promise = Promise(cluster_id, voters, epoch)
                self.filled = True
                self.shell.persist_promise(self.promise, lambda: self._persisted(request))
            case Transfer():
                self.counters["catch_ups"] += 1
                self.unapplied.begin_catch_up(event, self._held_bytes_max)
                if event.aside:
                    self._set_aside()
                elif not self._sets_aside:  # maybe since a view before, and its disk is slow
                    self.shell.begin_transfer(event.donor, event.base)
            case Suspended(reason) | Inquorate(reason):
                self._fence(reason)
                if self._catch_up is not None:
                    self._end_catch_up()
                    self.shell.abort_transfer()
            case Holders():
                raise AssertionError("only an arbitrator keeps a record")
            case NeverJoins(reason, settings):
                self.shell.stop(Exit.PROTOCOL if settings else Exit.DATA, reason)

    def flush(self) -> None:
        """Hand the ring the payloads that wait for room in its queue."""
        if waiting := self.primary.take_outgoing():
            while waiting and self.shell.multicast(waiting[0]):
                waiting.pop(0)
            self.primary.put_back(waiting)
        self.submissions.flush()

    # -- the history -----------------------------------------------------------------------------

    def _on_item(self, event: Ordered | Activated, then: Callable[[], None] = lambda: None) -> None:
        if isinstance(event, Activated):
            self._on_activated(event, then)
        elif not self.replica.machine.shutdown_id:
            # The history of this run ends with the shutdown, at the same item everywhere: also at
            # members that have received it, and at those that have restarted from it.
            self._record_decided(event)
            place = event.epoch, event.ring, event.seq, event.sender.name
            self._apply(Item(*place, event.payload), then)
        else:
            then()

    def _on_activated(self, event: Activated, then: Callable[[], None]) -> None:
        self._record_decided(event)
        self._entered(event, self.replica.history)
        activation = event.activation

        def applied() -> None:
            self._enter_session(event)
            self._claim()
            then()

        place = activation.epoch, event.ring, event.seq, event.sender.name
        self._apply(Item(*place, activation), applied)

    def _record_decided(self, event: Ordered | Activated) -> None:
        if event.decided_by > self._decided_by:
            self._decided_by = event.decided_by
            self._side.decided(self.promise.voters)
            self.shell.decided(event.decided_by)

    def _entered(self, event: Activated, base: History | None) -> None:
        activation = event.activation
        if voter_set(activation.voters).pair:
            self._side.activated(self.promise.voters, activation.voters)
        promised = max(activation.epoch, self.promise.promised_epoch)
        self.promise = Promise(activation.cluster_id, activation.voters, promised)
        self.judgement.entered(activation)
        self.ran, self._was_set_aside = True, False
        if event.ring == self.primary.ring:  # else of a view before, and decided only now
            self.shell.activated(event, base)

    def _apply(self, item: Item, then: Callable[[], None]) -> None:
        replica, before = self.replica, self.replica.history.position

        def applied(found: Applied) -> None:
            replica.record(found)
            if self._side.took_nothing:
                self._side.applied(found.first, found.kinds, replica.effects)
            self._after(item, before)
            then()

        self._execution.do(replica.machine.pager, lambda: replica.execute(item), applied)

    def _after(self, item: Item, before: int) -> None:
        """An item was applied at the positions behind `before`."""
        history = self.replica.history
        if item.sender == self.me.name:
            self.submissions.applied(self.replica.own_blob_no, history.position)
        if self.replica.effects:
            effects, self.replica.effects = self.replica.effects, []
            self.shell.effects(effects)
        if self.replica.digests or self.replica.reports:
            self._count_votes()
        if self.replica.shutdown_id and not self.shutdown_position:
            self.shutdown_position = history.position
            self.submissions.suspend()
        if self.judgement.votes.is_cut(before, history.position):
            self._claim()
        self._follow_voters()
        if self.primary.durable() > self._released:
            self._release()

    def _follow_voters(self) -> None:
        """From the last applied position on, the voters are those that the state names."""
        voters = self.replica.machine.voters
        if voters and voters != self.promise.voters:
            self.promise = Promise(self.promise.cluster_id, voters, self.promise.promised_epoch)
            self.voters_since = self.replica.history.position
        if self.primary.voters_changed(self.promise.voters):
            self._work.add(self.primary.take())

    def _release(self) -> None:
        """Acknowledge durable positions by the voters of the applied state: others may be ahead."""
        position = min(self.primary.durable(), self.replica.history.position)
        self.submissions.durable(position)
        if self.backups is not None:
            position = self.backups.reached(position, self.primary.marks_with_state())
        if position > self._released:
            self._released = position
            if self._side.took_nothing:
                self._side.released(position)
            self.shell.release(position)
        self._serve_when_durable()

    def release_late(self) -> bool:
        """Release what waited for backups only, once one came up or its time is over; return
        whether anything still waits."""
        if self.backups is None or not self.backups.waits:
            return False
        self._release()
        return self.backups.waits

    def _claim(self) -> None:
        """Order this member's digest, for the others to compare with theirs."""
        voters, history = self.judgement.votes.voters, self.replica.history
        if self.primary.has_caught_up and max(len(voters), len(self.primary.caught_up_names)) > 1:
            claim = (history.epoch, history.position, history.chain, self.replica.machine.root())
            self.submit([DigestClaim(DIGEST, *claim)])

    def _count_votes(self) -> None:
        judgement = self.judgement
        digests, self.replica.digests = self.replica.digests, []
        for member, (_, epoch, position, chain, root) in digests:
            for verdict in judgement.vote(member, position, (epoch, chain, root)):
                self.shell.voted(verdict)
        reports, self.replica.reports = self.replica.reports, []
        for member, report in reports:
            judgement.report(member, report)
        if judgement.diverged:
            self.distrusted(judgement.diverged, disk=not judgement.disk_is_right)
        elif judgement.fenced and not self.halted:
            # The member's own commands, digests among them, are still ordered: that decides who is
            # right. The shell takes no more commands from clients.
            self.stop_serving()
            self.shell.fence(judgement.fenced)
        elif (
            self.halted
            and not judgement.fenced
            and judgement.resumes
            and self.primary.has_caught_up
        ):
            self.halted, self._in_session = "", True
            self._serve_when_durable()
        self.halted = judgement.fenced

    def distrusted(self, reason: str, *, disk: bool, code: Exit = Exit.INTERNAL) -> None:
        """This member is wrong: stop it and reply no more; with `disk` its store is wrong, too."""
        self.stop_serving()
        self.shell.stop(code, reason, inconsistent=disk)

    # -- sessions and clients --------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        """Submit this member's own commands to be ordered."""
        if self.submissions.session and not self.shutdown_position:
            if commands and commands[0][0] != TICK and not self.replica.half_way:
                self.before_commands()
            self.submissions.submit(commands)

    def _enter_session(self, event: Activated) -> None:
        if event.ring != self.primary.ring or not self.primary.active:
            return  # that view is over: it was unstable, and is applied for what comes after it
        self.primary.activation_applied(self.replica.history.position)
        self._work.add(self.primary.take())
        record = self.replica.machine.sessions.get(self.me.name)
        if record is None or record.incarnation != self.me.incarnation:
            return
        if record.session != self.submissions.session:
            self.submissions.start(record.session)
            self.shell.session_started(record.session)
        else:
            self.submissions.resume(record.last_blob_no)
        self._in_session = not self.halted
        self._serve_when_durable()

    def _serve_when_durable(self) -> None:
        """Serve clients, deliveries too, once the activation of the view is durable at a majority.

        Before that, all its members could crash and a later primary would know nothing of this
        view: its deliveries would come again without the redelivered flag.
        Decision: docs/decisions/0005-the-donor-keeps-its-undecided-messages.md.
        """
        level = self._catch_up is None
        if level and self._in_session and not self.serving and self.primary.durable():
            self.serving = True
            self.shell.serve()

    @property
    def may_serve_soon(self) -> bool:
        """Whether this member may serve clients soon: no decided view excludes it."""
        return not self.halted and not self.primary.left_out

    @property
    def reason(self) -> str:
        """Why this member does not serve; while it serves, why it may."""
        return self.halted or self.primary.reason

    def stop_serving(self) -> None:
        """Send no more replies in this view, not even those already waiting."""
        self.serving = self._in_session = False

    def _fence(self, reason: str) -> None:
        self.submissions.suspend()
        self.stop_serving()
        self.shell.fence(reason)

    def _set_aside(self) -> None:
        """Discard this member's own history: its positions and its session lose their meaning.

        The other history may be shorter. Positions released in this one say nothing about the same
        positions there, and a session there may have the same number (G9).
        """
        self.filled, self._sets_aside, self._was_set_aside = False, True, True
        self._released = self.voters_since = 0
        self.submissions.end()
        self.shell.set_aside(self._is_set_aside)

    # -- from the shell --------------------------------------------------------------------------

    def _is_set_aside(self) -> None:
        """This member's state is marked as having no vote: now another may be fetched."""
        self._sets_aside = False
        if self._catch_up is not None:
            self.shell.begin_transfer(self._catch_up.donor, self._catch_up.base)

    def _persisted(self, request: int) -> None:
        """This request's promise is on disk, and no member replies in an older view any more."""
        self.primary.persisted(request)
        self.flush()

    def patience_ended(self) -> None:
        """No running cluster was found in time: this member agrees to form one."""
        self.patient = False
        self.primary.state_report_changed()
        self.flush()

    def transfer_failed(self) -> None:
        """The transfer failed: ask again in the same view."""
        if self._catch_up is not None and not self._catch_up.met:
            self.shell.begin_transfer(self._catch_up.donor, self._catch_up.base)

    # -- catching up -----------------------------------------------------------------------------

    @property
    def transfer_donor(self) -> str:
        """Return the name of this member's donor; empty when it has none."""
        return self._catch_up.donor.name if self._catch_up is not None else ""

    def holds_all_confirmed(self, history: History) -> bool:
        """Whether a state at this point of the primary's history holds everything confirmed before
        the view in which this member waits for it."""
        return self._catch_up is not None and self._catch_up.is_behind_all(history)

    @property
    def takes_state(self) -> bool:
        """Whether a received state may replace this member's."""
        return self._catch_up is not None and not self._catch_up.met

    def state_received(self, replica: Replica, *, counts: bool) -> None:
        """Go on from another member's state, whose store is in force; the tail follows it.

        `counts`: its store may vote, as the one it replaces.
        """
        assert self._catch_up is not None
        replica.machine.free_also(self.replica.machine)
        self._execution.drop()  # it was of the old state
        self.filled, self.replica = counts, replica
        self.submissions.state_replaced()
        self._moves(self._catch_up)
        self._catch_up.on_history, self._catch_up.recorded = True, False
        self._follow_voters_of_state()
        self._maybe_meet()

    def tail_is_here(self) -> None:
        """`ports.Shell.next_of_tail` has something, or may be asked whether this is all."""
        # Nothing is executed on a broken state: an error there would be blamed on the command.
        if self._catch_up is not None and not self._catch_up.met and not self.replica.broken:
            self._catch_up.on_history = self._catch_up.tail_is_here = True
            self._maybe_meet()

    def follow_tail(self, catch_up: CatchUp) -> None:
        """Apply the next item of the donor's log or, after the last one, the next held item."""
        if catch_up.met:
            if catch_up.level:
                self._level()
                return
            event = catch_up.take()
            catch_up.pay(body_of(event))
            self._soon(body_of(event), partial(self._on_held, catch_up, event))
            return
        recorded = self.shell.next_of_tail()
        if recorded is None:
            catch_up.wait_for_tail()
        elif recorded.first == self.replica.history.position + 1:
            catch_up.pay(recorded.item.body)
            self._soon(recorded.item.body, partial(self._follow, catch_up, recorded))
        elif recorded.last > self.replica.history.position:
            catch_up.tail_is_here = False
            self.shell.tail_failed(f"the item at position {recorded.first} does not come next")

    def _on_held(self, catch_up: CatchUp, event: Ordered | Activated) -> None:
        def applied() -> None:
            if catch_up.level and self._catch_up is catch_up:
                self._level()

        self._on_item(event, applied)

    def _follow(self, catch_up: CatchUp, recorded: Recorded) -> None:
        """Apply the next item of the donor's log."""
        self._moves(catch_up)
        if not catch_up.recorded:
            catch_up.recorded = True
            self._decided_by = catch_up.epoch
            self.shell.decided(catch_up.epoch)
        replica = self.replica
        self._execution.do(
            replica.machine.pager, lambda: replica.execute(recorded.item),
            partial(self._followed, catch_up, recorded),
        )  # fmt: skip

    def _followed(self, catch_up: CatchUp, recorded: Recorded, applied: Applied) -> None:
        try:
            self.replica.followed(recorded, applied)
        except Divergence as error:
            self.counters["tails_diverged"] += 1
            self.filled = catch_up.tail_is_here = False
            self.shell.tail_failed(f"this member's own state is wrong: {error}")
            return
        self.counters["tail_items"] += 1
        self._follow_voters_of_state()
        self._maybe_meet()

    def _moves(self, catch_up: CatchUp) -> None:
        """The state is about to move to a point that this member's clients have not followed."""
        if not catch_up.moved:
            catch_up.moved = True
            self.primary.state_replaced()
            self.judgement.replaced()

    def _follow_voters_of_state(self) -> None:
        plan = self.primary.plan
        cluster_id = plan.cluster_id if plan is not None else self.promise.cluster_id
        voters = self.replica.machine.voters or (plan.voters if plan is not None else ())
        if (cluster_id, voters) != (self.promise.cluster_id, self.promise.voters):
            self.promise = Promise(cluster_id, voters, self.promise.promised_epoch)

    def _maybe_meet(self) -> None:
        """Check whether the state has reached the held items; from there on it is the primary's."""
        catch_up = self._catch_up
        if catch_up is None or catch_up.met or self.replica.broken:
            return
        if not catch_up.on_history:
            return
        past = catch_up.meet(self.replica.history)
        if past is None:
            return
        catch_up.tail_is_here = False
        self._moves(catch_up)
        self.shell.transfer_done()
        plan = self.primary.plan
        self._follow_voters_of_state()
        for event in past:
            # The state is newer than the activation: this member's session is already in it.
            self._entered(event, None)
            self._enter_session(event)
        if plan is not None and self.replica.history.epoch >= plan.epoch:
            self._follow_voters()
        if catch_up.level:
            self._level()

    def _level(self) -> None:
        """Everything that was ordered is applied: the state is the primary's."""
        self._end_catch_up()
        self.filled = True
        self.shell.state_is_level()
        self.primary.caught_up()
        self._work.add(self.primary.take())
        self._serve_when_durable()
        self.flush()

    def _end_catch_up(self) -> None:
        assert self._catch_up is not None
        self.counters["held_given_up"] += self._catch_up.counters["given_up"]
        self.unapplied.end_catch_up()
