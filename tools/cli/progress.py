"""Progress line of a long job on stderr; nothing is shown unless stderr is a terminal.

Notes (a broker lost, a broker found) are always printed unless --quiet is given; the running count
is printed only when stderr is a terminal.
"""

from __future__ import annotations

import os
import sys
import time

from tools.cli.streams import complain

REFRESH_SECONDS = 0.5


class Progress:
    """Count, rate, and notes of one job."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = name
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._began = self._shown_at = time.monotonic()
        self._shown_count = 0
        self._width = 0

    def seconds(self) -> float:
        """Since the job began."""
        return time.monotonic() - self._began

    def show(self, count: int, more: str = "") -> None:
        """Refresh the running line, if it is time."""
        if not self._live:
            return
        now = time.monotonic()
        passed = now - self._shown_at
        if passed < REFRESH_SECONDS:
            return
        rate = (count - self._shown_count) / passed
        self._shown_at, self._shown_count = now, count
        line = f"{self._name}: {count:,} messages, {rate:,.0f}/s  {more}"
        # A line that wraps could not be refreshed: each would stay, and the screen scroll.
        wide = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        line = line[: wide - 1]
        complain("\r" + line.ljust(self._width), end="")
        self._width = len(line)

    def note(self, text: str) -> None:
        """Print one sentence worth keeping."""
        if self._quiet:
            return
        self.clear()
        complain(f"{self._name}: {text}")

    def clear(self) -> None:
        """Wipe the running line."""
        if self._width:
            complain("\r" + " " * self._width + "\r", end="")
            self._width = 0
