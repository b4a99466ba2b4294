"""Reports in place of rotations: members tell the token's keeper which frames they hold.

The member that keeps the token of a settled ring, the *keeper*, sends a frame or two at once, and
the token stays with it. The other members *report*: to all, that they hold the frames; then to the
keeper, that they have delivered them and that a commit has ended. So all members know what is safe
after two hops instead of five, and the keeper writes the marks of the others on its token.

While a token is kept nobody has a visit. So all reports that count belong to the same hop of the
token, and between two visits of a member there is at most one such hop. Frames are sent early only
where the token shows that no frame is missing, though not all need be known to be safe: a report
says that its sender holds everything up to a frame. And only while their sender's mark has not
fallen, because a fall is seen with the token and must be seen first.

A late or lost report proves nothing: the keeper passes the token on, and what earlier reports
established stays true.
Decisions: docs/decisions/0098-reports-in-place-of-rotations.md, 0156 (`ReportWait`).
"""

from __future__ import annotations

from collections import deque

from vsync.wire.messages import Report

_new = tuple.__new__  # half the cost of calling the class

MEMBERS_MAX = 5
"""In a larger ring the token needs fewer frames than the reports of all to all."""
FRAMES_MAX = 2
"""More frames than this at once go with the token: a rotation then costs little for each."""
FAR_S = 0.001
"""Where reports of delivery, which take three hops, never come in less, frames may follow others
that are under way. Nearer, and on a busy machine, messages share the next frame."""
PACE_S = 0.0005
"""Frames follow others no sooner than this, as each takes processor time at every member."""


class Reports:
    """The early frames since the last visit, and the other members' reports on them."""

    def __init__(self, members: int, index: int) -> None:
        self.hop = -1  # of the token that is kept; its keeper is that one modulo the members
        self.upto = 0  # an early frame, and this member holds everything up to it
        self.told = 0, 0  # its last report: held, safe
        self._members, self._index = members, index
        self._start = -1  # early frames are behind this one; -1: none would count
        self._early: list[int] = []  # received early frames that are not behind `upto`
        self._latest: dict[int, Report] = {}

    @property
    def keeper(self) -> int:
        """The index of the member that keeps the token."""
        return self.hop % self._members

    @property
    def under_way(self) -> bool:
        """Whether there are early frames since the last visit."""
        return self.upto > self._start >= 0

    def begin(self, seq: int, hop: int = -1) -> None:
        """Frames behind `seq` may now be early; `hop`: this member is the keeper."""
        self.end()
        self._start = self.upto = seq
        self.told = seq, seq
        self.hop = hop

    def end(self) -> None:
        """The token was accepted, or passed on."""
        self._start = self.hop = -1
        if self._early or self._latest:
            self._early, self._latest = [], {}

    def reported(self, safe: int) -> None:
        """This member told the others what it holds, and what it knows to be safe."""
        self.told = self.upto, safe

    def sent(self, seq: int) -> None:
        """The keeper sent early frames up to here."""
        self.upto = seq

    def frame(self, seq: int, origin: int, hop: int) -> None:
        """An early frame came; `hop`: of the last token that was accepted here."""
        kept = hop + (origin - self._index) % self._members
        if seq > self._start >= 0 and kept > hop and self.hop in (-1, kept):
            self.hop = kept
            self._early.append(seq)

    def received(self, aru: int) -> None:
        """This member holds all frames up to here."""
        early = self._early
        if early:
            self.upto = max([self.upto, *(seq for seq in early if seq <= aru)])
            self._early = [seq for seq in early if seq > aru]

    def take(self, index: int, report: Report, hop: int) -> bool:
        """Keep a report; False: it belongs to another hop, so the token overtook it."""
        ahead = report.hop - hop
        if self._start < 0 or index == report.hop % self._members:
            return False
        if report.hop != self.hop and not (self.hop < 0 < ahead < self._members):
            return False
        self.hop = report.hop
        former = self._latest.get(index)
        self._latest[index] = report if former is None else _joined(former, report)
        return True

    def held_by_all(self) -> int:
        """The seq up to which all members hold everything, by their reports; the keeper holds what
        it sent, and what was there when it did."""
        latest, held = self._latest, self.upto
        if len(latest) + (self.keeper != self._index) + 1 < self._members:
            return 0  # some member has reported nothing yet
        for one in latest.values():
            if one.held < held:
                held = one.held
        return held

    def delivered_by_all(self, here: int) -> int:
        """The seq up to which all members have delivered; `here`: the keeper itself has."""
        if len(self._latest) < self._members - 1:
            return 0
        for one in self._latest.values():
            if one.safe < here:
                here = one.safe
        return here

    def marks(self, shown: tuple[int, ...], delivered: int) -> tuple[int, ...]:
        """`shown`, with each mark raised that covers nothing beyond what all have `delivered`."""
        for index, one in self._latest.items():
            if one.mark > shown[index] and one.covers <= delivered:
                shown = with_mark(shown, index, one.mark)
        return shown


