"""A simple model of deduplicating queues: lists of keys, searched from the start.

It gives the bodies that each queue has taken, in order, and the number of repeats.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Sent(NamedTuple):
    """A publish, as its client sends it; "" is no key."""

    exchange: str
    queue: str
    key: str
    persistent: bool


class Noted(NamedTuple):
    """A key that a queue took, when, and whether a cold start drops it."""

    key: str
    time_us: int
    persistent: bool


@dataclass
class WindowModel:
    """One queue."""

    durable: bool
    size: int
    ttl_us: int  # 0: for ever
    length_max: int  # -1: unlimited; otherwise it refuses more
    noted: list[Noted] = field(default_factory=list)
    waiting: list[tuple[bytes, bool]] = field(default_factory=list)
    repeats: int = 0

    def publish(self, sent: Sent, body: bytes, horizon_us: int, now_us: int) -> bool:
        """False: it refuses the message."""
        if sent.key and self._knows(sent, now_us):
            self.repeats += 1
            return True
        if 0 <= self.length_max <= len(self.waiting):
            return False
        self.waiting.append((body, sent.persistent))
        if sent.key:
            self.noted.append(Noted(sent.key, horizon_us, sent.persistent))
            del self.noted[: -self.size]
        return True

    def _knows(self, sent: Sent, now_us: int) -> bool:
        """By the latest use of this key among the last ones, as many as the window."""
        same = [one for one in self.noted if one.key == sent.key]
        if not same:
            return False
        _, time_us, persistent = same[-1]
        is_over = bool(self.ttl_us) and time_us + self.ttl_us <= now_us
        return not is_over and (persistent or not sent.persistent)

    def purge(self) -> None:
        """What is sent again afterwards is new."""
        self.waiting.clear()
        self.noted.clear()

    def cold(self) -> None:
        """Non-persistent messages are gone."""
        self.waiting = [one for one in self.waiting if one[1]]
        self.noted = [one for one in self.noted if one.persistent]
