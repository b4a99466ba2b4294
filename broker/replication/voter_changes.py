"""Changes the voter set, for operators and over time: requested here, ordered, valid once durable.

A change takes two commands. The first names both voter sets; from then on each of them must agree.
Once it is durable under both, the second names the new set alone. Every member could order the
second; the first by name of the voters that have caught up does, and the next one when it is gone.
Pure: the time is given.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.machine.commands import VOTERS, Voters
from broker.replication.controller import Controller
from vsync.errors import ConfigError
from vsync.quorum import reconfiguration as change
from vsync.quorum.voter_set import Electorate, Terms, parse


class ChangeRefused(Exception):
    """A change of the voters is not allowed; the reason is one sentence."""


class VoterChanges:
    """One member's part in changing the voter set."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._missing_since: dict[str, float] = {}
        self._asked: tuple[int, Terms] = (0, ())
        self._steps_aside = False

    def wake(self, now: float) -> None:
        """Finish a durable change; stop counting voters long away, if the set says so."""
        controller = self._controller
        terms = controller.promise.voters
        electorate = parse(terms)
        caught_up = controller.primary.caught_up_names
        voting = sorted(caught_up.intersection(electorate.data_names))
        if controller.serving and electorate.sets and electorate.latest.pair:
            self._count_again(electorate)
        if not (
            controller.serving
            and controller.primary.has_caught_up
            and voting
            and voting[0] == controller.me.name
        ):
            self._missing_since = {}
            return
        if electorate.changing:
            if controller.primary.durable() >= controller.voters_since:
                self._order(change.finished(terms))
        elif electorate.latest.last_man_standing_ms:
            self._exclude_missing(now)

    def _order(self, after: Terms) -> None:
        """Order one step, once per epoch, because a step submitted in it will be ordered in it."""
        controller = self._controller
        before = controller.promise.voters
        if self._asked != (controller.primary.epoch, before):
            self._asked = (controller.primary.epoch, before)
            controller.submit([Voters(VOTERS, before, after)])

    # -- last man standing -----------------------------------------------------------------------

    def _exclude_missing(self, now: float) -> None:
        """Stop counting voters that are away for too long, and count again those that came back."""
        controller = self._controller
        terms, caught_up = controller.promise.voters, controller.primary.caught_up_names
        one = parse(terms).latest
        since = self._missing_since
        missing = sorted(one.votes.keys() - caught_up)
        self._missing_since = {name: since.get(name, now) for name in missing}
        for name, since_s in self._missing_since.items():
            late = now - since_s >= one.last_man_standing_ms / 1000
            if late and name not in one.away and self._try({*one.away, name}):
                return
        for name in sorted(one.away & caught_up):
            if self._try(one.away - {name}):
                return

    def _try(self, away: set[str] | frozenset[str]) -> bool:
        """Order that these do not count, if the members present may decide that."""
        terms = self._controller.promise.voters
        try:
            self._order(self._checked(change.change_to(terms, change.with_away(terms, away))))
        except (ConfigError, ChangeRefused):
            return False
        return True

    # -- pairs -----------------------------------------------------------------------------------

    def _count_again(self, electorate: Electorate) -> None:
        """Let this member of a pair count again once it has the state.

        It orders this itself: the other member does not know whether this one is about to stop.
        """
        me, away = self._controller.me.name, electorate.latest.away
        level = self._controller.primary.has_caught_up
        if level and me in away and not electorate.changing and not self._steps_aside:
            self._try(away - {me})

    def step_aside(self) -> bool:
        """Before this member of a pair stops, have the other go on alone, by an ordered change.

        Then the other does not need the pair's third vote, and either one that starts again without
        the other knows which went on. Call this until it returns True: done, or not possible.
        """
        controller = self._controller
        me, electorate = controller.me.name, parse(controller.promise.voters)
        others = controller.primary.caught_up_names - {me}
        latest = electorate.latest if electorate.sets else None
        if latest is None or not latest.pair or not others & latest.votes.keys() - latest.away:
            return True
        self._steps_aside = True
        if electorate.changing:
            return False
        return me in latest.away or not self._try({me})

    # -- asked by operators ----------------------------------------------------------------------

    def add(self, name: str) -> Terms:
        """Give a vote to a member that is present and has caught up."""
        arbitrator = self._demand_here(name)
        return self._change(lambda now: change.added(now, name, arbitrator=arbitrator))

    def remove(self, name: str) -> Terms:
        """Take a member's vote away, whether it is present or gone."""
        return self._change(lambda now: change.removed(now, name))

    def replace(self, old: str, new: str) -> Terms:
        """Let `new`, which has caught up, vote instead of `old`, which may be present or gone."""
        arbitrator = self._demand_here(new)
        return self._change(lambda now: change.replaced(now, old, new, arbitrator=arbitrator))

    def votes(self, name: str, votes: int) -> Terms:
        """Give a voter another number of votes."""
        return self._change(lambda now: change.with_votes(now, name, votes))

    def expected(self, votes: int) -> Terms:
        """Base the quorum on another number of votes; 0: on all votes that exist."""
        return self._change(lambda now: change.with_expected(now, votes))

    def _change(self, make: Callable[[Terms], Terms]) -> Terms:
        terms = self._controller.promise.voters
        try:
            new = make(terms)
            joint = self._checked(change.change_to(terms, new))
        except ConfigError as refused:
            raise ChangeRefused(str(refused)) from None
        self._controller.submit([Voters(VOTERS, terms, joint)])
        return new

    def _demand_here(self, name: str) -> bool:
        """Whether a member that is ready to be made a voter is an arbitrator."""
        primary = self._controller.primary
        if name not in {m.name for m in primary.members}:
            raise ChangeRefused(f"no member of this view has the id {name}; start it first")
        arbitrator = name in primary.mark.without_data
        ready = not arbitrator or primary.marks().get(name, 0) >= primary.epoch
        if name not in primary.caught_up_names or not ready:
            raise ChangeRefused(f"{name} has not caught up yet; try again when it is ACTIVE")
        return arbitrator

    def _checked(self, joint: Terms) -> Terms:
        """Refuse a change that the members present could not make durable: all would stop.

        A member that has the state may have a store still marked as joining, which has no vote
        after a crash. A member whose mark is shown has a store that counts.
        """
        electorate, primary = parse(joint), self._controller.primary
        caught_up, marks = primary.caught_up_names, primary.marks()
        if not electorate.quorate(caught_up):
            raise ChangeRefused(
                f"with the members that are here it could not take effect: "
                f"{electorate.describe(caught_up)}"
            )
        joining = sorted(name for name in caught_up if not marks.get(name))
        if not electorate.quorate(caught_up.difference(joining)):
            raise ChangeRefused(
                f"the store of {', '.join(joining)} has no vote yet; try again in a moment"
            )
        return joint
