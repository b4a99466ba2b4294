"""The candidate, failed and agreed sets of one gather episode, which decide the next ring.

A pure leaf: it takes joins and returns their effect; `gather` handles phases, timers and frames.

An episode lasts from the loss of one ring to the installation of the next, through any number of
aborted attempts, so that a member that failed once in it stays failed until then. Therefore the
sets only grow, and the phase ends (Totem membership, termination).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from vsync.types import Member
from vsync.wire.membership_codec import MEMBERS_MAX
from vsync.wire.messages import Join


class JoinOutcome(Enum):
    """The effect of a join on the sets; the value is the counter of joins without one."""

    CHANGED = "join_changed"
    AGREED = "join_agreed"
    SUBSET = "join_subset"
    FROM_FAILED = "join_from_failed"
    LEFT_ALREADY = "join_left_already"
    TOO_MANY = "join_too_many"


class GatherSets:
    """The candidate, failed and agreed sets of one gather episode."""

    def __init__(self, me: Member, old: Iterable[Member], also: Iterable[Member] = ()) -> None:
        self.me = me
        self.old = frozenset(old)  # of the last ring; only the failed sets of these count
        self.proc: set[Member] = {me, *self.old, *also}
        self.failed: set[Member] = set()
        self.agreed: set[Member] = {me}
        self.received: set[Member] = set()
        self._supersede()

    def candidates(self) -> tuple[Member, ...]:
        return tuple(sorted(self.proc - self.failed))

    def consensus(self) -> bool:
        return self.proc - self.failed <= self.agreed

    def add(self, member: Member) -> bool:
        """Make a foreign member a candidate; True if it was not one."""
        if member in self.proc or len(self.proc) == MEMBERS_MAX:
            return False
        self.proc.add(member)
        self._supersede()
        self._changed()
        return True

    def fail(self, members: Iterable[Member]) -> bool:
        """Mark members as failed (never this one, or nobody would be left to form a ring)."""
        fresh = {m for m in members if m != self.me} - self.failed
        if not fresh:
            return False
        self.failed |= fresh
        self.proc |= fresh
        self._changed()
        return True

    def add_received(self, members: Iterable[Member]) -> None:
        """Note that a frame of each of these arrived during this episode."""
        self.received |= set(members)

    def fail_former(self, member: Member) -> bool:
        """Fail the former incarnations of a member; True if there were any."""
        return self.fail(
            m for m in self.proc if m.name == member.name and m.incarnation < member.incarnation
        )

    def not_agreed(self) -> tuple[Member, ...]:
        """Candidates that have not agreed."""
        return tuple(sorted(self.proc - self.failed - self.agreed))

    def restart(self) -> None:
        """Forget which members agreed: all must agree again."""
        self._changed()

    def absorb(self, sender: Member, join: Join) -> JoinOutcome:
        """Merge one join into the sets (rules 3 to 6 of the membership protocol)."""
        proc, failed = set(join.proc), set(join.failed)
        if join.leaving:
            known = sender in self.proc and self.fail((sender,))
            return JoinOutcome.CHANGED if known else JoinOutcome.LEFT_ALREADY
        self.received.add(sender)
        if sender in self.failed:
            return JoinOutcome.FROM_FAILED
        if proc == self.proc and failed == self.failed:
            self.agreed.add(sender)
            return JoinOutcome.AGREED
        if proc <= self.proc and failed <= self.failed:
            return JoinOutcome.SUBSET  # the own join informs the sender
        if len(self.proc | proc) > MEMBERS_MAX:
            return JoinOutcome.TOO_MANY  # the next join would not fit any frame
        before = (len(self.proc), len(self.failed))
        self.proc |= proc | {sender}
        if self.me in failed:
            self.failed.add(sender)
        elif sender in self.old:
            # What a foreign member reports as failed concerns its own ring.
            self.failed |= failed
        self._supersede()
        if before == (len(self.proc), len(self.failed)):
            return JoinOutcome.SUBSET
        self._changed()
        if proc == self.proc and failed == self.failed:
            self.agreed.add(sender)  # it had these sets before
        return JoinOutcome.CHANGED

    def _changed(self) -> None:
        self.agreed = {self.me}

    def _supersede(self) -> None:
        """A newer incarnation of a member is proof that the older ones are over."""
        newest: dict[str, int] = {}
        for member in sorted(self.proc):
            newest[member.name] = max(newest.get(member.name, 0), member.incarnation)
        self.failed |= {m for m in self.proc if m.incarnation < newest[m.name] and m != self.me}

    def join(self, ring_seq: int, reception: tuple[Member, ...]) -> Join:
        return Join(
            tuple(sorted(self.proc)), tuple(sorted(self.failed)), ring_seq, False, reception
        )

    def invariants(self) -> None:
        assert self.me in self.proc, "no candidate myself"
        assert self.me not in self.failed, "failed myself"
        assert self.me in self.agreed, "not agreed with myself"
        assert self.failed <= self.proc, "failed a member that was no candidate"
