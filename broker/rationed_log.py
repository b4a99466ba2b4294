"""A rate-limited log: a limited number of lines of each kind per window, then only their count.

Without a limit, clients that connect a thousand times a second could fill the disk with log lines.
"""

from __future__ import annotations

from collections.abc import Callable

LINES = 20
WINDOW_S = 10.0
KINDS_MAX = 64


class _Window:
    """The lines of one kind written since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.left_out = 0


class RationedLog:
    """Writes with `log(kind, text)`; `clock` counts seconds. Call `wake` now and then."""

    def __init__(
        self,
        log: Callable[[str, str], None],
        clock: Callable[[], float],
        lines: int = LINES,
        window_s: float = WINDOW_S,
    ) -> None:
        self._log, self._clock = log, clock
        self._lines, self._window_s = lines, window_s
        self._windows: dict[str, _Window] = {}

    def __call__(self, kind: str, text: str) -> None:
        """Write one line, unless there were too many of its kind."""
        self.wake()
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= KINDS_MAX:
                kind = next(iter(self._windows))  # not distinguished further
            window = self._windows.setdefault(kind, _Window(self._clock()))
        if window.written < self._lines:
            window.written += 1
            self._log(kind, text)
        else:
            window.left_out += 1

    def leaves_out(self, kind: str) -> bool:
        """Whether the last line of this kind was left out, and the count is still to be written."""
        window = self._windows.get(kind)
        return window is not None and window.left_out > 0

    def wake(self) -> None:
        """Write the counts of lines left out in the windows that are over."""
        now = self._clock()
        for kind, window in list(self._windows.items()):
            if now - window.began > self._window_s:
                del self._windows[kind]
                if window.left_out:
                    self._log(
                        kind,
                        f"{window.left_out} more lines like the last {self._lines} ({kind}) were "
                        f"left out in {now - window.began:.0f} s",
                    )
