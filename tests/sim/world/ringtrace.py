"""Writes a real member's ring trace for simulated members, so that `ringtrace` can show it."""

from __future__ import annotations

from pathlib import Path

from vsync.io.traced_driver import FLUSH_S, TraceFile
from vsync.totem.context import TRACED
from vsync.totem.events import Note, Output
from vsync.totem.node import Node
from vsync.totem.trace import fact
from vsync.types import Member

CLUSTER = "simulated"
ONLY_TRACED = TRACED | {"drop", "join_sent", "join_heard"}
"""Notes that are made only while a trace is on."""


class Recorder:
    """One process's part of its member's file, at virtual times."""

    def __init__(self, directory: Path, me: Member, core: object, now: float) -> None:
        self._now = self._flushed = now
        self._file = TraceFile(directory / f"{me.name}.trace", me, CLUSTER, lambda: self._now)
        self._file.open()
        inner = getattr(core, "core", core)  # behind its own clock
        if isinstance(inner, Node):
            inner.context.trace(True)

    def heard(self, outputs: list[Output], now: float) -> list[Output]:
        """Record outputs of the core; return those that also exist without a trace."""
        if now - self._flushed > FLUSH_S:
            self._file.flush()
            self._flushed = now
        self._now = now
        for output in outputs:
            found = fact(output)
            if found is not None:
                self._file.add(*found)
        return [o for o in outputs if not (isinstance(o, Note) and o.code in ONLY_TRACED)]

    def close(self) -> None:
        """End the recording, as the process or the run is over."""
        self._file.flush()
        self._file.close()
