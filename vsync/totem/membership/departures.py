"""Records why members of a ring are not in the next one: by evidence, or only by silence.

Evidence is a host that refuses connections to a process that was there, a leave notice, a newer
incarnation, or a member that passes tokens and receives nothing. Everything else is silence, and
silence may be wrong: a member that comes back as the same incarnation was running all the time.

The members of a ring do not all see the same: one finds its link refused, and its join reaches the
others before their own links are refused. These then name the member that gave up the lost one and
leave the reason to it, rather than report a silence of some milliseconds that none has judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vsync.totem.context import Context
from vsync.totem.ordering.tempo import Tempo
from vsync.types import Member

KILLED = "its process ended, its host refuses connections"
LEFT = "it left"
STUCK = "it passed tokens and received nothing"
RESTARTED = "it was started again"
REMEMBERED_MAX = 64


class Departures:
    """One member's knowledge of departed members; it tells the tempo of false suspicions."""

    def __init__(self, context: Context, tempo: Tempo) -> None:
        self._context, self._tempo = context, tempo
        self._evidence: dict[Member, str] = {}
        self._told: dict[Member, Member] = {}  # given up by another member first
        self._refused: set[str] = set()  # addresses whose host refuses connections
        self._silent: dict[Member, None] = {}  # given up for silence

    def evidence(self, members: Iterable[Member], why: str) -> None:
        """These are gone, or will be."""
        for member in members:
            self._evidence.setdefault(member, why)

    def given_up(self, by: Member, members: Iterable[Member]) -> None:
        """Another member gave these up, before this one did."""
        for member in members:
            self._told.setdefault(member, by)

    def refused(self, address: str) -> None:
        """The host of `address` refuses connections: the reason, if its member was given up."""
        self._refused.add(address)

    def on_ring(
        self,
        old: tuple[Member, ...],
        new: tuple[Member, ...],
        came: Collection[Member],
        last_frame: dict[Member, float],
        now: float,
    ) -> None:
        """`new` was installed after `old`, with `came` from it; `last_frame`: each one's time."""
        back = [member for member in self._silent if member in new]
        if back or (old == new and len(came) == len(old)):  # given up for nothing
            self._context.count("suspected_falsely")
            self._context.note("falsely", members=",".join(m.name for m in back or old))
            self._tempo.false_suspicion(now)
        for member in back:
            del self._silent[member]
        for member in old:
            if member not in came:
                self._context.note(
                    "gone", member=member.name, why=self._why(member, new, last_frame, now)
                )
        while len(self._silent) > REMEMBERED_MAX:
            del self._silent[next(iter(self._silent))]
        for known in (self._evidence, self._told, self._refused):
            known.clear()

    def _why(
        self, member: Member, new: tuple[Member, ...], last_frame: dict[Member, float], now: float
    ) -> str:
        if any(m.name == member.name and m != member for m in (*new, *last_frame)):
            return RESTARTED
        if (why := self._evidence.get(member)) is not None:
            return why
        by = self._told.get(member)
        if by is not None and member.address in self._refused:
            return KILLED
        self._silent[member] = None
        if member in new:
            return "it was in another ring meanwhile"
        at = last_frame.get(member)
        if at is None:
            return "another member gave it up"
        silence = f"silent for {round(1000 * (now - at))} ms"
        return silence if by is None else f"{by.name} gave it up; {silence} here"
