"""What is written of alarms: that one began and is over, rationed where it comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.rationed_log import RationedLog

LINES, WINDOW_S = 6, 60.0
"""So many of one subject in this time: whoever reads the log knows by then that it flaps."""


class AlarmLog:
    """Compares the alarms with those of the time before, and writes what is new."""

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = RationedLog(lambda _, text: warn(text), clock, LINES, WINDOW_S)
        self._reported: Mapping[str, str] = {}

    def report(self, alarms: Mapping[str, str]) -> None:
        """All that are in force, by subject."""
        for subject, text in alarms.items():
            if subject not in self._reported:
                self._write(subject, text)
        for subject in self._reported:
            if subject not in alarms:
                self._write(subject, f"the {subject} is right again")
        self._reported = alarms
        self._write.wake()
