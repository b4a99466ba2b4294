"""Rates of the machine's counts: a sweep over all tallies, about once a second, in slices.

A sweep reads each tally once. A tally that changed since the previous sweep gets a track, which
lives while there is something to report: an object at rest costs a comparison, and no memory beyond
its last sample. With very many objects a sweep takes longer than its period, but never more of the
loop: its rates are then those of a longer window.

Pure: times and pauses are handed in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from broker.machine.machine import Machine
from broker.machine.state import Queue
from broker.machine.tally import COUNTS, Tally, Totals
from broker.statistics.noted_queues import NotedQueues
from broker.statistics.samples import Row

CHURN = tuple(field.name for field in fields(Totals) if field.name != "messages")
_counts_of: Callable[[Tally], tuple[int, ...]] = attrgetter(*COUNTS)
_churn_of: Callable[[Totals], tuple[int, ...]] = attrgetter(*CHURN)
READY, UNACKED = len(COUNTS), len(COUNTS) + 1
"""Where a queue's depth is in its sample, behind the counts."""
MOVED = tuple(
    COUNTS.index(name) for name in ("ack", "deliver", "deliver_no_ack", "get", "get_no_ack")
)

PERIOD_S = 1.0
MINUTE_S = 60.0
STEP_S = 10.0
"""The interval between samples that nobody asked for; rates over a minute are measured from a
sample older or younger by at most this."""
WATCHED_MAX, WATCHED_S = 200, 120.0
"""Each sweep samples this many tallies, those requested last, for this long after the request."""
SUMMED_MAX = 50
"""An object with more tallies, such as a connection with so many channels, has no samples."""
LOOK_EVERY = 32
"""Objects between two looks at the clock."""

Sample: TypeAlias = tuple[int, ...]
Share: TypeAlias = tuple[int, int]
"""Place of this member among the members that report queues; 0 members: nobody reports any."""


class Depths(NamedTuple):
    """Sums over queues."""

    ready: int = 0
    unacked: int = 0
    queues: int = 0
    consumers: int = 0


class Track:
    """Recent changes of one tally."""

    __slots__ = ("changed_at", "older", "rates")

    def __init__(self, at: float, before: Sample) -> None:
        self.changed_at = at
        self.rates: tuple[float, ...] = ()
        self.older: deque[tuple[float, Sample]] = deque([(at, before)])

    def take(self, began: float, at: float, before: Sample, now: Sample, *, keep: bool) -> None:
        """Take the sample of the sweep that began at `at`; the previous one began at `began`."""
        interval = max(at - began, 1e-6)
        self.rates = tuple([(b - a) / interval for a, b in zip(before, now, strict=True)])
        if before != now:
            self.changed_at = at
        older = self.older
        if keep:
            older.append((at, now))
        while len(older) > 1 and at - older[1][0] >= MINUTE_S:
            older.popleft()

    def grew(self, now: Sample) -> int:
        """Return by how many the ready messages grew in the last minute."""
        return now[READY] - self.older[0][1][READY]

    def minute(self, at: float, now: Sample) -> tuple[float, ...]:
        """Return the rates over the last minute, or since the track began."""
        began, before = self.older[0]
        interval = max(at - began, PERIOD_S)
        return tuple([(b - a) / interval for a, b in zip(before, now, strict=True)])

    def samples(self, times: Sequence[float], now: Sample) -> list[Sample]:
        """Return the samples of these times: of sweeps that were kept, and of the latest one."""
        kept, samples = zip(*self.older, strict=True)
        return [
            now if at > kept[-1] else samples[max(bisect_right(kept, at) - 1, 0)] for at in times
        ]


class Rates(NamedTuple):
    """Per second, for each item of a sample."""

    last: tuple[float, ...]
    """Between the last two sweeps."""
    minute: tuple[float, ...]


