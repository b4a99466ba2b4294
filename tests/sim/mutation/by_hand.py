"""Deliberate bugs of the protocol, to measure whether the simulator would notice them.

Each mutant is one small wrong line of the kind that real implementations had.  `broken(name)` is a
context in which the protocol has that bug; `tests/unit/sim/test_mutants.py` names a seed for each,
and `tests/unit/vsync/totem/test_pitfalls_bite.py` has a deterministic test for some.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from broker.machine.commands import Value
from broker.machine.effects import Effect
from broker.machine.handlers import consumers, publish, transactions
from broker.machine.move_log import TX_REQUEUED
from broker.machine.publishing import letters
from broker.machine.queueing import enqueue, streams
from broker.machine.requests.death_headers import Buried
from broker.machine.state import Channel, Message, Queue, State
from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord
from broker.replication.chain import Promise
from broker.replication.controller import Controller
from broker.replication.durable_gate import DurableGate
from broker.replication.member import ReplicatedMember
from broker.replication.persister import Persister
from broker.replication.replica import Replica
from store.api import Store
from tests.sim.mutation.of_links import LINK_MUTANTS
from tools.client.amqp_client import AmqpConnection
from tools.shovel.copier import Copier
from vsync.primary import component, state_exchange
from vsync.primary.events import Ordered, StateReport
from vsync.primary.unstable import UnstableMessages
from vsync.quorum import voter_set
from vsync.totem.events import Deliver
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.gather import GatherPhase
from vsync.totem.membership.gather_sets import GatherSets
from vsync.totem.membership.merge import MergeDetector
from vsync.totem.membership.protocol import Membership
from vsync.totem.membership.recovery import Closing, Exchange, RecoveryPhase
from vsync.totem.node import Node
from vsync.totem.ordering import tempo
from vsync.totem.ordering.lease import Lease
from vsync.totem.ordering.packing import Reassembly, SendQueue
from vsync.totem.ordering.ring import Ring, Source, Visit
from vsync.totem.ordering.tempo import Tempo
from vsync.totem.ordering.window import Window
from vsync.totem.phases import Phase, Reason
from vsync.types import Guarantee, Member, RingId
from vsync.wire.messages import CommitEntry, CommitToken, Data, Pace, Token

Patches = Iterable[tuple[object, str, object]]
Running = ReplicatedMember[Any, Any]
Writing = Persister[Any, Any]


def safe_on_one_rotation() -> Patches:
    """A message is safe as soon as the token's aru covers it, after one rotation instead of two."""
    visit = Ring.visit

    def hasty(self: Ring, token: Token, source: Source, mark: int, ahead: int) -> Visit:
        self.aru_sent = token.seq
        done = visit(self, token, source, mark, ahead)
        self.safe = max(self.safe, self.window.aru)
        return done

    yield Ring, "visit", hasty


def agreed_overtakes_safe() -> Patches:
    """Safe messages are delivered without waiting until they are safe."""

    def ready(self: Ring) -> Iterator[Data]:
        while self.delivered < self.window.aru:
            frame = self.window.get(self.delivered + 1)
            assert frame is not None
            self.delivered += 1
            self.safe = max(self.safe, self.delivered)
            if frame.content != 2:
                yield frame

    yield Ring, "ready", ready


def never_asks() -> Patches:
    """Missing frames are not requested."""
    yield Window, "missing", lambda self, upto, limit: []


def token_taken_twice() -> Patches:
    """A token that was already taken is taken again."""
    refuses = Ring.refuses

    def lenient(self: Ring, token: Token) -> str:
        code = refuses(self, token)
        return "" if code == "token_again" and token.hop == self.hop else code

    yield Ring, "refuses", lenient


def token_of_any_ring() -> Patches:
    """A token of another ring is accepted."""
    refuses = Ring.refuses

    def lenient(self: Ring, token: Token) -> str:
        code = refuses(self, token)
        ok = code == "token_other_ring" and len(token.marks) == len(self.members)
        return "" if ok and token.hop > self.hop else code

    yield Ring, "refuses", lenient


