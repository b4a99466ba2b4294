"""Consumers that hold a message for too long lose their channel, as in RabbitMQ.

The member of the client decides. How long a delivery has been out is the time that passed at this
member; only the end of the channel is ordered (docs/decisions/0016-decide-once-at-the-origin.md).
Time in which this member does not serve does not count, because nobody could acknowledge then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from broker.machine.state import Channel, Held, Queue
from broker.timers.ticker import Clocked

LOOK_S = 0.5
"""Time between two looks at the same channel, by which a timeout may come late."""
CHANNELS_MAX = 500
"""Channels looked at in one step."""
MARKS_MAX = 64
"""Times kept of a channel, which bound by what fraction of itself a timeout may come late. Beyond
this every second one is dropped, so that long limits beside short ones come late by twice that
fraction."""
STEP_S_MAX = 1.0
"""No more than this counts of the time between two steps: if it was longer this process was paused,
and what clients sent before is read only after the step."""
REFUSED = 406


Refuse: TypeAlias = Callable[[int, int, int, str], None]


class Mark(NamedTuple):
    """Deliveries with a tag below this one were made before that time."""

    tag: int
    at: float


class Times(NamedTuple):
    """When the deliveries of one channel were made."""

    channel: Channel
    """Another one may have had its number before."""
    marks: deque[Mark]


class ConsumerTimeouts:
    """Looks at the channels of this member's clients, some of them at each step.

    `refuse` closes a channel: connection, channel, reply code and text. `default_s`: for queues
    without their own limit; 0: these have none.
    """

    def __init__(
        self,
        controller: Clocked,
        refuse: Refuse,
        default_s: float,
    ) -> None:
        self._controller, self._refuse, self._default_s = controller, refuse, default_s
        self._times: dict[tuple[int, int, int], Times] = {}
        self._to_look: list[tuple[int, int, int]] = []
        self._next_look = self._woke_at = 0.0

    def wake(self, now: float) -> None:
        """Called several times a second."""
        controller, machine = self._controller, self._controller.replica.machine
        paused_s, self._woke_at = now - self._woke_at - STEP_S_MAX, now
        if paused_s > 0:
            self._count_no_pause(paused_s)
        if not controller.serving:
            self._times.clear()
            return
        if not self._to_look and now >= self._next_look:
            self._next_look = now + LOOK_S
            self._to_look = list(machine.channels)
            for key in [key for key in self._times if key not in machine.channels]:
                del self._times[key]
        for key in self._to_look[-CHANNELS_MAX:]:
            channel = machine.channels.get(key)
            if channel is not None and channel.local:
                self._look(key, channel, now)
        del self._to_look[-CHANNELS_MAX:]

    def _count_no_pause(self, paused_s: float) -> None:
        for key, (channel, marks) in self._times.items():
            later = deque(Mark(tag, at + paused_s) for tag, at in marks)
            self._times[key] = Times(channel, later)

    def _look(self, key: tuple[int, int, int], channel: Channel, now: float) -> None:
        if not channel.unacked:
            self._times.pop(key, None)
            return
        limits = [self._limit_s(one.queue) for one in channel.consumers.values()]
        oldest, held = next(iter(channel.unacked.items()))
        limits.append(self._limit_s(held[0]))  # its consumer may be cancelled, or it was a get
        shortest_s = min((self._default_s or float("inf"), *limits))
        times = self._times.get(key)
        if times is None or times.channel is not channel:
            times = self._times[key] = Times(channel, deque())
        marks = times.marks
        while marks and marks[0].tag <= oldest:
            marks.popleft()
        newest = marks[-1] if marks else Mark(0, 0.0)
        if newest.tag < channel.next_tag and now - newest.at >= shortest_s / MARKS_MAX:
            marks.append(Mark(channel.next_tag, now))
        if len(marks) > MARKS_MAX:
            marks = deque(list(marks)[::2])
            self._times[key] = Times(channel, marks)
        if marks and now - marks[0].at >= shortest_s:
            self._find_overdue(key, channel, list(marks), now)

    def _find_overdue(
        self, key: tuple[int, int, int], channel: Channel, marks: list[Mark], now: float
    ) -> None:
        """Queues may have different limits."""
        place = 0
        for tag, held in channel.unacked.items():
            while place < len(marks) and marks[place].tag <= tag:
                place += 1
            if place == len(marks):
                return
            limit_s = self._limit_s(held[0])
            if now - marks[place].at >= limit_s:
                self._close(key, held, limit_s)
                return

    def _close(self, key: tuple[int, int, int], held: Held, limit_s: float) -> None:
        del self._times[key]
        _, conn, chan = key
        self._refuse(
            conn, chan, REFUSED,
            f"delivery acknowledgement on channel {chan} timed out. Timeout value used: "
            f"{round(limit_s * 1000)} ms. This timeout value can be configured, see consumers doc "
            "guide to learn more",
        )  # fmt: skip

    def _limit_s(self, queue: Queue) -> float:
        own_ms = queue.consumer_timeout_ms
        return own_ms / 1000 if own_ms > 0 else self._default_s or float("inf")
