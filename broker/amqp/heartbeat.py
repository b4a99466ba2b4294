"""Heartbeats both ways, as a value that the connection polls: it owns no timer."""


class Heartbeat:
    """Send at least twice per interval; a client that sends nothing for two intervals is gone.

    Any traffic counts as a heartbeat. While its socket is not read nothing from a client is
    received, so its silence does not count.
    """

    def __init__(self, interval_s: int, now: float) -> None:
        self.interval_s = interval_s  # 0: none
        self._is_reading = True
        self.received_at = now
        self.has_sent = False
        self._beat_at = now + interval_s / 2

    def start(self, now: float) -> None:
        self.received_at = now
        self._beat_at = now + self.interval_s / 2

    def reading(self, active: bool, now: float) -> None:
        if active and not self._is_reading:
            self.received_at = now
        self._is_reading = active

    def next_timer(self) -> float | None:
        if not self.interval_s:
            return None
        if not self._is_reading:
            return self._beat_at
        return min(self._beat_at, self.received_at + 2 * self.interval_s)

    def is_silent(self, now: float) -> bool:
        return (
            self.interval_s > 0
            and self._is_reading
            and now >= self.received_at + 2 * self.interval_s
        )

    def is_due(self, now: float) -> bool:
        """Whether half an interval passed without a byte sent by us."""
        if not self.interval_s or now < self._beat_at:
            return False
        was_silent = not self.has_sent
        self.has_sent = False
        self._beat_at = now + self.interval_s / 2
        return was_silent
