"""From the loss of a ring to the agreement on the next one: the gather phase.

Who is asked, who is believed, when it is enough; the sets themselves are leaves in `membership`.
"""

from __future__ import annotations

from vsync.totem.context import Timer, names
from vsync.totem.membership.commit import Formation
from vsync.totem.membership.sets import Gather, JoinOutcome, first_commit
from vsync.totem.phases import Phase, Reason
from vsync.types import Member, RingId
from vsync.wire.messages import Join

BRIEF_JOINS = 6
"""So many join intervals are waited for a link of which it is known that it is broken."""


CROWD = 8
"""With more members than this a change of the sets is told with the next join, a moment later."""


class Gathering(Formation):
    """Gather, and what leads into it from outside."""

    # -- gather ------------------------------------------------------------------------------

    def _enter_gather(
        self, reason: Reason, also: tuple[Member, ...] = (), failed: tuple[Member, ...] = ()
    ) -> Gather:
        """Give up the ring, or the attempt at one.  The caller announces the sets afterwards."""
        if self.recovery is not None:
            self.recovery.abort()
            self.past.append(self.recovery.ring.id)
            self.recovery = None
        self.forming = None
        self.waiting = None
        self._held = self._slowed = False
        self.solo = None
        self._resend = None
        self._move(reason)
        self.context.cancel(
            Timer.TOKEN_LOSS, Timer.TOKEN_RESEND, Timer.HOLD, Timer.MERGE, Timer.SOLO
        )
        if self.gather is None:
            self.gather = Gather(self.me, self.members, also)
        else:
            self.gather.restart()
            for member in also:
                self.gather.add(member)
        self.gather.fail(failed)
        return self.gather

    def _announce(self, gather: Gather, now: float) -> None:
        """My sets changed: tell everybody, and give everybody time to agree."""
        candidates = gather.candidates()
        self.context.arm(Timer.CONSENSUS, now + self.config.consensus_timeout(len(candidates)))
        self._wait_less(gather, now)
        self._join_soon(gather, now)
        self._try_form(gather, now)

    def _join_soon(self, gather: Gather, now: float) -> None:
        """Tell my sets: few members at once, many by one join for several changes.

        Each change makes all answer all.  With n members that hear of each other one by one that
        were some n joins of each member, to all others (measured in docs/reference/bench-ring.md).
        """
        crowd = max(len(gather.proc - gather.failed), len(self.connectivity.ears(now)))
        if crowd <= CROWD:
            self._send_join(gather, now)
            return
        spread = max(0.02, 0.001 * crowd)
        if self.context.due.get(Timer.JOIN, now + 2 * spread) > now + spread:
            self.context.arm(Timer.JOIN, now + self.rng.uniform(0.0, spread))

    def _wait_less(self, gather: Gather, now: float) -> None:
        """Is each candidate alive by somebody's word, and are they still not all linked?

        Then some link is broken, and waiting for the whole consensus timeout would not mend it.
        """
        candidates = gather.candidates()
        connectivity = self.connectivity
        if connectivity.witnessed(candidates, now) and not connectivity.complete(candidates, now):
            brief = now + BRIEF_JOINS * self.config.join_timeout_ms / 1000
            self.context.arm(
                Timer.CONSENSUS, min(brief, self.context.due.get(Timer.CONSENSUS, brief))
            )

    def _send_join(self, gather: Gather, now: float) -> None:
        self._ears_told = self.connectivity.ears(now)
        join = gather.join(self.max_ring_seq, self._ears_told)
        self.context.broadcast(join)
        self.context.note_join("join_sent", join)
        self.context.arm(Timer.JOIN, now + self.config.join_timeout_ms / 1000)

    def _on_join_timer(self, now: float) -> None:
        if self.gather is not None and self.phase is Phase.GATHER:
            self._send_join(self.gather, now)

    def _on_lonely(self, now: float) -> None:
        if self.gather is not None and self.phase is Phase.GATHER:
            self._try_form(self.gather, now)

    def _on_consensus_timer(self, now: float) -> None:
        gather = self.gather
        if gather is None or self.phase is not Phase.GATHER:
            return
        self._move(Reason.CONSENSUS_LATE)
        if self._agreed(gather, now):
            # All agreed, but the representative's commit token did not come: ask all again.  If
            # it is dead it will not answer, and fails at the next expiry.
            gather.restart()
        else:
            candidates = gather.candidates()
            clique = self.connectivity.clique(candidates, now)
            left_out = tuple(m for m in candidates if m not in clique)
            if left_out and self.connectivity.witnessed(left_out, now):
                self.context.count("clique_chosen")
            # All linked and yet no agreement: who has not said so is busy elsewhere.
            failed = left_out or gather.silent()
            self.context.note("failed", members=names(failed), clique=names(clique))
            gather.fail(failed)
        self._announce(gather, now)

    def _agreed(self, gather: Gather, now: float) -> bool:
        """Do all want the same, and is each linked with each other?"""
        return gather.consensus() and self.connectivity.complete(gather.candidates(), now)

    def _join_in_gather(self, sender: Member, join: Join, now: float) -> None:
        gather = self.gather
        assert gather is not None
        if sender not in gather.proc and self.me not in join.hears and not join.leaving:
            # My join tells it that I hear it; until it hears me it is no candidate.
            self.context.count("join_deaf")
            if gather.outlived_by(sender):
                self._move(Reason.JOIN)
                self._announce(gather, now)
            return
        verdict = gather.absorb(sender, join)
        if verdict is JoinOutcome.CHANGED:
            self._move(Reason.JOIN)
            self._announce(gather, now)
        elif verdict is JoinOutcome.AGREED:
            self._wait_less(gather, now)
            self._try_form(gather, now)
        else:
            self.context.count(verdict.value)

    def _breaks_forming(self, sender: Member, join: Join) -> bool:
        """Does this join say that a member of the ring under way has given it up?"""
        forming, gather = self.forming, self.gather
        assert forming is not None
        assert gather is not None
        if sender not in forming.members:
            return False
        if join.leaving or join.ring_seq >= forming.ring.seq:
            return True
        # Its sets only grow, so sets beyond mine are newer than those that we agreed on: it will
        # refuse the commit token.  Later than commit, this cannot be.
        beyond = not (gather.proc >= set(join.proc) and gather.failed >= set(join.failed))
        return self.phase is Phase.COMMIT and beyond

    def _give_up_on(self, stuck: Member, now: float) -> None:
        """A member does not receive: go on without it (Totem: failure to receive)."""
        self.context.note("stuck", member=stuck.name)
        self._announce(self._enter_gather(Reason.MEMBER_STUCK, failed=(stuck,)), now)

    def _try_form(self, gather: Gather, now: float) -> None:
        """If all agree and I am the lowest of them, make the commit token."""
        members = gather.candidates()
        if not self._agreed(gather, now):
            return
        if len(members) > self.config.members_max:
            # All see the same excess; who is in it sees the others fail it, and forms its own.
            self._move(Reason.TOO_MANY)
            gather.fail(members[self.config.members_max :])
            self._announce(gather, now)
            return
        if members[0] != self.me or (len(members) == 1 and Timer.LONELY in self.context.due):
            return
        self.max_ring_seq += 1
        ring = RingId(self.max_ring_seq, self.me.name, self.me.incarnation)
        self._commit_to(first_commit(ring, members), Reason.CONSENSUS, now)