def no_exchange() -> Patches:
    """Recovery does not exchange the old ring's frames."""
    yield Exchange, "next", lambda self, room: self._queue.clear()


def transition_by_name() -> Patches:
    """Membership of the transitional view follows from names, not from the old ring (pitfall
    12)."""
    init = Exchange.__init__

    def by_name(
        self: Exchange, ring: Ring, old: Ring | None, entries: tuple[CommitEntry, ...]
    ) -> None:
        mine = entries[ring.index]
        names = {m.name for m in old.members} if old is not None else set()
        faked = tuple(
            entry._replace(old_ring=mine.old_ring) if member.name in names else entry
            for member, entry in zip(ring.members, entries, strict=True)
        )
        init(self, ring, old, faked)

    yield Exchange, "__init__", by_name


def found_is_forgotten() -> Patches:
    """An aborted recovery drops the frames that it received, although another member may rely on
    them."""
    yield Exchange, "abort", lambda self: None


def holes_ignored() -> Patches:
    """Messages behind a hole are delivered whoever sent them."""
    close = Exchange.close

    def generous(self: Exchange) -> Closing:
        assert self.old is not None
        self.obliged |= set(self.old.members)
        return close(self)

    yield Exchange, "close", generous


def all_is_regular() -> Patches:
    """Messages not known to be safe are delivered before the transitional configuration."""
    close = Exchange.close

    def flat(self: Exchange) -> Closing:
        closing = close(self)
        return Closing([*closing.regular, *closing.transitional], [], closing.skipped)

    yield Exchange, "close", flat


def installs_early() -> Patches:
    """The new ring is installed before every member has all frames."""
    yield Exchange, "complete", lambda self, token, aru_before: True


def data_in_commit() -> Patches:
    """Frames of the old ring are taken after the commit token has recorded what this member
    holds."""
    on_data = Membership.data_while_forming

    def lenient(self: Membership, frame: Data) -> None:
        if self.current is not None and frame.ring == self.current.id:
            self.current.add(frame)
        else:
            on_data(self, frame)

    yield Membership, "data_while_forming", lenient


def delivers_in_gather() -> Patches:
    """Frames that arrive while a new ring forms are delivered as if the old ring still ran."""

    def deliver(self: Node) -> None:
        ring = self.membership.current
        if ring is not None and self.phase is not Phase.LEFT:
            ring.safe = ring.window.aru
            for frame in ring.ready():
                self.delivery.emit(ring, frame, False)

    yield Node, "_deliver", deliver


def any_commit_token() -> Patches:
    """A commit token is accepted although its members are not this member's candidates, or it is
    old."""

    def lenient(self: GatherPhase, commit: CommitToken, now: float) -> None:
        if commit.hop == commit.members.index(self._context.me):
            self._commit(commit, Reason.COMMIT_TOKEN, now)

    yield GatherPhase, "on_commit", lenient


def first_token_twice() -> Patches:
    """A second copy of the commit token starts the ring again (pitfall 25)."""
    originate = RecoveryPhase.originate

    def forgetful(self: RecoveryPhase, now: float) -> bool:
        done = originate(self, now)
        self.originated = False
        return done

    yield RecoveryPhase, "originate", forgetful


def fragments_survive() -> Patches:
    """Fragments sent on the old ring are joined with fragments sent on the new one (pitfall 18)."""
    yield SendQueue, "restart", lambda self: 0
    yield Reassembly, "forget", lambda self: 0


def gives_up_half_sent() -> Patches:
    """A large message that was half sent when the ring broke is continued from the middle."""
    yield SendQueue, "restart", lambda self: 0


def never_looks_for_others() -> Patches:
    """Rings are not announced, so they never merge."""
    yield MergeDetector, "announce", lambda self, ring, now: None


