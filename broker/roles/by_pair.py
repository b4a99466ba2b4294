"""The roles of one member of a pair: active or passive by its peer, its clients and the order.

`pair_table` makes the decisions; this module gathers a member's inputs and acts on the result. A
member takes the vote of the pair (`vsync.primary.component.Primary.take_vote`) only for an active
standing: with HAC never without a client, and never while its own state may be old. Pure: the time
is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from broker.exit_codes import Exit
from broker.options.modes.pair import HAC, SLAVE, PairOptions
from broker.roles.active_passive import Followed, Standby
from broker.roles.pair_table import NO_CLIENT, Peer, Seen, Standing, row_for
from broker.roles.role_table import Role
from vsync.quorum.voter_set import voter_set

TURN_S = 0.25
"""How long the second member waits for the first one to take the role, where both may."""
QUIET_S = 10.0
"""How long the backup stays active alone without a client."""
FORCED_S = 2.0
"""How long a member that was forced passive leaves the role to its peer."""
HEARD_S = 3.0
"""How long a member waits at most for its peer while the ring still hears it."""
LOOK_S = 0.1
"""How often that is checked."""
OF_PAIR = (
    "in a pair the members decide: to have this one be active, force the other one passive "
    "(qpid-ha passive). One that waits for a peer which is lost for good: stop it, run "
    "qpid-cluster-store -c --sole-voter on its --data-dir, start it again"
)


class Clients(Protocol):
    """The facts about this member's clients that a pair uses."""

    @property
    def connected(self) -> bool:
        """Whether a client other than an operator's is connected."""

    def watch(self, *, on: bool) -> None:
        """Start or stop noticing input from clients."""

    def heard(self) -> bool:
        """Whether any input came since."""


