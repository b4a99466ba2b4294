"""Scripted views: the ring of primary and broker stories, without frames or time.

It orders what members multicast, and delivers it when a story says so. A member that has not
delivered a message when its view ends gets it in the transitional configuration, as the ring
guarantees: what one member delivered was received by all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from tests.scenarios.engine import Stage
from vsync.primary.events import (
    ACTIVATE,
    APP,
    BEHIND,
    CAUGHT_UP,
    HELD,
    PROMISED,
    REPROPOSED,
    STATE,
)
from vsync.totem.events import Deliver, Marks, Output, Transitional, View
from vsync.types import Guarantee, Member, RingId

KINDS = {
    "report": STATE, "promise": PROMISED, "behind": BEHIND, "activation": ACTIVATE,
    "caught_up": CAUGHT_UP, "reproposed": REPROPOSED, "held": HELD, "command": APP,
}  # fmt: skip
STEPS_MAX = 1000
"""So many messages in one view mean that it never comes to rest."""


class ScriptedRing:
    """One regular configuration: its order, and how far each member has delivered it."""

    def __init__(self, ident: RingId, members: tuple[Member, ...]) -> None:
        self.id, self.members = ident, members
        self.log: list[tuple[Member, bytes]] = []
        self.delivered = {member.name: 0 for member in members}


class ViewStage(Stage, ABC):
    """What both kinds of story do with views; a subclass provides the members."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: dict[str, ScriptedRing] = {}
        self.held: set[tuple[str, str]] = set()
        self._seq = 0

    # -- what a subclass provides ---------------------------------------------------------------

    @abstractmethod
    def member(self, name: str) -> Member:
        """Return the present incarnation of `name`."""

    @abstractmethod
    def give(self, name: str, output: Output) -> None:
        """Give one output of the ring to a member."""

    @abstractmethod
    def outgoing(self, name: str) -> list[bytes]:
        """Return what a member multicasts."""

    @abstractmethod
    def settle(self, name: str) -> None:
        """Let a member's disk and transfer finish unless they are held."""

    @abstractmethod
    def mark(self, name: str) -> int:
        """Return what a member's disk holds."""

    # -- views -------------------------------------------------------------------------------

    def do_view(self, *names: str) -> None:
        """NAME...: these members leave their views and install one together.

        Nothing of the new view is delivered yet.  Those who come from the same view get what they
        had not delivered there in the transitional configuration.
        """
        self._seq += 1
        members = tuple(self.member(name) for name in names)
        for group in self._companions(names):
            old = self.rings.get(group[0])
            if old is None:
                continue
            for name in group:
                self.give(name, Transitional(old.id, tuple(self.member(n) for n in group)))
                while old.delivered[name] < len(old.log):
                    self._deliver(old, name, transitional=True)
        ring = ScriptedRing(RingId(self._seq, names[0], members[0].incarnation), members)
        for name in names:
            self.rings[name] = ring
            self.give(name, View(ring.id, members, (), ()))

    def do_deliver(self, kind: str, *to: str) -> None:
        """KIND [to NAME...|nobody]: deliver in the latest view up to the next message of a kind.

        That message reaches only these members.  Kinds: report, promise, behind, activation,
        caught_up, reproposed, held, command.
        """
        ring = next(r for r in self.rings.values() if r.id.seq == self._seq)
        names = list(to[1:] or ring.delivered)
        for _ in self._steps(ring):
            at = min(ring.delivered.values())
            if at == len(ring.log):
                continue
            last = ring.log[at][1].startswith(KINDS[kind])
            for name in ring.delivered:
                if ring.delivered[name] == at and (name in names or not last):
                    self._deliver(ring, name)
            if last:
                return

    def do_run(self) -> None:
        """Deliver everything in all views, with disks, marks and transfers, until all rest."""
        for ring in dict.fromkeys(self.rings.values()):
            for _ in self._steps(ring):
                at = min(ring.delivered.values())
                for name in ring.delivered if at < len(ring.log) else ():
                    if ring.delivered[name] == at:
                        self._deliver(ring, name)

    def do_marks(self) -> None:
        """The token goes round once: all see what the disks of the others hold."""
        for ring in dict.fromkeys(self.rings.values()):
            self._show_marks(ring)

    def do_lose(self, name: str) -> None:
        """NAME: what it has multicast in its view and nobody delivered is lost."""
        ring = self.rings[name]
        at = max(ring.delivered.values())
        ring.log[at:] = [entry for entry in ring.log[at:] if entry[0].name != name]

    def do_hold(self, what: str, *names: str) -> None:
        """disk|transfer|queue|... NAME...: these do nothing until `free`.

        disk: nothing is written.  transfer: no state arrives.  queue: what the member multicasts
        waits, perhaps for a later view.  lease: it is over, so the member may not reply.  silence:
        others may still reply in an older view, so that no promise is given.
        """
        self.held |= {(what, name) for name in names}

    def do_free(self, what: str, *names: str) -> None:
        """WHAT NAME...: end what `hold` began."""
        self.held -= {(what, name) for name in names}
        for name in names:
            self.settle(name)
            self.order(name)

    def _companions(self, names: tuple[str, ...]) -> list[list[str]]:
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(id(self.rings.get(name, name)), []).append(name)
        return list(groups.values())

    def _steps(self, ring: ScriptedRing) -> Iterator[None]:
        """Collect multicasts until no more come, even after the marks went round."""
        for _ in range(STEPS_MAX):
            if self._collect(ring) or min(ring.delivered.values()) < len(ring.log):
                yield
                continue
            self._show_marks(ring)
            if not self._collect(ring):
                return
        raise AssertionError("the view never comes to rest")

    def _collect(self, ring: ScriptedRing) -> bool:
        """Order what the members of a view multicast."""
        before = len(ring.log)
        for member in ring.members:
            if self.rings.get(member.name) is ring:
                self.order(member.name)
        return len(ring.log) > before

    def order(self, name: str) -> None:
        """Order what a member multicasts in the present view, unless its queue is held."""
        ring = self.rings.get(name)
        if ring is not None and ("queue", name) not in self.held:
            ring.log += [(self.member(name), payload) for payload in self.outgoing(name)]

    def _show_marks(self, ring: ScriptedRing) -> None:
        here = [name for name in ring.delivered if self.rings.get(name) is ring]
        for name in here:
            self.settle(name)
        marks = {name: self.mark(name) for name in here}
        for name in here:
            self.give(name, Marks(marks))
            self.settle(name)

    def _deliver(self, ring: ScriptedRing, name: str, *, transitional: bool = False) -> None:
        if self.rings.get(name) is not ring:
            ring.delivered[name] = len(ring.log)
            return
        sender, payload = ring.log[ring.delivered[name]]
        ring.delivered[name] += 1
        self.give(
            name,
            Deliver(ring.id, ring.delivered[name], sender, [payload], Guarantee.SAFE, transitional),
        )
        if not transitional:
            self.settle(name)