def never_fails_the_silent() -> Patches:
    """A silent member is waited for without limit."""
    yield GatherSets, "not_agreed", lambda self: ()


def old_incarnation_stays() -> Patches:
    """A restarted member does not replace its former incarnation."""
    yield GatherSets, "_supersede", lambda self: None


def minority_is_enough() -> Patches:
    """One voter is a majority."""
    yield voter_set, "majority", lambda votes: 1


def any_donor() -> Patches:
    """The donor is the first member with a state, not the one with the best."""
    plan = state_exchange.make_plan

    def by_name(
        members: tuple[Member, ...], state_reports: dict[Member, StateReport]
    ) -> state_exchange.Plan:
        first = min((m for m in members if state_reports[m].filled), default=None)
        if first is None:
            return plan(members, state_reports)
        flat = {
            m: s._replace(state_epoch=s.state_epoch + 10**6 * (m == first))
            for m, s in state_reports.items()
        }
        return plan(members, flat)

    yield component, "make_plan", by_name


def epoch_stays() -> Patches:
    """A new primary keeps the epoch of the old one."""
    plan = state_exchange.make_plan

    def same(
        members: tuple[Member, ...], state_reports: dict[Member, StateReport]
    ) -> state_exchange.Plan:
        made = plan(members, state_reports)
        return made._replace(epoch=max(1, made.epoch - 1))

    yield component, "make_plan", same


def marks_of_anybody() -> Patches:
    """The durable mark is that of the best voter, not of a majority."""

    def best(
        _one: voter_set.VoterSet, marks: Mapping[str, int], _level: Collection[str], _epoch: int
    ) -> int:
        return max(marks.values(), default=0)

    yield voter_set.VoterSet, "durable", best


def transitional_is_applied() -> Patches:
    """Messages delivered in a transitional configuration are applied at once."""
    on_app = component.Primary._on_app

    def eager(self: component.Primary, d: Deliver, payload: bytes) -> None:
        if d.transitional and self._unstable.add(d, payload):
            self._unstable.items.pop()
            self._events.append(Ordered(self.epoch, d.ring, d.seq, d.sender, payload))
        else:
            on_app(self, d, payload)

    yield component.Primary, "_on_app", eager


def undecided_is_dropped() -> Patches:
    """Messages not known to be safe at the end of a view are dropped."""

    def forget(self: UnstableMessages, d: Deliver, payload: bytes) -> bool:
        return False

    yield UnstableMessages, "add", forget


def stores_beat_the_living() -> Patches:
    """The member with the longest store is the donor, although it did not see its last view to the
    end."""
    worth = state_exchange._worth

    def by_position(
        member: Member, ours: list[Member], state_reports: dict[Member, StateReport]
    ) -> tuple[int, bool, int, int, int, int]:
        reach, _, *rest = worth(member, ours, state_reports)
        epoch, position, alike, unstable = rest
        return reach, True, epoch, position, alike, unstable

    yield state_exchange, "_worth", by_position


def half_safe() -> Patches:
    """Messages submitted as safe are sent as agreed."""
    put = SendQueue.put

    def weak(self: SendQueue, payload: bytes, guarantee: Guarantee) -> bool:
        return put(self, payload, Guarantee.AGREED)

    yield SendQueue, "put", weak


def reports_no_reception() -> Patches:
    """Reception reports are empty, so no two members are linked."""
    yield Connectivity, "reception", lambda self, now: ()


def wants_much_more() -> Patches:
    """A ring is left only for one with at least two more members, so two single members never
    merge."""
    gain = Connectivity.gain

    def choosy(
        self: Connectivity, size: int, size_max: int, without: Iterable[Member], now: float
    ) -> tuple[Member, ...]:
        found = gain(self, size, size_max, without, now)
        return found if len(found) > size + 1 else ()

    yield Connectivity, "gain", choosy


