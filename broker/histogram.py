"""A histogram of durations: counts up to each bound, and quantiles of the latest durations."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

BOUNDS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATEST = 1000
"""Number of durations from which a quantile is taken."""


class Histogram:
    """Counts of durations in seconds; the last count is for durations above all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self._latest: deque[float] = deque(maxlen=LATEST)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self._latest.append(seconds)

    def quantile(self, share: float) -> float:
        """Return the duration that this share of the latest durations did not exceed; 0 before
        the first."""
        latest = sorted(self._latest)
        return latest[min(int(share * len(latest)), len(latest) - 1)] if latest else 0.0
