"""What is durable for good in the present primary view, as its members' marks tell."""

from __future__ import annotations

from vsync.quorum.voter_set import Terms, parse


class PrimaryMark:
    """The position up to which confirms may be spoken: rising while the voters stay the same."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.level: frozenset[str] = frozenset()
        self.voters: Terms = ()
        self.without_data: frozenset[str] = frozenset()
        self._holders: frozenset[str] = frozenset()
        self._epoch = 0
        self._base: int | None = None
        self._told = 0

    def view_begins(self) -> None:
        """Nobody is level, and no mark is known."""
        self.marks, self.level, self.voters = {}, frozenset(), ()
        self.without_data = self._holders = frozenset()
        self._base, self._told = None, 0

    def activated(
        self, epoch: int, voters: Terms, level: frozenset[str], without_data: frozenset[str]
    ) -> None:
        """The view is primary; `without_data`: its arbitrators, voting or not."""
        self._epoch, self.voters, self.level = epoch, voters, level
        self.without_data = without_data
        self._told = 0

    def hold(self, names: frozenset[str]) -> frozenset[str]:
        """Add to those who hold all that this epoch confirms; return them."""
        self._holders |= names - self.without_data
        return self._holders

    def applied(self, position: int) -> None:
        """The activation is in the state, at `position` or before.

        Before it is itself durable, an older epoch's suffix could still win a later election:
        nothing below it may be confirmed in this epoch (Raft 5.4.2).
        """
        self._base = position

    def changed(self, voters: Terms) -> bool:
        """Whether others vote from the position on that was applied last.

        What was told is void then.
        """
        if voters == self.voters:
            return False
        self.voters, self._told = voters, 0
        return True

    def news(self) -> int | None:
        """Return a durable position that was not yet told."""
        if self._base is None or not self.voters:
            return None
        mark = parse(self.voters).durable(self.marks, self.level, self._epoch)
        if mark < self._base or mark <= self._told:
            return None
        self._told = mark
        return mark

    @property
    def reached(self) -> int:
        """The durable position that was told last, by the voters in force."""
        return self._told

    def everywhere(self) -> int:
        """Return the position that every level member has made durable."""
        return min((self.marks.get(n, 0) for n in self.level - self.without_data), default=0)
