"""Strangers and other rings: who is met, and for what a ring is given up.

A ring that works is given up for strangers only if a larger view is in sight: a clique of linked
members, each of which gains by it (`vsync.totem.membership.connectivity`).  So where some links are
broken the members settle in views that stay, and heal when the links do.  What a link is worth for
data, hearing cannot know; a stranger that was tried in vain is therefore shunned for a growing
while as well.
"""

from __future__ import annotations

from vsync.totem.context import Timer, names
from vsync.totem.membership.gather import Gathering
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Phase, Reason
from vsync.types import Member
from vsync.wire.messages import Join, Merge


class Meeting(Gathering):
    """Joins and merges as they come in, by phase."""

    def _on_join(self, sender: Member, join: Join, now: float) -> None:
        self.max_ring_seq = max(self.max_ring_seq, join.ring_seq)
        self.context.note_join("join_heard", join, sender)
        if join.leaving:
            self.connectivity.forget((sender,))
        else:
            self._learn(sender, join.hears, 1, now)
        ring = self.current
        if (
            ring is not None
            and sender in ring.members
            and join.ring_seq < ring.id.seq
            and not join.leaving
        ):
            self.context.count("join_stale")  # sent before my ring was formed (pitfall 28)
            return
        match self.phase:
            case Phase.OPERATIONAL:
                self._join_in_ring(sender, join, now)
            case Phase.GATHER:
                self._join_in_gather(sender, join, now)
            case Phase.COMMIT | Phase.RECOVERY:
                if self._breaks_forming(sender, join):
                    gather = self._enter_gather(Reason.JOIN)
                    gather.absorb(sender, join)
                    self._announce(gather, now)
                else:
                    self.context.count("join_while_forming")
            case Phase.IDLE | Phase.LEFT:
                self.context.count("join_outside")

    def _join_in_ring(self, sender: Member, join: Join, now: float) -> None:
        """A member gives up my ring, or a stranger asks to be let in."""
        outlived = tuple(
            m for m in self.members if m.name == sender.name and m.incarnation < sender.incarnation
        )
        if join.leaving:
            if sender in self.members:
                self._announce(self._enter_gather(Reason.JOIN, failed=(sender,)), now)
            else:
                self.context.count("leave_stranger")
        elif self.me in join.failed:
            self.context.count("join_rejects_me")  # pitfall 19: it will form its own ring
        elif sender in self.members:
            # Even if its content says nothing new: the sender waits (pitfall 20).
            gather = self._enter_gather(Reason.JOIN)
            gather.absorb(sender, join)
            self._announce(gather, now)
        elif outlived:
            # My ring has a member that is over, whatever becomes of the new one.
            gather = self._enter_gather(Reason.JOIN, failed=outlived)
            self._join_in_gather(sender, join, now)
            self._announce(gather, now)
        elif self._shuns(sender, join, now):
            self.context.count("join_shunned")
        elif sender in (also := self._better(now, sender)):
            gather = self._enter_gather(Reason.JOIN, also=also)
            gather.heard |= set(also)
            gather.absorb(sender, join)
            self._announce(gather, now)
        else:
            self.context.count("join_no_gain")
            if self.me not in join.hears and self.current is not None:
                # Its broadcasts come to me, mine perhaps not yet to it: tell it who is here.
                ears = self.connectivity.ears(now)
                self.context.send(sender, Merge(self.current.id, self.members, ears))

    def _shuns(self, sender: Member, join: Join, now: float) -> bool:
        """Is this stranger's join ignored for now?

        One that names me has heard me, and shuns me no longer: two that shun each other in turn
        would never meet.  It has to wait a little all the same: its joins that are still under way
        would break each ring as soon as it is there, and each broken ring makes new joins.
        """
        if self.me in join.proc:
            return self.backed_off.has_since(sender, now, 4 * self.config.join_timeout_ms / 1000)
        return self.backed_off.has(sender, now)

    def _on_merge(self, sender: Member, merge: Merge, now: float) -> None:
        """A member of my ring, or of another one, tells whom it hears."""
        self._learn(sender, merge.hears, len(merge.members), now)
        if self.phase is Phase.GATHER:
            self._merge_in_gather(sender, now)
        elif self.phase is not Phase.OPERATIONAL:
            self.context.count("foreign_while_forming")
        elif merge.ring != self.ring and (
            merge.ring in self.past or (sender in self.members and merge.ring.seq <= self.ring.seq)
        ):
            self.context.count("foreign_past")
        elif also := self._better(now):
            gather = self._enter_gather(Reason.FOREIGN_RING, also=also)
            gather.heard |= set(also)
            self.context.note("meet", members=names(also))
            self._announce(gather, now)
        elif merge.ring != self.ring:
            backed_off = self.backed_off.has(sender, now)
            self.context.count("foreign_shunned" if backed_off else "foreign_no_gain")

    def _merge_in_gather(self, sender: Member, now: float) -> None:
        """A ring lives while I look for one: its members are candidates if they gain by it."""
        gather = self.gather
        assert gather is not None
        if sender in gather.proc:
            gather.heard.add(sender)
        elif sender in self.connectivity.gain(1, self.config.members_max, (), now):
            gather.heard.add(sender)
            if gather.add(sender):
                self._move(Reason.FOREIGN_RING)
                self._announce(gather, now)
        else:
            self.context.count("foreign_no_gain")

    def _better(self, now: float, asked: Member | None = None) -> tuple[Member, ...]:
        """The strangers for whom this ring should be given up; () if it should stay.

        `asked`: a stranger that is not shunned, whatever was before.
        """
        backed_off = [
            m
            for m in self.connectivity.ears(now)
            if m != asked and m not in self.members and self.backed_off.has(m, now)
        ]
        clique = self.connectivity.gain(len(self.members), self.config.members_max, backed_off, now)
        return tuple(m for m in clique if m not in self.members)

    def _learn(self, sender: Member, hears: tuple[Member, ...], size: int, now: float) -> None:
        """Take a member's row, and see to it that the shell can reach whom it knows."""
        if not self.connectivity.told(sender, hears, size, now):
            return
        known = self.connectivity.known(now)
        if known != self._known_told:
            self._known_told = known
            self.context.note("met", members=names(known))

    def _heard_anew(self, now: float) -> None:
        """I hear somebody for the first time, or again: that is worth telling at once."""
        if self.connectivity.ears(now) == self._ears_told:
            return
        if self.phase is Phase.GATHER and self.gather is not None:
            self._join_soon(self.gather, now)
        elif self.phase is Phase.OPERATIONAL:
            self._on_merge_timer(now)

    def _on_merge_timer(self, now: float) -> None:
        ring = self.current
        if ring is None or self.phase is not Phase.OPERATIONAL:
            return
        self._ears_told = self.connectivity.ears(now)
        self.context.broadcast(Merge(ring.id, ring.members, self._ears_told))
        self._arm_merge(now)

    def _merge_if_idle(self, ring: Ring, now: float) -> None:
        """While the token rests: tell now what is to be told before I am awake for it again."""
        if ring.idle >= self.config.idle_visits_before_hold:
            due = self.context.due.get(Timer.MERGE)
            if due is not None and due - now < self.config.hold_ms / 1000:
                self._on_merge_timer(now)

    # -- not started, or gone ----------------------------------------------------------------

    def _outside(self, message: object, now: float) -> None:
        """Not started, or gone.  Who still counts on me is told, as the farewell may be lost."""
        self.context.count(f"frame_in_{self.phase.value}")
        if (
            self.phase is Phase.LEFT
            and isinstance(message, Join)
            and self.me in message.proc
            and self.me not in message.failed
            and now >= self._farewell_at
        ):
            self._say_farewell(now)

    def _say_farewell(self, now: float) -> None:
        self._farewell_at = now + self.config.join_timeout_ms / 1000
        others = tuple(m for m in self.members if m != self.me)
        self.context.broadcast(Join(others, (self.me,), self.max_ring_seq, True))