def replies_before_the_log() -> Patches:
    """Replies to clients are sent while the member log of the same turn is still being written."""

    def effects(self: Running, made: list[tuple[int, Effect]]) -> None:
        self._clients.effects(made)

    yield ReplicatedMember, "effects", effects


def replies_when_any_log_is_written() -> Patches:
    """A completed write of the member log also releases replies that wait for later writes."""
    log_written_ = ReplicatedMember.log_written

    def log_written(self: Running) -> None:
        while self._unlogged:
            self._clients.effects(self._unlogged.popleft()[1])
        log_written_(self)

    yield ReplicatedMember, "log_written", log_written


def replies_without_a_lease() -> Patches:
    """A member writes to its clients without a lease, so it may not know that its view is over."""

    def may_reply(self: Running) -> bool:
        controller = self.controller
        return bool(controller.serving and controller.primary.active)

    yield ReplicatedMember, "may_reply", property(may_reply)


def promises_while_others_reply() -> Patches:
    """A durable promise is given while the lease of a missing member still runs."""

    def at_once(self: Running, epoch: int, done: Callable[[], None]) -> None:
        done()

    yield ReplicatedMember, "_promise_durable", at_once


def waits_for_the_shorter_lease() -> Patches:
    """While a lease changes, a member waits for the shorter one; others may have the longer."""
    token_ = Lease.token

    def shorter(
        self: Lease, ring: RingId, members: tuple[Member, ...], now: float, said_ms: int
    ) -> None:
        if ring != self.ring:
            self._others_s = self.seconds
        token_(self, ring, members, now, said_ms)

    yield Lease, "token", shorter


def acts_for_the_longer_lease() -> Patches:
    """While a lease changes, a member acts for the longer one; others may wait for the shorter."""
    holds_ = Lease.holds

    def longer(self: Lease, ring: RingId, now: float, after: float = -math.inf) -> bool:
        lesser, self.seconds = self.seconds, self._others_s
        held = holds_(self, ring, now, after)
        self.seconds = lesser
        return held

    yield Lease, "holds", longer


def holds_before_it_says_so() -> Patches:
    """The token is held as soon as it announces the longer lease; others still have the shorter."""
    yield tempo, "SAID_BEFORE_HOLD", 0


def says_one_lease_at_any_pace() -> Patches:
    """A busy ring's lease is announced while the token is held, too."""
    pace_ = Tempo.pace

    def busy(self: Tempo, token: Token, *, first: bool, idle: int = 0) -> Pace:
        return pace_(self, token, first=first)

    yield Tempo, "pace", busy


def forgets_the_lease_of_a_former_incarnation() -> Patches:
    """A starting member waits for the usual lease, not for the one its former incarnation agreed
    to."""
    start = Lease.start

    def usual(self: Lease, now: float, former_ms: int) -> None:
        start(self, now, 1)

    yield Lease, "start", usual


def promises_before_durable() -> Patches:
    """A promise is given while it is still being written to disk."""
    promise_ = Persister.promise

    def hasty(self: Writing, promise: Promise, done: Callable[[], None]) -> None:
        promise_(self, promise, lambda: None)
        done()

    yield Persister, "promise", hasty


def promises_behind_nothing() -> Patches:
    """A promise is written to disk before the commands that were applied until then."""

    def alone(self: Running, promise: Promise, done: Callable[[], None]) -> None:
        epoch = promise.promised_epoch
        self.persister.promise(promise, lambda: self._promise_durable(epoch, done))

    yield ReplicatedMember, "_persist", alone


def promise_of_another_view() -> Patches:
    """A late durable promise counts for the request of the present view."""
    persisted_ = component.Primary.persisted

    def whichever(self: component.Primary, _request: int) -> None:
        persisted_(self, self._requests)

    yield component.Primary, "persisted", whichever


def confirms_before_durable() -> Patches:
    """Confirms do not wait until a majority has the change on disk."""
    yield DurableGate, "is_open", lambda self, position: True