def with_mark(marks: tuple[int, ...], index: int, mark: int) -> tuple[int, ...]:
    """These marks, with this member's replaced by another."""
    return (*marks[:index], mark, *marks[index + 1 :])


def _joined(former: Report, report: Report) -> Report:
    """The combined content of two reports by one member, which may come in any order."""
    ring, hop, held, safe, mark, covers = report
    _, _, held_before, safe_before, mark_before, covers_before = former
    if held_before > held:
        held = held_before
    if safe_before > safe:
        safe = safe_before
    if mark_before >= mark:
        mark, covers = mark_before, covers_before
    return _new(Report, (ring, hop, held, safe, mark, covers))


class ReportWait:
    """How long the keeper waits for reports of delivery before it passes the token on.

    As TCP waits for acknowledgements (RFC 6298): for the smoothed time that they took, and four
    times its deviation. One that comes when the token has gone on tells how long it took, too; one
    that is lost tells nothing.
    """

    def __init__(self, least_ms: int, keep_ms: int) -> None:
        """`keep_ms`: how long the token is kept; a wait takes half of that at most."""
        self._least_s, self._most_s = least_ms / 1000, max(least_ms, keep_ms // 2) / 1000
        self.seconds = self._least_s
        self.shortest_s = 0.0  # of recent ones: how far the members are, whatever the load
        self._smoothed_s = self._deviation_s = 0.0
        self._sent = -1, 0, 0.0  # the hop of the kept token, the last early frame, and when it went

    def begin(self, hop: int, seq: int, now: float) -> None:
        """Early frames up to `seq` went out; the time of earlier ones is measured first, if any."""
        if self._sent[0] != hop:
            self._sent = hop, seq, now

    def late(self, report: Report, now: float) -> None:
        """A report came that did not count."""
        hop, seq, _ = self._sent
        if report.hop == hop and report.held >= seq:
            self._took(now - self._sent[2])

    def answered(self, delivered: int, now: float) -> None:
        """All have reported that they delivered the frames up to here."""
        _, seq, sent = self._sent
        if 0 < seq <= delivered:
            self._took(now - sent)
            self._sent = -1, 0, 0.0

    def _took(self, took: float) -> None:
        if self._smoothed_s:
            self._deviation_s += (abs(took - self._smoothed_s) - self._deviation_s) / 4
            self._smoothed_s += (took - self._smoothed_s) / 8
            self.shortest_s = min(took, self.shortest_s * 65 / 64)
        else:
            self._smoothed_s, self._deviation_s = took, took / 2
            self.shortest_s = took
        wait_s = self._smoothed_s + 4 * self._deviation_s
        self.seconds = min(max(wait_s, self._least_s), self._most_s)


class OwnMark:
    """This member's mark as others may see it: only once all have delivered what it covers."""

    def __init__(self, mark: int, before: int) -> None:
        """`before`: as the token has it."""
        self._unseen = 2 * (mark < before)  # the mark fell; visits left until all have seen that
        self._due = mark  # what may be shown
        self._later: deque[tuple[int, int]] = deque()  # (covers, mark): what may be shown then

    def set(self, mark: int, covers: int) -> None:
        """Set the mark, which covers nothing behind `covers`."""
        if mark < self.latest()[0]:
            # Another disk. All members may have yet to deliver what the mark covers: show nothing
            # until then.
            self._unseen, self._due = 2, 0
            self._later.clear()
        if self._later and self._later[-1][0] == covers:
            self._later.pop()
        self._later.append((covers, mark))

    @property
    def fell(self) -> bool:
        """Whether the mark fell, and the token has not yet shown that to all."""
        return self._unseen > 0

    def visited(self) -> None:
        """The token shows it from here on; a rotation later all have seen it."""
        self._unseen = max(0, self._unseen - 1)

    def latest(self) -> tuple[int, int]:
        """The mark last set and what it covers, in the form of a report."""
        covers, mark = self._later[-1] if self._later else (0, self._due)
        return mark, covers

    def shown(self, delivered: int, before: int) -> int:
        """The mark that the token shows now, in place of `before`; `delivered`: by all members."""
        later = self._later
        while later and later[0][0] <= delivered:
            self._due = later.popleft()[1]
        if before > self._due and not self.fell:
            self._due = before  # by a report
        return self._due
