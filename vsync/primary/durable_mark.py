"""The durable position of the current primary view, computed from its members' marks."""

from __future__ import annotations

from vsync.quorum.voter_set import Terms, parse


class PrimaryMark:
    """Position up to which confirms may be sent; it rises while the voters stay the same."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.caught_up: frozenset[str] = frozenset()
        self.voters: Terms = ()
        self.without_data: frozenset[str] = frozenset()
        self._holders: frozenset[str] = frozenset()
        self._epoch = 0
        self._base: int | None = None
        self._reported = 0

    def view_begins(self) -> None:
        """Forget the old view: no member has caught up, and no mark is known."""
        self.marks, self.caught_up, self.voters = {}, frozenset(), ()
        self.without_data = self._holders = frozenset()
        self._base, self._reported = None, 0

    def activated(
        self, epoch: int, voters: Terms, caught_up: frozenset[str], without_data: frozenset[str]
    ) -> None:
        """The view is primary; `without_data`: its arbitrators, voting or not."""
        self._epoch, self.voters, self.caught_up = epoch, voters, caught_up
        self.without_data = without_data

    def add_holders(self, names: frozenset[str]) -> frozenset[str]:
        """Add to the members that have on disk everything this epoch confirms; return them all."""
        self._holders |= names - self.without_data
        return self._holders

    def activation_applied(self, position: int) -> None:
        """The state contains the activation, at `position` or before.

        Before the activation itself is durable, an older epoch's suffix could still win a later
        election: nothing below it may be confirmed in this epoch (Raft 5.4.2).
        """
        self._base = position

    def voters_changed(self, voters: Terms) -> bool:
        """Whether the voters from the last applied position on differ from those before.

        If so, the position reported before is void.
        """
        if voters == self.voters:
            return False
        self.voters, self._reported = voters, 0
        return True

    def advance(self) -> int | None:
        """Return the durable position if it is beyond the one last reported."""
        if self._base is None:
            return None
        mark = parse(self.voters).durable(self.marks, self.caught_up, self._epoch)
        if mark < self._base or mark <= self._reported:
            return None
        self._reported = mark
        return mark

    @property
    def reported(self) -> int:
        """The durable position last reported, by the voters in force."""
        return self._reported

    def everywhere(self) -> int:
        """Return the position that every caught up member has made durable."""
        return min((self.marks.get(n, 0) for n in self.caught_up - self.without_data), default=0)
