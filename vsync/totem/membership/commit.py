"""The commit phase: two rotations of the commit token around the agreed ring."""

from __future__ import annotations

from vsync.totem.membership.gather_sets import GatherSets
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.types import Member, RingId
from vsync.wire.messages import CommitEntry, CommitToken, Join


class CommitPhase:
    """A ring under way, and the hop of its commit token that this member expects.

    Hop h of the token is received by member h modulo n; hops 1 to n collect the entries, n+1 to 2n
    distribute them, and the representative's receipt of hop 2n starts the ring. The object is kept
    through the recovery, during which the rest of the second rotation arrives.
    """

    def __init__(self, commit: CommitToken, me: Member, tokens: TokenPassing) -> None:
        self.ring: RingId = commit.ring
        self.members = commit.members
        self.index = commit.members.index(me)
        self.expect = self.index + len(self.members)
        self._tokens = tokens

    @property
    def successor(self) -> Member:
        return self.members[(self.index + 1) % len(self.members)]

    def pass_on(self, commit: CommitToken, now: float) -> None:
        """Send the commit token to the next member, and wait for its next hop here."""
        self._tokens.pass_on(self.successor, commit, now)
        self._tokens.expect(len(self.members), now)

    def full(self) -> None:
        """All entries are present: the second rotation follows."""
        self.expect += len(self.members)

    def broken_by(self, sender: Member, join: Join, sets: GatherSets, *, recovering: bool) -> bool:
        """Does this join show that a member of the ring under way has given it up?"""
        if sender not in self.members:
            return False
        if join.leaving or join.ring_seq >= self.ring.seq:
            return True
        # Its sets only grow, so larger sets are newer than the agreed ones: it will refuse the
        # commit token. After the commit phase this cannot happen.
        beyond = not (sets.proc >= set(join.proc) and sets.failed >= set(join.failed))
        return not recovering and beyond


def first_commit(ring: RingId, members: tuple[Member, ...]) -> CommitToken:
    return CommitToken(ring, members, 0, (None,) * len(members))


def filled(commit: CommitToken, index: int, entry: CommitEntry) -> CommitToken:
    """The commit token with one more entry, ready for its next hop."""
    entries = (*commit.entries[:index], entry, *commit.entries[index + 1 :])
    return commit._replace(entries=entries, hop=commit.hop + 1)
