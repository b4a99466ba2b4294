"""Forming the ring that was agreed on: commit and recovery.

Handlers in the order of the protocol.  A message that a phase does not expect is counted under its
kind and the phase, and dropped.
"""

from __future__ import annotations

from vsync.errors import FrameError
from vsync.totem.context import Timer, names
from vsync.totem.events import Broadcast, Transitional, View
from vsync.totem.membership.recovery import Recovery
from vsync.totem.membership.sets import Forming, filled
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Phase, Reason
from vsync.totem.state import Core
from vsync.types import Member
from vsync.wire.messages import CommitToken, Content, Data, Token


class Formation(Core):
    """Commit and recovery."""

    # -- commit ------------------------------------------------------------------------------

    def _commit_to(self, commit: CommitToken, reason: Reason, now: float) -> None:
        self.context.cancel(Timer.JOIN, Timer.CONSENSUS, Timer.LONELY)
        self._move(reason)
        self.committed_seq = commit.ring.seq
        self.max_ring_seq = max(self.max_ring_seq, commit.ring.seq)
        self.forming = forming = Forming(commit, self.me)
        self.context.note("commit", ring=str(commit.ring), members=names(commit.members))
        commit = filled(commit, forming.index, self._entry())
        if len(commit.members) == 1:
            self._begin_recovery(commit, now)
            return
        self._pass_on(forming.successor, commit, now)
        self._expect_token(len(commit.members), now)

    def _on_commit(self, sender: Member, commit: CommitToken, now: float) -> None:
        members = commit.members
        if self.me not in members or sender != members[members.index(self.me) - 1]:
            self.context.count("commit_sender")
        elif self.phase is Phase.GATHER:
            self._commit_in_gather(commit, now)
        elif self.forming is None or commit.ring != self.forming.ring:
            self.context.count("commit_other_ring")
        elif commit.hop != self.forming.expect or None in commit.entries:
            self.context.count("commit_again")
        elif self.phase is Phase.COMMIT:
            self.forming.advance()
            self._begin_recovery(commit, now)
        elif (
            self.recovery is not None
            and self.forming.index == 0
            and not self.recovery.originated  # once only, whoever repeats it (pitfall 25)
        ):
            self.recovery.originated = True
            token = self.recovery.ring.first_token()
            self.recovery.ring.accept(token)
            self.lease.token(self.recovery.ring.id, members, now)
            self._expect_token(len(members), now)
            self._visit_recovery(self.recovery, token, now)
        else:
            self.context.count("commit_again")

    def _commit_in_gather(self, commit: CommitToken, now: float) -> None:
        assert self.gather is not None
        index = commit.members.index(self.me)
        there = [entry is not None for entry in commit.entries]
        if commit.members != self.gather.candidates():
            self.context.count("commit_members_differ")
        elif commit.ring.seq <= self.committed_seq:
            self.context.count("commit_stale")
        elif commit.hop != index or there != [i < index for i in range(len(there))]:
            self.context.count("commit_hop")
        else:
            self._commit_to(commit, Reason.COMMIT_TOKEN, now)

    # -- recovery ----------------------------------------------------------------------------

    def _begin_recovery(self, commit: CommitToken, now: float) -> None:
        """All entries are there: my old ring is frozen, the new ring's token may come."""
        assert self.forming is not None
        self._move(Reason.COMMIT_FULL)
        entries = tuple(e for e in commit.entries if e is not None)
        assert len(entries) == len(commit.members)
        ring = Ring(
            commit.ring,
            commit.members,
            self.me,
            tuple(e.mark for e in entries),
            self.config,
            self.codec.envelope_bytes,
        )
        self.recovery = Recovery(ring, self.current, entries)
        self.context.note(
            "recovery", ring=str(ring.id), old=str(self.ring), together=names(self.recovery.trans),
            to_send=self.recovery.backlog(0),
        )  # fmt: skip
        if len(commit.members) == 1:
            self._install(self.recovery, now)
            return
        self._pass_on(self.forming.successor, commit._replace(hop=commit.hop + 1), now)
        self._expect_token(len(commit.members), now)

    def _data_in_recovery(self, recovery: Recovery, frame: Data) -> None:
        code = recovery.ring.add(frame)
        if not code and frame.content is Content.RECOVERED:
            try:
                code = recovery.absorb(self.codec.data(frame.items[0]))
            except FrameError as err:
                code = err.code
        if code:
            self.context.count(code)

    def _visit_recovery(self, recovery: Recovery, token: Token, now: float) -> None:
        """A token visit on the ring under way; its frames are the old ring's."""
        ring = recovery.ring
        visit = ring.visit(token, recovery, self.mark, 0)
        framed = self.codec.data_frame
        out = self.context.out
        out.extend(Broadcast(framed(body)) for body in visit.resent)
        out.extend(Broadcast(framed(body)) for body in visit.before)
        forward = recovery.flag(visit.token)
        self._pass_on(ring.successor, forward, now)
        if visit.before:
            self.context.count("recovered_sent", len(visit.before))
        ring.consume_recovered()
        ring.release()
        if recovery.complete(forward, token.aru):
            self._install(recovery, now)

    def _install(self, recovery: Recovery, now: float) -> None:
        """Close the old ring and open the new one, as one step."""
        self._move(Reason.RECOVERED)
        old, ring, gather = self.current, recovery.ring, self.gather
        assert gather is not None
        came = frozenset(recovery.trans) if old is not None else frozenset[Member]()
        if old is not None:
            closing = recovery.close()
            for frame in closing.regular:
                self._emit(old, frame, False)
            self.context.out.append(Transitional(old.id, recovery.trans))
            for frame in closing.transitional:
                self._emit(old, frame, True)
            self.context.note(
                "closing", ring=str(old.id), regular=len(closing.regular),
                transitional=len(closing.transitional), skipped=closing.skipped,
            )  # fmt: skip
            if closing.skipped:
                self.context.count("closing_skipped", closing.skipped)
            self.past.append(old.id)
        if forgotten := self.assembly.forget():
            self.context.count("fragments_forgotten", forgotten)
        if self.queue.restart():
            self.context.count("fragments_sent_again")
        for member in sorted(gather.heard - set(ring.members)):
            self.backed_off.add(member, now)
        self.backed_off.forgive(ring.members, now)
        self.current, self.recovery, self.forming, self.gather = ring, None, None, None
        joined = tuple(m for m in ring.members if m not in came)
        left = () if old is None else tuple(m for m in old.members if m not in came)
        self.context.out.append(View(ring.id, ring.members, joined, left))
        self.context.note(
            "view",
            ring=str(ring.id),
            members=names(ring.members),
            joined=names(joined),
            left=names(left),
            first_seq=ring.delivered + 1,
        )
        self._marks_shown = ()
        self._show_marks(ring)
        self._opened(ring, now)

    def _opened(self, ring: Ring, now: float) -> None:
        """A ring was installed: set what it lives on."""
        if len(ring.members) == 1:
            self.context.cancel(Timer.TOKEN_LOSS, Timer.TOKEN_RESEND)
            self._resend = None
            self.solo = ring.first_token()
            self.lease.token(ring.id, ring.members, now)
            self.context.arm(Timer.SOLO, now)
        self._arm_merge(now)

    def _arm_merge(self, now: float) -> None:
        spread = self.rng.uniform(0.75, 1.25)
        self.context.arm(Timer.MERGE, now + spread * self.config.merge_interval_ms / 1000)