class Sampler:
    """Sweeps one machine, and its successor when a received state replaces it."""

    def __init__(self) -> None:
        self.sweeps = 0
        self.depths = Depths()
        self.by_vhost: dict[str, Depths] = {}
        self.share = Depths()
        """The queues that this member reports to a collector which sums over members."""
        self.noted = NotedQueues()
        """Of the last complete sweep."""
        self.depth_rates = (0.0, 0.0)
        """Of ready and unacked messages, per second."""
        self.at = 0.0
        """When the last complete sweep began."""
        self.depths_of: dict[str, Tally] = {}
        """By virtual host: a tally whose sample is its ready and its unacked messages."""
        self._tracks: dict[Tally, Track] = {}
        self._coming = self._tracks  # of the current sweep
        self._ticks: deque[tuple[float, bool]] = deque()  # of the last minute; kept for all?
        self._keep, self._kept_at = False, -STEP_S  # whether this sweep is kept for all
        self._watched: dict[Tally, tuple[float, float]] = {}  # since when, and asked for last
        self._machine: Machine | None = None
        self._since = 0.0  # of this machine
        self._queues: list[Queue] = []  # all, in order of creation; kept from sweep to sweep
        self._listed = 0  # up to this number of a queue
        self._began = 0.0  # the previous sweep
        self._sweep: Iterator[None] | None = None
        self._started = -PERIOD_S

    def step(self, now: float, machine: Machine, share: Share, more: Callable[[], bool]) -> bool:
        """Continue while there is `more` time; return whether a sweep was completed."""
        if machine is not self._machine:
            self._machine, self._sweep, self._tracks, self.sweeps = machine, None, {}, 0
            self._queues, self._listed, self.depths_of = [], 0, {}
            self._ticks.clear()
            self._watched.clear()
            self._since = now
        if self._sweep is None:
            if now - self._started < PERIOD_S:
                return False
            self._began, self._started = self._started, now
            self._sweep = self._all(machine, share, now)
        for _ in self._sweep:
            if not more():
                return False
        self._sweep = None
        self.sweeps += 1
        return True

    def rates(self, tally: Tally) -> Rates | None:
        """Return its rates; None if nothing changed for a minute."""
        track = self._tracks.get(tally)
        if track is None or not track.rates:
            return None
        return Rates(track.rates, track.minute(self.at, tally.sampled))

    def rows(self, tallies: Sequence[Tally]) -> list[Row]:
        """Return the joint samples of these for the last minute, newest first; from now on, for a
        while, each sweep's."""
        if not 0 < len(tallies) <= SUMMED_MAX or not self._ticks:
            return []
        since = max([self._watch(tally) for tally in tallies])
        times = [at for at, kept in reversed(self._ticks) if kept or at > since or at == self.at]
        columns: list[list[Sample]] = []
        for tally in tallies:
            track, now = self._tracks.get(tally) or self._coming.get(tally), tally.sampled
            if now:  # otherwise it is newer than the latest sweep
                columns.append([now] * len(times) if track is None else track.samples(times, now))
        more = len(columns) > 1
        return [
            Row(at, [sum(values) for values in zip(*samples, strict=True)] if more else samples[0])
            for at, *samples in zip(times, *columns, strict=True)
            if samples
        ]

    def _watch(self, tally: Tally) -> float:
        """Sample this one at each sweep from now on; return since when."""
        since, _ = self._watched.pop(tally, (self._started, 0.0))
        self._watched[tally] = since, self._started
        if len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        return since

    def _begin(self, at: float) -> None:
        """Forget tallies not requested lately, and decide whether this sweep is kept for all."""
        for tally, (_, asked) in list(self._watched.items()):
            if at - asked <= WATCHED_S:
                break
            del self._watched[tally]
        self._keep = at - self._kept_at >= STEP_S
        if self._keep:
            self._kept_at = at

    def _end(self, at: float) -> None:
        """The sweep is complete."""
        self._ticks.append((at, self._keep))
        while at - self._ticks[0][0] > MINUTE_S:
            self._ticks.popleft()
        self.at = at

    def _all(self, machine: Machine, share: Share, at: float) -> Iterator[None]:
        """Take each tally, with a place to pause after some of them."""
        self._begin(at)
        tracks: dict[Tally, Track] = {}
        self._coming = tracks
        for totals in list(machine.totals.values()):
            counts = _counts_of(totals.messages) + _churn_of(totals)
            self._take(tracks, at, totals.messages, counts)
            yield
        sums = {name: [0, 0, 0, 0] for name in machine.vhosts}
        own, noted = [0, 0, 0, 0], NotedQueues()
        self._list_new(machine)
        kept = start = 0
        while start < len(self._queues):
            some = [one for one in self._queues[start : start + LOOK_EVERY] if not one.deleted]
            self._queues[kept : kept + len(some)] = some  # closes up over those that are gone
            start, kept = start + LOOK_EVERY, kept + len(some)
            self._take_queues(tracks, at, some, share, sums, own, noted)
            yield
        del self._queues[kept:]
        for vhost in list(machine.vhosts.values()):
            others = [exchange.tally for exchange in vhost.exchanges.values()]
            yield from self._take_plain(tracks, at, others)
        yield from self._take_plain(tracks, at, [one.tally for one in machine.channels.values()])
        by_vhost = {name: Depths(*counts) for name, counts in sums.items()}
        self.depths_of = {name: self.depths_of.get(name) or Tally() for name in by_vhost}
        for name, tally in self.depths_of.items():
            self._take(tracks, at, tally, by_vhost[name][:2])
        depths = Depths(*map(sum, zip(Depths(), *by_vhost.values(), strict=True)))
        interval = max(at - self._began, 1e-6)
        if self.sweeps:
            before = self.depths
            self.depth_rates = (
                (depths.ready - before.ready) / interval,
                (depths.unacked - before.unacked) / interval,
            )
        self._tracks, self.noted = tracks, noted
        self._end(at)
        self.depths, self.by_vhost, self.share = depths, by_vhost, Depths(*own)

    def _list_new(self, machine: Machine) -> None:
        """Add the queues created since the previous sweep. Copying a directory of a hundred
        thousand each time would hold the loop for milliseconds."""
        for vhost in machine.vhosts.values():
            for queue in reversed(vhost.queues.values()):
                if queue.number < self._listed:
                    break  # a directory is in order of creation
                self._queues.append(queue)
        self._listed = machine.next_queue

    def _take_queues(
        self, tracks: dict[Tally, Track], at: float, queues: list[Queue], share: Share,
        by_vhost: dict[str, list[int]], own: list[int], noted: NotedQueues,
    ) -> None:  # fmt: skip
        """Take some queues, note some, and sum up: by virtual host, and those reported here."""
        place, members = share
        known, counts_of = self._tracks, _counts_of
        for queue in queues:
            ready, unacked = len(queue.ready) + len(queue.returned), queue.unacked
            consumers, tally = len(queue.consumers), queue.tally
            sums = by_vhost.setdefault(queue.vhost.name, [0, 0, 0, 0])
            sums[0] += ready
            sums[1] += unacked
            sums[2] += 1
            sums[3] += consumers
            if members and queue.number % members == place:
                own[0] += ready
                own[1] += unacked
                own[2] += 1
                own[3] += consumers
            now = (*counts_of(tally), ready, unacked)
            if now != tally.sampled or tally in known:
                self._take(tracks, at, tally, now)
            if ready or queue.letters is not None:
                self._note(noted, tracks, at, queue, now)

    def _note(
        self, noted: NotedQueues, tracks: dict[Tally, Track], at: float, queue: Queue, now: Sample
    ) -> None:
        track, moved, grew = tracks.get(queue.tally), 0.0, 0
        if track is not None:
            minute = track.minute(at, now)
            moved, grew = sum([minute[place] for place in MOVED]), track.grew(now)
        known = at - self._since >= MINUTE_S
        noted.look(queue, now[READY], moved, grew, known=known)

    def _take_plain(
        self, tracks: dict[Tally, Track], at: float, tallies: list[Tally]
    ) -> Iterator[None]:
        for start in range(0, len(tallies), LOOK_EVERY):
            for tally in tallies[start : start + LOOK_EVERY]:
                self._take(tracks, at, tally, _counts_of(tally))
            yield

    def _take(self, tracks: dict[Tally, Track], at: float, tally: Tally, now: Sample) -> None:
        before = tally.sampled
        track = self._tracks.get(tally)
        if track is None:
            if now == before:
                return
            tally.sampled = now
            if not before:
                if not self.sweeps:
                    return  # of this machine nothing is known yet
                tally.changed_at = at
                before = (0,) * len(now)
                if now == before:
                    return
            track = Track(self._began, before)
        elif at - track.changed_at > MINUTE_S + STEP_S and now == before:
            return
        if now != before:
            tally.changed_at = at
        tally.sampled = now
        track.take(self._began, at, before, now, keep=self._keep or tally in self._watched)
        tracks[tally] = track
