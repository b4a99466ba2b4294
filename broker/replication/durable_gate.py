"""Holds back acknowledgements of a change until the position of the change is released.

A position is released when it is durable at a majority of the voters, by the primary layer's mark.
With `Backups` it must also be durable at all members, except those that lag for too long. All code
that writes to clients asks the gate, so that no acknowledged change can be undone by the loss of
one member (docs/GUARANTEES.md, G9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from broker.machine.effects import Confirm, Effect, Reply

T = TypeVar("T")


class DurableGate(Generic[T]):
    """The released position, and what waits for later positions, in their order."""

    def __init__(self) -> None:
        self.released = 0
        self._waiting: deque[tuple[int, T]] = deque()

    def is_open(self, position: int) -> bool:
        """Whether an acknowledgement of `position` may be written; 0: it acknowledges nothing."""
        return position <= self.released

    def hold(self, position: int, what: T) -> None:
        """Keep `what` until `position` is released.  Positions never go down."""
        self._waiting.append((position, what))

    def release(self, position: int) -> bool:
        """Open the gate up to `position`; False if it was already open that far."""
        if position <= self.released:
            return False
        self.released = position
        return True

    def take(self) -> Iterator[tuple[int, T]]:
        """Yield, once, everything that waited for the released positions."""
        waiting, released = self._waiting, self.released
        while waiting and waiting[0][0] <= released:
            yield waiting.popleft()

    def clear(self) -> None:
        """Forget what waits; what was released stays released."""
        self._waiting.clear()

    def begin_anew(self) -> None:
        """Forget the released position as well: from here on positions are of another history."""
        self.clear()
        self.released = 0


class Backups:
    """The disks that a release waits for beyond the quorum: that of each member that has the state,
    for at most `--ha-backup-timeout`.

    A member that lags for longer is not waited for until it is less than that time behind. A member
    that has just become active also waits, for the same time, for those that were ready before and
    are not in its view (`expect`). Only the releasing member uses this: releasing later, for any
    reason, harms nothing.
    """

    STEPS = 16
    """Positions within a sixteenth of the time share one start time, so that few are kept; this
    makes a position wait for less, never for more."""

    def __init__(
        self, timeout_s: float, clock: Callable[[], float], note: Callable[[str], None]
    ) -> None:
        self.timeout_s = timeout_s
        self._clock, self._note = clock, note
        self._since: deque[tuple[int, float]] = deque()
        """Positions that a quorum has, but not all members, rising, and since when."""
        self._late: dict[str, tuple[int, float]] = {}
        """Members not waited for: the position to reach to be waited for again, and since when."""
        self._expected: frozenset[str] = frozenset()
        self._expected_since = 0.0

    @property
    def waits(self) -> bool:
        """Whether anything is held for a member that may yet prove late, or come back."""
        return bool(self._since or self._expected)

    @property
    def expected(self) -> frozenset[str]:
        """Members that were ready before this member became active, and have not come back yet."""
        return self._expected

    def expect(self, names: Collection[str]) -> None:
        """This member becomes active, and these were ready before: release nothing until they are
        ready again, or the time is over. No names: it is no longer active."""
        self._expected, self._expected_since = frozenset(names), self._clock()

    @property
    def late(self) -> frozenset[str]:
        """The members that are not waited for."""
        return frozenset(self._late)

    def reached(self, quorum: int, marks: Mapping[str, int]) -> int:
        """Return the position to release: `quorum` has it, and each of `marks` that is not late."""
        if not quorum:
            self._since.clear()  # no primary view: lag is measured from the next one's beginning
            return 0
        now = self._clock()
        self._look_at_late(quorum, marks, now)
        position = self._of_all(quorum, marks)
        if position < quorum:
            self._remember(quorum, now)
        since = self._since
        if since and now - since[0][1] >= self.timeout_s:
            for name, mark in sorted(marks.items()):  # they may come from a set
                if mark < since[0][0] and name not in self._late:
                    self._late[name] = quorum, now
                    self._note(
                        f"confirms no longer wait for the disk of {name}, which has been behind "
                        f"for {self.timeout_s:g} s (--ha-backup-timeout)"
                    )
            position = self._of_all(quorum, marks)
        return 0 if self._expects(marks, now) else position

    def _expects(self, marks: Mapping[str, int], now: float) -> bool:
        """Whether an expected member has yet to come back."""
        self._expected -= marks.keys()
        if self._expected and now - self._expected_since >= self.timeout_s:
            self._note(
                f"confirms do not wait any more for {', '.join(sorted(self._expected))} to come "
                f"back, as they did for {self.timeout_s:g} s (--ha-backup-timeout)"
            )
            self._expected = frozenset()
        return bool(self._expected)

    def _of_all(self, quorum: int, marks: Mapping[str, int]) -> int:
        """Return the position that all members but the late ones have; waits up to it are over."""
        position = min([quorum, *(mark for name, mark in marks.items() if name not in self._late)])
        while self._since and self._since[0][0] <= position:
            self._since.popleft()
        return position

    def _remember(self, quorum: int, now: float) -> None:
        since = self._since
        if not since or now - since[-1][1] >= self.timeout_s / self.STEPS:
            since.append((quorum, now))
        else:
            since[-1] = quorum, since[-1][1]

    def _look_at_late(self, quorum: int, marks: Mapping[str, int], now: float) -> None:
        for name, (goal, since) in list(self._late.items()):
            if name not in marks:
                del self._late[name]
            elif marks[name] >= goal and now - since < self.timeout_s:
                del self._late[name]
                self._note(f"confirms wait for the disk of {name} again")
            elif marks[name] >= goal:
                self._late[name] = quorum, now


def acknowledges_durable(effect: Effect) -> bool:
    """Whether an effect confirms a change to its client, and so must wait for the gate.

    Confirms of transient messages wait as well: a message applied only here could be lost with this
    member, and a confirm must survive the loss of one member.
    """
    return isinstance(effect, Confirm) or (isinstance(effect, Reply) and effect.durable)
