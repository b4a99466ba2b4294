"""From the loss of a ring to the agreement on the next one: the gather phase.

Who is asked, who is believed, when it is enough; the sets themselves are leaves in `membership`.
"""

from __future__ import annotations

from vsync.formation import Formation
from vsync.membership import Gather, Verdict, first_commit
from vsync.messages import Join
from vsync.phases import Phase, Reason
from vsync.trace import Timer, names
from vsync.types import Member, RingId


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
        self._held = False
        self.solo = None
        self._resend = None
        self._move(reason)
        self.desk.cancel(Timer.TOKEN_LOSS, Timer.TOKEN_RESEND, Timer.HOLD, Timer.MERGE, Timer.SOLO)
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
        self.desk.arm(Timer.CONSENSUS, now + self.config.consensus_timeout(len(candidates)))
        self._wait_less(gather, now)
        if len(candidates) > 8:
            # Many members answer each other at once: spread them.
            self.desk.arm(Timer.JOIN, now + self.rng.uniform(0.0, 0.02))
        else:
            self._send_join(gather, now)
        self._try_form(gather, now)

    def _wait_less(self, gather: Gather, now: float) -> None:
        """Only members are missing that others name, and that I failed and never heard again?

        Where two members cannot hear each other and a third hears both, this is what each attempt
        to merge comes to: it must not cost a full consensus timeout.
        """
        silent = gather.silent()
        if silent and all(member in self.doubted for member in silent):
            brief = now + 4 * self.config.join_timeout_ms / 1000
            self.desk.arm(Timer.CONSENSUS, min(brief, self.desk.due.get(Timer.CONSENSUS, brief)))

    def _send_join(self, gather: Gather, now: float) -> None:
        self.desk.broadcast(gather.join(self.max_ring_seq))
        self.desk.arm(Timer.JOIN, now + self.config.join_timeout_ms / 1000)

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
        if gather.consensus():
            # All agreed, but the representative's commit token did not come: ask all again.  If
            # it is dead it will not answer, and fails at the next expiry.
            gather.restart()
        else:
            silent = gather.silent()
            self.desk.note("failed", members=names(silent))
            for member in silent:
                if member not in gather.heard:
                    self.doubted[member] = None
            while len(self.doubted) > 256:
                del self.doubted[next(iter(self.doubted))]
            gather.fail(silent)
        self._announce(gather, now)

    def _on_join(self, sender: Member, join: Join, now: float) -> None:
        self.max_ring_seq = max(self.max_ring_seq, join.ring_seq)
        self.doubted.pop(sender, None)
        ring = self.current
        if (
            ring is not None
            and sender in ring.members
            and join.ring_seq < ring.id.seq
            and not join.leaving
        ):
            self.desk.count("join_stale")  # sent before my ring was formed (pitfall 28)
            return
        match self.phase:
            case Phase.OPERATIONAL:
                if join.leaving:
                    if sender in self.members:
                        gather = self._enter_gather(Reason.JOIN, failed=(sender,))
                        self._announce(gather, now)
                    else:
                        self.desk.count("leave_stranger")
                elif self.me in join.failed:
                    self.desk.count("join_rejects_me")  # pitfall 19: it will form its own ring
                elif sender not in self.members and self._shuns(sender, join, now):
                    self.desk.count("join_shunned")
                else:
                    # Even if its content says nothing new: the sender waits (pitfall 20).
                    gather = self._enter_gather(Reason.JOIN, also=(sender,))
                    gather.absorb(sender, join)
                    self._announce(gather, now)
            case Phase.GATHER:
                self._join_in_gather(sender, join, now)
            case Phase.COMMIT | Phase.RECOVERY:
                if self._breaks_forming(sender, join):
                    gather = self._enter_gather(Reason.JOIN)
                    gather.absorb(sender, join)
                    self._announce(gather, now)
                else:
                    self.desk.count("join_while_forming")
            case Phase.IDLE | Phase.LEFT:
                self.desk.count("join_outside")

    def _shuns(self, sender: Member, join: Join, now: float) -> bool:
        """Is this stranger's join ignored for now?

        One that names me has heard me, and shuns me no longer: two that shun each other in turn
        would never meet.  It has to wait a little all the same: its joins that are still under way
        would break each ring as soon as it is there, and each broken ring makes new joins.
        """
        if self.me in join.proc:
            return self.shunned.has_since(sender, now, 4 * self.config.join_timeout_ms / 1000)
        return self.shunned.has(sender, now)

    def _join_in_gather(self, sender: Member, join: Join, now: float) -> None:
        gather = self.gather
        assert gather is not None
        verdict = gather.absorb(sender, join)
        if verdict is Verdict.CHANGED:
            self._move(Reason.JOIN)
            self._announce(gather, now)
        elif verdict is Verdict.AGREED:
            self._wait_less(gather, now)
            self._try_form(gather, now)
        else:
            self.desk.count(verdict.value)

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

    def _on_foreign(self, sender: Member, ring: RingId, now: float) -> None:
        """Another ring lives: meet it."""
        self.doubted.pop(sender, None)
        if self.phase is Phase.GATHER:
            assert self.gather is not None
            self.gather.heard.add(sender)
            if self.gather.add(sender):
                self._move(Reason.FOREIGN_RING)
                self._announce(self.gather, now)
        elif self.phase is not Phase.OPERATIONAL:
            self.desk.count("foreign_while_forming")
        elif ring == self.ring:
            return  # the representative tells the world, and its own ring hears it too
        elif ring in self.past or (sender in self.members and ring.seq <= self.ring.seq):
            self.desk.count("foreign_past")
        elif self.shunned.has(sender, now):
            self.desk.count("foreign_shunned")
        else:
            gather = self._enter_gather(Reason.FOREIGN_RING, also=(sender,))
            gather.heard.add(sender)
            self._announce(gather, now)

    def _give_up_on(self, stuck: Member, now: float) -> None:
        """A member does not receive: go on without it (Totem: failure to receive)."""
        self.desk.note("stuck", member=stuck.name)
        self._announce(self._enter_gather(Reason.MEMBER_STUCK, failed=(stuck,)), now)

    def _try_form(self, gather: Gather, now: float) -> None:
        """If all agree and I am the lowest of them, make the commit token."""
        members = gather.candidates()
        if not gather.consensus():
            return
        if len(members) > self.config.members_max:
            # All see the same excess; who is in it sees the others fail it, and forms its own.
            self._move(Reason.TOO_MANY)
            gather.fail(members[self.config.members_max :])
            self._announce(gather, now)
            return
        if members[0] != self.me or (len(members) == 1 and Timer.LONELY in self.desk.due):
            return
        self.max_ring_seq += 1
        ring = RingId(self.max_ring_seq, self.me.name, self.me.incarnation)
        self._commit_to(first_commit(ring, members), Reason.CONSENSUS, now)
