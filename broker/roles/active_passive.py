"""The role of one member where only one takes clients: holding, taking and giving up the role.

The state says which member is the active one, if any (`machine.active`); a member takes the role
and gives it up by ordered commands of its own. It takes a vacant role when its mode's rule says so
(`by_ring`, `by_pair`), or when an operator asks for it. There is at most one active member, both in
the order and in real time: a member that loses the role with its session stops replying before
another view can form (G7), and one that gives the role up disconnects its clients before it
announces this.
Decisions: docs/decisions/0066-the-active-member-is-ordered.md and
docs/decisions/0067-the-ring-promotes-unless-told-otherwise.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from broker.exit_codes import Exit
from broker.machine.commands import DEMOTE, PROMOTE, Command, Demote, Promote
from broker.machine.state import State
from broker.options.modes.active_passive import AUTOMATIC, MANUAL
from broker.replication.chain import Promise
from broker.replication.durable_gate import Backups
from broker.roles.role_table import IllegalMove, Role, way
from vsync.primary.component import Primary
from vsync.quorum.voter_set import parse
from vsync.types import Member

AGAIN_S = 1.0
"""How long a member waits before it repeats the same order in the same view: whatever the members
believe, the role never changes hands faster than that."""


NO_PAIR = (
    "this broker is in no pair (--hac, --master-slave); where there are backups, have it give the "
    "role up: qpid-cluster --drain"
)


class Standby(NamedTuple):
    """Why clients are refused (empty: they are let in), and whether new ones wait instead:
    `briefly`, or (`holds`) for as long as they may take to log in."""

    reason: str = ""
    briefly: bool = False
    holds: bool = False


class Applied(Protocol):
    """The replica, which has applied the ordered commands."""

    @property
    def machine(self) -> State:
        """Return the state."""


class Followed(Protocol):
    """The parts of this member's controller that a role uses."""

    me: Member
    label: str
    promise: Promise
    primary: Primary
    serving: bool
    backups: Backups | None

    @property
    def replica(self) -> Applied:
        """Return the replica."""

    @property
    def transfer_donor(self) -> str:
        """Return the donor of this member's state; empty: there is no transfer."""

    def submit(self, commands: list[Command]) -> None:
        """Order this member's own commands."""

    def flush(self) -> None:
        """Hand all waiting commands to the ring."""


class Clients(Protocol):
    """The control that a role has over this member's clients."""

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        """Let in only operators, and disconnect all others; empty: let clients in."""


class Rule(Protocol):
    """Chooses the candidate that takes the role; each mode has its own rule."""

    @property
    def automatic(self) -> bool:
        """Whether the members, not an operator, choose a new active member."""

    @property
    def public_url(self) -> str:
        """Where clients are sent; empty: to the active member."""

    @property
    def no_promotion(self) -> str:
        """Why no operator may promote a member here; empty: one may."""

    @property
    def wants_role(self) -> bool:
        """Whether this member may have the role at all, as it sees things now."""

    @property
    def goes_on(self) -> bool:
        """Whether this member has no primary view and is about to form one alone."""

    @property
    def steps_aside(self) -> bool:
        """Whether this member, before it stops, has to order that another one takes over."""

    def follow(self, now: float) -> float | None:
        """Examine the rule's inputs; return in how many seconds to call again, if this call fixes
        that."""

    def takes_role(self, vacant_s: float) -> bool:
        """Whether it is this member's turn to take a role that has been vacant for so long."""

    def for_clients(self, role: Role, url: str) -> Standby:
        """Return the answer to clients of a member without the role; `url`: the active member's."""

    def force_passive(self, now: float) -> str:
        """Have another member become active; return why that is refused; empty: it is not."""

    def status(self) -> Mapping[str, object]:
        """Return what the rule adds to the reply to `ha`."""


def candidates(controller: Followed, drained: Collection[str]) -> list[str]:
    """Return the members that may take the role, in order of precedence: voters first."""
    primary, voters = controller.primary, parse(controller.promise.voters).names
    level = primary.caught_up_names - primary.mark.without_data - set(drained)
    return sorted(level, key=lambda name: (name not in voters, name))


