"""Starts the process that compresses and drops closed segments of the member log.

One process at a time, started when a segment was closed and when the member first serves, as its
clock was compared with the others' by then; its work is counted and logged. If it cannot be started
the member continues: only disk space is at stake.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker.memberlog.archive import (
    COMPRESSED,
    DROPPED,
    DROPPED_UNVERIFIED,
    FAILED,
    KEPT_UNVERIFIED,
    ArchiveResult,
    command_line,
    is_due,
)
from broker.options.retention import Policy

log = logging.getLogger("qpidd.memberlog")
_ROOT = Path(__file__).resolve().parents[2]


class LogArchiver:
    """Runs `broker.memberlog.archive` for one directory."""

    def __init__(
        self,
        directory: Path,
        current: Callable[[], Path],
        policy: Policy,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`current` returns the segment being written."""
        self._directory, self._current, self._policy = directory, current, policy
        self._loop = loop
        self.clock_is_right: Callable[[], bool] = lambda: True
        """By a clock that is not, nothing is too old."""
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = self._stopped = False
        self._reported: set[tuple[str, str]] = (
            set()
        )  # what lasts, such as a full disk, is logged once
        self.counters = {
            "segments_closed": 0, "segments_compressed": 0, "segments_dropped": 0,
            "segments_dropped_unverified": 0, "segments_kept_unverified": 0, "bytes_saved": 0,
            "archive_failures": 0,
        }  # fmt: skip

    def closed(self, _path: Path) -> None:
        """A segment was closed."""
        self.counters["segments_closed"] += 1
        self.tend()

    def tend(self) -> None:
        """Archive all closed segments of the directory; if that is in progress, once more later."""
        if self._task is not None:
            self._again = True
        elif not self._stopped:
            self._task = self._loop.create_task(self._run())

    async def idle(self) -> None:
        """Wait until nothing is in progress."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """The member ends; unfinished work is redone at the next start."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
        await self.idle()

    async def _run(self) -> None:
        found: list[ArchiveResult] = []
        policy = self._policy if self.clock_is_right() else self._policy._replace(keep_s=0)
        try:
            code = await self._loop.run_in_executor(None, self._one_process, policy, found)
            kept = [did for did in found if did.what == KEPT_UNVERIFIED]
            self.counters["segments_kept_unverified"] = len(kept)
            self._reported &= {(did.file, did.why) for did in found}
            if code and not self._stopped:
                self.counters["archive_failures"] += 1
                log.error("the process that compresses the member log ended with status %d", code)
        except (OSError, RuntimeError) as error:  # no process, or no thread to start it
            self.counters["archive_failures"] += 1
            log.error("closed segments of the member log stay as they are: %s", error)
        finally:
            self._process = self._task = None
            if self._again:
                self._again = False
                self.tend()

    def _one_process(self, policy: Policy, found: list[ArchiveResult]) -> int:
        """On a worker thread: looking into the directory and starting a process read the disk."""
        current = self._current().name
        if not is_due(self._directory, current, policy) or self._stopped:
            return 0
        paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        command = command_line(self._directory, current, policy, time.time())
        with subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        ) as process:
            self._process = process
            if self._stopped:
                process.kill()
            assert process.stdout is not None
            for line in process.stdout:
                result = ArchiveResult(**json.loads(line))
                self._loop.call_soon_threadsafe(self._take, result, found)
        return process.returncode

    def _take(self, did: ArchiveResult, found: list[ArchiveResult]) -> None:
        counters = self.counters
        found.append(did)
        is_new = (did.file, did.why) not in self._reported
        if did.what in (KEPT_UNVERIFIED, FAILED):
            self._reported.add((did.file, did.why))
        counters["bytes_saved"] += did.before - did.after
        if did.what == COMPRESSED:
            counters["segments_compressed"] += 1
            log.debug("%s compressed: %d of %d bytes", did.file, did.after, did.before)
        elif did.what == DROPPED:
            counters["segments_dropped"] += 1
            log.info("%s dropped: kept for long enough, and verified", did.file)
        elif did.what == DROPPED_UNVERIFIED:
            counters["segments_dropped_unverified"] += 1
            log.info("%s dropped: kept for long enough; it was never verified", did.file)
        elif did.what == KEPT_UNVERIFIED:
            if is_new:
                log.warning(
                    "%s is due to be dropped and stays: no verified point names it", did.file
                )
        elif did.what == FAILED:
            counters["archive_failures"] += 1
            if is_new:
                log.error("%s cannot be compressed or dropped: %s", did.file, did.why)
