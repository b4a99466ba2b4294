"""Heartbeats both ways, as a value that is asked: it owns no timer."""


class Heartbeat:
    """Speak at least twice per interval; a client that says nothing for two intervals is gone.

    Any traffic counts as a heartbeat. While its socket is not read a client cannot be heard, so
    its silence is not held against it.
    """

    __slots__ = ("_beat_at", "_interval_s", "_is_reading", "heard_at", "spoke")

    def __init__(self, interval_s: int, now: float) -> None:
        self._interval_s = interval_s  # 0: none
        self._is_reading = True
        self.heard_at = now
        self.spoke = False
        self._beat_at = now + interval_s / 2

    def start(self, now: float) -> None:
        self.heard_at = now
        self._beat_at = now + self._interval_s / 2

    def reading(self, active: bool, now: float) -> None:
        if active and not self._is_reading:
            self.heard_at = now
        self._is_reading = active

    def next_timer(self) -> float | None:
        if not self._interval_s:
            return None
        if not self._is_reading:
            return self._beat_at
        return min(self._beat_at, self.heard_at + 2 * self._interval_s)

    def is_silent(self, now: float) -> bool:
        return (
            self._interval_s > 0
            and self._is_reading
            and now >= self.heard_at + 2 * self._interval_s
        )

    def is_due(self, now: float) -> bool:
        """Whether half an interval passed without a word from us."""
        if not self._interval_s or now < self._beat_at:
            return False
        was_silent = not self.spoke
        self.spoke = False
        self._beat_at = now + self._interval_s / 2
        return was_silent