def applied_counts_as_durable() -> Patches:
    """A member that has caught up reports as durable what it has only applied."""
    level_ = ReplicatedMember.state_is_level

    def hasty(self: Running) -> None:
        level_(self)
        self._on_durable(self.controller.replica.history.position)

    yield ReplicatedMember, "state_is_level", hasty


def half_a_state_votes() -> Patches:
    """A store that is still being filled votes like any other."""
    keep_, adopt_ = Persister.keep, Persister.adopt

    def keep(self: Writing, replica: Replica, promise: Promise, *, counts: bool) -> None:
        keep_(self, replica, promise, counts=True)

    def adopt(self: Writing, received: Store, replica: Replica, *, counts: bool) -> None:
        adopt_(self, received, replica, counts=True)

    yield Persister, "keep", keep
    yield Persister, "adopt", adopt


def clients_outlive_the_tail() -> Patches:
    """Clients keep their connections to a member that fetched a part of the tail instead of
    following it."""
    replaced_ = component.Primary.state_replaced

    def unnoticed(self: component.Primary) -> None:
        was = self._replaced
        replaced_(self)
        self._replaced = was

    yield component.Primary, "state_replaced", unnoticed


def promise_forgotten_after_a_transfer() -> Patches:
    """A transferred state replaces the member's own promises by its epoch."""
    received_ = Controller.state_received

    def forgetful(self: Controller, replica: Replica, *, counts: bool) -> None:
        self.promise = dataclasses.replace(self.promise, promised_epoch=replica.history.epoch)
        received_(self, replica, counts=counts)

    yield Controller, "state_received", forgetful


def arbiter_reports_before_its_record() -> Patches:
    """An arbitrator reports who holds the confirmed state before it has written that down."""
    write_ = Arbiter._write

    def hasty(self: Arbiter, record: ArbiterRecord, then: Callable[[], None]) -> None:
        if record.epoch == self._record.epoch:
            write_(self, record, then)
            return
        write_(self, record, lambda: None)
        then()

    yield Arbiter, "_write", hasty


def arbiter_promises_before_durable() -> Patches:
    """An arbitrator gives a promise while it is still being written to disk."""
    write_ = Arbiter._write

    def hasty(self: Arbiter, record: ArbiterRecord, then: Callable[[], None]) -> None:
        write_(self, record, lambda: None)
        then()

    yield Arbiter, "_write", hasty


def arbiter_promises_while_others_reply() -> Patches:
    """An arbitrator gives its promise while the lease of a missing member still runs."""

    def at_once(self: Arbiter, request: int) -> None:
        self._acknowledge(request)

    yield Arbiter, "_promised", at_once


def installs_before_the_log() -> Patches:
    """A received state is installed before the member log has recorded it."""

    def early(self: Running, replica: Replica, received: Store) -> bool:
        controller = self.controller
        donor, history, machine = controller.transfer_donor, replica.history, replica.machine
        counts = self.persister.votes and self.may_replace(replica.history)
        self._on_durable(0)
        self.persister.adopt(received, replica, counts=counts)
        self.persister.when_in_force(lambda: self._in_force(history.position if counts else 0))
        controller.state_received(replica, counts=counts)
        self._log.snapshot(history, machine, donor)
        replica.log = self._log
        self._host.schedule()
        return True

    yield ReplicatedMember, "state_received", early


def numbers_are_not_read() -> Patches:
    """A message that a producer sends again after a failover is taken as a new one."""
    return [(publish, "may_be_numbered", lambda _: False)]


def transactions_settle_nothing() -> Patches:
    """A commit requeues the messages that the transaction acknowledged, and publishes its own."""
    settle = consumers.settle_tags

    def returns(state: State, channel: Channel, tags: list[int], _what: int) -> None:
        settle(state, channel, tags, TX_REQUEUED)

    return [(transactions, "settle_tags", returns)]