class ActivePassive:
    """Follows the order at one member; `follow` is called after each turn of work."""

    def __init__(
        self,
        rule: Rule,
        controller: Followed,
        clients: Clients,
        *,
        drained: Callable[[], Collection[str]],
        may_reply: Callable[[], bool],
        stop: Callable[[Exit, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._rule, self._controller, self._clients = rule, controller, clients
        self._drained, self._may_reply, self._stop, self._note = drained, may_reply, stop, note
        self.role = Role.STANDALONE
        self._told: Standby | None = None
        self._vacant_since = 0.0  # when nobody was seen to have the role; 0: somebody has it
        self._asked: dict[int, tuple[int, float]] = {}  # epoch and time of what it ordered last
        self._gave_up = 0  # the epoch in which it ordered that, until it is applied
        self._active = ""  # as logged last
        self._had_it = False
        self._ready: frozenset[str] = frozenset()  # backups, when a member was active last

    # -- followed --------------------------------------------------------------------------------

    def follow(self, now: float) -> float | None:
        """React to the applied commands, the view and the time; return in how many seconds to call
        again, if this call fixes that."""
        try:
            for role in way(self.role, self._role_now()):
                self._note(f"role: {role.value}, was {self.role.value}")
                self.role = role
        except IllegalMove as error:
            self._stop(Exit.INTERNAL, str(error))
            return None
        self._log_active()
        self._expect_backups()
        again_s = self._rule.follow(now)
        self._take_or_give(now)
        told = self._for_clients()
        if told != self._told:
            self._told = told
            self._clients.stand_by(told.reason, briefly=told.briefly, holds=told.holds)
        return again_s

    def _role_now(self) -> Role:
        controller, primary = self._controller, self._controller.primary
        if primary.left_out:
            return self._while_the_view_changes() if self._rule.goes_on else Role.JOINING
        if controller.transfer_donor:
            return Role.CATCHUP
        if not primary.active:
            return self._while_the_view_changes()
        mine = self._has_it and not self._gives_up
        if not controller.serving:
            return Role.RECOVERING if mine else self._while_the_view_changes(Role.CATCHUP)
        if not mine:
            return Role.READY
        expects = controller.backups is not None and controller.backups.expected
        return Role.ACTIVE if self._may_reply() and not expects else Role.RECOVERING

    def _while_the_view_changes(self, at_least: Role = Role.JOINING) -> Role:
        if self.role in (Role.ACTIVE, Role.RECOVERING):
            return Role.RECOVERING
        return at_least if self.role in (Role.STANDALONE, Role.JOINING) else self.role

    def _machine(self) -> State:
        return self._controller.replica.machine

    @property
    def _has_it(self) -> bool:
        return self._machine().active == self._controller.me.name

    @property
    def _gives_up(self) -> bool:
        """Whether this member sends clients away: its rule does not want the role, it is drained,
        or it ordered giving the role up, and another member may have it before this is applied
        here.
        """
        machine, me = self._machine(), self._controller.me.name
        if not self._rule.wants_role:
            return True
        return me in self._drained() or (self._gave_up == machine.epoch and machine.active == me)

    def _log_active(self) -> None:
        active = self._machine().active
        if active != self._active and self._controller.serving:
            self._note(f"the active member is {active or 'none'}, was {self._active or 'none'}")
            self._active = active

    def _expect_backups(self) -> None:
        """A new active member's confirms wait for the backups that were ready before."""
        controller, active = self._controller, self._machine().active
        me, backups = controller.me.name, controller.backups
        if backups is None or not controller.serving:
            return
        level = controller.primary.caught_up_names - controller.primary.mark.without_data
        if active == me and not self._had_it:
            missing = self._ready - level
            if missing:
                names = ", ".join(sorted(missing))
                self._note(f"waits for {names}, ready before, for {backups.timeout_s:g} s at most")
            backups.expect(missing)
        elif active != me:
            backups.expect(())
        if active:
            self._ready = level - {active}
        self._had_it = active == me

    def _take_or_give(self, now: float) -> None:
        """Give the role up if this member is drained; take it if it is this member's turn."""
        machine = self._machine()
        if not self._has_it:
            self._gave_up = 0  # applied: it may take the role in this view again
        if not self._controller.serving:
            self._vacant_since = 0.0
        elif machine.active:
            self._vacant_since = 0.0
            if self._has_it and self._gives_up and self._may_ask(DEMOTE, now):
                self._gave_up = machine.epoch
                self._controller.submit([Demote(DEMOTE, machine.epoch)])
        else:
            self._vacant_since = self._vacant_since or now
            if self._rule.takes_role(now - self._vacant_since) and self._may_ask(PROMOTE, now):
                self._promote()

    def _may_ask(self, what: int, now: float) -> bool:
        """Whether this member has not given the same order a moment ago in the same view."""
        epoch = self._machine().epoch
        before, at = self._asked.get(what, (0, 0.0))
        if before == epoch and now - at < AGAIN_S:
            return False
        self._asked[what] = epoch, now
        return True

    def _promote(self) -> None:
        self._controller.submit([Promote(PROMOTE, self._machine().epoch)])

    def _for_clients(self) -> Standby:
        if self.role in (Role.ACTIVE, Role.RECOVERING):
            return Standby()
        url = self._controller.primary.labels().get(self._machine().active, "")
        return self._rule.for_clients(self.role, url)

    # -- for operators ---------------------------------------------------------------------------

    @property
    def steps_aside(self) -> bool:
        """Whether this member, before it stops, has to order that another one takes over."""
        return self._rule.steps_aside

    def promote(self) -> str:
        """Order that this member becomes active; return why that is refused; empty: it is not."""
        active, me = self._machine().active, self._controller.me.name
        if self._rule.no_promotion:
            return self._rule.no_promotion
        if self.role in (Role.ACTIVE, Role.RECOVERING):
            return ""
        if self.role is Role.CATCHUP:
            return "Still catching up, cannot be promoted."
        if self.role is not Role.READY:
            return f"Joining active cluster, cannot be promoted: {self._controller.primary.reason}"
        if self._gives_up:
            return f"{me} is drained: run qpid-cluster --undrain {me} first"
        if active:
            return (
                f"{active} is the active member, and there is one at a time: stop it, or "
                f"have it give the role up (qpid-cluster --drain {active}), then promote"
            )
        self._promote()
        return ""

    def force_passive(self, now: float) -> str:
        """Have the peer in a pair become active; return why that is refused; empty: it is not."""
        refusal = self._rule.force_passive(now)
        if not refusal:
            self.follow(now)
        return refusal

    def status(self) -> dict[str, object]:
        """Return the reply to `ha`: the present role of this member and of the others."""
        controller, primary = self._controller, self._controller.primary
        active = self._machine().active
        settled = primary.active or primary.left_out
        role = self._role_now()
        labels = {**primary.labels(), controller.me.name: controller.label}
        return {
            "status": role.value,
            "primary": role is Role.ACTIVE or (role is Role.RECOVERING and self._may_reply()),
            "settled": settled and (bool(active) or not self._is_being_chosen),
            "active": active if primary.active else "",
            "active_url": labels.get(active, "") if primary.active else "",
            "public_url": self._rule.public_url,
            "promotion": AUTOMATIC if self._rule.automatic else MANUAL,
            "replicate": "all",
            "id": controller.me.name,
            **self._rule.status(),
            **self._waited_for(),
            "members": [
                {"id": name, "url": labels.get(name, ""), "status": one.value}
                for name, one in self._roles(role).items()
            ],
        }

    def _waited_for(self) -> dict[str, object]:
        """Return how long confirms wait for the disks of all members, and for whose they do not."""
        backups = self._controller.backups
        if backups is None:
            return {}
        return {
            "backup_timeout_s": backups.timeout_s, "not_waited_for": sorted(backups.late),
            "expected": sorted(backups.expected),
        }  # fmt: skip

    @property
    def _is_being_chosen(self) -> bool:
        return self._rule.automatic and bool(candidates(self._controller, self._drained()))

    def _roles(self, mine: Role) -> dict[str, Role]:
        """Return the members of the view with their roles, as far as this member knows them."""
        controller, primary = self._controller, self._controller.primary
        found = {controller.me.name: mine}
        for name in sorted(m.name for m in primary.members if m != controller.me):
            if name in primary.mark.without_data:
                continue
            if not primary.active:
                found[name] = Role.JOINING
            elif name not in primary.caught_up_names:
                found[name] = Role.CATCHUP
            elif name == self._machine().active:
                found[name] = Role.ACTIVE
            else:
                found[name] = Role.READY
        return dict(sorted(found.items()))