class ByPair:
    """The rule at one member of a pair (`active_passive.Rule`): its standing decides."""

    automatic = True
    public_url = ""
    no_promotion = OF_PAIR

    def __init__(
        self,
        options: PairOptions,
        controller: Followed,
        clients: Clients,
        *,
        drained: Callable[[], Collection[str]],
        hears: Callable[[str], bool],
        stop: Callable[[Exit, str], None],
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """`hears`: whether the ring received a frame from the member of this name a moment ago."""
        self.options, self._hears_member = options, hears
        self._controller, self._clients = controller, clients
        self._drained, self._stop, self._note, self._warn = drained, stop, note, warn
        self.standing = Standing.PENDING
        self.reason = "started"
        self._peer: Peer | None = None  # as seen last; None: the view is changing
        self._gone_since: float | None = None
        self._look_again: float | None = None  # in so many seconds from the last call on
        self._meetings = 0  # of the two: what was seen before one counts no more after it
        self._vacant_since: float | None = None
        self._client_at = 0.0  # when a client was connected last, or this member became active
        self._forced_until = 0.0
        self._apart = ""
        self._ended = False

    # -- followed --------------------------------------------------------------------------------

    def follow(self, now: float) -> float | None:
        """React to the view, the order, the clients and the time; return in how many seconds the
        peer will have been gone for long, or is to be listened for again."""
        self._look_again = None
        self._follow(now)
        return self._look_again

    def _follow(self, now: float) -> None:
        primary = self._controller.primary
        if primary.apart != self._apart:
            self._apart = primary.apart
            self._warn(f"{self._apart} (exception 1 of G28)")
        if primary.meetings != self._meetings:
            self._meetings = primary.meetings
            self._ends_absence()
        self._peer = self._look_at_peer()
        if self._peer is None:
            return
        self._follow_absence(now)
        if self.standing is Standing.PENDING and primary.lacks_its_peer:
            self._move(Standing.PASSIVE, "it lost the other one as it started")
        may_take = (
            primary.lacks_its_peer and not self._is_to_end and not self._is_about_to_meet(now)
        )
        seen = Seen(
            self._peer,
            clients=self._peer is Peer.GONE and self._hears,
            connected=self._has_clients(now),
            may_lead=primary.active or may_take,
            gone_long=self._gone_since is not None
            and now - self._gone_since >= self.options.timeout_s,
        )
        if self._ends(seen):
            return
        if self.standing is Standing.ACTIVE and self._controller.me.name in self._drained():
            self._move(Standing.PASSIVE, "drained by an operator")
        row = row_for(self.options.seat, self.standing, seen)
        if row is not None and not (row.after is Standing.ACTIVE and self._holds_off(now)):
            self._move(row.after, row.reason)
            self._client_at = now
            if row.needs == NO_CLIENT:
                self._clients.watch(on=True)  # the next one counts
        if self.standing is Standing.ACTIVE and may_take and self._hears:
            primary.take_vote()
            self._controller.flush()

    def _look_at_peer(self) -> Peer | None:
        """Return the peer as this member sees it; None while that is not settled."""
        controller, primary = self._controller, self._controller.primary
        name = self.peer
        if primary.left_out:
            here = {m.name for m, report in primary.reports.items() if report.filled}
            return None if name in here else Peer.GONE
        if not (primary.active and controller.serving):
            return None
        if name not in {m.name for m in primary.members}:
            return Peer.GONE
        if self._controller.replica.machine.active == name:
            return Peer.ACTIVE
        return Peer.PASSIVE if name in primary.caught_up_names else Peer.PENDING

    @property
    def peer(self) -> str:
        """Return the peer's name; empty while it is not known."""
        me = self._controller.me.name
        names = sorted(voter_set(self._controller.promise.voters).votes.keys() - {me})
        return names[0] if names else self.options.peer

    def _follow_absence(self, now: float) -> None:
        if self._peer is not Peer.GONE:
            self._ends_absence()
        elif self._gone_since is None:
            self._gone_since = self._client_at = now
            self._look_again = self.options.timeout_s
            if self.options.mode == HAC:
                self._clients.watch(on=True)
        if self._controller.replica.machine.active or not self._controller.serving:
            self._vacant_since = None
        elif self._vacant_since is None:
            self._vacant_since = now

    def _is_about_to_meet(self, now: float) -> bool:
        """Whether the peer is heard, though it is not in the view.

        The peer is not gone: one member paused, each gave the other up and formed a ring of its
        own, and the rings are about to merge. To go on alone now would discard what the peer
        confirmed meanwhile, or have both members go on alone.
        """
        if self._gone_since is None or now - self._gone_since >= HEARD_S:
            return False
        heard = self._hears_member(self.peer)
        if heard:
            self._look_again = LOOK_S
        return heard

    def _ends_absence(self) -> None:
        if self._gone_since is not None:
            self._clients.watch(on=False)
        self._gone_since = None

    @property
    def _hears(self) -> bool:
        """Whether there are clients to serve; a master/slave pair does not ask."""
        return self.options.mode != HAC or self._clients.heard()

    def _has_clients(self, now: float) -> bool:
        """Whether a client is connected, or was a moment ago; for when the peer is gone."""
        if self._peer is Peer.GONE and self._clients.connected:
            self._client_at = now
        return now - self._client_at < QUIET_S

    def _ends(self, seen: Seen) -> bool:
        """Whether the slave ends because the master is lost; a pending slave waits for the master.

        A slave that has the lead ends too, unless it goes on by right: the master was stopped.
        """
        follows = self.standing is Standing.PASSIVE or (
            self.standing is Standing.ACTIVE and not self._controller.primary.active
        )
        ends = self._is_to_end and follows and seen.peer is Peer.GONE and seen.gone_long
        if ends and not self._ended:
            self._ended = True
            self._stop(Exit.OK, "the master is lost (--shutdown-on-master-failure yes)")
        return ends

    @property
    def _is_to_end(self) -> bool:
        """Whether this is a slave that ends with its master: it never takes the vote."""
        return self.options.slave_ends and self.options.seat == SLAVE

    def _holds_off(self, now: float) -> bool:
        """Whether the role is left to the peer: an operator wants that, or it is its turn."""
        if self._controller.me.name in self._drained():
            return True
        if self._peer is Peer.GONE:
            return False
        if now < self._forced_until:
            return True
        if self.options.is_first or self._vacant_since is None:
            return False
        return now - self._vacant_since < TURN_S

    def _move(self, after: Standing, reason: str) -> None:
        self._note(f"{self.options.mode}: {after.value}, was {self.standing.value}: {reason}")
        self.standing, self.reason = after, reason

    @property
    def goes_on(self) -> bool:
        """Whether this member lost its peer, and is about to go on alone."""
        lost = self._controller.primary.lacks_its_peer and not self._is_to_end
        return self.wants_role and lost

    # -- for the role ----------------------------------------------------------------------------

    @property
    def wants_role(self) -> bool:
        """Whether this member should have the ordered role."""
        return self.standing is Standing.ACTIVE

    def takes_role(self, _vacant_s: float) -> bool:
        """Whether it is this member's turn, according to its standing."""
        return self.wants_role

    @property
    def steps_aside(self) -> bool:
        """Whether the peer, which has to be told first, is to go on when this member stops."""
        return self.options.lets_the_other_lead

    def for_clients(self, _role: Role, url: str) -> Standby:
        """Return the answer to clients while this member takes none; `url`: the active member's."""
        who = f"member '{self._controller.me.name}' is {self.standing.value}"
        if self.standing is Standing.ACTIVE or self._peer is None:
            return Standby(f"{who}, and the view is changing", holds=True)
        primary, peer = self._controller.primary, self.peer or "the other one of the pair"
        if self._peer is Peer.ACTIVE:
            return Standby(f"{who}, '{peer}' is active" + (f"; connect to {url}" if url else ""))
        if self._peer is not Peer.GONE:
            return Standby(f"{who}, and it is being decided which member is active", holds=True)
        may_lead = primary.active or primary.lacks_its_peer
        if self.standing is Standing.PENDING or may_lead:
            return Standby(f"{who}, and waits for {peer}", holds=True)
        return Standby(f"{who}: {peer} is gone, and may have gone on without this member")

    # -- for operators ---------------------------------------------------------------------------

    def force_passive(self, now: float) -> str:
        """Have the peer become active; return why that is refused; empty: it is not."""
        if self._peer is not Peer.PASSIVE or self.standing is not Standing.ACTIVE:
            seen = "unknown while the view changes" if self._peer is None else self._peer.value
            return (
                f"this member is {self.standing.value}, and the other one of the pair is {seen}: "
                "an active one is forced passive where the other one is passive, to take over"
            )
        self._forced_until = now + FORCED_S
        self._move(Standing.PASSIVE, "forced by an operator")
        return ""

    def _connections(self, name: str) -> int:
        """Return a member's number of connections, by the replicated state."""
        machine = self._controller.replica.machine
        record = machine.sessions.get(name)
        return sum(
            record is not None and session == record.session for session, _ in machine.connections
        )

    @property
    def _why(self) -> str:
        """Return the reason for the standing, and what it waits for if the peer is gone."""
        if self._peer is not Peer.GONE or self.standing is Standing.ACTIVE:
            return self.reason
        primary, peer = self._controller.primary, self.peer or "the other one"
        if not (primary.active or primary.lacks_its_peer):
            return (
                f"{self.reason}; {peer} is gone, and may have gone on without this member: start "
                "it (one that is lost for good: the log has the command)"
            )
        return f"{self.reason}; waits for a client" if self.options.mode == HAC else self.reason

    def status(self) -> dict[str, dict[str, str | bool | int]]:
        """Return the pair's part of the reply to `ha`."""
        pair: dict[str, str | bool | int] = {
            "mode": self.options.mode,
            "seat": self.options.seat,
            "standing": self.standing.value,
            "reason": self._why,
            "peer": self.peer,
            "peer_seen": self._peer.value if self._peer is not None else "",
            "alone": self.peer in voter_set(self._controller.promise.voters).away,
            "connections": self._connections(self._controller.me.name),
            "peer_connections": self._connections(self.peer),
            "apart": self._apart,
        }
        return {"pair": pair}
