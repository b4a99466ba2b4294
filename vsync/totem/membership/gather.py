"""The gather phase: from the loss of a ring to agreement on the next one.

Joins are exchanged until all candidates agree on the same sets (`gather_sets`) and are linked with
each other (`connectivity`); then the lowest of them makes the commit token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vsync.totem.context import Context, Timer, Timers, names
from vsync.totem.membership.commit import first_commit
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.gather_sets import GatherSets, JoinOutcome
from vsync.totem.membership.ring_ids import RingIds
from vsync.totem.phases import Reason
from vsync.types import Member
from vsync.wire.messages import CommitToken, Join

BRIEF_JOINS = 6
"""Join intervals to wait for a link that is known to be broken."""


IMMEDIATE_JOINS_MAX = 8
"""Up to this many members a change of the sets is sent at once; with more, a moment later."""


class GatherPhase:
    """One gather episode; it lasts until a ring is installed.

    `move` is called with the reason when the phase begins anew; `commit` when a ring is agreed on.
    """

    def __init__(
        self,
        context: Context,
        sets: GatherSets,
        connectivity: Connectivity,
        ring_ids: RingIds,
        move: Callable[[Reason], None],
        commit: Callable[[CommitToken, Reason, float], None],
    ) -> None:
        self.sets = sets
        self._context = context
        self._config = context.config
        self._connectivity = connectivity
        self._ring_ids = ring_ids
        self._move = move
        self._commit = commit
        self.timers: Timers = {
            Timer.JOIN: self._send_join,
            Timer.LONELY: self._try_form,
            Timer.CONSENSUS: self._on_consensus_timer,
        }

    def again(self, also: tuple[Member, ...]) -> None:
        """Gather again after an aborted attempt: all must agree anew."""
        self.sets.restart()
        for member in also:
            self.sets.add(member)

    def announce(self, now: float) -> None:
        """Send the changed sets to all, and give all time to agree."""
        candidates = self.sets.candidates()
        timeout = self._config.consensus_timeout(len(candidates))
        self._context.arm(Timer.CONSENSUS, now + timeout)
        self._wait_less(now)
        self.join_soon(now)
        self._try_form(now)

    def join_soon(self, now: float) -> None:
        """Send a join: at once among few members; among many, one join for several changes.

        Each change makes all answer all. With n members that learn of each other one by one, each
        member sent some n joins to all others (measured in docs/reference/bench-ring.md).
        """
        sets = self.sets
        members = max(len(sets.proc - sets.failed), len(self._connectivity.reception(now)))
        if members <= IMMEDIATE_JOINS_MAX:
            self._send_join(now)
            return
        spread = max(0.02, 0.001 * members)
        if self._context.due.get(Timer.JOIN, now + 2 * spread) > now + spread:
            self._context.arm(Timer.JOIN, now + self._context.rng.uniform(0.0, spread))

    def _wait_less(self, now: float) -> None:
        """Shorten the consensus timeout if all candidates run but are not all linked.

        Then some link is broken, and waiting for the whole timeout would not change that.
        """
        candidates = self.sets.candidates()
        connectivity = self._connectivity
        running = connectivity.all_received(candidates, now)
        if running and not connectivity.complete(candidates, now):
            brief = now + BRIEF_JOINS * self._config.join_timeout_ms / 1000
            self._context.arm(
                Timer.CONSENSUS, min(brief, self._context.due.get(Timer.CONSENSUS, brief))
            )

    def _send_join(self, now: float) -> None:
        join = self.sets.join(self._ring_ids.highest_seq, self._connectivity.announce(now))
        self._context.broadcast(join)
        self._context.note_join("join_sent", join)
        self._context.arm(Timer.JOIN, now + self._config.join_timeout_ms / 1000)

    def _on_consensus_timer(self, now: float) -> None:
        self._move(Reason.CONSENSUS_LATE)
        if self._agreed(now):
            # All agreed, but the representative's commit token did not come: ask all again.  If
            # it has failed it does not answer, and is failed at the next expiry.
            self.sets.restart()
        else:
            candidates = self.sets.candidates()
            clique = self._connectivity.clique(candidates, now)
            left_out = tuple(m for m in candidates if m not in clique)
            if left_out and self._connectivity.all_received(left_out, now):
                self._context.count("clique_chosen")
            # All linked and yet no agreement: those that did not agree are forming another ring.
            failed = left_out or self.sets.not_agreed()
            self._context.note("failed", members=names(failed), clique=names(clique))
            self.sets.fail(failed)
        self.announce(now)

    # -- messages ----------------------------------------------------------------------------

    def on_join(self, sender: Member, join: Join, now: float) -> None:
        sets = self.sets
        if sender not in sets.proc and self._context.me not in join.reception and not join.leaving:
            # The next join tells the sender that its frames arrive; until it receives that join, it
            # is no candidate.
            self._context.count("join_deaf")
            if sets.fail_former(sender):
                self._move(Reason.JOIN)
                self.announce(now)
            return
        outcome = sets.absorb(sender, join)
        if outcome is JoinOutcome.CHANGED:
            self._move(Reason.JOIN)
            self.announce(now)
        elif outcome is JoinOutcome.AGREED:
            self._wait_less(now)
            self._try_form(now)
        else:
            self._context.count(outcome.value)

    def on_merge(self, sender: Member, now: float) -> None:
        """Another ring announced itself: its members are candidates if they gain by it."""
        if sender in self.sets.proc:
            self.sets.add_received((sender,))
        elif sender in self._connectivity.gain(1, self._config.members_max, (), now):
            self.sets.add_received((sender,))
            if self.sets.add(sender):
                self._move(Reason.FOREIGN_RING)
                self.announce(now)
        else:
            self._context.count("foreign_no_gain")

    def on_commit(self, commit: CommitToken, now: float) -> None:
        """Take part in forming this ring if it is the one that this member agreed to."""
        index = commit.members.index(self._context.me)
        there = [entry is not None for entry in commit.entries]
        if commit.members != self.sets.candidates():
            self._context.count("commit_members_differ")
        elif commit.ring.seq <= self._ring_ids.committed_seq:
            self._context.count("commit_stale")
        elif commit.hop != index or there != [i < index for i in range(len(there))]:
            self._context.count("commit_hop")
        else:
            self._commit(commit, Reason.COMMIT_TOKEN, now)

    # -- agreement ---------------------------------------------------------------------------

    def _agreed(self, now: float) -> bool:
        """Do all candidates agree, and is each linked with each other?"""
        return self.sets.consensus() and self._connectivity.complete(self.sets.candidates(), now)

    def _try_form(self, now: float) -> None:
        """Make the commit token if all agree and this member is the lowest of them."""
        members = self.sets.candidates()
        if not self._agreed(now):
            return
        me, members_max = self._context.me, self._config.members_max
        if len(members) > members_max:
            # All see the same excess; a member in it goes on with the others in it.
            self._move(Reason.TOO_MANY)
            most, excess = members[:members_max], members[members_max:]
            self.sets.fail(most if me in excess else excess)
            self.announce(now)
            return
        if members[0] != me or (len(members) == 1 and Timer.LONELY in self._context.due):
            return
        self._commit(first_commit(self._ring_ids.next(me), members), Reason.CONSENSUS, now)


class EnterGather(Protocol):
    """Gives up the ring, or the attempt at one; the caller announces the sets afterwards."""

    def __call__(
        self, reason: Reason, also: tuple[Member, ...] = (), failed: tuple[Member, ...] = ()
    ) -> GatherPhase: ...
