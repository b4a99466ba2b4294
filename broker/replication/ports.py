"""The ports of one member: small interfaces to everything that it needs from its surroundings.

A process implements them with sockets, an event loop and LMDB, the simulator with virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from broker.divergence.digest_vote import DigestVerdict
from broker.exit_codes import Exit
from broker.machine.commands import Command
from broker.machine.effects import Effect
from broker.machine.machine import Machine
from broker.replication.chain import History, Promise
from broker.replication.replica import AppliedLog, Recorded, Replica
from vsync.primary.component import Primary
from vsync.primary.events import Activated
from vsync.types import Guarantee, Member, RingId


class Shell(Protocol):
    """Carries out the controller's orders; every call returns at once."""

    def multicast(self, payload: bytes, *, urgent: bool = True) -> bool:
        """Submit to the ring with guarantee SAFE; False: no room now."""

    def persist_promise(self, promise: Promise, done: Callable[[], None]) -> None:
        """Make everything applied durable, and after it the promise; then call `done`."""

    def set_aside(self, done: Callable[[], None]) -> None:
        """Acknowledge nothing more of this member's own history, and durably mark its store as
        having no vote, whatever the store says; then call `done`."""

    def begin_transfer(self, donor: Member, base: int) -> None:
        """Reach a state at or beyond `base`: call `state_received`, or `tail_is_here`, or both."""

    def abort_transfer(self) -> None:
        """Drop a transfer under way, if there is one."""

    def next_of_tail(self) -> Recorded | None:
        """Return the next item of the donor's log; None when none is here yet."""

    def tail_failed(self, reason: str) -> None:
        """The received items do not follow the state: call `transfer_failed` after a while."""

    def transfer_done(self) -> None:
        """The state has met the ordered items: nothing more is needed from the donor."""

    def state_is_level(self) -> None:
        """The state is the primary's: its store counts from here on."""

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Carry these out for the local clients, in order."""

    def release(self, position: int) -> None:
        """Everything up to `position` is durable at a majority: acknowledge it."""

    def fence(self, reason: str) -> None:
        """Write nothing to any client until `serve`."""

    def serve(self) -> None:
        """This member is in the primary view, with its state: clients are served."""

    def session_started(self, session: int) -> None:
        """All connections of an older session are void."""

    def activated(self, event: Activated, base: History | None) -> None:
        """Record that this member is in the primary view whose first command follows `base`.

        None: the activation came inside a transferred state.
        """

    def decided(self, epoch: int) -> None:
        """Record that the primary view of `epoch` decided what is applied next."""

    def voted(self, verdict: DigestVerdict) -> None:
        """Record a verdict on a digest."""

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member; it can do no good here."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds, as a stamp for own commands."""


class Ring(Protocol):
    """The ring that orders messages."""

    def submit(self, payload: bytes, guarantee: Guarantee, *, urgent: bool = True) -> bool:
        """Queue a payload; False: no room now.  The token may rest while one waits that is not
        urgent."""

    def set_mark(self, mark: int) -> None:
        """Report a new durable position with the next token."""

    def expect_mark(self, mark: int) -> None:
        """The disk has begun the write that leads to this mark."""


class Lease(Protocol):
    """Limits how long this member may act on a view that may be over, and tells when the others
    have stopped."""

    def holds(self, ring: RingId) -> bool:
        """Whether this member may still act on the view `ring`."""

    def silent_in(self, members: Collection[Member]) -> float:
        """Return the seconds until all that are not in `members` have stopped replying."""


class Clock(Protocol):
    """Wall clock and timers."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after some time."""

    def when_right(self, call: Callable[[], None]) -> None:
        """Call, in order, as soon as this member's clock is known to let it take part."""


class Transfer(Protocol):
    """Fetches the state of another member."""

    def begin(self, donor: Member, base: int) -> None:
        """Reach a state at or beyond `base`; an earlier attempt is dropped."""

    def abort(self) -> None:
        """Drop an attempt under way, if there is one."""

    def next_item(self) -> Recorded | None:
        """Return the next item of the tail; None when none is here yet."""

    def done(self) -> None:
        """Nothing more is needed."""


