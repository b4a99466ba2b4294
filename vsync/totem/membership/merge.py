"""Merge detection: decides for which foreign members a working ring is given up.

A ring is given up only for a larger view: a clique of linked members, each of which gains by it
(`connectivity`). So if some links are broken, the members settle in stable views until the links
are restored. Reception reports do not show whether a link carries data; so after a failed attempt a
foreign member is ignored for a growing time.
"""

from __future__ import annotations

from collections.abc import Iterable

from vsync.totem.context import Context, Timer, names
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.gather import EnterGather
from vsync.totem.membership.ring_ids import RingIds
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Reason
from vsync.types import Member
from vsync.wire.messages import Join, Merge


class BackedOff:
    """Foreign members that could not be merged, each ignored for a growing time.

    When only some members of a ring receive a foreign member's frames, each attempt to merge breaks
    the ring and ends where it began. The wait doubles from one merge interval up to a limit, so
    such a network costs a bounded share of time. The wait of a member that stays in a ring is reset
    after a while.
    """

    def __init__(self, first: float, limit: float) -> None:
        self._first = first
        self._limit = limit
        self._until: dict[Member, tuple[float, float]] = {}  # when it ends, how long it was

    def add(self, member: Member, now: float) -> None:
        _, last = self._until.get(member, (0.0, 0.0))
        wait = min(self._limit, max(self._first, 2 * last))
        self._until[member] = (now + wait, wait)
        if len(self._until) > 256:
            del self._until[next(iter(self._until))]

    def reset(self, members: Iterable[Member], now: float) -> None:
        """These are in the installed ring: drop waits that ended long ago."""
        for member in members:
            until, _ = self._until.get(member, (now, 0.0))
            if now > until + 2 * self._limit:
                del self._until[member]

    def has(self, member: Member, now: float) -> bool:
        until, _ = self._until.get(member, (0.0, 0.0))
        return now < until

    def has_since(self, member: Member, now: float, least: float) -> bool:
        """Did its wait begin less than `least` seconds ago?"""
        until, wait = self._until.get(member, (0.0, 0.0))
        return now < until - wait + min(wait, least)


class MergeDetector:
    """Announces the installed ring to others, and judges their joins and merges."""

    def __init__(
        self,
        context: Context,
        connectivity: Connectivity,
        ring_ids: RingIds,
        enter_gather: EnterGather,
    ) -> None:
        self._context = context
        self._config = config = context.config
        self._connectivity = connectivity
        self._ring_ids = ring_ids
        self._enter_gather = enter_gather
        self.backed_off = BackedOff(
            config.merge_interval_ms / 1000, config.merge_backoff_max_ms / 1000
        )

    # -- while a ring is installed -----------------------------------------------------------

    def announce(self, ring: Ring, now: float) -> None:
        """Announce the ring to all, and again after an interval."""
        reception = self._connectivity.announce(now)
        self._context.broadcast(Merge(ring.id, ring.members, reception))
        self.arm(now)

    def arm(self, now: float) -> None:
        spread = self._context.rng.uniform(0.75, 1.25)
        self._context.arm(Timer.MERGE, now + spread * self._config.merge_interval_ms / 1000)

    def announce_before_rest(self, ring: Ring, now: float) -> None:
        """While the token is held, make now the announcement due before its next visit."""
        if ring.idle >= self._config.idle_visits_before_hold:
            due = self._context.due.get(Timer.MERGE)
            if due is not None and due - now < self._config.hold_ms / 1000:
                self.announce(ring, now)

    def on_join(self, ring: Ring, sender: Member, join: Join, now: float) -> None:
        """A member of the ring gives it up, or a foreign one asks to be let in."""
        me = self._context.me
        former = tuple(
            m for m in ring.members if m.name == sender.name and m.incarnation < sender.incarnation
        )
        if join.leaving:
            if sender in ring.members:
                self._enter_gather(Reason.JOIN, failed=(sender,)).announce(now)
            else:
                self._context.count("leave_stranger")
        elif me in join.failed:
            self._context.count("join_rejects_me")  # pitfall 19: it will form its own ring
        elif sender in ring.members:
            # Even if its sets are known already: the sender waits (pitfall 20).
            gather = self._enter_gather(Reason.JOIN)
            gather.sets.absorb(sender, join)
            gather.announce(now)
        elif former:
            # An incarnation in the ring is over, whatever happens to the new one.
            gather = self._enter_gather(Reason.JOIN, failed=former)
            if me in join.reception:
                gather.sets.absorb(sender, join)
            else:
                self._context.count("join_deaf")  # as in gather: no candidate yet
            gather.announce(now)  # once: with these sets all may agree, and the ring is formed
        elif self._ignores(sender, join, now):
            self._context.count("join_shunned")
        elif sender in (also := self._better(ring, now, sender)):
            gather = self._enter_gather(Reason.JOIN, also=also)
            gather.sets.add_received(also)
            gather.sets.absorb(sender, join)
            gather.announce(now)
        else:
            self._context.count("join_no_gain")
            if me not in join.reception:
                # Its broadcasts arrive here, but perhaps none there yet: send it an announcement.
                self._context.send(
                    sender, Merge(ring.id, ring.members, self._connectivity.reception(now))
                )

    def on_merge(self, ring: Ring, sender: Member, merge: Merge, now: float) -> None:
        """A member of this ring, or of another one, announced it."""
        foreign = merge.ring != ring.id
        if foreign and (
            merge.ring in self._ring_ids.past
            or (sender in ring.members and merge.ring.seq <= ring.id.seq)
        ):
            self._context.count("foreign_past")
        elif also := self._better(ring, now):
            gather = self._enter_gather(Reason.FOREIGN_RING, also=also)
            gather.sets.add_received(also)
            self._context.note("meet", members=names(also))
            gather.announce(now)
        elif foreign:
            backed_off = self.backed_off.has(sender, now)
            self._context.count("foreign_shunned" if backed_off else "foreign_no_gain")

    def _ignores(self, sender: Member, join: Join, now: float) -> bool:
        """Is this foreign member's join ignored for now?

        A member whose join names this one receives its frames, and two members that ignore each
        other in turn would never merge. It must still wait a little: its joins under way would
        break each ring as soon as it is installed, and a broken ring makes new joins.
        """
        if self._context.me in join.proc:
            least = 4 * self._config.join_timeout_ms / 1000
            return self.backed_off.has_since(sender, now, least)
        return self.backed_off.has(sender, now)

    def _better(self, ring: Ring, now: float, asked: Member | None = None) -> tuple[Member, ...]:
        """The foreign members for whom this ring should be given up; () if it should stay.

        `asked`: a member that is not ignored, whatever its wait.
        """
        backed_off = [
            m
            for m in self._connectivity.reception(now)
            if m != asked and m not in ring.members and self.backed_off.has(m, now)
        ]
        clique = self._connectivity.gain(
            len(ring.members), self._config.members_max, backed_off, now
        )
        return tuple(m for m in clique if m not in ring.members)

    # -- at all times ------------------------------------------------------------------------

    def learn(self, sender: Member, reception: tuple[Member, ...], size: int, now: float) -> None:
        """Take a reception report, and note the members that the shell must be able to reach."""
        if self._connectivity.on_report(sender, reception, size, now):
            known = self._connectivity.newly_known(now)
            if known is not None:
                self._context.note("met", members=names(known))

    def installed(self, ring: Ring, received_from: set[Member], now: float) -> None:
        """`ring` was installed: back off from members that were heard but are not in it."""
        for member in sorted(received_from - set(ring.members)):
            self.backed_off.add(member, now)
        self.backed_off.reset(ring.members, now)
