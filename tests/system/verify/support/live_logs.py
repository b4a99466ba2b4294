"""Members that write their logs while they are followed."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from broker.memberlog.records import Record
from broker.memberlog.writer import MemberLogWriter
from tests.system.verify.support.make_logs import LogMaker


class LiveWriters:
    """Writes the logs of a made history step by step, as their members would."""

    def __init__(self, maker: LogMaker, directory: Path, segment_bytes: int = 3000) -> None:
        self._left: dict[tuple[str, int], list[Record]] = {
            key: list(records) for key, records in maker.logs.items()
        }
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._logs: dict[tuple[str, int], MemberLogWriter] = {}

    def step(self, records: int, *incarnations: tuple[str, int]) -> bool:
        """Write this many more records of each incarnation (of all, by default); False when all are
        written.
        """
        for key in incarnations or tuple(self._left):
            left = self._left[key]
            if left and key not in self._logs:
                name, incarnation = key
                self._logs[key] = MemberLogWriter(
                    self._directory / name, "prod", "c1", name, incarnation, lambda: 1,
                    self._segment_bytes,
                )  # fmt: skip
            for record in left[:records]:
                self._logs[key].append(record)
            if key in self._logs:
                self._logs[key].flush()
            del left[:records]
        return any(self._left.values())

    def path(self, name: str, incarnation: int) -> Path:
        """Return the segment that an incarnation writes now."""
        return self._logs[name, incarnation].path


class InBackground(Thread):
    """Thread that steps until all is written or it is stopped."""

    def __init__(self, writers: LiveWriters, records: int, pause_seconds: float) -> None:
        super().__init__(daemon=True)
        self._writers, self._records, self._pause = writers, records, pause_seconds
        self._stop_it = Event()

    def run(self) -> None:
        """Write."""
        while self._writers.step(self._records) and not self._stop_it.wait(self._pause):
            pass

    def stop(self) -> None:
        """End it."""
        self._stop_it.set()
        self.join()