class Clients(Protocol):
    """The connections of this member."""

    @property
    def durable_mark(self) -> int:
        """The position up to which acknowledgements were released."""

    def take_commands(self) -> list[Command]:
        """Return the clients' commands since the last call, in order of arrival."""

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        """Keep the machine's effects for them, in order, until `flush` writes them."""

    def release(self, position: int) -> None:
        """Everything up to `position` may be acknowledged."""

    def flush(self, *, may_reply: bool, soon: bool) -> list[int]:
        """Write what is due; return the positions of the publishes that this confirmed.

        Writes no output of the machine unless `may_reply`; `soon`: it may not reply now, but may in
        a moment.
        """

    def throttle(self, *, full: bool, large_full: bool, alarm: str) -> None:
        """Read publishers, and those of large messages, only while there is room for what they
        send; take no publishes while there is an alarm, which says why."""

    def session_started(self, session: int) -> None:
        """Connections of an older session are void."""

    def set_aside(self) -> None:
        """All connections are void; the released positions belong to a discarded history."""


class EvidenceLog(AppliedLog, Protocol):
    """The member log: evidence for checking this member afterwards."""

    def view(self, ring: RingId, members: tuple[Member, ...], *, regular: bool) -> None:
        """The ring delivered a configuration."""

    def activated(self, event: Activated, base: History | None) -> None:
        """This member is in a primary view whose first command follows `base`."""

    def inactive(self, reason: str) -> None:
        """This member is in no primary view any more."""

    def decided(self, epoch: int) -> None:
        """The items applied next were unstable; the primary view of `epoch` decided them."""

    def durable(self, position: int) -> None:
        """The own store holds everything up to `position`."""

    def snapshot(self, history: History, machine: Machine, donor: str) -> None:
        """The state was replaced by the donor's."""

    def confirmed(self, epoch: int, durable_mark: int, positions: list[int]) -> None:
        """Clients got confirms for the publishes at these positions."""

    @property
    def written(self) -> int:
        """All records made before `flush` returned this number, or a lower one, are in the file."""

    @property
    def unflushed(self) -> bool:
        """Whether anything was recorded since the last `flush`."""

    def flush(self) -> int:
        """Have everything recorded so far written soon; return the value of `written` by then.

        The writer calls `ReplicatedMember.log_written` afterwards, if that is awaited.
        """


class Host(Protocol):
    """The process around a member: the member's only calls upwards."""

    @property
    def stopping(self) -> bool:
        """Whether the process is ending, and nothing new may begin."""

    def schedule(self) -> None:
        """Call `turn` soon, once, however often this is called."""

    def stop(self, code: Exit, reason: str, *, inconsistent: bool = False) -> None:
        """Stop this member; it can do no good here."""

    def failed(self, error: Exception) -> None:
        """The broker's own code raised: stop, and keep the evidence."""

    def voted(self, verdict: DigestVerdict) -> None:
        """A digest vote was decided."""

    def session_commands(self) -> list[Command]:
        """Return the member's own commands that each session begins with."""

    def note(self, event: str, text: str) -> None:
        """Something happened that an operator or a trace may want to see."""


class Ports(NamedTuple):
    """One member's ports to everything outside replication."""

    ring: Ring
    lease: Lease
    clock: Clock
    transfer: Transfer
    clients: Clients
    log: EvidenceLog
    host: Host


class MemberState(Protocol):
    """A member's controller, read-only for others."""

    label: str
    """The address that this member has for clients, amqp:tcp:HOST:PORT,..."""

    @property
    def me(self) -> Member:
        """This member."""

    @property
    def replica(self) -> Replica:
        """It holds the replicated state."""

    @property
    def primary(self) -> Primary:
        """It knows the view."""

    @property
    def serving(self) -> bool:
        """Whether this member serves."""

    @property
    def reason(self) -> str:
        """Why it does not."""