def repeats_are_taken() -> Patches:
    """A queue that takes each key once takes a repeated key."""
    return [(enqueue, "is_repeat", lambda *_: False)]


def readers_begin_late() -> Patches:
    """A reader of a stream misses the first message that it asked for."""
    start = streams._start

    def late(state: State, queue: Queue, given: Value) -> int | None:
        offset = start(state, queue, given)
        return offset if offset is None else offset + 1

    return [(streams, "_start", late)]


def letters_that_cannot_go_are_lost() -> Patches:
    """The dead-letter strategy `at-least-once` is ignored."""
    keep = letters._publish_or_keep

    def lose(state: State, source: Queue, buried: Buried, message: Message) -> int:
        way = letters._open_way(state, source, buried, message, is_kept=False)
        return way if isinstance(way, int) else keep(state, source, buried, message)

    return [(letters, "_publish_or_keep", lose)]


def replicas_drop_before_they_are_level() -> Patches:
    """A replica drops messages that its source does not have while others from the source are still
    under way."""

    def drop(self: Copier, destination: AmqpConnection, tag: int) -> None:
        destination.ack(tag, multiple=False)

    return [(Copier, "_drop_when_level", drop)]


RING_MUTANTS: tuple[Callable[[], Patches], ...] = (
    safe_on_one_rotation,
    agreed_overtakes_safe,
    half_safe,
    never_asks,
    token_taken_twice,
    token_of_any_ring,
    no_exchange,
    transition_by_name,
    found_is_forgotten,
    holes_ignored,
    all_is_regular,
    installs_early,
    data_in_commit,
    delivers_in_gather,
    any_commit_token,
    first_token_twice,
    fragments_survive,
    gives_up_half_sent,
    never_looks_for_others,
    never_fails_the_silent,
    old_incarnation_stays,
    reports_no_reception,
    wants_much_more,
)
PRIMARY_MUTANTS: tuple[Callable[[], Patches], ...] = (
    minority_is_enough,
    any_donor,
    epoch_stays,
    marks_of_anybody,
    transitional_is_applied,
    undecided_is_dropped,
    stores_beat_the_living,
)
MEMBER_MUTANTS: tuple[Callable[[], Patches], ...] = (
    replies_before_the_log,
    replies_when_any_log_is_written,
    replies_without_a_lease,
    promises_while_others_reply,
    waits_for_the_shorter_lease,
    acts_for_the_longer_lease,
    holds_before_it_says_so,
    says_one_lease_at_any_pace,
    forgets_the_lease_of_a_former_incarnation,
    promises_before_durable,
    promises_behind_nothing,
    promise_of_another_view,
    confirms_before_durable,
    applied_counts_as_durable,
    numbers_are_not_read,
    transactions_settle_nothing,
    repeats_are_taken,
    readers_begin_late,
    letters_that_cannot_go_are_lost,
    replicas_drop_before_they_are_level,
)
"""Mutants of the rules of order in `broker.replication.member`: a stack of brokers shows them."""
SHELL_MUTANTS: tuple[Callable[[], Patches], ...] = (
    installs_before_the_log,
    promise_forgotten_after_a_transfer,
    half_a_state_votes,
    clients_outlive_the_tail,
    arbiter_reports_before_its_record,
    arbiter_promises_before_durable,
    arbiter_promises_while_others_reply,
)
"""Mutants that `tests/unit/sim/test_shell_mutants.py` shows without chance."""
MUTANTS = {
    mutant.__name__: mutant
    for mutant in (RING_MUTANTS + PRIMARY_MUTANTS + MEMBER_MUTANTS + LINK_MUTANTS + SHELL_MUTANTS)
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Run the block with one bug in the protocol."""
    with ExitStack() as stack:
        for target, attribute, replacement in MUTANTS[name]():
            stack.enter_context(patch.object(target, attribute, replacement))
        yield
